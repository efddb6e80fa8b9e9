"""Where an image goes, by the names of layouts: TensorRT's own beside ONNX's.

Layouts of a DLA: NVIDIA TensorRT, "DLA Supported I/O Formats". dla_linear is nchw with rows of a multiple of 64 bytes;
dla_hwc4 is nhwc of 1 or 4 channels with such rows; chw16 and chw32 store 16 or 32 channels of a pixel together.
"""

from typing import Literal

from edgert.stages.gpu.gpu_preprocess import ITEM_BYTES, Target, ValueType, padded_target

TensorLayout = Literal["nchw", "nhwc", "dla_linear", "dla_hwc4", "chw16", "chw32"]
_DLA_ROW_BYTES = 64
_VECTORS = {"chw16": 16, "chw32": 32}


def target(layout: TensorLayout, dtype: ValueType, rows: int, width: int, height: int, channels: int = 3) -> Target:
    item = ITEM_BYTES[dtype]
    if layout in ("nchw", "dla_linear"):
        row = width if layout == "nchw" else _padded(width, item)
        strides = (channels * height * row, height * row, row, 1)
    elif layout in ("nhwc", "dla_hwc4"):
        vector = 4 if layout == "dla_hwc4" and channels == 3 else channels
        row = width * vector if layout == "nhwc" else _padded(width * vector, item)
        strides = (height * row, 1, row, vector)
    else:
        vector = _VECTORS[layout]
        strides = (height * width * vector, 1, width * vector, vector)
    return padded_target(dtype, (rows, channels, height, width), strides, rows * strides[0] * item)


def _padded(numbers: int, item: int) -> int:
    per_row = _DLA_ROW_BYTES // item
    return -(-numbers // per_row) * per_row
