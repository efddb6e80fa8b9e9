"""Table of every numeric limit, with the public page that states it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GUIDE = "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/dla-layer-restrictions.html"
HEADER = "https://github.com/NVIDIA/TensorRT/blob/main/include/NvInfer.h"
GUIDE_84 = "https://github.com/HeKun-NVIDIA/TensorRT-Developer_Guide_in_Chinese"
MATRIX = "https://github.com/NVIDIA/Deep-Learning-Accelerator-SW/blob/main/operators/README.md"
ELEMENTWISE = "https://docs.nvidia.com/deeplearning/tensorrt/archives/tensorrt-1030/operators/docs/ElementWise.html"
REDUCE = "https://docs.nvidia.com/deeplearning/tensorrt/operators/docs/Reduce.html"
SLICING = "https://docs.nvidia.com/deeplearning/tensorrt/operators/docs/Slice.html"
UNARY = "https://docs.nvidia.com/deeplearning/tensorrt/operators/docs/Unary.html"
TYPED = "https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/inference-library/dla-strongly-typed-networks.html"
ISSUE_QDQ = "https://github.com/NVIDIA/TensorRT/issues/2222"
ISSUE_RESHAPE = "https://github.com/NVIDIA-AI-IOT/jetson_dla_tutorial/issues/3"
ISSUE_SCALE = "https://github.com/Deci-AI/super-gradients/issues/1760"

PAGES: Mapping[str, str] = MappingProxyType(
    {
        "guide": GUIDE,
        "header": HEADER,
        "guide of 8.4": GUIDE_84,
        "operator matrix": MATRIX,
        "ElementWise": ELEMENTWISE,
        "Reduce": REDUCE,
        "Slice": SLICING,
        "Unary": UNARY,
        "typed networks": TYPED,
        "TensorRT#2222": ISSUE_QDQ,
        "jetson_dla_tutorial#3": ISSUE_RESHAPE,
        "super-gradients#1760": ISSUE_SCALE,
    }
)
"""Addresses of the pages, by their names in docs/dla.md."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Closed range of integers, and its source."""

    low: int
    high: int
    source: str

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "general.batch": Limit(1, 4096, GUIDE),
        "general.dimension": Limit(1, 8192, GUIDE),
        "general.loadables": Limit(0, 16, GUIDE),
        "conv.kernel": Limit(1, 32, GUIDE),
        "conv.stride": Limit(1, 8, GUIDE),
        "conv.padding": Limit(0, 31, GUIDE),
        "conv.dilation": Limit(1, 32, GUIDE),
        "conv.channels": Limit(1, 8192, GUIDE),
        "conv.groups": Limit(1, 8192, GUIDE),
        "conv.cbuf": Limit(0, 16, GUIDE_84),
        "deconv.kernel": Limit(1, 32, HEADER),
        "deconv.stride": Limit(1, 32, HEADER),
        "deconv.square": Limit(1, 22, HEADER),
        "deconv.channels": Limit(1, 8192, HEADER),
        "pool.window": Limit(1, 8, HEADER),
        "pool.stride": Limit(1, 16, HEADER),
        "pool.padding": Limit(0, 7, HEADER),
        "clip.ceiling": Limit(1, 127, GUIDE),
        "resize.nearest": Limit(1, 32, HEADER),
        "resize.linear": Limit(1, 4, HEADER),
        "softmax.exact": Limit(1, 8192, HEADER),
        "softmax.approximate": Limit(1, 1024, HEADER),
    }
)
"""Allowed range by rule."""

DECONV_LONG = (64, 96, 128)
"""Further lengths of one side of a deconvolution's kernel and stride where the other side is 1; NvInfer.h."""
LRN_WINDOWS = (3, 5, 7, 9)
"""Windows of a local response normalization; the guide's table of layers."""
CBUF_SURE = 13
"""Most banks with which a convolution is sure to fit.

The formula allows 16, but TensorRT 8.5.2 refused a convolution with 16 on Orin
(https://github.com/NVIDIA/TensorRT/issues/3499)."""
LOCAL_BYTES = 2**30
"""Bytes that all inner tensors of a loadable must stay below: the local DRAM pool's default,
https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/inference-library/dla-memory-pools.html."""
GLOBAL_BYTES = 2**29
"""Bytes that all weights of a loadable must stay below: the global DRAM pool's default; the same page."""


# The convolution buffer has 16 banks of 256 entries. One kernel and a slice of its input must fit into it together.

_BANK_BYTES = 32768
_BANK_ENTRIES = 256
_LINE_BYTES = 128  # a kernel is padded to a multiple of these
_ATOM_BYTES = 32  # bytes of channels in a quarter of an entry


def banks(channels: int, width: int, kernel: tuple[int, int], dilation_h: int = 1, *, int8: bool) -> int:
    """Return the least number of banks that a convolution needs.

    Formula of the TensorRT 8.4 guide, https://github.com/HeKun-NVIDIA/TensorRT-Developer_Guide_in_Chinese. NVIDIA's
    FAQ, https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, says that TensorRT applies such a check.

    Args:
        channels: of the input that one kernel reads, so those of a group.
        width: of the input, in pixels.
        kernel: height and width.
        dilation_h: distance between the kernel's rows.
        int8: otherwise FP16.
    """
    size = 1 if int8 else 2
    kernel_bytes = _up(channels * kernel[0] * kernel[1] * size, _LINE_BYTES) * _LINE_BYTES
    slice_entries = _up(_up(channels * size, _ATOM_BYTES) * width, 4)
    rows = (kernel[0] - 1) * dilation_h + 1
    return _up(kernel_bytes, _BANK_BYTES) + _up(slice_entries * rows, _BANK_ENTRIES)


def _up(value: int, unit: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // unit)
