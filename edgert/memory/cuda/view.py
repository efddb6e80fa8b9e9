"""Arrays on a GPU: an address with shape, strides and type, shared with other libraries without a copy."""

from __future__ import annotations

import ctypes
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.errors import DeviceError, StageError
from edgert.memory.buffer import Counter, Lease, lend
from edgert.memory.cuda.stream import Stream

Slices = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class DeviceView:
    """Memory of a GPU as an array. Valid while its lease is alive.

    Attributes:
        pointer: device address of the first element; use :attr:`address`, which checks the lease.
        shape: number of elements per dimension.
        strides: bytes from one element to the next, per dimension.
        dtype: NumPy's type of the elements.
        lease: lease on the memory.
        ordinal: number of the GPU.
        stream: stream that last writes the memory, for which readers wait; None if nothing writes it.
        base: the view of which this is a part, whose existence keeps the memory from being reused.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    lease: Lease
    ordinal: int = 0
    stream: Stream | None = None
    base: object = None

    @property
    def address(self) -> int:
        """Device address of the first element. Raises StageError if the lease has ended."""
        if not self.lease.alive:
            raise StageError(
                "GPU memory was used after its release",
                why="its lease has ended, and the pool may have reused it",
                fix="retain the lease (view.lease.retain()) as long as the memory is used",
            )
        return self.pointer

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps between rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether rows follow each other without gaps, in C order."""
        return 0 in self.shape or self.strides == _row_major(self.shape, self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice | Slices) -> DeviceView:
        """Return a part as a view. Raises IndexError for indices other than integers and slices of step 1."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > self.ndim:
            raise IndexError(f"{len(keys)} indices for {self.ndim} dimensions")
        pointer, shape, strides = self.pointer, [], []
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            start, stop = _span(keys[axis] if axis < len(keys) else slice(None), size)
            pointer += start * stride
            if stop is not None:
                shape.append(stop - start)
                strides.append(stride)
        return replace(self, pointer=pointer, shape=tuple(shape), strides=tuple(strides), base=self.base or self)

    def reshape(self, *shape: int) -> DeviceView:
        """Return a view with another shape and as many elements. Raises DeviceError for views with gaps."""
        return self.as_type(self.dtype, shape)

    def as_type(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> DeviceView:
        """Return the first bytes as a view of another type and shape.

        Raises DeviceError if there are gaps between rows, or too few bytes.
        """
        dtype = np.dtype(dtype)
        needs = math.prod(shape) * dtype.itemsize
        if not self.contiguous or needs > self.nbytes:
            raise DeviceError(
                f"{self.nbytes} bytes cannot be read as {list(shape)} of {dtype}",
                why=f"that takes {needs} bytes without gaps",
            )
        return replace(self, shape=shape, strides=_row_major(shape, dtype), dtype=dtype, base=self.base or self)

    def to_host(self) -> npt.NDArray[Any]:
        """Return a counted copy on the host without gaps between rows. Waits for the stream that writes the memory.

        Raises DeviceError if that stream is unknown.
        """
        if self.stream is None:
            raise DeviceError("this memory cannot be copied to the host", why="the stream that wrote it is unknown")
        span = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)) + self.dtype.itemsize
        raw = np.empty(span, np.uint8)
        device = self.stream.device
        with device:
            device.driver.memcpy_dtoh_async(raw, self.address, self.stream.raw)
        self.stream.synchronize()
        device.counter.copied(span)
        array: npt.NDArray[Any] = np.ndarray(self.shape, self.dtype, raw.data, strides=self.strides)
        return np.ascontiguousarray(array)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA array interface 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None if self.contiguous else self.strides,
            "stream": self.stream.handle if self.stream else None,
        }

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return a DLPack capsule, without a copy. It holds the lease, so that the memory is not reused meanwhile.

        The host waits until the memory is written, unless ``stream`` is -1.
        """
        if self.stream is not None and stream != -1:
            self.stream.synchronize()
        return to_capsule(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.ordinal  # kDLCUDA


def from_cuda_array(owner: Any, counter: Counter) -> DeviceView:
    """Return a view of another library's array, without a copy. The view's lease keeps ``owner`` alive.

    The caller must wait for the owner's work. Raises DeviceError for objects without the interface.
    """
    interface = getattr(owner, "__cuda_array_interface__", None)
    if interface is None:
        raise DeviceError(f"{type(owner).__name__} is no array on a GPU", why="it has no __cuda_array_interface__")
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides") or _row_major(shape, dtype)
    return DeviceView(int(interface["data"][0]), shape, tuple(strides), dtype, lend(owner, counter), 0)


def _span(key: Any, size: int) -> tuple[int, int | None]:
    """Return where a key starts and where it stops; the stop of a single index is None."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        if step != 1:
            raise IndexError("views on a GPU are sliced in steps of 1")
        return start, max(start, stop)
    index = int(key) + (size if key < 0 else 0)
    if not 0 <= index < size:
        raise IndexError(f"index {key} of {size}")
    return index, None


def _row_major(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape)))


# DLPack import and export: https://dmlc.github.io/dlpack/latest/c_api.html and its Python specification.

_CUDA = 2
_ON_GPU = {_CUDA, 3, 13}  # kDLCUDA, kDLCUDAHost, kDLCUDAManaged: memory that kernels can read
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode
_KINDS = {code: kind for kind, code in _CODES.items()}
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_bare_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_bare_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_numbers = itertools.count(1)
_leased: dict[int, tuple[Any, ...]] = {}
"""Structs of capsules in use and the views whose leases they hold, by number."""


def _give_back(managed: int) -> None:
    number = _Managed.from_address(managed).context
    held = _leased.pop(number or 0, None)
    if held is not None:
        held[0].lease.release()


def _drop(capsule: int) -> None:
    """Free a capsule that was not consumed; consumers rename a capsule."""
    if _bare_is_valid(capsule, _NAME):
        _give_back(_bare_pointer(capsule, _NAME))


_deleter, _destructor = _Deleter(_give_back), _Destructor(_drop)


def to_capsule(view: DeviceView) -> Any:
    """Return a capsule that retains the view's lease until its consumer frees it. Raises StageError after release."""
    address, ndim = view.address, len(view.shape)
    shape = (ctypes.c_int64 * ndim)(*view.shape)
    strides = (ctypes.c_int64 * ndim)(*(step // view.dtype.itemsize for step in view.strides))
    code, bits = _CODES[view.dtype.kind], view.dtype.itemsize * 8
    tensor = _Tensor(address, _CUDA, view.ordinal, ndim, code, bits, 1, shape, strides, 0)
    number = next(_numbers)
    view.lease.retain()
    managed = _Managed(tensor, number, ctypes.cast(_deleter, ctypes.c_void_p))
    _leased[number] = (view, managed, shape, strides)
    return _python.PyCapsule_New(ctypes.addressof(managed), _NAME, _destructor)


def from_dlpack(owner: Any, counter: Counter, stream: int | None = None) -> DeviceView:
    """Return a view of another library's tensor, without a copy. The tensor is released when the view's lease ends.

    The owner makes the reading stream, with the handle ``stream``, wait. Raises DeviceError if the tensor is not on a
    GPU, or of a type that NumPy does not have.
    """
    kind, ordinal = owner.__dlpack_device__()
    if int(kind) not in _ON_GPU:
        raise DeviceError("the tensor is not on a GPU", why=f"its DLPack device type is {int(kind)}")
    capsule = owner.__dlpack__(stream=stream)
    if not _python.PyCapsule_IsValid(capsule, _NAME):
        raise DeviceError("a DLPack capsule was used twice", why="its tensor belongs to its first consumer")
    managed = _Managed.from_address(_python.PyCapsule_GetPointer(capsule, _NAME))
    tensor = managed.tensor
    if tensor.code not in _KINDS or tensor.lanes != 1:
        what = f"a tensor of DLPack type {tensor.code} in {tensor.lanes} lanes"
        raise DeviceError(what, why="NumPy has no such type")
    dtype = np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tensor.strides[: tensor.ndim] if tensor.strides else ()  # none means C order
    strides = tuple(step * dtype.itemsize for step in steps) or _row_major(shape, dtype)
    _python.PyCapsule_SetName(capsule, _USED)

    def give_back() -> None:
        if managed.deleter:
            _Deleter(managed.deleter)(ctypes.addressof(managed))

    pointer = (tensor.data or 0) + tensor.byte_offset
    return DeviceView(pointer, shape, strides, dtype, Lease(give_back, counter), int(ordinal))
