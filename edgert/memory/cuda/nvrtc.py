"""CUDA C to machine code, by NVIDIA's run-time compiler (libnvrtc): no nvcc, no host compiler, no headers.

Functions are those of https://docs.nvidia.com/cuda/nvrtc/. The library comes with the CUDA toolkit (on a Jetson, with
nvidia-jetpack) and with the pip package nvidia-cuda-nvrtc, which PyTorch brings along.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgert.errors import BuildError, DeviceError

_MAJORS = (13, 12, 11)


class Nvrtc:
    """The compiler.

    Attributes:
        version: (major, minor), that of its CUDA toolkit.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = (major.value, minor.value)

    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """Machine code for one architecture. Blocks for about a second.

        Args:
            source: CUDA C.
            name: of the source, for messages.
            options: such as ``--gpu-architecture=sm_87``.

        Raises:
            BuildError: it does not compile; the compiler's log is the reason.
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
                    fix="an NVRTC of the same CUDA version as the driver knows all its GPUs",
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
    """The newest compiler on this machine.

    Args:
        most: the major version of CUDA that the driver runs: it loads nothing that a later one has compiled.

    Raises:
        DeviceError: there is none, or none as old as the driver.
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
        fix="install the CUDA toolkit (Jetson: sudo apt install nvidia-jetpack), or pip install nvidia-cuda-nvrtc-cu12",
    )


def _load(candidate: str | Path) -> ctypes.CDLL:
    """The library, after the part that it opens by name later, which the loader would not find beside it."""
    if isinstance(candidate, Path):
        for part in candidate.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(part))
    return ctypes.CDLL(str(candidate))


def _candidates() -> Iterator[str | Path]:
    """By the loader's own search, in the toolkit, in pip packages, and last by ctypes, whose finder asks a compiler."""
    for major in _MAJORS:
        yield f"libnvrtc.so.{major}" if major > 11 else "libnvrtc.so.11.2"
    yield from sorted(Path("/usr/local/cuda/lib64").glob("libnvrtc.so.*"))
    for folder in map(Path, sys.path):
        yield from sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True)
    found = ctypes.util.find_library("nvrtc")
    if found:
        yield found
