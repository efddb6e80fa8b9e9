"""Preparation of a GPU's libraries and context in threads, while Python does other work.

A context takes 0.25 s, a library of hundreds of megabytes 0.1 s. This is C code that runs without Python's lock. Code
that needs one of them waits until it is ready. An error here occurs again, and is reported, where it is needed.
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


def hold_context(library: str = _DRIVER) -> Callable[[], object]:
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
