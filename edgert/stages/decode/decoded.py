"""Networks that finish the job in the graph: boxes, scores and classes come out final."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from edgert.stages.decode.decoder import (
    Array,
    Roles,
    Shapes,
    Size,
    as_f32,
    boxes_and_scores,
    is_rows_of_six,
    roles_of,
    shapes_of,
)
from edgert.stages.decode.detection import F32, I32, Candidates, every_class
from edgert.stages.decode.guess import MOST_QUERIES, Fit, Look, wrong_shapes

READS = "one output [boxes, 6] or three [boxes, 4], [boxes], [boxes] and perhaps a count"


@dataclass(frozen=True, slots=True)
class Decoded:
    """One output [N, 6] of x1, y1, x2, y2, score, class; or boxes [N, 4], scores [N], classes [N] and perhaps a count.

    The first is what YOLOv10, YOLO26 and every Ultralytics export with ``nms=True`` write
    (https://docs.ultralytics.com/models/yolov10, /modes/export); the second what TensorRT's EfficientNMS plugin
    (github.com/NVIDIA/TensorRT, plugin/efficientNMSPlugin: num_detections, boxes, scores, classes), torchvision,
    RT-DETR and TensorFlow write. Outputs are distinguished by shape and type: classes are integers; where both rows of
    numbers are floats, classes come first, as in TensorFlow's.

    Attributes:
        boxes: in network pixels, or relative to the network's width and height.
        order: of the four numbers of a box; TensorFlow writes yxyx.
        background: ``first`` when class 0 means nothing and labels start at class 1, as in torchvision.
    """

    overlapping: ClassVar[bool] = False
    uncertain: ClassVar[tuple[str, ...]] = ("boxes", "order")
    boxes: Literal["pixels", "relative"] = "pixels"
    order: Literal["xyxy", "yxyx"] = "xyxy"
    background: Literal["none", "first"] = "none"

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Boxes that need no decoding."""
        if is_rows_of_six(look.shapes) and look.shapes[0][0] not in (look.cells(), 6):
            yield Fit("[boxes, 6] is corners, score and class of final boxes", 3)
        if roles_of(look.shapes) is not None:
            yield Fit("[N, 4] and twice [N] are final boxes, scores and classes", 3)

    def class_count(self, shapes: Shapes, network: Size) -> None:
        """Shapes do not show it. Raises ModelError for others than the two layouts."""
        if not is_rows_of_six(shapes) and roles_of(shapes) is None:
            raise wrong_shapes("detect: yolov10", READS, shapes, network)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Rows beyond a count are padding and left out."""
        shapes = shapes_of(outputs)
        self.class_count(shapes, network)
        roles = roles_of(shapes)
        boxes, scores, classes = _table(outputs[0]) if roles is None else _columns(outputs, roles)
        keep = scores >= score
        if self.background == "first":
            classes = classes - np.int32(1)
            keep &= classes >= 0
        return Candidates(self._pixels(boxes[keep], network), scores[keep], classes[keep])

    def _pixels(self, boxes: F32, network: Size) -> F32:
        if self.order == "yxyx":
            boxes = boxes[:, [1, 0, 3, 2]]
        return boxes * np.array(network * 2, np.float32) if self.boxes == "relative" else boxes


def _table(output: Array) -> tuple[F32, F32, I32]:
    table = as_f32(output)
    return table[:, :4], table[:, 4], table[:, 5].astype(np.int32)


def _columns(outputs: Sequence[Array], roles: Roles) -> tuple[F32, F32, I32]:
    first, second = (outputs[index] for index in roles.rows)
    # classes first unless only the second holds integers
    integers = (first.dtype.kind in "iu", second.dtype.kind in "iu")
    scores, classes = (first, second) if integers == (False, True) else (second, first)
    boxes = outputs[roles.boxes]
    count = len(boxes) if roles.count is None else int(outputs[roles.count].reshape(-1)[0])
    return as_f32(boxes)[:count], as_f32(scores).reshape(-1)[:count], classes.reshape(-1)[:count].astype(np.int32)


# SSD with its priors applied in the graph: scores and boxes side by side (ultraface, exported MobileNet-SSDs).


@dataclass(frozen=True, slots=True)
class Ssd:
    """Scores [N, C], past their softmax or sigmoid, and boxes [N, 4], in either order.

    A prior is reported once for every class that scores enough, as in Liu et al., "SSD: Single Shot MultiBox
    Detector", 2016, §2.

    Attributes:
        background: ``first`` when column 0 of the scores means nothing and labels start at column 1.
        boxes: relative to the network's width and height, or in network pixels.
        order: of the four numbers of a box; TensorFlow writes yxyx.
    """

    overlapping: ClassVar[bool] = True
    uncertain: ClassVar[tuple[str, ...]] = ("background", "boxes", "order")
    background: Literal["first", "none"] = "first"
    boxes: Literal["relative", "pixels"] = "relative"
    order: Literal["xyxy", "yxyx"] = "xyxy"

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Scores beside as many boxes, one per prior."""
        roles = boxes_and_scores(look.shapes)
        if roles is not None:
            boxes, classes = look.shapes[roles[1]]
            reason = f"scores [{boxes or 'N'}, {classes}] beside boxes [{boxes or 'N'}, 4], a box per prior"
            yield Fit(reason, 1 if 0 < boxes <= MOST_QUERIES else 3, classes - 1)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless there are scores and boxes for the same rows."""
        return shapes[self._roles(shapes, network)[1]][1] - self._skipped

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Only boxes of rows that score enough are touched."""
        box_index, score_index = self._roles(shapes_of(outputs), network)
        rows, scores, classes = every_class(as_f32(outputs[score_index])[:, self._skipped :], score)
        boxes = as_f32(outputs[box_index])[rows]
        if self.order == "yxyx":
            boxes = boxes[:, [1, 0, 3, 2]]
        if self.boxes == "relative":
            boxes = boxes * np.array(network * 2, np.float32)
        return Candidates(boxes, scores, classes)

    @property
    def _skipped(self) -> int:
        return 1 if self.background == "first" else 0

    def _roles(self, shapes: Shapes, network: Size) -> tuple[int, int]:
        roles = boxes_and_scores(shapes)
        if roles is None or shapes[roles[1]][1] <= self._skipped:
            reads = "two outputs, scores [N, classes] and boxes [N, 4]"
            raise wrong_shapes("detect: ssd", reads, shapes, network)
        return roles
