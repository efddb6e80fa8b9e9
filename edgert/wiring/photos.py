"""Photos, and views of them on which right answers must agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.dataset.images import FileDataset, ImageDataset, VideoDataset, open_images
from edgert.errors import ConfigError
from edgert.files import replace_bytes
from edgert.memory import Counter, lend
from edgert.runtime import Frame, Result
from edgert.runtime.frame import U8
from edgert.stages.draw import Overlay
from edgert.wiring.check_report import CheckReport

PHOTO_LIMIT = 16
"""Largest number of photos used; larger folders are sampled."""
_FIRST_FRAMES, _FRAMES = 600, 4
"""Number of a video's first frames, all of which may be decoded, and number of photos among them."""
_SIDE_PX = 1920  # larger photos are shrunk, so that sixteen of them fit in memory
_CONTROL_SIDE_PX = 512
_CUT_FRACTION = 0.1  # fraction of width and height that a shifted or middle view loses
_MIRRORED, _MIDDLE = (0, 0, 0, 0, True), (1, 1, 1, 1, False)
_CUTS = {
    "classify": (_MIRRORED, _MIDDLE, (0, 0, 2, 2, False), (2, 2, 0, 0, True)),
    "embed": (_MIRRORED, _MIDDLE, (0, 0, 2, 2, False), (2, 2, 0, 0, True)),
    "text": (_MIDDLE, (0, 0, 2, 2, False), (2, 2, 0, 0, False)),
    "image": (),
}
"""Task → views: cuts at left, top, right and bottom in halves of :data:`_CUT_FRACTION`, and whether it is mirrored.
Answers without a position must also agree on shifted views. Mirrored text cannot be read. Images are compared with the
photo itself."""


ReadPhoto = tuple[Path, U8]
"""Path of an image or of the video that has it, and the image: (h, w, 3) uint8 BGR."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An image made from a photo, with the mapping of its pixels to those of the photo.

    Attributes:
        frame: image of the view.
        left, top: position in the photo of the view's first pixel, before mirroring.
        mirrored: whether left and right are swapped.
    """

    frame: Frame
    left: int = 0
    top: int = 0
    mirrored: bool = False

    def boxes(self, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return (N, 4) boxes of the view in pixels of the photo."""
        found: npt.NDArray[np.float32] = boxes.copy()
        if self.mirrored:
            found[:, [0, 2]] = self.frame.width - found[:, [2, 0]]
        found += np.array([self.left, self.top] * 2, np.float32)
        return found

    def columns(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return columns of the photo in pixels of the view; they may lie outside of it."""
        inside = x - self.left
        return self.frame.width - inside if self.mirrored else inside


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photo with its views.

    Attributes:
        path: path of the file.
        image: (h, w, 3) uint8 BGR.
        views: views of the same content; the first is the photo itself.
        control: image with the photo's colors and texture but no content; what a model finds there is chance.
    """

    path: Path
    image: U8
    views: tuple[View, ...]
    control: View


def read_photos(images: Sequence[str | Path], limit: int = PHOTO_LIMIT) -> list[ReadPhoto]:
    """Read images, images of folders and frames of videos, at most ``limit``, evenly sampled.

    Images are (h, w, 3) uint8 BGR, upright, at most 1920 pixels wide and high.

    Raises ConfigError: a path does not exist, a folder has no image, or a file is not an image. Raises StageError: a
    video cannot be read.
    """
    if not images:
        raise ConfigError("no image was given", fix="--images photo.jpg, a folder of them, or a video")
    every = list[tuple[ImageDataset, int]]()
    for image in images:
        opened = open_images(image, limit=limit, within=_FIRST_FRAMES)
        step = max(len(opened) // _FRAMES, 1) if isinstance(opened, VideoDataset) else 1
        every += [(opened, index) for index in range(0, len(opened), step)]
    chosen = [every[n] for n in sorted(set(np.linspace(0, len(every) - 1, min(len(every), limit)).astype(int)))]
    return [(_path_in(dataset, index), _image_of(dataset.frame(index))) for dataset, index in chosen]


def _path_in(dataset: ImageDataset, index: int) -> Path:
    """Return the path of an image's file, or of the video that it is a frame of."""
    if isinstance(dataset, FileDataset):
        return dataset.paths[index]
    return dataset.path if isinstance(dataset, VideoDataset) else Path(dataset.name(index))


def view_cuts(verb: str) -> tuple[tuple[int, int, int, int, bool], ...]:
    """Return the cuts of a photo's views on which answers of a task must agree; see :data:`_CUTS`."""
    return _CUTS.get(verb, (_MIRRORED, _MIDDLE))


def make_photo(path: Path, image: U8, control: U8, verb: str) -> Photo:
    """Return a photo with the views of :func:`view_cuts`."""
    height, width = image.shape[:2]
    dx, dy = int(width * _CUT_FRACTION), int(height * _CUT_FRACTION)
    views = [View(_frame(image))]
    for left, top, right, bottom, mirrored in view_cuts(verb):
        x1, y1, x2, y2 = left * dx // 2, top * dy // 2, width - right * dx // 2, height - bottom * dy // 2
        part = image[y1:y2, x1:x2]
        views.append(View(_frame(np.ascontiguousarray(part[:, ::-1] if mirrored else part)), x1, y1, mirrored))
    return Photo(path, image, tuple(views), View(_frame(control)))


def scramble_phase(image: U8) -> U8:
    """Return an image with the same spectrum and random phases: same colors and texture, no object, at most 512 px.

    The phase carries the content of an image (Oppenheim and Lim, "The Importance of Phase in Signals", 1981).
    """
    height, width = image.shape[:2]
    ratio = min(1.0, _CONTROL_SIDE_PX / max(height, width))
    size = max(round(width * ratio), 1), max(round(height * ratio), 1)
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(np.float64)
    noise = np.random.default_rng(0).standard_normal(small.shape[:2])
    phase = np.exp(1j * np.angle(np.fft.rfft2(noise)))[..., None]
    made = np.fft.irfft2(np.fft.rfft2(small, axes=(0, 1)) * phase, s=small.shape[:2], axes=(0, 1))
    spread = small.std(axis=(0, 1)) / np.maximum(made.std(axis=(0, 1)), 1e-6)
    made = (made - made.mean(axis=(0, 1))) * spread + small.mean(axis=(0, 1))
    shuffled: U8 = np.clip(np.rint(made), 0, 255).astype(np.uint8)
    return shuffled


def _frame(image: U8) -> Frame:
    height, width = image.shape[:2]
    return Frame("photo", 0, 0, 0, width, height, "bgr", (image,), lend(image, Counter()))


def _image_of(frame: Frame) -> U8:
    """Return a frame's image, at most 1920 pixels wide and high, and release the frame."""
    image = frame.to_bgr()
    frame.lease.release()
    ratio = _SIDE_PX / max(image.shape[:2])
    if ratio < 1:
        size = max(round(frame.width * ratio), 1), max(round(frame.height * ratio), 1)
        image = cast("U8", cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    return image


# The image of a check's result.


def draw_best_answer(report: CheckReport) -> U8:
    """Return (h, w, 3) uint8 BGR: a copy of the first photo with the best setting's answer drawn on it."""
    image: U8 = report.image.copy()
    elements = ("boxes", "labels", "masks", "keypoints")
    Overlay(elements).paint(image, Result(_frame(report.image), {"best": report.record}))
    return image


def save_image(report: CheckReport, path: Path) -> None:
    """Write the image of :func:`draw_best_answer` as PNG or JPEG, by the name's ending.

    Raises ConfigError: the name has another ending. Raises ArtifactError: the file cannot be written.
    """
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise ConfigError(f"cannot write an image named {path.name!r}", fix="end its name in .png or .jpg")
    _, data = cv2.imencode(path.suffix.lower(), draw_best_answer(report))
    replace_bytes(path, data.tobytes())
