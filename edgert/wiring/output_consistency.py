"""How well what a model writes or paints hangs together: text and images, beside the answers of :mod:`evidence`.

Text that is read right is read again when the edges are cut off, and is not read in an image with nothing in it. An
image that is made right keeps the edges and colors of the photo that it was made of, and is not cut off at its limits.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import combinations

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime import OutputImage, Text
from edgert.runtime.frame import U8

F32 = npt.NDArray[np.float32]
_SIDE = 128  # pixels across and down at which images are compared: more is texture, which image models may change
_MOST = 255


def text_parts(views: Sequence[Text], control: Text) -> tuple[float, float, float]:
    """Return the first view's score, the text that the views share, and the control's score; 0 to 1."""
    pairs = [same_text(*pair) * float(np.sqrt(pair[0].score * pair[1].score)) for pair in combinations(views, 2)]
    return views[0].score, float(np.mean(pairs)), control.score if control.text else 0.0


def same_text(first: Text, second: Text) -> float:
    """Return the fraction of two texts' characters, or class numbers, that are the same in the same order."""
    if not first.text or not second.text:
        return 0.0
    return SequenceMatcher(None, first.text.split(), second.text.split(), autojunk=False).ratio()


def image_parts(made: OutputImage, photo: U8) -> tuple[float, float, float]:
    """Return the edges that an image keeps, those with its colors, and the fraction cut off at its limits; 0 to 1.

    Args:
        made: the model's image.
        photo: (h, w, 3) BGR, its source.
    """
    left, top, right, bottom = (max(round(value), 0) for value in made.region)
    small, source = _small(made.pixels), _small(photo[top:bottom, left:right])
    edges = max(_correlation(_edges(small), _edges(source)), 0.0)
    colors = max(_correlation(_colors(small), _colors(source)), 0.0)
    ends = [float(((one == 0) | (one == _MOST)).mean()) for one in (made.pixels, photo)]
    cut = max(ends[0] - ends[1], 0.0)
    return edges, (edges + colors) / 2, cut


def same_image_made(first: OutputImage, second: OutputImage) -> float:
    """Return the correlation of two images' pixels, color by color; 0 at least."""
    return max(_correlation(*(_small(one.pixels).astype(np.float32) for one in (first, second))), 0.0)


def _small(image: U8) -> U8:
    if not image.size:
        return np.zeros((_SIDE, _SIDE, 3), np.uint8)
    small: U8 = cv2.resize(image, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    return small


def _edges(image: U8) -> F32:
    gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(np.float32)
    found: F32 = np.hypot(cv2.Sobel(gray, cv2.CV_32F, 1, 0), cv2.Sobel(gray, cv2.CV_32F, 0, 1)).astype(np.float32)
    return found


def _colors(image: U8) -> F32:
    """Return the colors without lightness."""
    return cv2.cvtColor(image, cv2.COLOR_BGR2Lab).astype(np.float32)[..., 1:]


def _correlation(first: F32, second: F32) -> float:
    """Return Pearson's correlation; 0 where either is constant."""
    first, second = first - first.mean(), second - second.mean()
    spread = float(np.sqrt((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / spread if spread else 0.0
