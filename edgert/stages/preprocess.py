"""Frames into the engine's bound input tensor: scaled, colored, normalized, laid out, in place."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.errors import ModelError
from edgert.runtime import Frame
from edgert.stages.crop import Geometry
from edgert.stages.resampling import Resampler, place

Array = npt.NDArray[Any]
_STAND_IN = {"float32": None, "uint8": None, "int8": None, "float16": np.int16}  # cv2.LUT moves fp16 as plain 16 bits


class Preprocessor:
    """Fills the rows of one bound input tensor.

    A gray level has 256 values, so mean, std, range and dtype become one table per channel: normalizing is a look-up
    that reads a byte and writes the tensor's element, for every dtype the same way.

    Args:
        config: what the model wants to see.
        tensor: (N, C, H, W) or (N, H, W, C), of float32, float16, uint8 or int8; written in place, owned by the caller.
        where: the model, for messages.

    Raises:
        ModelError: the tensor is not an image of the configured color and layout.
    """

    def __init__(self, config: InputConfig, tensor: Array, where: str = "") -> None:
        self.config = config
        channels = 1 if config.color == "gray" else 3
        self.layout = layout_of(tensor.shape, config.layout, channels, where)
        if tensor.dtype.name not in _STAND_IN:
            raise ModelError(
                f"the model wants {tensor.dtype} pixels", why=f"edgert writes {', '.join(_STAND_IN)}", where=where
            )
        stand_in = _STAND_IN[tensor.dtype.name]
        self._tensor = tensor.view(stand_in) if stand_in else tensor
        self.rows = int(tensor.shape[0])
        height, width = tensor.shape[2:] if self.layout == "nchw" else tensor.shape[1:3]
        self.network = (int(width), int(height))
        self._resampler = Resampler(width, height, config.color, config.interpolation)
        values = {limited: _values(config, channels, tensor.dtype, limited) for limited in (False, True)}
        self._values = values[False]
        # 0–255 as they are, as YOLOX wants them: converting is cheaper than looking up.
        self._plain = stand_in is None and bool((self._values == np.arange(256)).all())
        self._tables = {limited: self._table(table) for limited, table in values.items()}
        self._planes = np.empty((channels, height * width), np.uint8)
        self._bordered: dict[int, tuple[int, int, int, int]] = {}

    def into(self, row: int, frame: Frame) -> Geometry:
        """Writes a frame into one row of the tensor; returns the way back to source pixels.

        Raises:
            StageError: the frame does not fit (``resize: none``).
        """
        placement = place(frame, self.network, self.config)
        if self._bordered.get(row) != placement.rectangle:
            self._fill_border(row)
            self._bordered[row] = placement.rectangle
        image = self._resampler.image(placement.frame, placement.width, placement.height)
        tables = self._tables[self._resampler.gray_is_limited(frame)]
        left, top, width, height = placement.rectangle
        rows, columns = slice(top, top + height), slice(left, left + width)
        if self.layout == "nhwc":
            out = self._tensor[row, rows, columns]
            cv2.LUT(image, tables[0] if image.ndim == 2 else tables, dst=out[..., 0] if image.ndim == 2 else out)
        else:
            self._look_up_planes(image, tables, self._tensor[row, :, rows, columns])
        return placement.geometry

    def _look_up_planes(self, image: npt.NDArray[np.uint8], tables: Array, out: Array) -> None:
        if image.ndim == 2:
            cv2.LUT(image, tables[0], dst=out[0])
            return
        height, width = image.shape[:2]
        planes = [plane[: height * width].reshape(height, width) for plane in self._planes]
        cv2.split(image, planes)
        for channel, plane in enumerate(planes):
            if self._plain:
                np.copyto(out[channel], plane)
            else:
                cv2.LUT(plane, tables[channel], dst=out[channel])

    def _fill_border(self, row: int) -> None:
        values = self._values[:, self.config.pad]
        self._tensor[row] = values[:, None, None] if self.layout == "nchw" else values

    def _table(self, values: Array) -> Array:
        """As cv2.LUT wants it: one table per plane, or one of interleaved channels."""
        channels = len(values)
        interleaved = self.layout == "nhwc" and channels > 1
        return np.ascontiguousarray(values.T).reshape(256, 1, channels) if interleaved else values


def _values(config: InputConfig, channels: int, dtype: np.dtype[Any], limited: bool) -> Array:
    """(channels, 256): the tensor's value for every gray level; bit patterns for fp16."""
    levels = np.arange(256, dtype=np.float64)
    if limited:  # ITU-R BT.601 §2.5.3: black at 16, white at 235
        levels = np.clip(np.rint((levels - 16) * 255 / 219), 0, 255)
    mean, std = (np.broadcast_to(np.asarray(value, np.float64), channels) for value in (config.mean, config.std))
    values = (levels - mean[:, None]) / std[:, None]
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        values = np.clip(np.rint(values), bounds.min, bounds.max)
    table = np.ascontiguousarray(values.astype(dtype))
    return table.view(np.int16) if dtype == np.float16 else table


def layout_of(shape: tuple[int, ...], wanted: str, channels: int, where: str = "") -> str:
    """``nchw`` or ``nhwc`` for an input shape. Raises ModelError if the shape is no image of ``channels``."""
    fits = {"nchw": len(shape) == 4 and shape[1] == channels, "nhwc": len(shape) == 4 and shape[3] == channels}
    found = [layout for layout, ok in fits.items() if ok and wanted in ("auto", layout)]
    if not found:
        color = "1 channel (color: gray)" if channels == 1 else "3 channels"
        raise ModelError(
            f"the model's input {list(shape)} does not fit an image of {color} as {wanted}",
            why="an image input is [N, C, H, W] or [N, H, W, C]",
            where=where,
            fix="set input: color and layout to what the model was exported with",
        )
    return found[0]
