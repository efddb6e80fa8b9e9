"""Compilation of CUDA C by NVIDIA's run-time compiler (libnvrtc; no nvcc, host compiler or headers), and kernels.

Functions are those of https://docs.nvidia.com/cuda/nvrtc/. The library comes with the CUDA toolkit (on a Jetson, with
nvidia-jetpack) and with the pip package nvidia-cuda-nvrtc, which PyTorch installs.
"""

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda.gpu_context import Context
from edgert.memory.cuda.stream import Stream

_MAJORS = (13, 12, 11)


class Nvrtc:
    """NVIDIA's run-time compiler; ``version`` is the (major, minor) version of its CUDA toolkit."""

    def __init__(self, library: Any) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = (major.value, minor.value)

    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """Return machine code of CUDA C for one architecture; ``name`` is for messages. Blocks for about a second.

        Options are such as ``--gpu-architecture=sm_87``. Raises BuildError, with the compiler's log.
        """
        program = ctypes.c_void_p()
        code = self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        self._check(code, "nvrtcCreateProgram")
        try:
            encoded = [option.encode() for option in options]
            failed = self._library.nvrtcCompileProgram(
                program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)
            )
            if failed:
                raise BuildError(
                    f"the kernel {name} does not compile for {' '.join(options)}",
                    why=self._read(program, "ProgramLog").decode(errors="replace").rstrip("\0\n"),
                    where=f"NVRTC {self.version[0]}.{self.version[1]}",
                    fix="install the NVRTC of the driver's CUDA version, which supports all its GPUs",
                )
            return self._read(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, text), what)
        return text.raw

    def _check(self, code: int, doing: str) -> None:
        if code:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise DeviceError(f"{doing} failed", why=self._library.nvrtcGetErrorString(code).decode())


@lru_cache(maxsize=4)
def nvrtc(most: int | None = None) -> Nvrtc:
    """Return the newest compiler on this machine whose major version the driver can run.

    A driver loads no code of a newer compiler. Raises DeviceError if there is no compiler, or only newer ones.
    """
    newer: Nvrtc | None = None
    for candidate in _candidates():
        try:
            found = Nvrtc(_load(candidate))
        except OSError:
            continue
        if most is None or found.version[0] <= most:
            return found
        newer = found if newer is None or found.version < newer.version else newer
    if newer is not None:
        major, minor = newer.version
        raise DeviceError(
            "the CUDA driver is too old for the run-time compiler",
            why=f"the driver runs CUDA {most} at most, and the oldest libnvrtc found is of CUDA {major}.{minor}",
            fix=f"update the NVIDIA driver, or install the libnvrtc of CUDA {most}, too",
        )
    raise DeviceError(
        "there is no CUDA run-time compiler",
        why="libnvrtc is in none of the usual places",
        fix="install the CUDA toolkit (Jetson: sudo apt install nvidia-jetpack), or pip install nvidia-cuda-nvrtc; "
        "for CUDA 12 nvidia-cuda-nvrtc-cu12",
    )


def _load(candidate: str | Path) -> ctypes.CDLL:
    """Load the library after its second part, which the loader would not find in the same folder."""
    if isinstance(candidate, Path):
        for part in candidate.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(part))
    return ctypes.CDLL(str(candidate))


def _candidates() -> Iterator[str | Path]:
    """Yield names and paths of the library: for the loader, in the toolkit, in pip packages, and from ctypes."""
    for major in _MAJORS:
        yield f"libnvrtc.so.{major}" if major > 11 else "libnvrtc.so.11.2"
    yield from sorted(Path("/usr/local/cuda/lib64").glob("libnvrtc.so.*"))
    for folder in map(Path, sys.path):
        yield from sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True)
    found = ctypes.util.find_library("nvrtc")
    if found:
        yield found


Size3 = tuple[int, int, int]


class Kernel:
    """A function on the GPU with one argument, a struct passed by value.

    Attributes:
        registers: number of registers per thread.
        local_bytes: memory per thread to which registers were spilled, which should be 0.
    """

    def __init__(self, device: Context, module: Any, name: str) -> None:
        self._device, self._function, self.name = device, module.get_function(name), name
        self._doing = f"launching {name}"
        self.registers = int(self._function.num_regs)
        self.local_bytes = int(self._function.local_size_bytes)

    def __del__(self) -> None:
        if "_function" in self.__dict__ and self._device.is_open:
            with self._device:  # it may be the last reference to the module, which PyCUDA frees only in its context
                del self._function

    def launch(self, argument: bytes, grid: Size3, block: Size3, stream: Stream) -> None:
        """Enqueue one launch on the stream. Raises DeviceError."""
        self._device.run(self._function.prepared_async_call, grid, block, stream.raw, argument, doing=self._doing)


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel with its argument, grid and block, not yet on a stream."""

    kernel: Kernel
    argument: bytes
    grid: Size3
    block: Size3

    def enqueue(self, stream: Stream) -> None:
        """Enqueue the launch on the stream. Raises DeviceError."""
        self.kernel.launch(self.argument, self.grid, self.block, stream)


class Module:
    """Kernels that were compiled together."""

    def __init__(self, device: Context, module: Any) -> None:
        self._device, self._module = device, module

    def __del__(self) -> None:
        if self._device.is_open:
            with self._device:  # as in Kernel
                del self._module

    def kernel(self, name: str) -> Kernel:
        """Return the kernel of that name. Raises DeviceError if there is none."""
        try:
            with self._device:
                return Kernel(self._device, self._module, name)
        except (self._device.driver.Error, DeviceError) as error:
            raise DeviceError(f"there is no kernel {name!r}", why=str(error)) from error
