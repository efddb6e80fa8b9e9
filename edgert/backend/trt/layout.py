"""How a tensor lies in TensorRT's memory: strides, and channels in vectors, as CHW16, CHW32 and DLA_HWC4 have them.

TensorRT tells strides in elements, where a tensor whose channels are stored c at a time has elements of c numbers:
``IExecutionContext.get_tensor_strides`` and ``ICudaEngine.get_tensor_components_per_element``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgert.backend.base import Array
from edgert.memory.cuda.block import U8

Index: TypeAlias = "tuple[slice | int, ...]"


@dataclass(frozen=True, slots=True)
class Layout:
    """One tensor.

    Attributes:
        shape: its dimensions, as the model has them.
        strides: one per dimension, in elements.
        dtype: NumPy's name.
        vector_dim: the dimension that is stored in vectors; -1 for none.
        vector: numbers in an element; 1 for none.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    vector_dim: int = -1
    vector: int = 1

    @property
    def nbytes(self) -> int:
        """What it takes, padding included."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self._elements, self.strides, strict=True))
        return (last + 1) * self.vector * np.dtype(self.dtype).itemsize

    @property
    def is_plain(self) -> bool:
        """Whether it is a C-contiguous array, which callers can write in place."""
        return self.vector == 1 and self.strides == row_major(self.shape)

    @property
    def number_strides(self) -> tuple[int, ...]:
        """Strides in numbers; of the dimension that is stored in vectors, from one number of a vector to the next."""
        along = enumerate(self.strides)
        return tuple(1 if self.vector > 1 and dim == self.vector_dim else step * self.vector for dim, step in along)

    def plain(self, memory: U8) -> Array:
        """The array in ``memory``, without a copy; for a plain layout."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return memory[:size].view(self.dtype).reshape(self.shape)

    def pack(self, values: Array, memory: U8) -> None:
        """Writes an array of :attr:`shape` as TensorRT wants it; padding is left as it is."""
        for piece, where in self._pieces(values):
            self._view(memory)[where] = piece

    def unpack(self, memory: U8, values: Array) -> None:
        """Reads it back into an array of :attr:`shape`."""
        for piece, where in self._pieces(values):
            piece[...] = self._view(memory)[where]

    @property
    def _elements(self) -> tuple[int, ...]:
        """The shape in elements."""
        return tuple(-(-size // self.vector) if dim == self.vector_dim else size for dim, size in enumerate(self.shape))

    def _view(self, memory: U8) -> Array:
        """Memory as an array with one dimension more, the place in an element."""
        item = np.dtype(self.dtype).itemsize
        strides = (*(stride * self.vector * item for stride in self.strides), item)
        shape = (*self._elements, self.vector)
        flat = memory[: self.nbytes].view(self.dtype)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)

    def _pieces(self, values: Array) -> list[tuple[Array, Index]]:
        """For each place in an element: the part of the array that is stored there, and where."""
        every: Index = (slice(None),) * len(self.shape)
        if self.vector == 1:
            return [(values, (*every, 0))]
        pieces = []
        for place in range(min(self.vector, self.shape[self.vector_dim])):
            part = (*every[: self.vector_dim], slice(place, None, self.vector))
            count = len(range(place, self.shape[self.vector_dim], self.vector))
            where = (*every[: self.vector_dim], slice(0, count), *every[self.vector_dim + 1 :], place)
            pieces.append((values[part], where))
        return pieces


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
