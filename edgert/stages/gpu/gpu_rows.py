"""Detection heads of many layouts, decoded partly on the GPU.

One kernel copies the rows that may pass the score to the host, where the usual decoder reads them.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.memory.cuda import Stream
from edgert.runtime import Record
from edgert.runtime.frame import U8
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import F32, Size
from edgert.stages.decode.detection import I32, Detector, Index
from edgert.stages.decode.rows import Found, Level, Numbers, RowHead
from edgert.stages.gpu.gpu_reader import CAPACITY, FLOATS, GpuReader, checked_count
from edgert.stages.gpu.kernels import Kernels

_LEVELS, _FLOORS, _WANTED = 16, 2, 4
_NUMBERS = "Qq4i"
_LEVEL = struct.Struct(f"={_NUMBERS * (_FLOORS + _WANTED + 1)}3i4x")
_JOB = struct.Struct(f"=3Q5i4x{_LEVELS * _LEVEL.size}s")
_NOTHING = (0, 0, 0, 0, 0, 0)
_COUNT_BYTES = 16
_ROWS_OF_BLOCK, _THREADS = 64, 256


class _Answer(NamedTuple):
    """Host views of one image's result."""

    number: I32
    rows: I32
    numbers: F32


class GpuRows(GpuReader):
    """GPU reader of a :class:`~edgert.stages.decode.rows.RowHead`; ``decoder`` is a :class:`Detector`."""

    source = "rows"

    def __init__(self, decoder: Detector, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        super().__init__(decoder, outputs, network, kernels)
        self._head: RowHead = decoder.head  # type: ignore[assignment]  # readers.py checks it
        self._shapes, self._network = tuple(output.shape[1:] for output in outputs), network
        self._levels = self._head.levels(self._shapes, network, decoder.score)
        self._starts = list(accumulate((level.rows for level in self._levels), initial=0))
        self._blocks = list(accumulate((-(-level.rows // _ROWS_OF_BLOCK) for level in self._levels), initial=0))
        width = max(sum(numbers.width for numbers in level.wanted) for level in self._levels)
        capacity = min(CAPACITY, self._starts[-1])
        memories = self._allocate_answers(_COUNT_BYTES + capacity * 4 * (1 + width))
        self._views = [_view(memory, capacity, width) for memory in memories]
        self._counts = self._device.device_block(8 * self.rows)
        levels = b"".join(
            self._level(level, outputs, start, block)
            for level, start, block in zip(self._levels, self._starts, self._blocks, strict=False)
        )
        self._job = _JOB.pack(
            self._counts.address, self._out.address, self._live_address(), len(self._levels), self._blocks[-1], width,
            capacity, self._pitch, levels,
        )  # fmt: skip
        self._rows = self._kernel("rows", {}, outputs[0].dtype)

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        shapes = tuple(output.shape[1:] for output in outputs)
        if reason := decoder.head.why_all_rows(shapes, network):
            return str(reason)
        levels = decoder.head.levels(shapes, network, decoder.score)
        dtypes = {outputs[numbers.output].dtype for level in levels for numbers in level.wanted}
        if len(dtypes) > 1 or not dtypes <= set(FLOATS):
            return f"the kernels read {' or '.join(FLOATS)} of all outputs, not {', '.join(sorted(dtypes))}"
        return "" if len(levels) <= _LEVELS else f"the kernels read up to {_LEVELS} levels, not {len(levels)}"

    def close(self) -> None:
        super().close()
        self._counts.release()

    def _live_values(self, decoder: Detector) -> bytes:
        levels = self._head.levels(self._shapes, self._network, decoder.score)
        floors = [floor for level in levels for floor in (*(one for _, one in level.floors), 0.0)[:_FLOORS]]
        return np.array(floors, np.float32).tobytes()

    def _level(self, level: Level, outputs: Sequence[GpuTensor], start: int, block: int) -> bytes:
        def packed(numbers: Sequence[Numbers], most: int) -> list[int]:
            every = [self._placed(one, outputs[one.output]) for one in numbers]
            return [value for one in (*every, *[_NOTHING] * (most - len(every))) for value in one]

        asked = [numbers for numbers, _ in level.floors]
        above = () if level.above is None else (level.above,)
        return _LEVEL.pack(
            *packed(asked, _FLOORS), *packed(level.wanted, _WANTED), *packed(above, 1), level.rows, start, block,
        )  # fmt: skip

    def _placed(self, numbers: Numbers, tensor: GpuTensor) -> tuple[int, ...]:
        stride = int(np.prod(tensor.shape[1:]))
        return tensor.block.address, stride, numbers.width, numbers.step, numbers.apart, numbers.first

    def _launch(self, rows: int, stream: Stream) -> None:
        self._rows.launch(self._job, (self._blocks[-1], rows, 1), (_THREADS, 1, 1), stream)

    def _record(self, row: int, geometry: Geometry) -> Record:
        """Return the record of one image. Raises StageError if more rows may pass than are copied to the host."""
        number, rows, numbers = self._views[row]
        count = checked_count(int(number[0]), self._decoder.score)
        found_rows = np.array(rows[:count], np.intp)
        order = np.argsort(found_rows)
        found = self._found(found_rows[order], numbers[:count][order])
        placed = self._head.placed(found, self._shapes, geometry.network, self._decoder.score)
        seen = self._head.seen(found, self._shapes)
        record: Record = self._decoder.record(placed, self._shapes, geometry, seen)
        return record

    def _found(self, rows: Index, numbers: F32) -> list[Found]:
        ends = np.searchsorted(rows, self._starts)
        return [
            Found(rows[a:b] - start, _parts(numbers[a:b], level))
            for level, start, a, b in zip(self._levels, self._starts, ends[:-1], ends[1:], strict=False)
        ]


def _parts(numbers: F32, level: Level) -> tuple[F32, ...]:
    """Return the columns of each kind of number that the level needs."""
    ends = list(accumulate((one.width for one in level.wanted), initial=0))
    return tuple([np.ascontiguousarray(numbers[:, a:b]) for a, b in pairwise(ends)])


def _view(memory: U8, capacity: int, width: int) -> _Answer:
    rest = memory[_COUNT_BYTES : _COUNT_BYTES + capacity * 4 * (1 + width)]
    rows, numbers = rest[: 4 * capacity].view(np.int32), rest[4 * capacity :].view(np.float32)
    return _Answer(memory[:4].view(np.int32), rows, numbers.reshape(capacity, width))
