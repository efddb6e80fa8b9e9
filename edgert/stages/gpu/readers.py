"""Readers of engine outputs on a GPU, decoding there or on the host."""

import math
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
from edgert.stages.decode import classify, detection, instances, maps, shaped, yolo
from edgert.stages.decode.decoder import F32, Decoder, Size, of_one_image
from edgert.stages.decode.detection import I32, Detector, Index
from edgert.stages.decode.kinds import Beside
from edgert.stages.decode.rows import Found, Level, Numbers, RowHead
from edgert.stages.gpu import gpu_detections, gpu_scores
from edgert.stages.gpu.gpu_reader import CAPACITY, FLOATS, GpuReader, checked_count
from edgert.stages.gpu.kernels import Kernels

# Detection heads of many layouts, decoded partly on the GPU.
#
# One kernel copies the rows that may pass the score to the host, where the usual decoder reads them.

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
    """Detections of a :class:`~edgert.stages.decode.rows.RowHead`; ``decoder`` is a :class:`Detector`."""

    source = "rows"

    def __init__(self, decoder: Detector, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        super().__init__(decoder, outputs, network, kernels)
        self._head: RowHead = decoder.head  # type: ignore[assignment]  # readers.py has asked
        self._shapes, self._network = tuple(output.shape[1:] for output in outputs), network
        self._levels = self._head.levels(self._shapes, network, decoder.score)
        self._starts = list(accumulate((level.rows for level in self._levels), initial=0))
        self._blocks = list(accumulate((-(-level.rows // _ROWS_OF_BLOCK) for level in self._levels), initial=0))
        width = max(sum(numbers.width for numbers in level.wanted) for level in self._levels)
        capacity = min(CAPACITY, self._starts[-1])
        memories = self._answers(_COUNT_BYTES + capacity * 4 * (1 + width))
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
        self._rows = self._kernel("rows", {}, _JOB.size, outputs[0].dtype)

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        """See :meth:`GpuReader.unsupported`."""
        shapes = tuple(output.shape[1:] for output in outputs)
        if reason := decoder.head.why_all_rows(shapes, network):
            return str(reason)
        levels = decoder.head.levels(shapes, network, decoder.score)
        dtypes = {outputs[numbers.output].dtype for level in levels for numbers in level.wanted}
        if len(dtypes) > 1 or not dtypes <= set(FLOATS):
            return f"the kernels read {' or '.join(FLOATS)} of all outputs, not {', '.join(sorted(dtypes))}"
        return "" if len(levels) <= _LEVELS else f"the kernels read up to {_LEVELS} levels, not {len(levels)}"

    def close(self) -> None:
        """See :meth:`GpuReader.close`."""
        super().close()
        self._counts.release()

    def _numbers(self, decoder: Detector) -> bytes:
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
        """Return the record of one image. Raises StageError where more rows may pass than are copied to the host."""
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
        """Return the rows that were found, by level."""
        ends = np.searchsorted(rows, self._starts)
        return [
            Found(rows[a:b] - start, _parts(numbers[a:b], level))
            for level, start, a, b in zip(self._levels, self._starts, ends[:-1], ends[1:], strict=False)
        ]


def _parts(numbers: F32, level: Level) -> tuple[F32, ...]:
    """Return the columns of each of the level's wanted numbers."""
    ends = list(accumulate((one.width for one in level.wanted), initial=0))
    return tuple([np.ascontiguousarray(numbers[:, a:b]) for a, b in pairwise(ends)])


def _view(memory: U8, capacity: int, width: int) -> _Answer:
    rest = memory[_COUNT_BYTES : _COUNT_BYTES + capacity * 4 * (1 + width)]
    rows, numbers = rest[: 4 * capacity].view(np.int32), rest[4 * capacity :].view(np.float32)
    return _Answer(memory[:4].view(np.int32), rows, numbers.reshape(capacity, width))


class HostReader:
    """Download of all outputs of the processed rows, for decoders without a kernel.

    Args:
        outputs: of the session, in the model's order.
        batched: for every output, whether its first dimension is the batch.
    """

    def __init__(self, outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder) -> None:
        self._outputs, self._batched, self._decoder = tuple(outputs), tuple(batched), decoder

    def enqueue(self, rows: int, stream: Stream) -> None:
        """Enqueue the copies; there are none where host and GPU share the memory."""
        for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True):
            tensor.block.download(stream, nbytes)

    def place(self, geometries: Sequence[Geometry]) -> None:
        """Do nothing: the decoder takes geometries when it reads."""

    def copied(self, rows: int) -> Sequence[int]:
        return [
            nbytes for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True) if tensor.block.is_staged
        ]

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """Return a record per image, by the decoder."""
        arrays = [tensor.host for tensor in self._outputs]
        images = [of_one_image(arrays, self._batched, row) for row in range(len(geometries))]
        return [self._decoder(image, geometry) for image, geometry in zip(images, geometries, strict=True)]

    def fits(self, decoder: Decoder) -> bool:
        """Return True: the outputs are all on the host."""
        return True

    def take(self, decoder: Decoder) -> None:
        """Read as another decoder from the next run on."""
        self._decoder = decoder

    def close(self) -> None:
        """Free nothing: the outputs belong to the session."""

    def _sizes(self, rows: int) -> list[int]:
        """Return the bytes of each output; of those with a batch dimension, of the first ``rows``."""
        return [
            math.prod((min(rows, tensor.shape[0]), *tensor.shape[1:]) if batched else tensor.shape)
            * np.dtype(tensor.dtype).itemsize
            for tensor, batched in zip(self._outputs, self._batched, strict=True)
        ]


_READERS: dict[type, type[GpuReader]] = {
    detection.Detector: gpu_detections.GpuDetector,
    shaped.YoloV8Obb: gpu_detections.GpuOriented,
    instances.YoloV8Seg: gpu_detections.GpuInstances,
    classify.Classify: gpu_scores.GpuClasses,
    maps.SegmentArgmax: gpu_scores.GpuMask,
    maps.SegmentThreshold: gpu_scores.GpuMask,
    yolo.YoloPose: gpu_detections.GpuPose,
    maps.Heatmap: gpu_scores.GpuPeaks,
}


def reader_for(
    outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder, network: Size, kernels: Kernels
) -> tuple[GpuReader | HostReader, str]:
    """Return the reader of a session's outputs for a decoder: on the GPU where there are kernels for it.

    Args:
        outputs: of the session, in the model's order.
        batched: for every output, whether its first dimension is the batch.
        decoder: reads outputs on the host.
        kernels: of the GPU.
        network: (width, height) of the input, pixels.

    Returns:
        The reader, and why the host decodes; empty where the GPU does.
    """
    outputs, batched, decoder = needed(outputs, batched, decoder)
    reason = why_on_host(outputs, batched, decoder, network)
    if reason:
        return HostReader(outputs, batched, decoder), reason
    return _kind(decoder)(decoder, outputs, network, kernels), ""  # type: ignore[misc]  # there is one


def why_on_host(outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder, network: Size) -> str:
    """Return why the host decodes outputs of these shapes and types; empty where the GPU does.

    Arguments are those of :func:`reader_for`; only shapes and types are read.
    """
    outputs, batched, decoder = needed(outputs, batched, decoder)
    kind = _kind(decoder)
    whole = [tensor.name for tensor, has_batch in zip(outputs, batched, strict=True) if not has_batch]
    if kind is None:
        return "there are no kernels for this decoder"
    if whole:
        return f"output {whole[0]!r} has no batch dimension"
    return kind.unsupported(decoder, outputs, network)


def decoder_of(decoder: Decoder) -> Decoder:
    """Return the decoder that a reader uses, of just the outputs that it reads."""
    return decoder.decoder if isinstance(decoder, Beside) else decoder


def needed(
    outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder
) -> tuple[Sequence[GpuTensor], Sequence[bool], Decoder]:
    """Return the outputs that a decoder reads, whether each has a batch dimension, and the decoder of only these."""
    if not isinstance(decoder, Beside):
        return outputs, batched, decoder
    return [outputs[place] for place in decoder.places], [batched[place] for place in decoder.places], decoder.decoder


def _kind(decoder: Decoder) -> type[GpuReader] | None:
    """Return the reader class of a decoder or of its head; None: there is none."""
    head = getattr(decoder, "head", None)
    if isinstance(head, RowHead):
        return GpuRows
    return _READERS.get(type(head)) or _READERS.get(type(decoder))
