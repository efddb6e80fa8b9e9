"""Checks that arrays from outside are pixels in one of the layouts that a frame may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.errors import StageError, nearest
from edgert.runtime.frame import U8, PixelFormat

_CHANNELS: dict[PixelFormat, tuple[int, ...]] = {
    "bgr": (3,),
    "rgb": (3,),
    "gray": (1,),
    "yuyv": (2,),
    "nv12": (1, 2),
    "i420": (1, 1, 1),
}


def as_planes(array: Any, format: PixelFormat, where: str, *, copy: bool = False) -> tuple[U8, ...]:
    """The planes of ``array`` as uint8 arrays on the same memory, or on memory of their own with ``copy``.

    Raises:
        StageError: unknown format, no array, not uint8, wrong shape, or pixels that do not lie side by side.
    """
    if format not in _CHANNELS:
        hint = nearest(str(format), _CHANNELS)
        raise StageError(f"unknown format {format!r}{hint}", why=f"known: {', '.join(_CHANNELS)}", where=where)
    channels = _CHANNELS[format]
    parts: Sequence[Any] = [array] if len(channels) == 1 else array
    if len(channels) > 1 and not (isinstance(array, (tuple, list)) and len(array) == len(channels)):
        raise StageError(f"{format} takes a sequence of {len(channels)} planes", where=where)
    planes = tuple(_as_uint8(part, where) for part in parts)
    height, width = planes[0].shape[:2] if planes[0].ndim >= 2 else (0, 0)
    for number, (plane, depth) in enumerate(zip(planes, channels, strict=True)):
        rows, columns = (height, width) if number == 0 else ((height + 1) // 2, (width + 1) // 2)
        _check_shape(plane, (rows, columns) if depth == 1 else (rows, columns, depth), format, number, where)
    if copy:
        return tuple(plane.copy() for plane in planes)
    for plane, depth in zip(planes, channels, strict=True):
        _check_rows(plane, depth, where)
    return planes


def _as_uint8(part: Any, where: str) -> U8:
    if hasattr(part, "__array_interface__"):
        array: npt.NDArray[Any] = np.asarray(part)
    elif hasattr(part, "__dlpack__"):
        array = _from_dlpack(part, where)
    else:
        raise StageError(
            f"cannot take a {type(part).__name__} as pixels",
            why="it offers neither __array_interface__ nor DLPack",
            where=where,
            fix="submit a NumPy array or a CPU tensor",
        )
    if array.dtype != np.uint8:
        raise StageError(
            f"pixels must be uint8, not {array.dtype}",
            why="sources give bytes from 0 to 255; mean and std belong to the model's input",
            where=where,
            fix="array.astype(numpy.uint8), scaled to 0-255 before",
        )
    return array


def _from_dlpack(part: Any, where: str) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.from_dlpack(part)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise StageError(
            f"cannot share a {type(part).__name__} without copying",
            why=str(error),
            where=where,
            fix="bring it to the CPU first, like tensor.cpu()",
        ) from error
    return array


def _check_shape(plane: U8, wanted: tuple[int, ...], format: str, number: int, where: str) -> None:
    if plane.shape != wanted or 0 in wanted:
        names = {2: "(height, width)", 3: f"(height, width, {wanted[-1]})"}[len(wanted)]
        size = f", here {wanted}" if number else ""
        raise StageError(
            f"plane {number} of a {format} frame has shape {plane.shape}",
            why=f"expected {names}{size}",
            where=where,
            fix="give pixels as height, width, channels; or another format=",
        )


def _check_rows(plane: U8, depth: int, where: str) -> None:
    side_by_side = plane.strides[-1] == 1 and plane.strides[1] == depth and plane.strides[0] >= plane.shape[1] * depth
    if not side_by_side:
        raise StageError(
            f"the pixels of a row do not lie side by side (strides {plane.strides})",
            why="the array is a flipped, transposed or strided view, and reading it would copy it in secret",
            where=where,
            fix="copy=True, or numpy.ascontiguousarray(array) before",
        )
