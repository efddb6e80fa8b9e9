"""Arrays of other libraries on a GPU: their GPU, and waiting for the stream that writes them.

PyCUDA has no objects for streams of other libraries, so the driver is called directly. Functions and constants are
those of cuda.h: https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

import ctypes
from dataclasses import replace
from typing import Any

from edgert.errors import DeviceError
from edgert.memory.buffer import Counter
from edgert.memory.cuda.driver import call
from edgert.memory.cuda.stream import Stream
from edgert.memory.cuda.view import DeviceView, from_cuda_array, from_dlpack

_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_LEGACY = 1  # CU_STREAM_LEGACY, the default stream, which waits for all others but non-blocking ones
_WITH_STREAM = 3  # version of the CUDA array interface from which on it names the stream
_CUDA = 2  # DLPack's kDLCUDA


def is_on_gpu(owner: Any) -> bool:
    """Return whether an object is an array in a GPU's memory, by DLPack or the CUDA array interface."""
    if hasattr(owner, "__dlpack_device__"):
        return int(owner.__dlpack_device__()[0]) == _CUDA
    return hasattr(owner, "__cuda_array_interface__")


def view_of(owner: Any, stream: Stream, counter: Counter, library: Any) -> DeviceView:
    """Return a view of another library's array, whose lease keeps it alive; the stream waits for its writer.

    The host does not wait, and nothing is copied. With DLPack, the owner makes the stream wait. Without it, the CUDA
    array interface names the writing stream. Before version 3 that was not defined; the stream then waits for all work
    that the default stream waits for.

    Args:
        owner: the array.
        stream: stream that will read it.
        counter: counter of copies and allocations.
        library: library of the CUDA driver.

    Raises:
        DeviceError: the array is on another GPU, was released, or its stream cannot be waited for.
    """
    wanted = stream.device.ordinal
    try:
        if hasattr(owner, "__dlpack_device__") and not isinstance(owner, DeviceView):  # whose host waits for its stream
            _check_gpu(int(owner.__dlpack_device__()[1]), wanted)
            view = from_dlpack(owner, counter, stream.handle)
        else:
            interface = owner.__cuda_array_interface__
            view = from_cuda_array(owner, counter)
            _check_gpu(ordinal_of(view.pointer, library), wanted)
            writer = interface.get("stream") if interface.get("version", 0) >= _WITH_STREAM else _LEGACY
            if writer is not None:
                wait_for_stream(stream, int(writer), library)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        what = f"{type(owner).__name__} cannot be read in place"
        raise DeviceError(what, why=str(error), fix="pass a plain tensor whose stream is not recording") from error
    try:
        if not view.pointer and 0 not in view.shape:
            raise DeviceError(
                "the memory of a tensor was released",
                why="its address is 0",
                fix="keep the tensor until its results are out",
            )
        if is_recording(stream.handle, library):  # the owner made this stream part of its recording
            raise _recording_error("of a tensor")
    except DeviceError:
        view.lease.release()
        raise
    return replace(view, ordinal=wanted, stream=stream)


def wait_for_stream(stream: Stream, foreign: int, library: Any) -> None:
    """Make later work on the stream wait for all present work of another library's stream; the host does not wait.

    Args:
        stream: stream that waits.
        foreign: the other ``cudaStream_t``; 1 and 2 are the default streams, legacy and per thread.
        library: library of the CUDA driver.

    Raises:
        DeviceError: the other stream belongs to another GPU, or is recording a graph.
    """
    what = f"the stream {foreign:#x} of a tensor cannot be waited for"
    if not foreign:  # the default stream that 0 means depends on how its library was compiled
        why = "0 may be either of two default streams, and the CUDA array interface forbids it"
        raise DeviceError(what, why=why, fix="1 is the legacy default stream, 2 that of the thread")
    event = ctypes.c_void_p()
    with stream.device:
        if is_recording(foreign, library):  # the stream would become part of the recording
            raise _recording_error(f"{foreign:#x} of a tensor")
        call(library, "cuEventCreate", ctypes.byref(event), ctypes.c_uint(_DISABLE_TIMING))
        try:
            call(library, "cuEventRecord", event, ctypes.c_void_p(foreign))
            call(library, "cuStreamWaitEvent", ctypes.c_void_p(stream.handle), event, ctypes.c_uint(0))
        except DeviceError as error:
            fix = "use a stream of the tensor's GPU"
            raise DeviceError(what, why=f"{error.what}: {error.why}", fix=fix) from error
        finally:
            call(library, "cuEventDestroy_v2", event)  # the driver frees it once it has passed


def is_recording(stream: int, library: Any) -> bool:
    """Return whether a stream is recording a CUDA graph. Raises DeviceError if the driver does not know the stream."""
    status = ctypes.c_int()
    call(library, "cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
    return bool(status.value)


def _recording_error(whose: str) -> DeviceError:
    why = "it is recording a CUDA graph, and waiting work would become part of the graph"
    return DeviceError(f"the stream {whose} cannot be waited for", why=why, fix="submit it outside of the recording")


def ordinal_of(address: int, library: Any) -> int:
    """Return the number of the GPU that memory belongs to. Raises DeviceError if it is not GPU memory."""
    found = ctypes.c_int(-1)
    try:
        which = ctypes.c_int(_DEVICE_ORDINAL)
        call(library, "cuPointerGetAttribute", ctypes.byref(found), which, ctypes.c_uint64(address))
    except DeviceError as error:
        raise DeviceError(
            f"there is no GPU memory at {address:#x}",
            why=f"{error.why}: it was released, or was never on a GPU",
            fix="keep the tensor until its results are out",
        ) from error
    return found.value


def _check_gpu(found: int, wanted: int) -> None:
    if found != wanted:
        raise DeviceError(
            f"a tensor on GPU {found}",
            why=f"the model that reads it is on GPU {wanted}, and moving it would be a copy",
            fix=f"call tensor.to('cuda:{wanted}') first, or start the program with CUDA_VISIBLE_DEVICES={found}",
        )
