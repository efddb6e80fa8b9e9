"""Image files: one way to read them, whatever their names are, upright, and without a word of OpenCV's own."""

from pathlib import Path

import cv2
import numpy as np

from edgert.runtime.frame import U8

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
_MOST_BYTES = 2**31 - 1
"""OpenCV takes no longer buffer."""


def is_image(path: Path) -> bool:
    """Whether a file begins as images do that can be read here. Looks at its first bytes only."""
    try:
        with path.open("rb") as file:  # OpenCV takes names that are UTF-8 text only
            return path.is_file() and bool(cv2.haveImageReader(f"/proc/self/fd/{file.fileno()}"))
    except OSError:
        return False


def read_image(path: Path) -> U8 | None:
    """A (height, width, 3) uint8 BGR image turned by its EXIF or TIFF tag; None when it cannot be read."""
    return read_pixels(path, cv2.IMREAD_COLOR)


def read_pixels(path: Path, how: int = cv2.IMREAD_UNCHANGED) -> U8 | None:
    """An image as OpenCV decodes it; None when it cannot be read.

    It is decoded from memory. OpenCV opens no name that is not UTF-8 text, and reads no TIFF file that is turned by a
    quarter; of a buffer it does both.

    Args:
        how: a sum of ``cv2.IMREAD_``...; by default (height, width) or (height, width, channels) of uint8 or uint16.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        data = np.frombuffer(path.read_bytes(), np.uint8)
        image: U8 | None = cv2.imdecode(data, how) if data.size else None  # type: ignore[assignment]
    except (OSError, cv2.error):
        # No longer there; larger than OpenCV's limit on pixels, or a header that lies about it.
        return None
    return image
