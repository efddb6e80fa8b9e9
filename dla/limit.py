"""Numeric limits of the DLA, with the public page that states each one."""

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
"""Name in docs/dla.md → address of the page."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A closed range of integers, and its source."""

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
"""Rule → allowed range."""

DECONV_LONG = (64, 96, 128)
"""Further lengths of one side of a deconvolution's kernel or stride if the other side is 1; from NvInfer.h."""
LRN_WINDOWS = (3, 5, 7, 9)
"""Windows of a local response normalization, from the guide's table of layers."""
CBUF_SURE = 13
"""Largest number of banks with which a convolution certainly fits.

The formula allows 16, but TensorRT 8.5.2 refused a convolution with 16 on Orin
(https://github.com/NVIDIA/TensorRT/issues/3499)."""
LOCAL_BYTES = 2**30
"""Default size of the local DRAM pool. The inner tensors of a loadable must be smaller in total:
https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/inference-library/dla-memory-pools.html."""
GLOBAL_BYTES = 2**29
"""Default size of the global DRAM pool, from the same page. The weights of a loadable must be smaller in total."""


# The convolution buffer has 16 banks of 256 entries. It must hold one kernel and a slice of its input together.

_BANK_BYTES = 32768
_BANK_ENTRIES = 256
_LINE_BYTES = 128  # a kernel is padded to a multiple of this size
_ATOM_BYTES = 32  # size of the channels in a quarter of an entry


def banks(channels: int, width: int, kernel: tuple[int, int], dilation_h: int = 1, *, int8: bool) -> int:
    """Return the smallest number of banks that a convolution needs.

    Formula of the TensorRT 8.4 guide, https://github.com/HeKun-NVIDIA/TensorRT-Developer_Guide_in_Chinese. NVIDIA's
    FAQ, https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, says that TensorRT applies such a check.

    Args:
        channels: input channels that one kernel reads, that is, those of one group.
        width: width of the input in pixels.
        kernel: height and width of the kernel.
        dilation_h: distance between the kernel's rows.
        int8: whether the convolution runs in INT8 instead of FP16.
    """
    size = 1 if int8 else 2
    kernel_bytes = _ceil_div(channels * kernel[0] * kernel[1] * size, _LINE_BYTES) * _LINE_BYTES
    slice_entries = _ceil_div(_ceil_div(channels * size, _ATOM_BYTES) * width, 4)
    rows = (kernel[0] - 1) * dilation_h + 1
    return _ceil_div(kernel_bytes, _BANK_BYTES) + _ceil_div(slice_entries * rows, _BANK_ENTRIES)


def _ceil_div(value: int, unit: int) -> int:
    return -(-value // unit)
