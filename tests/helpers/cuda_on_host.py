"""Kernels of this package, compiled by the host's C++ compiler and run on the memory of a CudaDouble: the very source
that a GPU runs, so that its arithmetic is tested where there is none."""

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pytest

from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Stream
from edgert.stages.gpu.kernels import Kernels, _source_text
from tests.helpers.cuda_double import CudaDouble

_HEADER = Path(__file__).with_name("cuda_on_host.h")
_COMPILER = shutil.which("g++")
_FOLDER = tempfile.TemporaryDirectory(prefix="edgert-kernels-")
_KERNEL = re.compile(
    r"__global__ void __launch_bounds__\([^\n]*?\) (\w+)\((?:const|ARGUMENT) (\w+)&? .*?\n}\n", re.DOTALL
)
_ENTRY = r"""\g<0>
static void enter_\1(const void* argument) { \1(*(const \2*)argument); }
extern "C" void launch_\1(const void* argument, const int* grid, const int* block) {
    run(enter_\1, argument, grid, block);
}
extern "C" int argument_bytes_\1() { return sizeof(\2); }
"""
"""What calls a kernel, behind it."""
_HIGH = re.compile(r'asm\("mad\.hi\.u32.*?\);')
_WIDE = re.compile(r'asm\("cvt\.f32\.f16 %0, %1;" : "=f"\((\w+)\) : "h"\((.*)\)\);')
_NARROW = re.compile(r'asm\("cvt\.rn\.f16\.f32 %0, %1;" : "=h"\((\w+)\) : "f"\((\w+)\)\);')
_SATURATED = re.compile(r'asm\("fma\.rn\.sat\.f32 .*?" : "=f"\((\w+)\) : "f"\((.*?)\), "f"\((.*?)\), "f"\((.*?)\)\);')


class _HostKernel:
    def __init__(self, device: CudaDevice, launch: Any, nbytes: int) -> None:
        self._device, self._launch, self._nbytes = device, launch, nbytes

    def launch(self, argument: bytes, grid: tuple[int, ...], block: tuple[int, ...], stream: Stream) -> None:
        assert len(argument) == self._nbytes, "the struct in Python and that of the kernel differ"
        assert block[0] * block[1] <= 1024
        stored = ctypes.create_string_buffer(argument, len(argument))
        sizes = [(ctypes.c_int * 3)(*size) for size in (grid, block)]
        with self._device:
            stream.raw.put(lambda: self._launch(stored, *sizes) and None)


class HostKernels:
    def __init__(self, device: CudaDevice) -> None:
        self.device = device

    def why_not(self) -> str:
        return ""

    def kernel(self, name: str, definitions: Mapping[str, int], function: str = "") -> _HostKernel:
        library, function = _compiled(_source_text(f"{name}.cu"), tuple(sorted(definitions.items()))), function or name
        return _HostKernel(self.device, library[f"launch_{function}"], library[f"argument_bytes_{function}"]())


def kernels_or_skip() -> Kernels:
    """Kernels on a double. Skips the test where there is no g++."""
    if _COMPILER is None:
        pytest.skip("needs g++, which runs the kernels on the processor")
    return cast("Kernels", HostKernels(CudaDevice(CudaDouble(), 0, Counter())))


@lru_cache(maxsize=64)
def _compiled(source: str, definitions: tuple[tuple[str, int], ...]) -> Any:
    """All kernels of a source in one library."""
    source = _HIGH.sub("sum = __umulhi(value & ~15u, weight) + more;", source)
    source = _SATURATED.sub(r"\1 = std::clamp(std::fmaf(\2, \3, \4), 0.0f, 1.0f);", source)
    source = _NARROW.sub(r"\1 = float_to_half(\2);", source)
    source = _WIDE.sub(r"\1 = half_to_float(\2);", source)
    source = _KERNEL.sub(_ENTRY, source)
    with tempfile.TemporaryDirectory() as folder:
        path, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        header, blocks = _compiled_header()
        path.write_text(f'#include "{header}"\n{source}')
        options = [f"-D{name}={value}" for name, value in definitions]
        _run_compiler(*options, "-shared", "-o", str(library), str(path), str(blocks))
        return ctypes.CDLL(str(library))


@lru_cache(maxsize=1)
def _compiled_header() -> tuple[Path, Path]:
    """A copy of the header beside its compiled form, which halves the time of a small kernel, and what runs blocks."""
    header = Path(shutil.copy(_HEADER, _FOLDER.name))
    blocks = header.with_suffix(".o")
    _run_compiler("-x", "c++-header", "-o", f"{header}.gch", str(header))
    _run_compiler("-c", "-o", str(blocks), str(_HEADER.with_suffix(".cpp")))
    return header, blocks


def _run_compiler(*arguments: str) -> None:
    assert _COMPILER is not None
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-fPIC", "-U_FORTIFY_SOURCE"]
    # Ubuntu's compiler checks jumps otherwise, and ends the process for one from stack to stack.
    subprocess.run([_COMPILER, *flags, *arguments], check=True)
