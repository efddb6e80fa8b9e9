"""Masks on disk: PNG files whose pixels are class indices."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from edgert.errors import ConfigError
from edgert.runtime import Segmentation
from edgert.runtime.frame import U8

VOID = 255
"""Pixels that are not judged; the index PASCAL VOC gives to edges and doubtful places."""
_EDGE_PX = 1.0  # rounding of a region's border


def read_mask(path: Path) -> U8:
    """(h, w) class indices of a grey or palette PNG.

    Raises:
        ConfigError: unreadable, a colour picture, or indices above 255.
    """
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if mask is None:
        raise ConfigError(f"cannot read the mask {str(path)!r}", why="it is missing, damaged or no picture")
    if mask.ndim == 3:
        return _indices(np.asarray(mask[..., :3]), path)
    if mask.dtype != np.uint8 and int(mask.max(initial=0)) > VOID:
        raise ConfigError(f"mask {str(path)!r} has indices up to {int(mask.max())}", why=f"at most {VOID} are read")
    return mask.astype(np.uint8, copy=False)


def spread(found: Segmentation, true: U8, path: Path) -> tuple[U8, U8]:
    """A found mask at the resolution of the true one, and the part of that which it covers; two of one shape.

    Raises:
        ConfigError: the true mask is not of the picture's size.
    """
    height, width = true.shape
    if found.region[2] > width + _EDGE_PX or found.region[3] > height + _EDGE_PX:
        raise ConfigError(
            f"mask {str(path)!r} is {width}x{height}",
            why=f"its picture reaches to {found.region[2]:g},{found.region[3]:g}",
            fix="masks have the size of their pictures",
        )
    x1, y1, x2, y2 = (round(edge) for edge in found.region)
    part = true[max(y1, 0) : y2, max(x1, 0) : x2]
    size = part.shape[1], part.shape[0]
    return cv2.resize(found.mask, size, interpolation=cv2.INTER_NEAREST).astype(np.uint8, copy=False), part


def _indices(picture: U8, path: Path) -> U8:
    """Palette indices from the colours that OpenCV made of them; of equal colours the first."""
    palette = _palette(path.read_bytes())
    if palette is None:
        raise ConfigError(
            f"mask {str(path)!r} is a colour picture",
            why="a mask holds class indices: a grey PNG, or one with a palette",
            fix="convert colours to indices first",
        )
    codes, first = np.unique(palette.astype(np.int64) @ (1 << 16, 1 << 8, 1), return_index=True)
    wanted = picture[..., ::-1].astype(np.int64) @ np.array((1 << 16, 1 << 8, 1))
    found: U8 = first[np.searchsorted(codes, wanted)].astype(np.uint8)
    return found


def _palette(data: bytes) -> U8 | None:
    """(N, 3) uint8 RGB of a PNG's PLTE chunk (W3C PNG specification, 11.2.2), if its pixels are indices into it."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[25] != 3:  # 25: colour type in IHDR
        return None
    place = 8
    while place + 8 <= len(data):
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        if kind == b"PLTE":
            return np.frombuffer(data, np.uint8, length, place + 8).reshape(-1, 3)
        place += length + 12
    return None
