"""What NVIDIA flashes beside Debian's packages, as doubles in Debian packages: TensorRT, PyCUDA and the CUDA driver.

They are the doubles of the tests, behind the names of the real ones. Engines run by ONNX Runtime, a GPU's memory is
the process's own, and kernels do nothing: a box shows what edgert does, not what a board computes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.box.identity import Identity
from scripts.box.system import ROOT, run

_DOUBLES, _HELPERS, _PLACE = Path(__file__).with_name("double"), ROOT / "tests/helpers", "usr/lib/python3/dist-packages"
_CONTROL = """\
Package: {name}
Version: {version}
Architecture: arm64
Maintainer: edgert developers
Description: a double, for a box
"""
_PYCUDA = """\
\"\"\"PyCUDA in a box: a GPU that is this process's memory.\"\"\"

VERSION_TEXT = "{version}"
"""
_DRIVER = """\
\"\"\"The double of the tests, as a module.\"\"\"

from pycuda.cuda_double import CudaDouble

_gpu = CudaDouble(integrated=True, compute={compute}, memory_bytes={memory})


def __getattr__(name):
    return getattr(_gpu, name)
"""


def packages(one: Identity, folder: Path) -> list[str]:
    """Writes the packages of an identity; returns their names."""
    board = one.record
    capability = {"tegra234": (8, 7), "tegra264": (11, 0)}[board.soc]
    shutil.rmtree(folder, ignore_errors=True)
    tensorrt = folder / "python3-libnvinfer" / _PLACE / "tensorrt"
    (tensorrt / "helpers").mkdir(parents=True)
    shutil.copy(_DOUBLES / "tensorrt.py", tensorrt / "__init__.py")
    (tensorrt / "version").write_text(f"{one.tensorrt} {board.dla.cores}\n")
    for helper in ("trt_api", "trt_double"):
        text = (_HELPERS / f"{helper}.py").read_text().replace("tests.helpers.", "tensorrt.helpers.")
        (tensorrt / "helpers" / f"{helper}.py").write_text(text)
    (tensorrt / "helpers/__init__.py").touch()
    shutil.copytree(ROOT / "tests/data/trt_api", tensorrt / "data/trt_api")

    pycuda = folder / "python3-pycuda" / _PLACE / "pycuda"
    pycuda.mkdir(parents=True)
    (pycuda / "__init__.py").write_text(_PYCUDA.format(version="2026.1"))
    (pycuda / "driver.py").write_text(_DRIVER.format(compute=capability, memory=board.memory.bytes // 2))
    shutil.copy(_HELPERS / "cuda_double.py", pycuda)

    library = folder / "nvidia-l4t-cuda/usr/lib/aarch64-linux-gnu/libcuda.so.1"
    library.parent.mkdir(parents=True)
    flags = ["-O1", "-shared", "-fPIC", "-nostdlib", f"-DCAPABILITY={capability[0]}{capability[1]}"]
    compiler = ["aarch64-linux-gnu-gcc", *flags, "-Wl,-soname,libcuda.so.1"]
    run(
        [*compiler, "-o", str(library), str(_DOUBLES / "libcuda.c")], "the double of the CUDA driver cannot be compiled"
    )
    versions = {"python3-libnvinfer": one.package, "python3-pycuda": "2026.1", "nvidia-l4t-cuda": "1"}
    for name, version in versions.items():
        (folder / name / "DEBIAN").mkdir()
        (folder / name / "DEBIAN/control").write_text(_CONTROL.format(name=name, version=version))
        run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(folder / name)], f"{name} cannot be packed")
        shutil.rmtree(folder / name)
    return sorted(versions)
