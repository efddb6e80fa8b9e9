"""Debian packages with doubles of JetPack's software: TensorRT, CUDA, the camera, nvpmodel.

They stand behind the names of the real ones. Engines are run by ONNX Runtime, a GPU's memory and video memory are the
process's own, and kernels are computed by NumPy: a box shows what edgert does, not what a board computes.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from pipelines.conveyor import Conveyor
from tools.box.identity import Identity
from tools.box.system import ROOT, run

_DOUBLES, _HELPERS = Path(__file__).with_name("double"), ROOT / "tests/helpers"
_CONTROL = """\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: edgert developers
Description: a double, for a box
"""
_PYCUDA = """\
\"\"\"PyCUDA in a box: a GPU that is this process's memory.\"\"\"

VERSION_TEXT = "{version}"
"""
_DRIVER = """\
\"\"\"The double of the tests, in the module's place: of a true module, the driver itself launches the kernels.\"\"\"

import sys

from pycuda.kernels import Gpu

_gpu = Gpu(integrated=True, compute={compute}, memory_bytes={memory}, driver_version={cuda})
_gpu.get_version = lambda: ({cuda} // 1000, {cuda} % 1000 // 10, 0)
sys.modules[__name__] = _gpu
"""
_GSTREAMER = ("gstreamer-1.0", "gstbase-1.0", "gstvideo-1.0", "gobject-2.0", "glib-2.0")
SCENE_SIZE, _SCENE_FRAMES = (640, 480), 30
PYTHON, PLUGINS, SCENE = "usr/lib/python3/dist-packages", "gstreamer-1.0", "usr/share/box/scene.nv12"


@dataclass(frozen=True, slots=True)
class Target:
    """Target of C code: compiler, triplet of its folder, and folder of GStreamer's libraries."""

    compiler: str = "aarch64-linux-gnu-gcc"
    triplet: str = "aarch64-linux-gnu"
    root: Path = Path("/")

    @property
    def libraries(self) -> str:
        """Folder of libraries, relative to the root."""
        return f"usr/lib/{self.triplet}"


def packages(one: Identity, folder: Path, base: Path) -> list[str]:
    """Write the packages of an identity for a base system; return their names."""
    shutil.rmtree(folder, ignore_errors=True)
    versions = trees(one, folder, Target(root=base))
    for name, version in versions.items():
        pack(folder / name, version, "arm64")
    return sorted(versions)


def pack(tree: Path, version: str, architecture: str) -> None:
    """Replace a folder of files by a package with the folder's name."""
    (tree / "DEBIAN").mkdir()
    control = _CONTROL.format(name=tree.name, version=version, architecture=architecture)
    (tree / "DEBIAN/control").write_text(control)
    run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(tree)], f"{tree.name} cannot be packed")
    shutil.rmtree(tree)


def trees(one: Identity, folder: Path, target: Target) -> dict[str, str]:
    """Write each package's files into a folder of its name; return their versions."""
    board, capability = one.record, {"tegra234": (8, 7), "tegra264": (11, 0)}[one.record.soc]
    tensorrt(folder, one.tensorrt, board.dla.cores)
    pycuda = folder / "python3-pycuda" / PYTHON / "pycuda"
    pycuda.mkdir(parents=True)
    (pycuda / "__init__.py").write_text(_PYCUDA.format(version="2026.1"))
    memory = board.memory.bytes // 2
    (pycuda / "driver.py").write_text(_DRIVER.format(compute=capability, memory=memory, cuda=one.cuda))
    shutil.copy(_HELPERS / "cuda_double.py", pycuda)
    shutil.copy(_DOUBLES / "kernels.py", pycuda)

    place, nvmm, cuda = target.libraries, _HELPERS / "nvmm_double.c", f"-DCUDA={one.cuda}"
    flags = [cuda, f"-DCAPABILITY={capability[0]}{capability[1]}"]
    _compile(target, folder / "nvidia-l4t-cuda" / place / "libcuda.so.1", [_DOUBLES / "libcuda.c", nvmm], flags)
    compiler = folder / "cuda-nvrtc" / place / f"libnvrtc.so.{one.cuda // 1000}"
    _compile(target, compiler, [_DOUBLES / "libnvrtc.c"], [cuda])
    surface = folder / "nvidia-l4t-multimedia-utils" / place / "libnvbufsurface.so.1.0.0"
    _compile(target, surface, [nvmm], ["-DSURFACE", *one.surface])
    plugin = folder / "nvidia-l4t-gstreamer" / place / PLUGINS / "libgstjetson.so"
    _compile(target, plugin, [_DOUBLES / "gstjetson.c"], [*one.surface, *_gstreamer(target)])
    film(folder / "nvidia-l4t-gstreamer" / SCENE)

    nvpmodel = folder / "nvidia-l4t-nvpmodel/usr/sbin/nvpmodel"
    nvpmodel.parent.mkdir(parents=True)
    shutil.copy(_DOUBLES / "nvpmodel", nvpmodel)
    nvpmodel.chmod(0o755)
    return {
        "python3-libnvinfer": one.package,
        "python3-pycuda": "2026.1",
        **dict.fromkeys(("nvidia-l4t-cuda", "nvidia-l4t-multimedia-utils"), "1"),
        **dict.fromkeys(("nvidia-l4t-gstreamer", "nvidia-l4t-nvpmodel", "cuda-nvrtc"), "1"),
    }


def tensorrt(folder: Path, version: str, dla_cores: int) -> Path:
    """Write the files of TensorRT's package; return their folder."""
    tree = folder / "python3-libnvinfer"
    made = tree / PYTHON / "tensorrt"
    (made / "helpers").mkdir(parents=True)
    shutil.copy(_DOUBLES / "tensorrt.py", made / "__init__.py")
    (made / "version").write_text(f"{version} {dla_cores}\n")
    for helper in ("trt_api", "trt_double"):
        text = (_HELPERS / f"{helper}.py").read_text().replace("tests.helpers.", "tensorrt.helpers.")
        (made / "helpers" / f"{helper}.py").write_text(text)
    (made / "helpers/__init__.py").touch()
    shutil.copytree(ROOT / "tests/data/trt_api", made / "data/trt_api")
    return tree


def film(path: Path) -> None:
    """Write the images of the camera's double: the demo's conveyor belt, NV12, one after another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = SCENE_SIZE
    belt, image = Conveyor(width, height, 30.0, 7), np.zeros((height, width, 3), np.uint8)
    with path.open("wb") as out:
        for number in range(_SCENE_FRAMES):
            belt.render(number, image)
            planar = cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420).ravel()
            luma, chroma = planar[: width * height], planar[width * height :].reshape(2, -1)
            out.write(luma.tobytes() + np.ascontiguousarray(chroma.T).tobytes())


def _gstreamer(target: Target) -> list[str]:
    """Return the flags for GStreamer: headers of this machine after the compiler's, and libraries of the target."""
    asked = ["pkg-config", "--cflags-only-I", "gstreamer-video-1.0"]
    folders = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    headers = [f"-idirafter{folder.removeprefix('-I')}" for folder in folders]
    return [*headers, *(str(target.root / target.libraries / f"lib{name}.so.0") for name in _GSTREAMER)]


def _compile(target: Target, library: Path, sources: list[Path], flags: list[str]) -> None:
    library.parent.mkdir(parents=True)
    command = [target.compiler, "-O2", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", f"-I{_HELPERS}"]
    command += ["-o", str(library), *map(str, sources), *flags]
    run(command, f"the double of {library.name} cannot be compiled")
