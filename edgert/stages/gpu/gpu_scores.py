"""Classification, segmentation and heat maps decoded on the GPU: best classes, a class per cell, and peaks."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.memory.cuda import Stream
from edgert.runtime import Classification, Keypoints, Segmentation
from edgert.stages.crop import Geometry
from edgert.stages.decode import classify, maps
from edgert.stages.decode.decoder import Size
from edgert.stages.gpu.gpu_reader import FLOATS, GpuReader, why_not_single_output
from edgert.stages.gpu.kernels import Kernels

_JOB = struct.Struct("=6Qq4i")
_MANNERS = {"auto": 0, "softmax": 1, "logits": 2}
_MOST = 32
_COUNT_BYTES = 16
_EACH = 4096
_THREADS_OF_CLASSES = 512
_PART_BYTES = 16 + _MOST * 8
"""Bytes that a block writes for its part of a row: four numbers and the best classes."""


class GpuClasses(GpuReader):
    """GPU reader of the best classes; ``decoder`` is a :class:`~edgert.stages.decode.classify.Classify`."""

    source, is_quick = "classes", True

    def __init__(
        self, decoder: classify.Classify, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels
    ) -> None:
        super().__init__(decoder, outputs, network, kernels)
        count = math.prod(outputs[0].shape[1:])
        self._parts, self._labels, self._count = -(-count // _EACH), decoder.labels, count
        room = min(_MOST, count)
        self._views = [
            (memory[:4].view(np.int32), numbers[:room], numbers[room : 2 * room].view(np.int32))
            for memory in self._allocate_answers(_COUNT_BYTES + 8 * room)
            for numbers in (memory[_COUNT_BYTES:].view(np.float32),)
        ]
        each = self.rows * self._parts
        self._scratch = self._device.device_block(each * _PART_BYTES + 4 * self.rows)
        parts = self._scratch.address
        best, done = parts + 16 * each, parts + each * _PART_BYTES
        manner = _MANNERS[decoder.classify]
        self._argument = _JOB.pack(
            outputs[0].block.address, parts, best, done, self._out.address, self._live_address(), count, count, room,
            manner, self._pitch,
        )  # fmt: skip
        self._classes = self._kernel("classes", {}, outputs[0].dtype)

    @classmethod
    def unsupported(cls, decoder: classify.Classify, outputs: Sequence[GpuTensor], network: Size) -> str:
        """Return why the kernels cannot decode these outputs. Outputs behind the first are not read."""
        if reason := why_not_single_output(outputs[:1]):
            return reason
        count = math.prod(outputs[0].shape[1:])
        if min(decoder.top, count) > _MOST:
            return f"the kernels find up to {_MOST} classes, not {decoder.top}"
        return "" if count else "there are no classes"

    def accepts(self, decoder: Any) -> bool:
        return bool(min(decoder.top, self._count) <= _MOST)

    def _live_values(self, decoder: classify.Classify) -> bytes:
        return struct.pack("=i", min(decoder.top, self._count))

    def close(self) -> None:
        super().close()
        self._scratch.release()

    def _launch(self, rows: int, stream: Stream) -> None:
        self._classes.launch(self._argument, (self._parts, rows, 1), (_THREADS_OF_CLASSES, 1, 1), stream)

    def _record(self, row: int, geometry: Geometry) -> Classification:
        count, scores, classes = self._views[row]
        found = int(count[0])
        return Classification(scores[:found].copy(), classes[:found].copy(), self._labels)


_MAPS = struct.Struct("=3Qq6i")
_THREADS = 256
_PEAK = np.dtype([("cell", "i4"), ("around", "f4", (3, 3)), ("value", "f4"), ("unused", "i4")])


class GpuMask(GpuReader):
    """GPU reader of segmentation: the class of every cell.

    ``decoder`` is a :class:`~edgert.stages.decode.maps.SegmentArgmax` or
    :class:`~edgert.stages.decode.maps.SegmentThreshold`. The host cuts the padding off.
    """

    source, is_small = "maps", False

    def __init__(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        super().__init__(decoder, outputs, network, kernels)
        address, dtype = outputs[0].block.address, outputs[0].dtype
        classes, (height, width), is_first = _form(decoder, outputs[0].shape[1:], network)
        cells = height * width
        self._masks = [memory[:cells].reshape(height, width) for memory in self._allocate_answers(cells)]
        integer = np.dtype(dtype).itemsize if dtype in ("int32", "int64") else 0
        several = 4 if cells % 4 == 0 and (is_first or classes == 1) else 1
        definitions = {"INTEGER": integer, "CELLS": several}
        per_class, per_cell = (cells, 1) if is_first else (1, classes)
        self._dtype = np.dtype(dtype)
        threshold = self._live_address() if isinstance(decoder, maps.SegmentThreshold) else 0
        self._argument = _MAPS.pack(
            address, self._out.address, threshold, classes * cells, classes, cells, per_class, per_cell, 0, self._pitch
        )
        function = "narrow" if integer else "reaches" if isinstance(decoder, maps.SegmentThreshold) else "best_class"
        self._code = self._kernel(function, definitions, dtype)
        self._blocks = -(-cells // (_THREADS * several))

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        classes, _, _ = _form(decoder, outputs[0].shape[1:], network)
        is_chosen = classes == 1 and isinstance(decoder, maps.SegmentArgmax)
        return why_not_single_output(outputs, ("int32", "int64") if is_chosen else FLOATS)

    def _live_values(self, decoder: maps.SegmentThreshold) -> bytes:
        return struct.pack("=f", self._dtype.type(decoder.threshold))  # NumPy compares in the type of the scores

    def _launch(self, rows: int, stream: Stream) -> None:
        self._code.launch(self._argument, (self._blocks, rows, 1), (_THREADS, 1, 1), stream)

    def _record(self, row: int, geometry: Geometry) -> Segmentation:
        cut, region = maps.crop_padding(self._masks[row], geometry)
        names = getattr(self._decoder, "names", self._decoder.labels)
        return Segmentation(cut.copy(), region, names)


class GpuPeaks(GpuReader):
    """GPU reader of the keypoints of one body, from heat maps.

    ``decoder`` is a :class:`~edgert.stages.decode.maps.Heatmap`. It refines a peak to a fraction of a cell, on the
    host, from the cells around it.
    """

    source = "maps"

    def __init__(self, decoder: maps.Heatmap, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        super().__init__(decoder, outputs, network, kernels)
        _, count, height, width = outputs[0].shape
        self._size = height, width
        nbytes = count * _PEAK.itemsize
        self._peaks = [memory[:nbytes].view(_PEAK) for memory in self._allocate_answers(nbytes)]
        cells = height * width
        self._argument = _MAPS.pack(
            outputs[0].block.address, self._out.address, 0, count * cells, count, cells, cells, 1, width, self._pitch
        )
        self._find = self._kernel("peaks", {"INTEGER": 0, "CELLS": 1}, outputs[0].dtype)

    @classmethod
    def unsupported(cls, decoder: maps.Heatmap, outputs: Sequence[GpuTensor], network: Size) -> str:
        return why_not_single_output(outputs)

    def _launch(self, rows: int, stream: Stream) -> None:
        self._find.launch(self._argument, (len(self._peaks[0]), rows, 1), (_THREADS, 1, 1), stream)

    def _record(self, row: int, geometry: Geometry) -> Keypoints:
        found = self._peaks[row]
        points = maps.refine_peaks(found["cell"], found["around"], found["value"], self._size)
        record: Keypoints = self._decoder.body(points, self._size, geometry)
        return record


def _form(decoder: Any, shape: tuple[int, ...], network: Size) -> tuple[int, tuple[int, int], bool]:
    """Return the number of classes, (height, width), and whether all scores of a class are adjacent."""
    if isinstance(decoder, maps.SegmentThreshold):
        height, width = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape[:2]
        return 1, (height, width), True
    layout = maps.map_layout(shape, network)
    if layout == "hw":
        return 1, (shape[0], shape[1]), True
    if layout == "hwc":
        return shape[2], (shape[0], shape[1]), False
    return shape[0], (shape[1], shape[2]), True
