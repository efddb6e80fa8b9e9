"""Access to PyCUDA and the CUDA driver library, and translation of their errors. No other module imports PyCUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, cast

from edgert.errors import DeviceError, raised_as
from edgert.memory.buffer import address_of
from edgert.units import format_bytes

_INSTALL = (
    "PATH=/usr/local/cuda/bin:$PATH pip install pycuda: it compiles against the CUDA toolkit of this machine "
    "(there are no prebuilt wheels for Linux; on a Jetson the toolkit is nvidia-jetpack's)"
)
_LOST = (
    "illegal memory access",
    "unspecified launch failure",
    "uncorrectable",
    "device-side assert",
    "hardware stack",
    "illegal instruction",
    "misaligned address",
    "invalid program counter",
    "not supported on global/shared address space",
    "launch timed out",
    "unknown error",
)
"""Parts of CUDA's messages after which a context accepts no more work. cuda.h calls that "an inconsistent state"; some
come from a GPU that fell off its bus."""


def pycuda_driver() -> Any:
    """Return PyCUDA's driver module, initialized.

    Raises DeviceError if there is no PyCUDA, CUDA driver or GPU, or the driver is too old for this PyCUDA.
    """
    try:
        import pycuda.driver as driver
    except ModuleNotFoundError as error:
        raise DeviceError("PyCUDA is not installed", why=str(error), fix=_INSTALL) from error
    except ImportError as error:
        raise unusable_pycuda(str(error)) from error
    initialize(driver)
    return driver


def initialize(driver: Any) -> None:
    """Initialize the CUDA driver. Raises DeviceError if it does not work or is too old."""
    try:
        driver.init()
    except driver.Error as error:
        raise unusable_pycuda(str(error)) from error
    built, runs = tuple(driver.get_version()), int(driver.get_driver_version())
    if runs // 1000 < built[0]:
        raise DeviceError(
            f"the CUDA driver runs CUDA {runs // 1000}.{runs % 1000 // 10} at most",
            why=f"PyCUDA was built with the toolkit of CUDA {'.'.join(map(str, built[:2]))}",
            fix="update the NVIDIA driver, or build PyCUDA with the toolkit of that CUDA",
        )


def unusable_pycuda(message: str) -> DeviceError:
    """Return the error of a PyCUDA that cannot be imported or started."""
    if "libcuda.so" in message:
        what, fix = "there is no CUDA driver", "in a container: docker run --gpus all …, on a Jetson --runtime nvidia"
    elif "undefined symbol" in message or "insufficient" in message:
        what, fix = "the CUDA driver is too old for this PyCUDA", "update the driver, or build PyCUDA with its CUDA"
    elif "no CUDA-capable device" in message:
        what, fix = "there is no NVIDIA GPU", "nvidia-smi lists the GPUs that the driver sees"
    else:
        what, fix = "PyCUDA does not work here", f"build it again for this CUDA: {_INSTALL}"
    return DeviceError(what, why=message, fix=fix)


def cuda_error(
    error: Exception, doing: str, *, free_bytes: int | None = None, requested_bytes: int = 0, others: str = ""
) -> DeviceError:
    """Return edgert's error for a CUDA error, distinguished by its message.

    Args:
        error: the CUDA error.
        doing: what failed, such as ``allocating``.
        free_bytes: free memory of the GPU; None where unknown.
        requested_bytes: size of the allocation; 0 for the opening of a context.
        others: text on the memory of other processes.
    """
    message = str(error)
    if "out of memory" in message:
        size = f"{format_bytes(requested_bytes)} were requested" if requested_bytes else "a CUDA context takes 500 MiB"
        free = "an unknown amount is" if free_bytes is None else f"{format_bytes(free_bytes)} are"
        return DeviceError(
            f"{doing}: the GPU has too little memory",
            why="; ".join(filter(None, (f"{size}, {free} free", others))),
            fix="use smaller batches, fewer streams or a smaller TensorRT workspace, or end other processes on the GPU",
        )
    return _lost_gpu(doing, message) if is_lost(message) else DeviceError(f"{doing} failed", why=message)


def _lost_gpu(doing: str, message: str) -> DeviceError:
    """Return the error of a context that accepts no more work."""
    return DeviceError(
        f"{doing}: the GPU is lost to this process",
        why=message,
        fix="start again; compute-sanitizer finds a kernel that wrote out of bounds, dmesg shows a fault of the GPU",
    )


def is_lost(message: str) -> bool:
    """Return whether the context is unusable after an error with this message."""
    return any(part in message for part in _LOST)


# Functions of the CUDA driver that PyCUDA does not have.


def load_driver(library: str = "libcuda.so.1") -> Any:
    """Load the driver's library. Raises DeviceError if there is none."""
    with raised_as(DeviceError, "there is no CUDA driver"):
        return ctypes.CDLL(library)


def call(library: Any, name: str, *arguments: Any, whose: str = "") -> None:
    """Call a driver function in the current context; errors name ``whose``.

    Raises DeviceError if it fails, or the driver is too old to have it.
    """
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise DeviceError(
            f"the CUDA driver has no {name}", why="it is older than this function", fix="update the driver"
        ) from error
    code = function(*arguments)
    if code:
        raise error_of(library, code, name, whose)


def error_of(library: Any, code: int, name: str, whose: str = "") -> DeviceError:
    """Return the error for the code that a driver function returned."""
    text, subject = ctypes.c_char_p(), f" for {whose}" if whose else ""
    library.cuGetErrorString(code, ctypes.byref(text))
    why = text.value.decode() if text.value else f"CUDA error {code}"
    return _lost_gpu(f"{name}{subject}", why) if is_lost(why) else DeviceError(f"{name} failed{subject}", why=why)


def with_python_lock(library: Any) -> Any:
    """Return the same library with calls that keep Python's lock, for calls of microseconds in every frame.

    A thread that releases the lock gets it back behind all waiting threads, which takes longer than the call.
    """
    return ctypes.PyDLL(library._name, handle=library._handle) if isinstance(library, ctypes.CDLL) else library


def copy_up(driver: Any) -> Callable[[int, Any, Any], object]:
    """Return ``driver.memcpy_htod_async``, the copy from an array to an address on a stream, that keeps Python's lock.

    PyCUDA's function releases the lock (CUDAPP_CALL_GUARDED_THREADED in its src/cpp). Raises DeviceError, or the
    driver's Error.
    """
    library = with_python_lock(load_driver()) if isinstance(driver, ModuleType) else driver
    function = getattr(library, "cuMemcpyHtoDAsync_v2", None)
    if function is None:  # a test's double of PyCUDA
        return cast("Callable[[int, Any, Any], object]", driver.memcpy_htod_async)

    if isinstance(library, ctypes.CDLL):  # with argtypes, plain numbers need not be wrapped, which is faster
        function.argtypes = ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p

    def copy(address: int, source: Any, stream: Any) -> None:
        if code := function(address, address_of(source), source.nbytes, int(stream.handle)):
            raise error_of(library, code, "cuMemcpyHtoDAsync")

    return copy


# The driver launches kernels directly: PyCUDA sets and packs constant arguments at each launch, makes two more calls of
# the driver, and releases Python's lock. Functions and constants are those of cuda.h:
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html.

_LOCAL_SIZE_BYTES, _NUM_REGS = 3, 4  # CUfunction_attribute
_One: Any = ctypes.c_char_p * 1


def module_loader(driver: Any) -> Callable[[bytes], Any]:
    """Return ``driver.module_from_buffer``, but for functions that the CUDA driver launches directly.

    Raises DeviceError, or the driver's Error.
    """
    if not isinstance(driver, ModuleType):  # a test's double of PyCUDA
        return cast("Callable[[bytes], Any]", driver.module_from_buffer)
    return partial(LoadedModule, with_python_lock(load_driver()))


class LoadedModule:
    """Kernels that were compiled together. Their context must be current when this is made, and when it is deleted.

    ``whose`` is named in errors. Raises DeviceError if the binary is not for this GPU.
    """

    def __init__(self, library: Any, binary: bytes, whose: str = "") -> None:
        self._library, self._module = library, ctypes.c_void_p()
        call(library, "cuModuleLoadData", ctypes.byref(self._module), binary, whose=whose)

    def __del__(self) -> None:
        if self._module:
            self._library.cuModuleUnload(self._module)

    def get_function(self, name: str) -> LoadedFunction:
        """Return the function of that name. Raises DeviceError if there is none."""
        function = ctypes.c_void_p()
        arguments = ctypes.byref(function), self._module, name.encode()
        call(self._library, "cuModuleGetFunction", *arguments, whose=f"kernel {name}")
        return LoadedFunction(self, self._library, function)


class LoadedFunction:
    """Kernel with one struct as its argument, with the methods of PyCUDA's function."""

    def __init__(self, module: LoadedModule, library: Any, function: ctypes.c_void_p) -> None:
        self._module, self._library, self._function = module, library, function
        self._launch = library.cuLaunchKernel
        numbers = [ctypes.c_uint] * 7  # grid, block, bytes of shared memory
        arguments = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p
        self._launch.argtypes = ctypes.c_void_p, *numbers, *arguments
        self.num_regs, self.local_size_bytes = map(self._attribute, (_NUM_REGS, _LOCAL_SIZE_BYTES))

    def prepared_async_call(self, grid: Sequence[int], block: Sequence[int], stream: Any, argument: bytes) -> None:
        """Enqueue one launch on the stream. Raises DeviceError."""
        if code := self._launch(self._function, *grid, *block, 0, stream.handle, _One(argument), None):
            raise error_of(self._library, code, "cuLaunchKernel")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        call(self._library, "cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._function)
        return value.value
