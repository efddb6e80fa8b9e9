"""DLPack import and export: https://dmlc.github.io/dlpack/latest/c_api.html and its Python specification."""

import ctypes
import itertools
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgert.errors import DeviceError
from edgert.memory.buffer import Counter, Lease

_CUDA = 2
_ON_GPU = {_CUDA, 3, 13}  # kDLCUDA, kDLCUDAHost, kDLCUDAManaged: memory that kernels can read
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode
_KINDS = {code: kind for kind, code in _CODES.items()}
_NAME, _USED = b"dltensor", b"used_dltensor"


class Exportable(Protocol):
    """An array on a GPU, with strides in bytes, that may be given to another library while its lease is alive."""

    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def ordinal(self) -> int: ...


class ImportedTensor(NamedTuple):
    """Another library's tensor: device address, shape, strides in bytes, type, the lease that gives it back, GPU."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    lease: Lease
    ordinal: int


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
_lent: dict[int, tuple[Any, ...]] = {}
"""What capsules in use point into, and the views whose leases they hold."""


def _give_back(managed: int) -> None:
    number = _Managed.from_address(managed).context
    held = _lent.pop(number or 0, None)
    if held is not None:
        held[0].lease.release()


def _drop(capsule: int) -> None:
    """A capsule that nobody took is given back; one that was taken has another name."""
    if _bare_is_valid(capsule, _NAME):
        _give_back(_bare_pointer(capsule, _NAME))


_deleter, _destructor = _Deleter(_give_back), _Destructor(_drop)


def to_capsule(view: Exportable) -> Any:
    """A capsule that retains the view's lease until its consumer lets go. Raises StageError after release."""
    address, ndim = view.address, len(view.shape)
    view.lease.retain()
    shape = (ctypes.c_int64 * ndim)(*view.shape)
    strides = (ctypes.c_int64 * ndim)(*(step // view.dtype.itemsize for step in view.strides))
    code, bits = _CODES[view.dtype.kind], view.dtype.itemsize * 8
    tensor = _Tensor(address, _CUDA, view.ordinal, ndim, code, bits, 1, shape, strides, 0)
    number = next(_numbers)
    managed = _Managed(tensor, number, ctypes.cast(_deleter, ctypes.c_void_p))
    _lent[number] = (view, managed, shape, strides)
    return _python.PyCapsule_New(ctypes.addressof(managed), _NAME, _destructor)


def take(owner: Any, counter: Counter, stream: int | None) -> ImportedTensor:
    """Another library's tensor, which it lends until the lease is released.

    Args:
        owner: has ``__dlpack__`` and ``__dlpack_device__``.
        stream: handle of the stream that will read it; the owner makes it wait.

    Raises:
        DeviceError: the tensor is not on a GPU, or of a type that NumPy has not.
    """
    kind, ordinal = owner.__dlpack_device__()
    if int(kind) not in _ON_GPU:
        raise DeviceError("the tensor is not on a GPU", why=f"its DLPack device type is {int(kind)}")
    capsule = owner.__dlpack__(stream=stream)
    if not _python.PyCapsule_IsValid(capsule, _NAME):
        raise DeviceError("a DLPack capsule was used twice", why="its tensor belongs to whoever took it first")
    managed = _Managed.from_address(_python.PyCapsule_GetPointer(capsule, _NAME))
    tensor = managed.tensor
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = _strides(tensor, shape, dtype.itemsize)
    _python.PyCapsule_SetName(capsule, _USED)

    def give_back() -> None:
        if managed.deleter:
            _Deleter(managed.deleter)(ctypes.addressof(managed))

    pointer = (tensor.data or 0) + tensor.byte_offset
    return ImportedTensor(pointer, shape, strides, dtype, Lease(give_back, counter), int(ordinal))


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    if tensor.code not in _KINDS or tensor.lanes != 1:
        raise DeviceError(
            f"a tensor of DLPack type {tensor.code} in {tensor.lanes} lanes", why="NumPy has no such type"
        )
    return np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")


def _strides(tensor: _Tensor, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """In bytes; none means C order."""
    if tensor.strides:
        return tuple(step * itemsize for step in tensor.strides[: tensor.ndim])
    strides = [itemsize]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])
