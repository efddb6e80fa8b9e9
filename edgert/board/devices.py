"""Cameras and NVIDIA GPUs of this machine, found without opening them, and a GPU's start beside other work.

GPUs are listed through the CUDA driver's C interface, so that no CUDA package is needed. Functions and attribute
numbers are those of cuda.h: https://docs.nvidia.com/cuda/cuda-driver-api/."""

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgert.board.host import read_text


@dataclass(frozen=True, slots=True)
class CameraDevice:
    """V4L2 device; ``title`` and ``driver`` may be empty, as in a container without sysfs."""

    path: str
    title: str
    driver: str
    is_readable: bool


def cameras(root: Path = Path("/")) -> tuple[CameraDevice, ...]:
    """Return the devices that may deliver images.

    Of a device with several nodes only the first is listed, because the others carry metadata
    (https://docs.kernel.org/admin-guide/media/uvcvideo.html).
    """
    found = []
    for device in sorted((root / "dev").glob("video*[0-9]"), key=lambda path: (len(path.name), path.name)):
        node = root / "sys/class/video4linux" / device.name
        index, link = read_text(node / "index"), node / "device/driver"
        if not index.isdigit() or int(index) == 0:
            driver, readable = link.resolve().name if link.exists() else "", os.access(device, os.R_OK | os.W_OK)
            found.append(CameraDevice(f"/dev/{device.name}", read_text(node / "name"), driver, readable))
    return tuple(found)


ARGUS_SOCKET = "tmp/argus_socket"
"""Path, below the root, of the socket of nvargus-daemon, which owns the CSI cameras."""
CSI_DAEMON = "sudo systemctl restart nvargus-daemon; in a container: docker run -v /tmp:/tmp ..."
"""Commands that restore the socket.

The folder is mounted instead of the socket, because the daemon creates a new socket when it restarts."""


THOR = "tegra264"
"""Chip of a Jetson Thor, whose cameras and video decoder have other interfaces than those of an Orin."""
CSI_INSTEAD = 'a USB or network camera, or the element of the camera\'s maker: source: "gst:..."'


def why_no_csi(soc: str, l4t: str = "") -> str:
    """Return why ``csi://`` cannot open a camera on a chip; empty where Argus supports its cameras.

    For a Thor, the r38.2 guide lists only SIPL over Ethernet, and the r39.2 guide also Argus for existing drivers:
    https://docs.nvidia.com/jetson/archives/r39.2/DeveloperGuide/SD/CameraDevelopment/CameraDevelopmentSupportMatrix.html
    """
    if soc != THOR:
        return ""
    if l4t.startswith("38."):
        return f"Jetson Linux {l4t} has no Argus for a Jetson Thor, whose cameras use SIPL"
    return "cameras of a Jetson Thor use SIPL, or from JetPack 7.2 on Argus with a driver of the camera's maker"


def why_no_mjpeg(soc: str) -> str:
    """Return why no hardware decodes MJPEG on a chip; empty where it does.

    See the r38.2 guide, Video Decode, and
    https://docs.nvidia.com/metropolis/deepstream/dev-guide/text/DS_plugin_gst-nvvideo4linux2.html.
    """
    return "the decoder of a Jetson Thor (nvv4l2decoder) does not support MJPEG" if soc == THOR else ""


def csi_sensors(root: Path = Path("/")) -> tuple[CameraDevice, ...]:
    """Return V4L2 devices that are CSI sensors.

    A Jetson names them ``vi-output, imx219 9-0010``, with the driver tegra-video
    (https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/SD/CameraDevelopment.html). A container has only those
    passed to it, and ``csi://`` needs none of them.
    """
    return tuple(one for one in cameras(root) if one.title.startswith("vi-output") or one.driver.startswith("tegra"))


_LIBRARY = "libcuda.so.1"
_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED
_CAN_MAP = 19  # CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
_CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_CAPABILITY_MINOR = 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """GPU with its name and CUDA compute capability, such as ``8.7``; ``memory_bytes`` is the board's on a Jetson.

    An integrated one shares the CPU's memory. One that can map reads pinned host memory in place.
    """

    name: str
    compute: str
    memory_bytes: int
    integrated: bool = False
    can_map: bool = True


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """CUDA driver: its newest CUDA version, such as ``13.0``, its GPUs, and why it has none where it should."""

    version: str
    gpus: tuple[GpuDevice, ...]
    trouble: str = ""


def cuda_driver(library: str = _LIBRARY) -> CudaDriver | None:
    """Return the CUDA driver and its GPUs; None if no driver is installed.

    The driver is loaded into this process; no context is created.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    return query(driver)


def gpu_free_bytes() -> int:
    """Return the free memory of this thread's GPU; 0 without a context or if it shares the CPU's memory."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    device, free, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    if driver.cuCtxGetDevice(ctypes.byref(device)) or _attribute(driver, _INTEGRATED, device):
        return 0
    return 0 if driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) else free.value


def query(driver: Any) -> CudaDriver:
    """Return the driver of a loaded library, and its GPUs."""
    number = ctypes.c_int()
    failed = driver.cuDriverGetVersion(ctypes.byref(number))
    version = "" if failed else f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number))
    if code:
        reason = ctypes.c_char_p()
        known = not driver.cuGetErrorName(code, ctypes.byref(reason)) and reason.value
        name = reason.value.decode() if known and reason.value else f"CUDA error {code}"
        return CudaDriver(version, (), "" if code == _NO_DEVICE else name)
    gpus = []
    for index in range(number.value):
        device, size_bytes, text = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(text, len(text), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size_bytes), device)
        attributes = (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _INTEGRATED, _CAN_MAP)
        major, minor, integrated, can_map = (_attribute(driver, which, device) for which in attributes)
        title = text.value.decode(errors="replace")
        gpus.append(GpuDevice(title, f"{major}.{minor}", size_bytes.value, bool(integrated), bool(can_map)))
    return CudaDriver(version, tuple(gpus))


def _attribute(driver: Any, which: int, device: ctypes.c_int) -> int:
    number = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(number), which, device)
    return number.value


# Preparation of a GPU's libraries and context in threads, while Python does other work.
#
# A context takes 0.25 s, a library of hundreds of megabytes 0.1 s. This is C code that runs without Python's lock. Code
# that needs one of them waits until it is ready. An error here occurs again, and is reported, where it is needed.

_NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12")
_RTX = "tensorrt_rtx_libs"
"""Python package with TensorRT-RTX's libraries."""


@contextmanager
def gpu_started(wanted: bool, *, rtx: bool = True) -> Iterator[None]:
    """Create and hold the GPU's primary context, and load libraries, during the block, if PyCUDA is installed.

    Nothing happens unless ``wanted``. ``rtx``: whether TensorRT-RTX may run models on it.
    """
    if not wanted or find_spec("pycuda") is None:
        yield
        return
    with ThreadPoolExecutor(2, "edgert-gpu") as pool:
        held = pool.submit(hold_context)
        pool.submit(load_libraries, rtx)
        try:
            yield
        finally:
            held.result()()


def hold_context(library: str = _LIBRARY) -> Callable[[], object]:
    """Create the primary context of the first GPU, unless it exists; return a function that releases it."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return lambda: None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    ):
        return lambda: None
    return lambda: driver.cuDevicePrimaryCtxRelease_v2(device)


def load_libraries(rtx: bool) -> None:
    """Load NVIDIA's run-time compiler and, unless TensorRT is installed, the libraries of TensorRT-RTX."""
    found = find_spec(_RTX) if rtx and not find_spec("tensorrt") else None
    folders = (found.submodule_search_locations or []) if found else []
    for path in (path for folder in folders for path in sorted(Path(folder).glob("libtensorrt_rtx.so*"))):
        load(str(path))
    any(load(name) for name in _NVRTC)


def load(library: str) -> bool:
    """Load a library while Python's lock is released, unlike ctypes does; return whether it worked."""
    function = ctypes.CDLL(None).dlopen
    function.restype, function.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    return bool(function(os.fsencode(library), os.RTLD_NOW))
