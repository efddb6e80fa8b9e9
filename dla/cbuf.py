"""The convolution buffer: 16 banks of 256 entries that one kernel and a slice of its input must fit in together."""

from __future__ import annotations

_BANK_BYTES = 32768
_BANK_ENTRIES = 256
_LINE_BYTES = 128  # a kernel is padded to these
_ATOM_BYTES = 32  # channels of one entry's quarter


def banks(channels: int, width: int, kernel: tuple[int, int], dilation_h: int = 1, *, int8: bool) -> int:
    """Banks that a convolution needs at least.

    Formula of the TensorRT 8.4 guide, https://github.com/HeKun-NVIDIA/TensorRT-Developer_Guide_in_Chinese; NVIDIA's
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
    """Division, rounded up."""
    return -(-value // unit)
