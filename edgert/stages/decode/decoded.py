"""Detectors without cells to decode: boxes, scores and classes are final, or one row per query or prior."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from edgert.stages.decode import decoder, detection
from edgert.stages.decode.detection import I32, Candidates, Head, Index, best_class, by_class, corners, every_class
from edgert.stages.decode.guess import MOST_QUERIES, Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.rows import FINAL, Found, Level, Numbers, RowHead, columns

READS = (
    "one output [boxes, 6], [boxes, 7] or [1, boxes, 7], two [boxes, 5] and [boxes], or three [boxes, 4], [boxes], "
    "[boxes] and perhaps a count"
)


@dataclass(frozen=True, slots=True)
class Decoded(Head):
    """One output [N, 6] of x1, y1, x2, y2, score, class; or boxes [N, 4], scores [N], classes [N] and perhaps a count.

    YOLOv7's end-to-end export (github.com/WongKinYiu/yolov7, ``models/experimental.py``, ONNX_ORT) writes [N, 7]: the
    number of the image, x1, y1, x2, y2, class, score. YOLO-NAS (``predictions_format: flat`` of super-gradients) has
    the score before the class. OpenVINO's DetectionOutput writes [1, N, 7]: the number of the image, negative behind
    the last box, class, score, and x1, y1, x2, y2 relative to the image. MMDeploy writes x1, y1, x2, y2, score in
    ``dets`` [N, 5], and classes in ``labels`` [N].

    YOLOv10, YOLO26 and every Ultralytics export with ``nms=True`` write the first
    (https://docs.ultralytics.com/models/yolov10, /modes/export). TensorRT's EfficientNMS plugin
    (github.com/NVIDIA/TensorRT, plugin/efficientNMSPlugin: num_detections, boxes, scores, classes), torchvision,
    RT-DETR and TensorFlow write the second. Outputs are distinguished by shape and type: classes are integers. Where
    both rows of numbers are floats, scores have fractions; without any, classes come first, as in TensorFlow's.

    Attributes:
        boxes: unit of the boxes: network pixels, or fractions of the network's width and height.
        order: order of a box's four numbers; TensorFlow writes yxyx, Ultralytics' RT-DETR center x, y, width, height.
        background: ``first`` if class 0 is the background and labels start at class 1, as in torchvision.
    """

    uncertain: ClassVar[tuple[str, ...]] = ("boxes", "order")
    boxes: Literal["pixels", "relative"] = "pixels"
    order: Literal["xyxy", "yxyx", "cxcywh"] = "xyxy"
    background: Literal["none", "first"] = "none"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if decoder.is_rows_of_six(signature.shapes) and signature.shapes[0][0] not in (signature.cells(), 6):
            yield Fit("[boxes, 6] is corners, score and class of final boxes", 3)
        if _is_numbered(signature.shapes) and not signature.is_batched:
            yield Fit("[boxes, 7] of all images is number of the image, corners, class and score", 3)
        if _is_detection_output(signature.shapes) and signature.is_batched:  # else the 1 may be the batch
            yield Fit("[1, boxes, 7] is number of the image, class, score and corners of final boxes", 3)
        if dets_and_labels(signature.shapes) is not None:
            yield Fit("[N, 5] and [N] are final boxes with their scores, and classes", 3)
        if decoder.roles_of(signature.shapes) is not None:
            yield Fit("[N, 4] and twice [N] are final boxes, scores and classes", 3)

    def class_count(self, shapes: decoder.Shapes, network: decoder.Size) -> None:
        known = decoder.is_rows_of_six(shapes) or _is_numbered(shapes) or _is_detection_output(shapes)
        if not known and decoder.roles_of(shapes) is None and dets_and_labels(shapes) is None:
            raise wrong_shapes("detect: yolov10", READS, shapes, network)

    def read(self, outputs: Sequence[decoder.Array], network: decoder.Size, score: float) -> Candidates:
        """Return the boxes. Rows beyond a count are padding."""
        shapes = decoder.shapes_of(outputs)
        self.class_count(shapes, network)
        roles, pair, unit = decoder.roles_of(shapes), dets_and_labels(shapes), self.boxes
        if roles is not None:
            first, second = (outputs[index].reshape(-1) for index in roles.rows)
            count = slice(None if roles.count is None else int(outputs[roles.count].reshape(-1)[0]))
            boxes, (found, labels) = outputs[roles.boxes][count], _scores_and_classes(first[count], second[count])
        elif pair is not None:
            dets, labels = outputs[pair[0]], outputs[pair[1]].reshape(-1)
            boxes, found = dets[:, :4], dets[:, 4]
        elif outputs[0].ndim == 3:
            table, unit = outputs[0][0], "relative"
            table = table[np.logical_and.accumulate(table[:, 0] >= 0)]
            boxes, found, labels = table[:, 3:], table[:, 2], table[:, 1]
        elif outputs[0].shape[1] == 7:
            boxes = outputs[0][:, 1:5]
            found, labels = _scores_and_classes(outputs[0][:, 5], outputs[0][:, 6])
        else:
            boxes, found, labels = outputs[0][:, :4], outputs[0][:, 4], outputs[0][:, 5]
        first_class = 1 if self.background == "first" else 0
        rows = detection.final_rows(found, labels, score, first_class)
        pixels = _in_pixels(decoder.as_f32(boxes[rows]), network, unit, self.order)
        classes = labels[rows].astype(np.int32) - np.int32(first_class)
        return Candidates(pixels, decoder.as_f32(found[rows]), classes, overlap=False)


def _scores_and_classes(first: decoder.Array, second: decoder.Array) -> tuple[decoder.Array, decoder.Array]:
    """Return the scores and classes among two rows of numbers, where classes are integers or have no fractions."""
    integers = (first.dtype.kind in "iu", second.dtype.kind in "iu")
    is_first = not integers[0] and (integers[1] or bool((np.floor(first) < first).any()))
    return (first, second) if is_first else (second, first)


def _is_numbered(shapes: decoder.Shapes) -> bool:
    return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] == 7


def _is_detection_output(shapes: decoder.Shapes) -> bool:
    return len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][::2] == (1, 7)


def dets_and_labels(shapes: decoder.Shapes) -> tuple[int, int] | None:
    """Return the indices of final boxes with their scores, [N, 5], and of classes, [N]; None for other outputs."""
    for dets, labels in ((0, 1), (1, 0)) if len(shapes) == 2 else ():
        if len(shapes[dets]) == 2 and shapes[dets][1] == 5 and shapes[labels] == shapes[dets][:1]:
            return dets, labels
    return None


def _in_pixels(boxes: decoder.F32, network: decoder.Size, unit: str, order: str) -> decoder.F32:
    """Return x1, y1, x2, y2 in network pixels."""
    if order == "yxyx":
        boxes = boxes[:, [1, 0, 3, 2]]
    if order == "cxcywh":
        boxes = corners(boxes[:, :2], boxes[:, 2:])
    return boxes * np.array(network * 2, np.float32) if unit == "relative" else boxes


# SSD with its priors applied in the graph: separate scores and boxes (ultraface, exported MobileNet-SSDs).


@dataclass(frozen=True, slots=True)
class Ssd(RowHead):
    """Scores [N, C], after their softmax or sigmoid, and boxes [N, 4], in either order.

    A prior is reported once for every class that reaches the score, as in Liu et al., "SSD: Single Shot MultiBox
    Detector", 2016, §2.

    Attributes:
        background: ``first`` if column 0 of the scores is the background and labels start at column 1.
        boxes: unit of the boxes: fractions of the network's width and height, or network pixels.
        order: order of a box's four numbers; TensorFlow writes yxyx.
    """

    uncertain: ClassVar[tuple[str, ...]] = ("background", "boxes", "order")
    name: ClassVar[str] = "ssd"
    background: Literal["first", "none"] = "first"
    boxes: Literal["relative", "pixels"] = "relative"
    order: Literal["xyxy", "yxyx"] = "xyxy"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        roles = decoder.boxes_and_scores(signature.shapes)
        if roles is not None:
            boxes, classes = signature.shapes[roles[1]]
            reason = f"scores [{boxes or 'N'}, {classes}] beside boxes [{boxes or 'N'}, 4], a box per prior"
            yield Fit(reason, 1 if 0 < boxes <= MOST_QUERIES else 3, classes - 1)

    def class_count(self, shapes: decoder.Shapes, network: decoder.Size) -> int:
        return shapes[self._roles(shapes, network)[1]][1] - self._skipped

    def levels(self, shapes: decoder.Shapes, network: decoder.Size, score: float) -> tuple[Level, ...]:
        boxes, scores = self._roles(shapes, network)
        classes = columns(scores, shapes[scores], self._skipped)
        return (Level(shapes[boxes][0], ((classes, score),), (classes, columns(boxes, shapes[boxes]))),)

    def placed(self, found: Sequence[Found], shapes: decoder.Shapes, network: decoder.Size, score: float) -> Candidates:
        numbers, boxes = found[0].parts
        rows, scores, classes = self._score_boxes(numbers, score)
        return Candidates(_in_pixels(boxes[rows], network, self.boxes, self.order), scores, classes)

    def _score_boxes(self, numbers: decoder.F32, score: float) -> tuple[Index, decoder.F32, I32]:
        """Return rows, scores and classes that reach the score."""
        return every_class(numbers, score)

    @property
    def _skipped(self) -> int:
        return 1 if self.background == "first" else 0

    def _roles(self, shapes: decoder.Shapes, network: decoder.Size) -> tuple[int, int]:
        roles = decoder.boxes_and_scores(shapes)
        if roles is None or shapes[roles[1]][1] <= self._skipped:
            reads = "two outputs, scores [N, classes] and boxes [N, 4]"
            raise wrong_shapes(f"detect: {self.name}", reads, shapes, network)
        return roles


# PP-YOLOE and other models of PaddleDetection. Layouts: ``ppdet/modeling/heads/ppyoloe_head.py`` (post_process) and
# ``layers.py`` (MultiClassNMS) of github.com/PaddlePaddle/PaddleDetection. With 1 for their second input,
# ``scale_factor``, boxes are in network pixels.


@dataclass(frozen=True, slots=True)
class PpYoloe(RowHead):
    """Outputs of PP-YOLOE in three layouts.

    With ``exclude_nms`` they are boxes [S, 4] and scores [C, S]; with ``exclude_post_process`` one output [S, 4 + C].
    Otherwise they are final rows [N, 6] of class, score, x1, y1, x2, y2, perhaps with their count.
    """

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        roles = _boxes_and_columns(signature.shapes)
        if roles is not None:
            classes, boxes = signature.shapes[roles[1]]
            reason = f"scores [{classes}, {boxes or 'N'}] beside boxes [{boxes or 'N'}, 4]"
            yield Fit(reason, 3, classes)
        elif _is_counted(signature.shapes):
            yield Fit("[boxes, 6] is class, score and corners of final boxes", 3 if len(signature.shapes) > 1 else 1)
        elif columns > 6 and rows == signature.cells():
            yield Fit(f"[{rows}, 4 + {columns - 4}] can be corners and scores", 1, columns - 4)

    def class_count(self, shapes: decoder.Shapes, network: decoder.Size) -> int | None:
        if _is_counted(shapes):
            return None
        roles = _boxes_and_columns(shapes)
        if roles is not None:
            return shapes[roles[1]][0]
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] < 5:
            reads = "boxes [N, 4] and scores [classes, N], one output [N, 4 + classes], or [boxes, 6] and a count"
            raise wrong_shapes("detect: ppyoloe", reads, shapes, network)
        return shapes[0][1] - 4

    def read(self, outputs: Sequence[decoder.Array], network: decoder.Size, score: float) -> Candidates:
        """Return the boxes, one for every class that reaches the score. Rows beyond a count are padding."""
        shapes = decoder.shapes_of(outputs)
        if self.class_count(shapes, network) is None:
            table, *counts = sorted(outputs, key=lambda output: -output.ndim)
            table = decoder.as_f32(table[: int(counts[0].reshape(-1)[0]) if counts else None])
            table = table[detection.final_rows(table[:, 1], table[:, 0], score)]
            return Candidates(table[:, 2:], table[:, 1], table[:, 0].astype(np.int32), overlap=False)
        return super(PpYoloe, self).read(outputs, network, score)

    def why_all_rows(self, shapes: decoder.Shapes, network: decoder.Size) -> str:
        return FINAL if _is_counted(shapes) else ""

    def levels(self, shapes: decoder.Shapes, network: decoder.Size, score: float) -> tuple[Level, ...]:
        self.class_count(shapes, network)
        roles = _boxes_and_columns(shapes)
        if roles is None:
            boxes, classes = columns(0, shapes[0], 0, 4), columns(0, shapes[0], 4)
            return (Level(shapes[0][0], ((classes, score),), (classes, boxes)),)
        count, rows = shapes[roles[1]]
        classes = Numbers(roles[1], count, apart=rows)
        return (Level(rows, ((classes, score),), (classes, columns(roles[0], shapes[roles[0]]))),)

    def placed(self, found: Sequence[Found], shapes: decoder.Shapes, network: decoder.Size, score: float) -> Candidates:
        numbers, boxes = found[0].parts
        if _boxes_and_columns(shapes) is None:
            rows, scores, classes = every_class(numbers, score)
        else:
            rows, scores, classes = by_class(numbers, score)
        return Candidates(boxes[rows], scores, classes)


def _is_counted(shapes: decoder.Shapes) -> bool:
    """Return whether there is one output [N, 6], and perhaps a count."""
    counts = [shape for shape in shapes if math.prod(shape) == 1 and len(shape) < 2]
    rest = [shape for shape in shapes if shape not in counts]
    return decoder.is_rows_of_six(rest) and len(counts) < 2


def _boxes_and_columns(shapes: decoder.Shapes) -> tuple[int, int] | None:
    """Return the indices of boxes [N, 4] and scores [C, N], in either order; None for other outputs."""
    if len(shapes) != 2 or any(len(shape) != 2 for shape in shapes):
        return None
    for boxes in (0, 1):
        if shapes[boxes][1] == 4 and shapes[1 - boxes][1] == shapes[boxes][0] > shapes[1 - boxes][0]:
            return boxes, 1 - boxes
    return None


# DETR and related models (RT-DETR, D-FINE, RF-DETR): a fixed number of queries, each at most one object, no NMS.
#
# Layouts: Carion et al., "End-to-End Object Detection with Transformers", 2020 (softmax over classes and "no object",
# which is last); Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", 2023, and github.com/lyuwenyu/RT-DETR,
# ``rtdetr_postprocessor.py`` (sigmoid, best of queries x classes); https://docs.ultralytics.com/models/rtdetr (one
# output, scores past their sigmoid).

Activation = Literal["auto", "sigmoid", "softmax", "none"]
ClassChoice = Callable[[decoder.F32, float], tuple[Index, decoder.F32, I32]]
"""Function from scores and the lowest score to rows, scores and classes, such as :func:`best_class`."""

_ROUNDED = 1e-4
"""Bound above the error of a float32 softmax; rows this far below the score are computed again."""


@dataclass(frozen=True, slots=True)
class Detr(RowHead):
    """Logits [Q, C] and boxes [Q, 4] in either order, one output [Q, 4 + C], or decoded boxes, scores and classes.

    Boxes are center x, y, width, height relative to the network's; decoded ones x1, y1, x2, y2 in network pixels.

    Attributes:
        activation: function that turns logits into scores. With ``softmax`` the last column is "no object". ``auto``,
            if the model's graph does not show it: none if all numbers lie in 0-1, else softmax with one column more
            than labels, else sigmoid.
        label_count: number of the task's labels; set by the code that creates the decoder.
    """

    uncertain: ClassVar[tuple[str, ...]] = ("activation",)
    activation: Activation = "auto"
    label_count: int = 0

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        count = signature.cells()
        every = count, 3 * (count or 0)  # as many rows as cells are not queries
        can_be = columns >= 5 and 10 <= rows <= MOST_QUERIES and rows not in every
        if can_be and not decoder.is_rows_of_six(signature.shapes):
            weight = 2 if count is not None and rows < count else 1
            yield Fit(f"[{rows}, 4 + {columns - 4}] can be queries", weight, columns - 4)
        roles = decoder.boxes_and_scores(signature.shapes)
        if roles is not None:
            boxes, classes = signature.shapes[roles[1]]
            reason = f"scores [{boxes or 'N'}, {classes}] beside boxes [{boxes or 'N'}, 4], a box per query"
            yield Fit(reason, 3 if 0 < boxes <= MOST_QUERIES else 1, classes)

    def class_count(self, shapes: decoder.Shapes, network: decoder.Size) -> int | None:
        if decoder.roles_of(shapes) is not None:
            return None
        roles = decoder.boxes_and_scores(shapes)
        columns = 0 if roles is None else shapes[roles[1]][1]
        if len(shapes) == 1 and len(shapes[0]) == 2:
            columns = shapes[0][1] - 4
        if columns < 1:
            reads = "logits [queries, classes] and boxes [queries, 4], one [queries, 4 + classes], or decoded boxes"
            raise wrong_shapes("detect: detr", reads, shapes, network)
        return columns - self._has_no_object(columns)

    def read(self, outputs: Sequence[decoder.Array], network: decoder.Size, score: float) -> Candidates:
        """Return the boxes, one for every class of a query that reaches the score, as in RT-DETR's own selection.

        With softmax, or in one output, there is one per query, for its best class.
        """
        shapes = decoder.shapes_of(outputs)
        if self.class_count(shapes, network) is None:
            return Decoded().read(outputs, network, score)
        if not self.why_all_rows(shapes, network):
            return super(Detr, self).read(outputs, network, score)
        (level,) = self.levels(shapes, network, score)
        parts = tuple([decoder.as_f32(numbers.of(outputs, level.rows)) for numbers in level.wanted])
        return self.placed([Found(np.arange(level.rows), parts)], shapes, network, score)

    def why_all_rows(self, shapes: decoder.Shapes, network: decoder.Size) -> str:
        if self.class_count(shapes, network) is None:
            return FINAL
        if self.activation == "auto":
            return "activation: auto reads every number; options: {activation: sigmoid}, softmax or none does not"
        return ""

    def levels(self, shapes: decoder.Shapes, network: decoder.Size, score: float) -> tuple[Level, ...]:
        self.class_count(shapes, network)
        boxes, numbers = decoder.boxes_and_scores(shapes) or (0, 0)
        classes = columns(numbers, shapes[numbers], 4 if boxes == numbers else 0)
        rows, wanted = shapes[boxes][0], (classes, columns(boxes, shapes[boxes], 0, 4))
        if self.activation == "softmax":  # a score's logit is at most the difference between its class and "no object"
            none = classes._replace(width=1, first=classes.first + classes.apart * (classes.width - 1))
            seen = classes._replace(width=classes.width - 1)
            return (Level(rows, ((seen, decoder.logit(score - _ROUNDED)),), wanted, none),)
        floor = score if self.activation == "none" else decoder.logit(score)
        return (Level(rows, ((classes, floor),), wanted),)

    def placed(self, found: Sequence[Found], shapes: decoder.Shapes, network: decoder.Size, score: float) -> Candidates:
        numbers, boxes = found[0].parts
        rows, scores, classes = self._score_queries(numbers, score, best_class if len(shapes) == 1 else every_class)
        query = found[0].rows[rows, None].astype(np.float32)
        placed = boxes[rows] * np.array(network * 2, np.float32)
        return Candidates(corners(placed[:, :2], placed[:, 2:]), scores, classes, query, False)

    def _has_no_object(self, columns: int) -> bool:
        return self.activation == "softmax" or (self.activation == "auto" and columns == self.label_count + 1 > 1)

    def _score_queries(self, numbers: decoder.F32, floor: float, choice: ClassChoice) -> tuple[Index, decoder.F32, I32]:
        """Return rows, scores and classes that reach ``floor``."""
        # Numbers from 0 to 1 are already scores: logits of queries without an object are far below zero.
        in_unit = bool(numbers.size) and float(np.min(numbers)) >= 0 and float(np.max(numbers)) <= 1
        final = self.activation == "none" or (self.activation == "auto" and in_unit)
        if self._has_no_object(numbers.shape[1]):
            return best_class((numbers if final else decoder.softmax(numbers))[:, :-1], floor)
        if final:
            return choice(numbers, floor)
        # Comparing logits avoids an exponential per number.
        rows, logits, classes = choice(numbers, decoder.logit(floor))
        return rows, decoder.sigmoid(logits), classes
