"""Detection heads decoded on the GPU: one kernel selects boxes by score, one suppresses overlaps.

Only the remaining boxes are copied to the host, with their keypoints, angles or bit masks.
"""

import math
import struct
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from edgert.backend.gpu import GpuTensor
from edgert.memory.cuda import Stream
from edgert.runtime import Detections, Keypoints, Record
from edgert.runtime.frame import U8
from edgert.stages.crop import Geometry
from edgert.stages.decode import instances, shaped, yolo
from edgert.stages.decode.decoder import F32, Size
from edgert.stages.decode.detection import CANDIDATES, I32, Detector
from edgert.stages.decode.rows import FINAL
from edgert.stages.gpu.gpu_reader import CAPACITY, GpuReader, checked_count, why_not_single_output
from edgert.stages.gpu.kernels import Kernels

_HEADS = {yolo.YoloX: 0, yolo.YoloV5: 1, yolo.YoloV8: 2}
_HEAD = struct.Struct("=6Qq8i")
_LIVE = struct.Struct("=3fi")
_TRANSFORM = struct.Struct("=8f")
_JOB = struct.Struct("=3Qq8i")
_MOST_PROTOTYPES, _MOST_CELLS, _PARTS = 256, 1365, 4
_CANDIDATE_BYTES = 32, 48
"""Bytes of a candidate: of an upright box, and of an oriented one."""
_COUNT_BYTES = 16
_BOXES_OF_BLOCK = 64
_THREADS = 256
_BLOCK_OF_SUPPRESS = 512


class BoxLayout(NamedTuple):
    """Layout of boxes in an output tensor.

    Attributes:
        head: 0 yolox, 1 yolov5, 2 yolov8; as the kernel numbers them.
        columns: whether the tensor is [numbers, boxes], so that a row of memory has one number of all boxes.
        classes, extras: count of class scores, and of other numbers behind them, of each box.
        rotated: whether boxes are oriented; ``extras`` are then the five numbers of such a box.
    """

    head: int
    columns: bool
    boxes: int
    classes: int
    extras: int = 0
    rotated: bool = False


class _Answer(NamedTuple):
    """Host views of one image's result. ``number`` is negative if too many boxes passed the score."""

    number: memoryview
    boxes: F32
    scores: F32
    classes: I32
    extras: npt.NDArray[Any]


class GpuBoxes(GpuReader):
    """Base of readers of boxes: those above the score that suppression keeps, with their extra numbers."""

    source = "decode"
    is_placed: ClassVar[bool] = False
    """Whether the GPU transforms boxes to source pixels, which needs mapped host memory; False for decoders that also
    need boxes in input pixels."""

    def __init__(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        super().__init__(decoder, outputs, network, kernels)
        self._room: int = decoder.limit
        can_place = self.is_placed and self._device.traits.can_map
        self._transforms = self._device.block(self.rows * _TRANSFORM.size, "mapped") if can_place else None
        self._placed: list[Geometry | None] = [None] * self.rows
        table = self._table(outputs)
        self._layout = self._layout_of(decoder, outputs, network)
        head, columns, boxes, classes, extras, rotated = self._layout
        out, pitch = self._allocate(outputs, _COUNT_BYTES + self._room * (24 + 4 * extras))
        nbytes = self.rows * CAPACITY * _CANDIDATE_BYTES[rotated]
        self._scratch = self._device.device_block(nbytes + 4 * self.rows)
        found, transforms = self._scratch.address, self._transforms.address if self._transforms is not None else 0
        self._argument = _HEAD.pack(
            table.block.address, found, found + nbytes, out, transforms, self._live_address(),
            math.prod(table.shape[1:]), boxes, classes, extras, *network, self._room, CANDIDATES, pitch,
        )  # fmt: skip
        is_agnostic = int(decoder.agnostic)
        definitions = {"HEAD": head, "COLUMNS": int(columns), "AGNOSTIC": is_agnostic, "ROTATED": int(rotated)}
        self._candidates = self._kernel("candidates", definitions, table.dtype)
        self._suppress = self._kernel("suppress", definitions, table.dtype)

    def accepts(self, decoder: Any) -> bool:
        return bool(decoder.limit <= self._room)

    def _live_values(self, decoder: Any) -> bytes:
        more = shaped.bound_of(decoder.iou) if self._layout.rotated else 1 + decoder.iou
        return _LIVE.pack(decoder.score, decoder.iou, more, decoder.limit)

    def close(self) -> None:
        super().close()
        self._scratch.release()
        if self._transforms is not None:
            self._transforms.release()

    def set_transforms(self, geometries: Sequence[Geometry]) -> None:
        """Write the transforms of rows whose geometry has changed."""
        if self._transforms is None:
            return
        for row, geometry in enumerate(geometries):
            if geometry is not self._placed[row]:
                self._transforms.host[row * _TRANSFORM.size : (row + 1) * _TRANSFORM.size] = _packed_transform(geometry)
                self._placed[row] = geometry

    def _table(self, outputs: Sequence[GpuTensor]) -> GpuTensor:
        return outputs[0]

    def _allocate(self, outputs: Sequence[GpuTensor], nbytes: int) -> tuple[int, int]:
        """Allocate answers of ``nbytes`` per image; return the address where suppression writes, and the pitch."""
        self._views = [self._view(memory, self._layout.extras) for memory in self._allocate_answers(nbytes)]
        return self._out.address, self._pitch

    @abstractmethod
    def _layout_of(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> BoxLayout: ...

    @abstractmethod
    def _new_record(self, boxes: F32, scores: F32, classes: I32, extras: Any, geometry: Geometry) -> Record:
        """Return the record. Scores and classes are copies; so are boxes if the GPU has transformed them."""

    def _view(self, memory: npt.NDArray[np.uint8], extras: int) -> _Answer:
        room = self._room
        count, rest = memoryview(memory[:4].data).cast("i"), memory[_COUNT_BYTES:]
        numbers = rest[: room * (24 + 4 * extras)].view(np.float32)
        return _Answer(
            count, numbers[: 4 * room].reshape(room, 4), numbers[4 * room : 5 * room],
            numbers[5 * room : 6 * room].view(np.int32), numbers[6 * room :].reshape(room, extras),
        )  # fmt: skip

    def _launch(self, rows: int, stream: Stream) -> None:
        grid = (-(-self._layout.boxes // _BOXES_OF_BLOCK), rows, 1)
        self._candidates.launch(self._argument, grid, (_THREADS, 1, 1), stream)
        self._suppress.launch(self._argument, (rows, 1, 1), (_BLOCK_OF_SUPPRESS, 1, 1), stream)

    def _record(self, row: int, geometry: Geometry) -> Record:
        """Return the record of one image. Raises StageError if more boxes pass the score than the GPU sorts."""
        number, boxes, scores, classes, extras = self._views[row]
        found = checked_count(number[0], self._decoder.score)
        boxes = boxes[:found] if self._transforms is None else boxes[:found].copy()
        return self._new_record(boxes, scores[:found].copy(), classes[:found].copy(), extras[:found], geometry)

    def _in_source(self, boxes: F32, geometry: Geometry) -> F32:
        """Return boxes of an answer in source pixels, as a new array."""
        return geometry.boxes(boxes) if self._transforms is None else boxes


class GpuDetector(GpuBoxes):
    """GPU reader of a yolox, yolov5 or yolov8 head; ``decoder`` is a :class:`Detector`."""

    is_placed = True

    @classmethod
    def unsupported(cls, decoder: Detector, outputs: Sequence[GpuTensor], network: Size) -> str:
        head = decoder.head
        if type(head) not in _HEADS:
            return f"the kernels read yolox, yolov5 and yolov8, not {type(head).__name__.lower()}"
        if isinstance(head, yolo.YoloX) and head.strides != (8, 16, 32):
            return f"the kernels know strides 8, 16, 32, not {head.strides}"
        if reason := why_not_single_output(outputs) or _why_no_table(outputs[0].shape) or _why_not_pixels(head):
            return reason
        is_final = head.class_count((outputs[0].shape[1:],), network) is None
        return FINAL if is_final else ""

    def _layout_of(self, decoder: Detector, outputs: Sequence[GpuTensor], network: Size) -> BoxLayout:
        head, shape = _HEADS[type(decoder.head)], outputs[0].shape
        columns = head == 2 and yolo.is_columns(shape[1:], network)
        boxes, numbers = (shape[2], shape[1]) if columns else (shape[1], shape[2])
        return BoxLayout(head, columns, boxes, numbers - (4 if head == 2 else 5))

    def _new_record(self, boxes: F32, scores: F32, classes: I32, extras: F32, geometry: Geometry) -> Detections:
        return Detections(self._in_source(boxes, geometry), scores, classes, self._decoder.labels)


class GpuPose(GpuBoxes):
    """GPU reader of bodies and their keypoints; ``decoder`` is a :class:`~edgert.stages.decode.yolo.YoloPose`."""

    is_placed = True

    @classmethod
    def unsupported(cls, decoder: yolo.YoloPose, outputs: Sequence[GpuTensor], network: Size) -> str:
        if reason := why_not_single_output(outputs) or _why_no_table(outputs[0].shape) or _why_not_pixels(decoder):
            return reason
        if decoder.dims != 3:
            return f"the kernels read points of three numbers, not {decoder.dims}"
        is_final = yolo.is_final_pose(outputs[0].shape[1:], network)
        return FINAL if is_final else ""

    def _layout_of(self, decoder: yolo.YoloPose, outputs: Sequence[GpuTensor], network: Size) -> BoxLayout:
        _, numbers, boxes = outputs[0].shape
        return BoxLayout(_HEADS[yolo.YoloV8], True, boxes, decoder.classes, numbers - 4 - decoder.classes)

    def _new_record(self, boxes: F32, scores: F32, classes: I32, extras: F32, geometry: Geometry) -> Keypoints:
        points = geometry.points(extras.reshape(len(extras), self._layout.extras // 3, 3))
        return Keypoints(self._in_source(boxes, geometry), scores, classes, points=points, names=self._decoder.labels)


class GpuOriented(GpuBoxes):
    """GPU reader of oriented boxes; the decoder's head is a :class:`~edgert.stages.decode.shaped.YoloV8Obb`."""

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        if reason := why_not_single_output(outputs) or _why_no_table(outputs[0].shape) or _why_not_pixels(decoder.head):
            return reason
        is_final = decoder.head.class_count((outputs[0].shape[1:],), network) is None
        return FINAL if is_final else ""

    def _layout_of(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> BoxLayout:
        _, numbers, boxes = outputs[0].shape
        return BoxLayout(2, True, boxes, numbers - 5, 5, rotated=True)

    def _new_record(self, boxes: F32, scores: F32, classes: I32, extras: F32, geometry: Geometry) -> Detections:
        corners = geometry.points(shaped.turned_corners(extras))
        hulls = geometry.boxes(shaped.hulls(extras))
        return Detections(hulls, scores, classes, self._decoder.labels, corners=corners)


class GpuInstances(GpuBoxes):
    """GPU reader of boxes and masks; the decoder's head is a :class:`~edgert.stages.decode.instances.YoloV8Seg`."""

    def __init__(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        self._size = network
        super().__init__(decoder, outputs, network, kernels)
        maps = outputs[self._which[1]]
        _, count, height, width = maps.shape
        self._mask = self._kernel("instances", {}, maps.dtype, "instances")
        self._job = _JOB.pack(
            self._kept.address, maps.block.address, self._out.address, count * height * width, self._room, count,
            width, height, network[0] // width, network[1] // height, self._kept_pitch, self._pitch,
        )  # fmt: skip

    @classmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        shapes = [output.shape[1:] for output in outputs]
        found = instances.find_tables(shapes)
        if found is None:
            return f"the kernels read boxes and prototypes, not {len(outputs)} outputs"
        if decoder.head.class_count(shapes, network) is None:
            return FINAL
        if (count := outputs[found[1]].shape[1]) > _MOST_PROTOTYPES:
            return f"the kernels read up to {_MOST_PROTOTYPES} prototypes, not {count}"
        _, _, height, width = outputs[found[1]].shape
        if width > _MOST_CELLS or network[0] % width or network[1] % height:
            return f"the kernels read prototypes whose cells are whole pixels, not {width} × {height} of a {network[0]}"
        return why_not_single_output(outputs[:1]) or why_not_single_output(outputs[1:]) or _why_not_pixels(decoder.head)

    def close(self) -> None:
        super().close()
        self._kept.release()

    def _table(self, outputs: Sequence[GpuTensor]) -> GpuTensor:
        self._which = instances.find_tables([output.shape[1:] for output in outputs]) or (0, 1)
        return outputs[self._which[0]]

    def _layout_of(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> BoxLayout:
        _, numbers, boxes = outputs[self._which[0]].shape
        masks = outputs[self._which[1]].shape[1]
        return BoxLayout(2, True, boxes, numbers - 4 - masks, masks)

    def _allocate(self, outputs: Sequence[GpuTensor], nbytes: int) -> tuple[int, int]:
        """Allocate the kept boxes in GPU memory, from which the kernel makes masks, and answers with masks."""
        self._kept_pitch = -(-nbytes // 16) * 16
        self._kept = self._device.device_block(self.rows * self._kept_pitch)
        width, height = self._size
        words = -(-width // 32)
        start = _COUNT_BYTES + 24 * self._room
        end = start + self._room * height * words * 4
        self._views = [
            self._view(memory[:start], 0)._replace(extras=memory[start:end].reshape(self._room, height, 4 * words))
            for memory in self._allocate_answers(end)
        ]
        return self._kept.address, self._kept_pitch

    def _launch(self, rows: int, stream: Stream) -> None:
        super()._launch(rows, stream)
        self._mask.launch(self._job, (self._room, rows, _PARTS), (_THREADS, 1, 1), stream)

    def _new_record(self, boxes: F32, scores: F32, classes: I32, extras: Any, geometry: Geometry) -> Detections:
        def cut(row: int, span: I32) -> U8:
            x1, y1, x2, y2 = span
            bits = np.unpackbits(extras[row, y1:y2, x1 // 8 : -(-x2 // 8)], axis=1, bitorder="little")
            part: U8 = bits[:, x1 % 8 : x1 % 8 + x2 - x1].copy()
            return part

        record = Detections(geometry.boxes(boxes), scores, classes, self._decoder.labels)
        return instances.with_masks(record, cut, instances.spans_of(boxes, geometry), geometry)


def _why_not_pixels(head: Any) -> str:
    is_relative = getattr(head, "boxes", "pixels") != "pixels"
    return "the kernels read boxes in pixels of the input, not parts of it" if is_relative else ""


def _why_no_table(shape: tuple[int, ...]) -> str:
    return "" if len(shape) == 3 else f"they read [batch, boxes, numbers], not {list(shape)}"


@lru_cache(maxsize=64)
def _packed_transform(geometry: Geometry) -> npt.NDArray[np.uint8]:
    ends = geometry.scale_x, geometry.scale_y, geometry.offset_x, geometry.offset_y, *geometry.bounds
    return np.frombuffer(_TRANSFORM.pack(*ends), np.uint8)
