"""Outputs that no kernel decodes: brought to the host as they are, and decoded there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.memory.cuda import Stream
from edgert.runtime import Record
from edgert.stages.decode.base import Array, Decoder
from edgert.stages.geometry import Geometry


class HostReader:
    """Downloads the rows that were run, of every output, and gives them to a decoder.

    Args:
        outputs: of the session, in the model's order.
        batched: for every output, whether its first dimension is the batch.
    """

    def __init__(self, outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder) -> None:
        self._outputs, self._batched, self._decoder = tuple(outputs), tuple(batched), decoder

    def enqueue(self, rows: int, stream: Stream) -> None:
        """Puts the copies on the stream; none where host and GPU share the memory."""
        for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True):
            tensor.block.download(stream, nbytes)

    def copied(self, rows: int) -> Sequence[int]:
        """See :class:`~edgert.stages.gpu.slot.Reader`."""
        return [
            nbytes for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True) if tensor.block.is_staged
        ]

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """One record per picture, by the decoder."""
        arrays = [tensor.host for tensor in self._outputs]
        return [self._decoder(self._row(arrays, row), geometry) for row, geometry in enumerate(geometries)]

    def close(self) -> None:
        """The outputs belong to the session."""

    def _row(self, arrays: Sequence[Array], row: int) -> list[Array]:
        return [array[row] if batched else array for array, batched in zip(arrays, self._batched, strict=True)]

    def _sizes(self, rows: int) -> list[int]:
        """Bytes of each output, of the first rows where it has a batch."""
        return [
            math.prod((min(rows, tensor.shape[0]), *tensor.shape[1:]) if batched else tensor.shape)
            * np.dtype(tensor.dtype).itemsize
            for tensor, batched in zip(self._outputs, self._batched, strict=True)
        ]
