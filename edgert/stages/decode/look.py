"""What a model's outputs look like, and which decoder says that it can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgert.stages.decode.decoder import Shapes, Size, all_cells

STRIDES = (8, 16, 32)
MOST_QUERIES = 1000
"""More boxes than any network of queries has; fewer than one of priors has."""
BODIES = (16, 17, 18)
"""Keypoints of a body in MPII, COCO and OpenPose."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Why a decoder can read a model's outputs.

    Attributes:
        reason: in words.
        weight: 1 possible, 2 likely, 3 or more fits in every number.
        classes: how many classes the outputs would then tell apart; None when shapes do not say.
    """

    reason: str
    weight: int
    classes: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a model's outputs before it runs.

    Attributes:
        shapes: without the batch dimension; 0 for a dynamic dimension.
        names: of the outputs, in lower case, with spaces between.
        network: the input's (width, height); None when dynamic or not an image.
    """

    shapes: Shapes
    names: str
    network: Size | None

    @property
    def table(self) -> tuple[int, int] | None:
        """Rows and columns, where there is one output and it has just these."""
        one = self.shapes[0] if len(self.shapes) == 1 else ()
        return (one[0], one[1]) if len(one) == 2 else None

    @property
    def maps(self) -> tuple[tuple[int, int, int, str], ...]:
        """Channels, height, width and order: every way to see maps in the one output."""
        one = self.shapes[0] if len(self.shapes) == 1 else ()
        if len(one) == 2:
            return ((1, one[0], one[1], "no channels"),)
        if len(one) != 3:
            return ()
        first = (one[0], one[1], one[2], "nchw")
        return (first, (one[2], one[0], one[1], "nhwc")) if 0 < one[2] < min(one[:2]) else (first,)

    @property
    def vector(self) -> int | None:
        """How many numbers, where there is one output of one dimension, others being 1."""
        sizes = [size for size in self.shapes[0] if size != 1] if len(self.shapes) == 1 else [0]
        if len(sizes) > 1 or 0 in sizes:
            return None
        return sizes[0] if sizes else 1

    def cells(self, strides: Sequence[int] = STRIDES) -> int | None:
        """Cells of all levels of a pyramid over the input; None when its size is not known."""
        return None if self.network is None else all_cells(self.network, strides)

    def stride(self, height: int, width: int) -> float | None:
        """Network pixels per cell of a map of that size; None when it does not have the network's shape."""
        if self.network is None or height < 2 or width < 2:
            return None
        across, down = self.network[0] / width, self.network[1] / height
        return across if abs(across - down) < 0.1 * down else None

    def covers(self, height: int, width: int, order: str) -> bool:
        """Whether such a map can lie over the whole image, at an eighth of its size at least."""
        stride = self.stride(height, width)
        return (order == "nchw" and not height and not width) or (stride is not None and stride <= 8)
