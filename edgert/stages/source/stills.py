"""Image files, read in one way: whatever their names, rotated by their metadata, without messages of OpenCV."""

import logging
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np

from edgert.runtime.frame import U8

log = logging.getLogger("edgert.source")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
_MOST_BYTES = 2**31 - 1
"""Largest buffer of OpenCV."""
_HEAD_BYTES = 1 << 16
"""First bytes of a PNG file, where an animation is declared before the first image."""


def is_image(path: Path) -> bool:
    """Return whether a file begins like an image that OpenCV reads."""
    try:
        if not path.is_file():  # opening a named pipe would block
            return False
        with path.open("rb") as file:
            return bool(cv2.haveImageReader(_open_path(file)))
    except OSError:
        return False


def _open_path(file: BinaryIO) -> str:
    """Return a path of an open file for OpenCV, which opens only names in UTF-8."""
    return f"/proc/self/fd/{file.fileno()}"


def more_images(path: Path) -> str:
    """Return how to read all images of a file, of which only the first is read; empty for a file with one image."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if head[:8] == b"\x89PNG\r\n\x1a\n" and b"acTL" in head.partition(b"IDAT")[0]:
                return "rename it to .apng to play it as a video"
            # https://developers.google.com/speed/webp/docs/riff_container
            if head[8:16] == b"WEBPVP8X" and head[20] & 2:
                return "convert it to .gif or .mp4 to play it as a video"
            if head[:4] in (b"II*\0", b"MM\0*") and cv2.imcount(_open_path(file)) > 1:
                return "save each of its pages as a file"
    except (OSError, IndexError, cv2.error):  # decoding reports the damage
        pass
    return ""


def read_image(path: Path) -> U8 | None:
    """Return a (height, width, 3) uint8 BGR image, rotated by its EXIF or TIFF tag; None when it cannot be read."""
    return read_pixels(path, cv2.IMREAD_COLOR)


def read_pixels(path: Path, how: int = cv2.IMREAD_UNCHANGED) -> U8 | None:
    """Return an image as OpenCV decodes it with flags ``how`` (``cv2.IMREAD_…``); None when it cannot be read.

    By default it is (height, width) or (height, width, channels) of uint8 or uint16. It is decoded from memory, because
    OpenCV cannot open file names that are not UTF-8, nor read TIFF files that are rotated by 90°.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        data = np.frombuffer(path.read_bytes(), np.uint8)
        image: U8 | None = cv2.imdecode(data, how) if data.size else None  # type: ignore[assignment]
    except (OSError, cv2.error) as error:  # the file is gone, or its header declares too many pixels
        if "MAX_IMAGE" in str(error):
            log.warning("%s is not read, as it has too many pixels: resize it, or set OPENCV_IO_MAX_IMAGE_PIXELS", path)
        return None
    return image
