"""The installed TensorRT, imported at its first use, and names of its classes for annotations.

The binding has no usable types, so each of these names is ``Any``. A test uses the annotations to find every attribute
that this package uses, and checks that all versions of TensorRT have it.
"""

import ctypes
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgert.board import Machine, detect
from edgert.board.detect import package_version
from edgert.errors import BuildError, DeviceError

Trt: TypeAlias = Any
"""Module ``tensorrt`` or ``tensorrt_rtx``."""

Builder: TypeAlias = Any
DynamicPluginTensorDesc: TypeAlias = Any
EngineInspector: TypeAlias = Any
IBuilderConfig: TypeAlias = Any
ICudaEngine: TypeAlias = Any
IExecutionContext: TypeAlias = Any
IExprBuilder: TypeAlias = Any
IHostMemory: TypeAlias = Any
ILayer: TypeAlias = Any
ILogger: TypeAlias = Any
INetworkDefinition: TypeAlias = Any
IOptimizationProfile: TypeAlias = Any
IPluginRegistry: TypeAlias = Any
IProfiler: TypeAlias = Any
IProgressMonitor: TypeAlias = Any
IRuntimeCache: TypeAlias = Any
IRuntimeConfig: TypeAlias = Any
ITensor: TypeAlias = Any
ITimingCache: TypeAlias = Any
OnnxParser: TypeAlias = Any
ParserError: TypeAlias = Any
PluginField: TypeAlias = Any
PluginTensorDesc: TypeAlias = Any
Runtime: TypeAlias = Any

Kind = Literal["weak", "strong", "rtx"]
"""Kind of TensorRT. ``weak``: 8.6 to 10.x, precision by flags. ``strong``: 11.x, types in the model. ``rtx``:
TensorRT-RTX."""

Wanted = Literal["auto", "tensorrt", "tensorrt_rtx"]

_MODULES = {"tensorrt": ("tensorrt",), "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
"""Modules by package. TensorRT-RTX's module has another name in NVIDIA's archives than in the pip package."""

_OLDEST = (8, 6)
"""Release of JetPack 6.0. Tensors are bound by name since 8.5, but the bindings of 8.5 need an older Python."""

_FIRST_STRONG = 11

_PARTS = ("Major", "Minor", "Patch", "Build")


@dataclass(frozen=True, slots=True)
class Library:
    """A supported TensorRT. ``version`` is what the binding reports, such as ``"10.3.0"``."""

    trt: Trt
    version: str
    kind: Kind

    @property
    def title(self) -> str:
        """Name and version, such as ``TensorRT 10.3.0``."""
        return f"{'TensorRT-RTX' if self.kind == 'rtx' else 'TensorRT'} {self.version}"


@lru_cache(maxsize=3)
def load(wanted: Wanted = "auto") -> Library:
    """Import TensorRT; ``auto`` is TensorRT if it is installed, else TensorRT-RTX.

    Raises DeviceError: it cannot be imported; the fix is how to install it on this machine. Raises BuildError: its
    version is not supported.
    """
    errors: list[ImportError] = []
    for package, modules in _MODULES.items():
        if wanted in ("auto", package):
            for name in modules:
                try:
                    return library_of(import_module(name))
                except ImportError as error:
                    errors.append(error)
    raise missing_error(errors[0], detect(), wanted) from errors[0]


def library_of(trt: Trt) -> Library:
    """Return the library of an imported module. Raises BuildError for a version that edgert does not support."""
    version = str(trt.__version__)
    if "rtx" in trt.__name__:
        return Library(trt, version, "rtx")
    return Library(trt, version, kind_of(version))


def kind_of(version: str) -> Kind:
    """Return the kind of TensorRT of a version. Raises BuildError for one that edgert does not support."""
    release = release_of(version)
    if release < _OLDEST or release[0] == 9:
        raise BuildError(
            f"TensorRT {version} cannot be used",
            why="edgert supports 8.6, 10 and 11",
            fix="update JetPack: 6.0 has TensorRT 8.6, 6.1 and 6.2 have 10.3, 7 has 10 or 11",
        )
    return "strong" if release[0] >= _FIRST_STRONG else "weak"


def release_of(version: str) -> tuple[int, int]:
    """Return major and minor version: ``(10, 3)`` for ``"10.3.0"``. Raises BuildError for other text."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", version)
    if match is None:
        raise BuildError(f"{version!r} is no TensorRT version", why="it does not begin with two numbers")
    return int(match[1]), int(match[2])


def capabilities(trt: Trt) -> dict[str, str]:
    """Return TensorRT-RTX's names of the compute capabilities that it supports: ``{"8.6": "SM86"}``."""
    names = [name for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    return {f"{name[2:-1]}.{name[-1]}": name for name in sorted(names, key=lambda name: int(name[2:]))}


def why_unsupported(library: Library, compute: str) -> str:
    """Return why TensorRT-RTX does not support a GPU's compute capability; empty if it does.

    Releases treat such a GPU differently: on 9.0, 1.4 runs and 1.7 fails. TensorRT itself builds for the GPU at hand.
    """
    listed = capabilities(library.trt) if library.kind == "rtx" else {compute: ""}
    if compute in listed:
        return ""
    return f"{compute} is not a supported capability of {library.title}, which lists {', '.join(listed)}"


def full_version(library: Library, root: Path = Path("/")) -> str:
    """Return the version with its build number if the loaded library or its Debian package has it: ``10.3.0.30``.

    Builds of one version cannot open each other's engines, such as JetPack 6's 10.3.0.26 and 10.3.0.30, which both
    report 10.3.0.
    """
    if library.kind == "rtx":
        return f"RTX {library.version}"
    major = release_of(library.version)[0]
    found = _loaded_version(major) or package_version(f"libnvinfer{major}", root).partition("-")[0]
    return found if found.startswith(f"{library.version}.") else library.version


def _loaded_version(major: int) -> str:
    """Return the version that the loaded library reports (NvInferRuntime.h of 10.x); empty if it reports none."""
    try:
        loaded = ctypes.CDLL(f"libnvinfer.so.{major}", mode=os.RTLD_NOLOAD)  # finds a loaded library in any folder
        return ".".join(str(getattr(loaded, f"getInferLib{part}Version")()) for part in _PARTS)
    except (OSError, AttributeError):  # no library is loaded, or it is older than these functions
        return ""


def missing_error(error: ImportError, machine: Machine, wanted: Wanted) -> DeviceError:
    """Return the error of a failed import, whose fix is how to install TensorRT on a machine."""
    name, package = ("TensorRT-RTX", "tensorrt-rtx") if wanted == "tensorrt_rtx" else ("TensorRT", "tensorrt")
    where = f"{machine.model or machine.name}, JetPack {machine.jetpack}" if machine.is_jetson else machine.name
    if not machine.is_jetson:
        smaller = "" if wanted == "tensorrt_rtx" else " or, for GeForce and RTX GPUs, tensorrt-rtx;"
        fix = f"pip install {package};{smaller} for a Jetson's engines, build on the Jetson"
    elif wanted == "tensorrt_rtx":
        fix = "use TensorRT: TensorRT-RTX does not support Jetson GPUs"
    else:  # pip's packages do not support a Jetson's GPU and DLA
        fix = (
            "sudo apt install nvidia-jetpack, and a virtual environment made with --system-site-packages"
            f" (never pip install tensorrt on a Jetson); JetPack {machine.jetpack or '6 or 7'} contains the right one"
        )
    return DeviceError(f"{name} cannot be used here", why=str(error), where=where, fix=fix, code="E804")
