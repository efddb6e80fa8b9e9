"""A GPU's libraries and its context, made ready in threads while Python does something else.

A context takes a quarter of a second, a library of hundreds of megabytes a tenth: all of it C code, which here runs
without Python's lock. Whoever needs one of them meanwhile waits until it is there. What fails here fails there again,
and is reported by whoever needs it.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_DRIVER = "libcuda.so.1"
_NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12")
_RTX = "tensorrt_rtx_libs"
"""The package of PyPI whose folder has TensorRT-RTX's libraries."""


@contextmanager
def gpu_started(wanted: bool, *, rtx: bool = True) -> Iterator[None]:
    """While the block runs, the GPU's primary context is made and held, and libraries are loaded, where PyCUDA is
    installed.

    Args:
        wanted: whether a GPU is likely to be used; else nothing is done.
        rtx: whether TensorRT-RTX may be what runs models there.
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


def hold_context(library: str = _DRIVER) -> Callable[[], object]:
    """Make the primary context of the first GPU, unless it is there; return a function that releases it."""
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
    """Loads those of TensorRT-RTX, unless TensorRT comes first, and NVIDIA's run-time compiler."""
    found = find_spec(_RTX) if rtx and not find_spec("tensorrt") else None
    folders = (found.submodule_search_locations or []) if found else []
    for path in (path for folder in folders for path in sorted(Path(folder).glob("libtensorrt_rtx.so*"))):
        load(str(path))
    any(load(name) for name in _NVRTC)


def load(library: str) -> bool:
    """Loads a library without Python's lock, which ctypes keeps; whether that worked."""
    function = ctypes.CDLL(None).dlopen
    function.restype, function.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    return bool(function(os.fsencode(library), os.RTLD_NOW))
