"""The run-time compiler, with a library that answers as NVIDIA's does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import Nvrtc

LOG = 'preprocess.cu(12): error: identifier "half4" is undefined\n1 error detected\n'


class Library:
    """libnvrtc 12.6 that compiles to ``cubin``, or fails with a log."""

    def __init__(self, compiles: bool = True) -> None:
        self.compiles, self.programs, self.options = compiles, 0, []
        self.nvrtcGetErrorString = _Text(b"NVRTC_ERROR_OUT_OF_MEMORY")

    options: list[bytes]

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 12, 6
        return 0

    def nvrtcCreateProgram(self, program: Any, source: bytes, name: bytes, *_: object) -> int:
        self.programs += 1
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:
        self.options = list(options)
        return 0 if self.compiles else 6

    def nvrtcGetProgramLogSize(self, program: Any, size: Any) -> int:
        size._obj.value = len(LOG) + 1
        return 0

    def nvrtcGetProgramLog(self, program: Any, text: Any) -> int:
        ctypes.memmove(text, LOG.encode(), len(LOG))
        return 0

    def nvrtcGetCUBINSize(self, program: Any, size: Any) -> int:
        size._obj.value = 5
        return 0

    def nvrtcGetCUBIN(self, program: Any, text: Any) -> int:
        ctypes.memmove(text, b"cubin", 5)
        return 0

    def nvrtcDestroyProgram(self, program: Any) -> int:
        self.programs -= 1
        return 0


class _Text:
    """A C function that gives a text."""

    restype: Any = None

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __call__(self, code: int) -> bytes:
        return self._text


def test_compiles_for_one_architecture() -> None:
    library = Library()
    compiler = Nvrtc(library)
    assert compiler.version == (12, 6)
    assert compiler.compile("code", "k.cu", ("--gpu-architecture=sm_87",)) == b"cubin"
    assert library.options == [b"--gpu-architecture=sm_87"] and library.programs == 0


def test_a_kernel_that_does_not_compile_keeps_the_log() -> None:
    library = Library(compiles=False)
    with pytest.raises(BuildError, match=r"the kernel preprocess.cu does not compile for --std=c\+\+17") as caught:
        Nvrtc(library).compile("code", "preprocess.cu", ("--std=c++17",))
    assert caught.value.why == LOG.rstrip("\n") and caught.value.where == "NVRTC 12.6"
    assert "same CUDA version as the driver" in caught.value.fix and library.programs == 0


def test_a_compiler_that_fails_itself_says_why() -> None:
    library = Library()
    library.nvrtcCreateProgram = lambda *_: 1  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="nvrtcCreateProgram failed") as caught:
        Nvrtc(library).compile("code", "k.cu", ())
    assert caught.value.why == "NVRTC_ERROR_OUT_OF_MEMORY"
