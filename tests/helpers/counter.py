"""Reads back what ``synthetic:counter`` drew."""

import numpy as np

from edgert.runtime.frame import U8
from edgert.stages.source.python_images import BITS, BLANK_GRAY, SQUARE_PX


def read_counter(image: U8) -> int:
    """Return the index that ``synthetic:counter`` put into a BGR, RGB or luma image; it survives compression."""
    gray = image if image.ndim == 2 else image[..., 1]
    middle = gray[SQUARE_PX // 2, SQUARE_PX // 2 : BITS * SQUARE_PX : SQUARE_PX]
    return int(np.packbits(middle > BLANK_GRAY).view(">u4")[0])
