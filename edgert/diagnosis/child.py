"""A program that asks one vendor package about itself and prints the answer as JSON: ``python child.py onnxruntime``.

A native package that crashes, hangs or prints on import affects only this process. Packages are imported by name,
because the modules that use them are elsewhere.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
DECODERS = ("h264", "hevc", "av1", "vp9", "mjpeg")
ENCODERS = ("libx264", "libopenh264", "mpeg4", "mjpeg")
ELEMENTS = (
    *("appsink", "decodebin", "rtspsrc", "v4l2src", "nvarguscamerasrc", "nvv4l2decoder", "nvvidconv", "h264parse"),
    *("nvv4l2h264enc", "nvv4l2h265enc"),
)


def onnxruntime() -> Facts:
    """Return the version and the execution providers."""
    package = import_module("onnxruntime")
    return {"version": package.__version__, "providers": package.get_available_providers()}


def tensorrt() -> Facts:
    """Return the version of TensorRT's Python binding.

    Without it, return that of TensorRT-RTX with the prefix ``RTX``, and the compute capabilities that it lists.
    """
    name = next(name for name in _PACKAGES["tensorrt"] if find_spec(name) is not None)
    package = import_module(name)
    if "rtx" not in name:
        return {"version": package.__version__}
    from edgert.backend.tensorrt.library import capabilities

    return {"version": f"RTX {package.__version__}", "capabilities": list(capabilities(package))}


def dla() -> Facts:
    """Return the number of DLA cores that TensorRT's builder can use."""
    package = import_module("tensorrt")
    builder = package.Builder(package.Logger(package.Logger.ERROR))
    return {"cores": builder.num_DLA_cores}


def cuda() -> Facts:
    """Return the CUDA driver and its GPUs; ``driver`` is None without one."""
    from edgert.board.devices import cuda_driver

    driver = cuda_driver()
    if driver is None:
        return {"driver": None, "gpus": [], "trouble": ""}
    return {"driver": driver.version, "gpus": [asdict(gpu) for gpu in driver.gpus], "trouble": driver.trouble}


def av() -> Facts:
    """Return the versions of PyAV and its FFmpeg, and their codecs and inputs."""
    package = import_module("av")
    return {
        "version": package.__version__,
        "ffmpeg": str(getattr(package, "ffmpeg_version_info", "")),
        "libavcodec": ".".join(map(str, package.library_versions["libavcodec"])),
        "decoders": [name for name in DECODERS if _exists(package.codec.Codec, name, "r")],
        "encoders": [name for name in ENCODERS if _exists(package.codec.Codec, name, "w")],
        "v4l2": _exists(package.format.ContainerFormat, "v4l2", "r"),
    }


def cv2() -> Facts:
    """Return the version, the path, and whether it was built with GStreamer."""
    package = import_module("cv2")
    lines = [line.split(":", 1) for line in package.getBuildInformation().splitlines() if ":" in line]
    built = {name.strip(): value.strip() for name, value in lines}
    return {
        "version": package.__version__,
        "file": package.__file__,
        "gstreamer": built.get("GStreamer", "NO").startswith("YES"),
    }


def gi() -> Facts:
    """Return GStreamer's version and installed elements. The first call on a machine may scan all its plugins."""
    package = import_module("gi")
    package.require_version("Gst", "1.0")
    gst = import_module("gi.repository.Gst")
    gst.init(None)
    return {
        "version": gst.version_string().removeprefix("GStreamer "),
        "elements": [name for name in ELEMENTS if gst.ElementFactory.find(name) is not None],
    }


def pycuda() -> Facts:
    """Return the version, after loading the driver module."""
    import_module("pycuda.driver")
    return {"version": import_module("pycuda").VERSION_TEXT}


def nvdec() -> Facts:
    """Return the version of PyNvVideoCodec, and why this GPU does not encode."""
    package, no_nvenc = import_module("PyNvVideoCodec"), ""
    try:
        no_nvenc = "" if package.GetEncoderCaps().get("num_encoder_engines", 1) else "this GPU has no NVENC"
    except Exception as error:  # noqa: BLE001 - the package's errors have no common class
        reason = str(error).rpartition("Error Type : ")[2].strip() or type(error).__name__
        no_nvenc = f"no NVENC: {reason.splitlines()[0]}"
    return {"version": version("PyNvVideoCodec"), "no_nvenc": no_nvenc}


def display() -> Facts:
    """Return the viewer for ``sink: display``, and why better ones, or all, do not work."""
    from edgert.errors import DeviceError
    from edgert.stages.sink import viewers

    here = viewers.display_environment()
    try:
        viewer, refused = viewers.find_viewer(here)
    except DeviceError as error:
        return {"viewer": "", "why": error.why, "fix": error.fix}
    return {"viewer": viewer, "place": here.place, "refused": refused}


QUESTIONS: dict[str, Callable[[], Facts]] = {
    "onnxruntime": onnxruntime,
    "cuda": cuda,
    "tensorrt": tensorrt,
    "dla": dla,
    "av": av,
    "cv2": cv2,
    "gi": gi,
    "pycuda": pycuda,
    "nvdec": nvdec,
    "display": display,
}
_NOT_PACKAGES = ("cuda", "dla", "display")  # questions that are not about a package
_PACKAGES = {  # question → its packages, where they have other names
    "nvdec": ("PyNvVideoCodec",),
    "tensorrt": ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"),  # in the order in which they are tried
}


def answer(name: str) -> Facts:
    """Return a package's report; ``{"absent": True}`` without the package. Raises the errors of its import."""
    if name not in _NOT_PACKAGES and all(find_spec(one) is None for one in _PACKAGES.get(name, (name,))):
        return {"absent": True}
    return QUESTIONS[name]()


def _exists(kind: Any, name: str, mode: str) -> bool:
    try:
        kind(name, mode)
    except ValueError:  # PyAV's "unknown codec" and "no container format" are ValueErrors
        return False
    return True


def main() -> None:
    """Answer the question in the first argument; standard output has only the answer."""
    # The folder of a script comes first on the path, where our modules could hide others; edgert comes last instead.
    file = Path(__file__).resolve()
    sys.path[:] = [*(folder for folder in sys.path if folder != str(file.parent)), str(file.parents[2])]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(answer(sys.argv[1]), out)
    out.flush()


if __name__ == "__main__":
    main()
