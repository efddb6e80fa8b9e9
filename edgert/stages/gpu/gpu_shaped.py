"""Objects with a shape, on the GPU: oriented boxes, and boxes with a mask, a bit for every cell of the prototypes."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.memory.cuda import Stream
from edgert.runtime import Detections
from edgert.runtime.frame import U8
from edgert.stages.crop import Geometry
from edgert.stages.decode import shaped
from edgert.stages.decode.decoder import F32, Size
from edgert.stages.decode.detection import I32
from edgert.stages.gpu.gpu_detections import COUNT_BYTES, GpuBoxes, Layout, no_table
from edgert.stages.gpu.gpu_reader import not_one
from edgert.stages.gpu.kernels import Kernels

_JOB = struct.Struct("=3Qq6i2f")
_MOST_PROTOTYPES = 256
_THREADS = 256


class GpuOriented(GpuBoxes):
    """Oriented boxes; the decoder's head is a :class:`~edgert.stages.decode.shaped.YoloV8Obb`."""

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        """See :meth:`GpuReader.unsupported`."""
        return not_one(outputs) or no_table(outputs[0].shape)

    def _layout_of(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> Layout:
        _, numbers, boxes = outputs[0].shape
        return Layout(2, True, boxes, numbers - 5, 5, rotated=True)

    def _made(self, boxes: F32, scores: F32, classes: I32, extras: F32, geometry: Geometry) -> Detections:
        corners = geometry.points(shaped.turned_corners(extras))
        hulls = geometry.boxes(shaped.hulls(extras))
        return Detections(hulls, scores, classes, self._decoder.labels, corners=corners)


class GpuInstances(GpuBoxes):
    """Boxes and masks; the decoder's head is a :class:`~edgert.stages.decode.shaped.YoloV8Seg`."""

    def __init__(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        super().__init__(decoder, outputs, network, kernels)
        maps = outputs[self._which[1]]
        _, count, height, width = maps.shape
        self._mask = self._kernel("instances", {}, _JOB.size, maps.dtype, "instances")
        self._job = _JOB.pack(
            self._kept.address, maps.block.address, self._out.address, count * height * width, decoder.limit, count,
            width, height, self._kept_pitch, self._pitch, width / network[0], height / network[1],
        )  # fmt: skip

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        """See :meth:`GpuReader.unsupported`."""
        found = shaped.find_tables([output.shape[1:] for output in outputs])
        if found is None:
            return f"the kernels read boxes and prototypes, not {len(outputs)} outputs"
        if (count := outputs[found[1]].shape[1]) > _MOST_PROTOTYPES:
            return f"the kernels read up to {_MOST_PROTOTYPES} prototypes, not {count}"
        return not_one(outputs[:1]) or not_one(outputs[1:])

    def close(self) -> None:
        """See :meth:`GpuReader.close`."""
        super().close()
        self._kept.release()

    def _table(self, outputs: Sequence[GpuTensor]) -> GpuTensor:
        self._which = shaped.table_and_maps([output.shape[1:] for output in outputs])
        return outputs[self._which[0]]

    def _layout_of(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> Layout:
        _, numbers, boxes = outputs[self._which[0]].shape
        masks = outputs[self._which[1]].shape[1]
        return Layout(2, True, boxes, numbers - 4 - masks, masks)

    def _answer(self, outputs: Sequence[GpuTensor], nbytes: int) -> tuple[int, int]:
        """Memory of the GPU alone: masks are made of it there."""
        self._kept_pitch = -(-nbytes // 16) * 16
        self._kept = self._device.device_block(self.rows * self._kept_pitch)
        _, _, height, self._width = outputs[self._which[1]].shape
        words = -(-self._width // 32)
        limit, start = self._decoder.limit, COUNT_BYTES + 24 * self._decoder.limit
        end = start + limit * height * words * 4
        self._views = [
            self._view(memory[:start], 0)._replace(extras=memory[start:end].reshape(limit, height, 4 * words))
            for memory in self._answers(end)
        ]
        return self._kept.address, self._kept_pitch

    def _launch(self, rows: int, stream: Stream) -> None:
        super()._launch(rows, stream)
        self._mask.launch(self._job, (self._decoder.limit, rows, 1), (_THREADS, 1, 1), stream)

    def _made(self, boxes: F32, scores: F32, classes: I32, extras: Any, geometry: Geometry) -> Detections:
        def cut(row: int, span: I32) -> U8:
            x1, y1, x2, y2 = span
            bits = np.unpackbits(extras[row, y1:y2], axis=1, bitorder="little")
            part: U8 = bits[:, x1:x2].copy()
            return part

        masks = shaped.instance_masks(cut, boxes, (self._width, extras.shape[1]), geometry)
        return Detections(geometry.boxes(boxes), scores, classes, self._decoder.labels, masks=masks)
