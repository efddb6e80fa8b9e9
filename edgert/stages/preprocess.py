"""Preprocessing on the CPU: frames scaled, converted and normalized into the engine's bound input tensor.

Every plane is scaled to network size first, and color is converted then. At 1080p this reads 3 MB of planes and writes
nothing larger than the network's input. Converting first would write 6 MB of BGR per frame, most of it discarded.
Chroma is scaled straight to the size of the luma. Scaling it to half of that, for OpenCV's own 4:2:0 conversion, is
cheaper but loses color detail.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.errors import ModelError, StageError
from edgert.runtime import Color, Frame
from edgert.runtime.frame import U8, bgr_matrix, origin_of
from edgert.stages.crop import F32, Geometry

Array = npt.NDArray[Any]
_STAND_IN = {"float32": None, "uint8": None, "int8": None, "int32": None, "float16": np.int16}
"""Tensor types → type that cv2.LUT writes instead, because it does not support fp16; None: the type itself."""

# Placement of an image in the network's input.


@dataclass(frozen=True, slots=True)
class Placement:
    """Used part of a frame, and its place in the network's input.

    Attributes:
        rectangle: left, top, width and height in network pixels.
        geometry: map from network pixels to source pixels.
    """

    frame: Frame
    rectangle: tuple[int, int, int, int]
    geometry: Geometry


def place(frame: Frame, network: tuple[int, int], config: InputConfig) -> Placement:
    """Place a frame in a network input of (width, height) pixels.

    Raises StageError: ``resize: none`` and the frame has another size.
    """
    net_w, net_h = network
    width, height, left, top = net_w, net_h, 0, 0
    if config.resize == "letterbox":
        ratio = min(net_w / frame.width, net_h / frame.height)
        width, height = max(round(frame.width * ratio), 1), max(round(frame.height * ratio), 1)
        if config.anchor == "center":
            left, top = (net_w - width) // 2, (net_h - height) // 2
    elif config.resize == "center_crop":  # the centered part with the network's aspect, scaled by ``crop``
        across = min(frame.width, frame.height * net_w / net_h) * config.crop
        down = across * net_h / net_w
        x, y = round((frame.width - across) / 2), round((frame.height - down) / 2)
        frame = frame.crop(x, y, x + max(round(across), 1), y + max(round(down), 1))
    elif config.resize == "none" and (frame.width, frame.height) != network:
        raise StageError(
            f"a frame of {frame.width}x{frame.height} does not fit a model input of {net_w}x{net_h}",
            why="resize: none does not scale frames",
            where=f"stage {frame.stream!r}",
            fix="write resize: letterbox, stretch or center_crop",
        )
    scale_x, scale_y = frame.width / width, frame.height / height
    x, y = origin_of(frame)
    bounds = float(x), float(y), float(x + frame.width), float(y + frame.height)
    geometry = Geometry(scale_x, scale_y, x - left * scale_x, y - top * scale_y, network, bounds)
    return Placement(frame, (left, top, width, height), geometry)


INTERPOLATIONS = {
    "linear": cv2.INTER_LINEAR,
    "area": cv2.INTER_AREA,
    "nearest": cv2.INTER_NEAREST,
    "cubic": cv2.INTER_CUBIC,
}


def yuyv_pairs(packed: U8) -> U8:
    """Return a view of YUYV (h, w, 2) as (h, w // 2, 4), even with padded rows."""
    height, width = packed.shape[:2]
    return np.lib.stride_tricks.as_strided(packed, (height, width // 2, 4), (packed.strides[0], 4, 1))


@lru_cache(maxsize=8)
def yuv_matrix(color: Color, order: str) -> F32:
    """Return the (3, 4) float32 matrix from (Y, U, V, 1) to ``order`` ("rgb" or "bgr"), all 0–255."""
    rows = bgr_matrix(color).astype(np.float32)
    return rows if order == "bgr" else np.ascontiguousarray(rows[::-1])


class Resampler:
    """Scaler and color converter with scratch memory for images up to the network's size, allocated once."""

    def __init__(self, width: int, height: int, order: str, interpolation: str) -> None:
        self.order, self._how = order, INTERPOLATIONS[interpolation]
        pixels = width * height
        self._yuv = np.empty(pixels * 3, np.uint8)
        self._packed = np.empty(pixels * 3, np.uint8)
        self._image = np.empty(pixels * 3, np.uint8)
        self._yuyv_planes: tuple[U8, U8, U8] | None = None

    def image(self, frame: Frame, width: int, height: int) -> U8:
        """Return the frame as (height, width[, 3]) uint8 in ``order``, valid until the next call.

        It is a view of scratch memory, or of the frame if nothing has to change. Gray images of limited-range YUV keep
        their limited range; see :meth:`gray_is_limited`.
        """
        if frame.format in ("i420", "nv12", "yuyv"):
            return self._from_yuv(frame, width, height)
        channels = 1 if frame.format == "gray" else 3
        small = self._resize(frame.planes[0], self._view(self._packed, height, width, channels))
        if frame.format == self.order:
            return small
        out = self._view(self._image, height, width, 1 if self.order == "gray" else 3)
        code = getattr(cv2, f"COLOR_{frame.format}2{self.order}".upper())
        return cv2.cvtColor(small, code, dst=out)  # type: ignore[return-value]

    def gray_is_limited(self, frame: Frame) -> bool:
        """Return whether a gray image of this frame spans 16–235 instead of 0–255."""
        is_yuv = frame.format in ("i420", "nv12", "yuyv")
        return self.order == "gray" and is_yuv and not frame.color.full_range

    def _from_yuv(self, frame: Frame, width: int, height: int) -> U8:
        planes = self._split_yuyv(frame.planes[0]) if frame.format == "yuyv" else frame.planes
        luma = self._resize(planes[0], self._yuv[: width * height].reshape(height, width))
        if self.order == "gray":
            return luma
        pixels = width * height
        if frame.format == "nv12":
            pair = self._resize(planes[1], self._yuv[pixels : 3 * pixels].reshape(height, width, 2))
            yuv = self._view(self._packed, height, width, 3)
            cv2.mixChannels([luma, pair], [yuv], [0, 0, 1, 1, 2, 2])
        else:
            u = self._resize(planes[1], self._yuv[pixels : 2 * pixels].reshape(height, width))
            v = self._resize(planes[2], self._yuv[2 * pixels : 3 * pixels].reshape(height, width))
            yuv = cv2.merge([luma, u, v], dst=self._view(self._packed, height, width, 3))  # type: ignore[assignment]
        image = self._view(self._image, height, width, 3)
        return cv2.transform(yuv, yuv_matrix(frame.color, self.order), dst=image)  # type: ignore[return-value]

    def _split_yuyv(self, packed: U8) -> tuple[U8, U8, U8]:
        """Return YUYV as three planes, because OpenCV cannot resize it packed."""
        height, width = packed.shape[:2]
        if self._yuyv_planes is None or self._yuyv_planes[0].shape != (height, width):
            half = (height, width // 2)
            self._yuyv_planes = np.empty((height, width), np.uint8), np.empty(half, np.uint8), np.empty(half, np.uint8)
        luma, u, v = self._yuyv_planes
        cv2.extractChannel(packed, 0, dst=luma)
        cv2.mixChannels([yuyv_pairs(packed)], [u, v], [1, 0, 3, 1])
        return luma, u, v

    def _resize(self, plane: U8, out: U8) -> U8:
        """Return the plane resized into ``out``, or the plane itself if it has that size."""
        if plane.shape == out.shape:
            return plane
        size = (out.shape[1], out.shape[0])
        if self._how == cv2.INTER_CUBIC:
            with _without_ipp():
                return cv2.resize(plane, size, dst=out, interpolation=self._how)  # type: ignore[return-value]
        return cv2.resize(plane, size, dst=out, interpolation=self._how)  # type: ignore[return-value]

    @staticmethod
    def _view(memory: U8, height: int, width: int, channels: int) -> U8:
        flat = memory[: height * width * channels]
        return flat.reshape(height, width) if channels == 1 else flat.reshape(height, width, channels)


@contextmanager
def _without_ipp() -> Iterator[None]:
    """Use OpenCV without Intel's IPP in this thread.

    IPP's cubic interpolation differs from OpenCV's own by one level in every thirtieth pixel. Without IPP, a network
    gets the same image on a laptop, a Jetson and a GPU.
    """
    before = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    try:
        yield
    finally:
        cv2.ipp.setUseIPP(before)


def set_opencv_threads(count: int) -> int:
    """Set how many threads OpenCV uses in this process (negative: its default); return the former number."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(count)
    return before


class Preprocessor:
    """Writer of the rows of one bound input tensor.

    A channel has 256 levels, so mean, std, range and dtype become one table per channel. Normalizing is a look-up that
    reads a byte and writes the tensor's element, in the same way for every dtype.

    Args:
        config: ``input:`` of the model.
        tensor: (N, C, H, W) or (N, H, W, C), of float32, float16, uint8, int8 or int32; written in place, owned by the
            caller.
        where: place of the model, for messages.

    Raises ModelError: the tensor is not an image of the configured color and layout.
    """

    def __init__(self, config: InputConfig, tensor: Array, where: str = "") -> None:
        self.config = config
        channels = 1 if config.color == "gray" else 3
        self.layout = layout_of(tensor.shape, config.layout, channels, where)
        if tensor.dtype.name not in _STAND_IN:
            why, fix = f"edgert writes {', '.join(_STAND_IN)}", "export the model with an input of float32 or float16"
            raise ModelError(f"the model takes {tensor.dtype} pixels", why=why, where=where, fix=fix)
        check_levels(config, tensor.dtype.name, where)
        stand_in = _STAND_IN[tensor.dtype.name]
        self._tensor = tensor.view(stand_in) if stand_in else tensor
        self.rows = int(tensor.shape[0])
        height, width = tensor.shape[2:] if self.layout == "nchw" else tensor.shape[1:3]
        self.network = (int(width), int(height))
        self._resampler = Resampler(width, height, config.color, config.interpolation)
        values = {limited: _level_table(config, channels, tensor.dtype, limited) for limited in (False, True)}
        self._values = values[False]
        # Pixels without normalization, as YOLOX takes them: converting is cheaper than a look-up.
        self._plain = stand_in is None and bool((self._values == np.arange(256)).all())
        self._tables = values  # as cv2.LUT takes them: one table per plane, or one of interleaved channels
        if self.layout == "nhwc" and channels > 1:
            self._tables = {
                limited: np.ascontiguousarray(table.T).reshape(256, 1, channels) for limited, table in values.items()
            }
        self._planes = np.empty((channels, height * width), np.uint8)
        self._bordered: dict[int, tuple[int, int, int, int]] = {}

    def into(self, row: int, frame: Frame) -> Geometry:
        """Write a frame into one row of the tensor; return the map to source pixels.

        Raises StageError: the frame does not fit (``resize: none``).
        """
        placement = place(frame, self.network, self.config)
        if self._bordered.get(row) != placement.rectangle:
            border = self._values[:, self.config.pad]
            self._tensor[row] = border[:, None, None] if self.layout == "nchw" else border
            self._bordered[row] = placement.rectangle
        left, top, width, height = placement.rectangle
        image = self._resampler.image(placement.frame, width, height)
        tables = self._tables[self._resampler.gray_is_limited(frame)]
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


_FEWEST_LEVELS = 32
_CLIPPED = 0.1


def check_levels(config: InputConfig, dtype: str, where: str) -> str:
    """Return a warning about the gray levels that an input of integers cannot hold; empty where it holds nearly all.

    Raises ModelError: hardly any level is left, because mean and std are those of a float input.
    """
    if dtype not in _STAND_IN or np.dtype(dtype).kind not in "iu":
        return ""
    mean, std = (np.asarray(value, np.float64)[:, None] for value in (config.mean, config.std))
    values, bounds = np.rint((np.arange(256) - mean) / std), np.iinfo(dtype)
    inside = (values >= bounds.min) & (values <= bounds.max)
    left = min(len(np.unique(np.clip(row, bounds.min, bounds.max))) for row in values)
    scale = "mean: 128, std: 1" if dtype == "int8" else "mean: 0, std: 1"
    fix = f"write {scale}: a model that takes {dtype} normalizes its input itself"
    if left < _FEWEST_LEVELS:
        raise ModelError(
            f"input: mean and std leave {left} of 256 gray levels",
            why=f"values from {(0 - mean[0, 0]) / std[0, 0]:.3g} to {(255 - mean[0, 0]) / std[0, 0]:.3g} are rounded "
            f"to the model's {dtype}",
            where=where,
            fix=fix,
        )
    clipped = float(1 - inside.mean(axis=1).min())
    lost = f"input: mean and std put {clipped:.0%} of the gray levels outside the range of {dtype}; {fix}"
    return lost if clipped > _CLIPPED else ""


def _level_table(config: InputConfig, channels: int, dtype: np.dtype[Any], limited: bool) -> Array:
    """Return (channels, 256) tensor values for the levels 0–255; bit patterns for fp16."""
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
    """Return ``nchw`` or ``nhwc`` for an input shape. Raises ModelError if it is not an image of ``channels``."""
    fits = {"nchw": len(shape) == 4 and shape[1] == channels, "nhwc": len(shape) == 4 and shape[3] == channels}
    found = [layout for layout, ok in fits.items() if ok and wanted in ("auto", layout) and 0 not in shape]
    if not found:
        color = "1 channel (color: gray)" if channels == 1 else "3 channels"
        raise ModelError(
            f"the model's input {list(shape)} does not fit an image of {color} as {wanted}",
            why="an image input is [N, C, H, W] or [N, H, W, C]",
            where=where,
            fix="set input: color and layout to what the model was exported with, "
            "or feed other channels with edgert.load_engine",
        )
    return found[0]
