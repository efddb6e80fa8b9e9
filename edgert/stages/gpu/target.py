"""Where a picture goes: an engine's input tensor on the GPU, in whatever order the engine wants its numbers.

Layouts of a DLA: NVIDIA TensorRT, "DLA Supported I/O Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgert.errors import ModelError

TensorLayout = Literal["nchw", "nhwc", "dla_linear", "dla_hwc4", "chw16", "chw32", "strided"]
ValueType = Literal["float32", "float16", "uint8", "int8"]
ITEM_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "uint8": 1, "int8": 1}
_DLA_ROW_BYTES = 64
_VECTORS = {"chw16": 16, "chw32": 32}


@dataclass(frozen=True, slots=True)
class Target:
    """The shape of a batch of pictures in memory.

    Attributes:
        layout: nchw and nhwc as ONNX has them; dla_linear is nchw with rows of a multiple of 64 bytes; dla_hwc4 is nhwc
            of 1 or 4 channels with such rows; chw16 and chw32 store 16 or 32 channels of a pixel next to each other;
            strided is whatever an engine tells, which may be any of these.
        dtype: NumPy's name.
        rows: pictures in the batch.
        width, height: pixels.
        channels: 1 or 3.
        strides: of picture, channel, row and pixel, in numbers.
        vector: numbers that a pixel takes where its channels lie together; 1 where they do not.
        nbytes: all of it, padding included.
    """

    layout: TensorLayout
    dtype: ValueType
    rows: int
    width: int
    height: int
    channels: int
    strides: tuple[int, int, int, int]
    vector: int
    nbytes: int

    @property
    def group(self) -> int:
        """Channels that one store writes; 1 where each has an address of its own."""
        return 4 if self.vector >= 4 and self.vector % 4 == 0 else 1

    def aligned(self, step: int) -> bool:
        """Whether ``step`` neighbours of a row may be stored at once, the tensor's address being aligned."""
        sizes = (self.width, *self.strides[:3])
        return self.group == 1 and self.strides[3] == 1 and all(size % step == 0 for size in sizes)


def target(layout: TensorLayout, dtype: ValueType, rows: int, width: int, height: int, channels: int = 3) -> Target:
    """The target of a layout. Raises ModelError for a type that the layout does not have."""
    item = ITEM_BYTES[dtype]
    if layout in ("nchw", "dla_linear"):
        row = width if layout == "nchw" else _padded(width, item)
        strides, vector = (channels * height * row, height * row, row, 1), 1
    elif layout in ("nhwc", "dla_hwc4"):
        vector = 4 if layout == "dla_hwc4" and channels == 3 else channels
        row = width * vector if layout == "nhwc" else _padded(width * vector, item)
        strides = (height * row, 1, row, vector)
    else:
        vector = _VECTORS[layout]
        strides = (height * width * vector, 1, width * vector, vector)
    wanted = {"chw16": ("float16",), "chw32": ("int8",)}.get(layout, ("float16", "int8"))
    if layout not in ("nchw", "nhwc") and dtype not in wanted:
        raise ModelError(f"a {layout} input of {dtype}", why=f"TensorRT has {layout} for {' and '.join(wanted)} only")
    return Target(layout, dtype, rows, width, height, channels, strides, vector, rows * strides[0] * item)


def strided(
    dtype: ValueType, shape: tuple[int, int, int, int], strides: tuple[int, int, int, int], nbytes: int
) -> Target:
    """The target of an (N, C, H, W) tensor in an engine's own layout.

    Args:
        strides: of each dimension in numbers. Where channels have stride 1, that of a pixel is the vector they lie in.
        nbytes: all of it, padding included.
    """
    rows, channels, height, width = shape
    vector = strides[3] if strides[1] == 1 and strides[3] > 1 else 1
    return Target("strided", dtype, rows, width, height, channels, strides, vector, nbytes)


def _padded(numbers: int, item: int) -> int:
    per_row = _DLA_ROW_BYTES // item
    return -(-numbers // per_row) * per_row
