"""The run-time compiler, with a library that answers as NVIDIA's does."""

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edgert.errors import BuildError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Nvrtc, nvrtc
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.cuda_double import CudaDouble

module = sys.modules["edgert.memory.cuda.nvrtc"]  # the package has a function of that name
LOG = 'preprocess.cu(12): error: identifier "half4" is undefined\n1 error detected\n'


class Library:
    """libnvrtc 12.6 that compiles to ``cubin``, or fails with a log."""

    def __init__(self, compiles: bool = True, version: tuple[int, int] = (12, 6)) -> None:
        self.compiles, self.version, self.programs, self.options = compiles, version, 0, []
        self.nvrtcGetErrorString = _Text(b"NVRTC_ERROR_OUT_OF_MEMORY")

    options: list[bytes]

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self.version
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
    assert "driver's CUDA version" in caught.value.fix and library.programs == 0


def test_a_compiler_that_fails_itself_says_why() -> None:
    library = Library()
    library.nvrtcCreateProgram = lambda *_: 1  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="nvrtcCreateProgram failed") as caught:
        Nvrtc(library).compile("code", "k.cu", ())
    assert caught.value.why == "NVRTC_ERROR_OUT_OF_MEMORY"


class TestWhich:
    """Several compilers on one machine."""

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.there = {"libnvrtc.so.13": (13, 0), "libnvrtc.so.12": (12, 6)}
        monkeypatch.setattr(module, "_candidates", lambda: iter(["libnvrtc.so.14", *self.there]))
        monkeypatch.setattr(module, "_load", self.load)
        module.nvrtc.cache_clear()
        yield
        module.nvrtc.cache_clear()

    def load(self, name: str) -> Library:
        if name not in self.there:
            raise OSError(f"{name}: cannot open shared object file")
        return Library(version=self.there[name])

    def test_the_newest_that_the_driver_can_follow(self) -> None:
        assert [nvrtc(most).version for most in (None, 13, 12)] == [(13, 0), (13, 0), (12, 6)]

    def test_a_driver_older_than_all_of_them(self) -> None:
        with pytest.raises(DeviceError, match="the CUDA driver is too old for the run-time compiler") as caught:
            nvrtc(11)
        assert caught.value.why == "the driver runs CUDA 11 at most, and the oldest libnvrtc found is of CUDA 12.6"
        assert "the libnvrtc of CUDA 11" in caught.value.fix

    def test_none_at_all(self) -> None:
        self.there = {}
        with pytest.raises(DeviceError, match="there is no CUDA run-time compiler") as caught:
            nvrtc(13)
        assert "nvidia-jetpack" in caught.value.fix

    def test_kernels_are_compiled_by_one_that_suits_the_driver(self) -> None:
        old = CudaDevice(CudaDouble(driver_version=11040), 0, Counter())
        assert "driver is too old for the run-time compiler (update" in Kernels(old).why_not()
        assert Kernels(CudaDevice(CudaDouble(driver_version=12020), 0, Counter())).why_not() == ""
