"""Images seen ten ways: the middle and four corners, and their mirror images.

Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural Networks", section 4.1.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from edgert.dataset import FileDataset, open_images
from edgert.runtime import Frame

WAYS = tuple((x, y, mirrored) for x, y in ((0, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)) for mirrored in (False, True))
"""Where the middle moves, in sixteenths of the short side, and whether the image is mirrored."""


@dataclass(frozen=True)
class Views:
    """Every image of a dataset in all :data:`WAYS`, one after the other: a dataset itself."""

    images: FileDataset

    def __len__(self) -> int:
        return len(self.images) * len(WAYS)

    def name(self, index: int) -> str:
        return self.images.name(index // len(WAYS))

    def frame(self, index: int) -> Frame:
        """A view; what is made up at its edges lies outside the middle seven eighths of its short side."""
        x, y, mirrored = WAYS[index % len(WAYS)]
        image = cv2.imread(str(self.images.paths[index // len(WAYS)]))
        height, width = image.shape[:2]
        step = min(height, width) // 16
        wide = cv2.copyMakeBorder(image, step, step, step, step, cv2.BORDER_REFLECT_101)
        view = wide[step * (1 + y) :, step * (1 + x) :][:height, :width]
        return open_images([np.ascontiguousarray(view[:, ::-1] if mirrored else view)]).frame(0)

    def digest(self) -> str:
        return f"{len(WAYS)} views of {self.images.digest()}"
