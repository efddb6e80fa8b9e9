"""YOLO detectors whose boxes are decoded in the graph (v3 to v8, 11, 12, NAS), YOLOX, and YOLOv8-pose.

Layout of YOLOv8, YOLO11 and YOLO12: https://docs.ultralytics.com/models/yolov8 and /modes/export, [84, 8400] for COCO
at 640: x, y, w, h in network pixels, then class scores after their sigmoid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from edgert.runtime.records import Keypoints
from edgert.stages.crop import Geometry
from edgert.stages.decode import decoder, detection, guess
from edgert.stages.decode.decoded import Decoded, Ssd
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, all_cells, as_f32, grid_of, is_rows_of_six, shapes_of
from edgert.stages.decode.detection import I32, Bool, Candidates, Head, Unit, best_class, corners, in_pixels
from edgert.stages.decode.guess import BODIES, MOST_QUERIES, STRIDES, Fit, OutputSignature, wrong_shapes

# YOLOv5 and related models (v6, v7, decoded YOLOX): boxes decoded in the graph, objectness and classes.
#
# Layout: https://docs.ultralytics.com/yolov5 (ONNX export), [25200, 85] for COCO at 640: x, y, w, h in network
# pixels, objectness, class scores, all after their sigmoid.


@dataclass(frozen=True, slots=True)
class YoloV5(Head):
    """One output [N, 5 + C]: center x, y, width, height; score = objectness * class."""

    boxes: Unit = "pixels"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        count, reason = signature.cells(), f"[{rows or 'N'}, 5 + {columns - 5}] has"
        if columns < 6:
            return
        if rows == count:
            every = f"{reason} one row for every cell of strides 8, 16, 32, if boxes are decoded in the graph"
            yield Fit(every, 1, columns - 5)
        elif (rows > columns or not rows) and rows != signature.cells((*STRIDES, 64)):
            exact = count is not None and rows == 3 * count
            found = f"{reason} {'three rows for every cell' if exact else 'a row per box'}"
            yield Fit(found, 3 if exact else 1, columns - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        if len(shapes) != 1 or len(shapes[0]) != 2 or not 6 <= shapes[0][1] <= shapes[0][0]:
            raise wrong_shapes("detect: yolov5", "one output [boxes, 5 + classes]", shapes, network)
        return shapes[0][1] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes. Objectness bounds the score, so only rows whose objectness reaches it are read further."""
        self.class_count(shapes_of(outputs), network)
        raw = as_f32(outputs[0])
        found = raw[raw[:, 4] >= score]
        scores, classes, keep = product_scores(found, score)
        places = in_pixels(found[keep, :4], network, self.boxes)
        return Candidates(corners(places[:, :2], places[:, 2:]), scores, classes)


def product_scores(rows: F32, floor: float) -> tuple[F32, I32, Bool]:
    """Return the best class of every row [.., objectness, classes...] by objectness * class.

    Of the rows that reach ``floor``, return scores and classes; and of all, whether they do.
    """
    classes = rows[:, 5:].argmax(axis=1)
    scores = rows[np.arange(len(rows)), classes + 5] * rows[:, 4]
    keep = scores >= floor
    return scores[keep], classes[keep].astype(np.int32), keep


# YOLOX (Ge et al., "YOLOX: Exceeding YOLO Series in 2021"), exported without ``--decode_in_inference``.
#
# Layout and formulas: ``yolox/models/yolo_head.py`` (decode_outputs) of github.com/Megvii-BaseDetection/YOLOX.


@dataclass(frozen=True, slots=True)
class YoloX(Head):
    """One output [S, 5 + C]: x, y, w, h relative to the cell, objectness and class scores after their sigmoid.

    Center = (xy + cell) * stride, size = exp(wh) * stride, score = objectness * class; S is the number of cells of all
    levels. ``yolov5`` reads an export with decoded boxes.
    """

    strides: tuple[int, ...] = (8, 16, 32)

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        if columns >= 6 and rows == signature.cells():
            yield Fit(f"[{rows}, 5 + {columns - 5}] has one row for every cell of strides 8, 16, 32", 3, columns - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        rows = all_cells(network, self.strides)
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] != rows or shapes[0][1] < 6:
            raise wrong_shapes("detect: yolox", f"one output [{rows}, 5 + classes]", shapes, network)
        return shapes[0][1] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes. Objectness bounds the score, so only rows whose objectness reaches it are read further."""
        self.class_count(shapes_of(outputs), network)
        grid = grid_of(network, self.strides)
        raw = as_f32(outputs[0])
        rows = np.flatnonzero(raw[:, 4] >= score)
        found = raw[rows]
        scores, classes, keep = product_scores(found, score)
        found, rows = found[keep], rows[keep]
        stride = grid.stride[rows, None]
        cell = np.stack([grid.x[rows], grid.y[rows]], axis=1)
        return Candidates(corners((found[:, :2] + cell) * stride, np.exp(found[:, 2:4]) * stride), scores, classes)


@dataclass(frozen=True, slots=True)
class YoloV8(Head):
    """One output [4 + C, S], or transposed [S, 4 + C]: center x, y, width, height, class scores.

    S is the number of cells of strides 8, 16, 32; if it is not, S is the longer side. An export with NMS in the graph,
    [N, 6], is read as by ``yolov10``.
    """

    boxes: Unit = "pixels"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        if columns >= 6 and rows == signature.cells():
            weight = 3 if columns - 4 == guess.COCO_CLASSES else 2
            yield Fit(f"[{rows}, 4 + {columns - 4}] is its output transposed", weight, columns - 4)
        exact = columns > 0 and columns == signature.cells()
        if rows >= 5 and (not columns or columns > rows or exact):
            found = "one column for every cell" if exact else "a column per box"
            yield Fit(f"[4 + {rows - 4}, {columns or 'N'}] has {found}", 3 if exact else 2, rows - 4)

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        cells = all_cells(network, STRIDES)
        if is_rows_of_six(shapes) and shapes[0][0] != cells and shapes[0][0] > 6:
            return None  # end to end; two classes, transposed, would have a row per cell
        if len(shapes) != 1 or len(shapes[0]) != 2 or min(shapes[0]) < 5:
            raise wrong_shapes("detect: yolov8", f"one output [4 + classes, {cells}]", shapes, network)
        return shapes[0][0 if is_columns(shapes[0], network) else 1] - 4

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes. Those of an end-to-end export do not overlap, so suppression does not change them."""
        shapes = shapes_of(outputs)
        if self.class_count(shapes, network) is None:
            return Decoded(self.boxes).read(outputs, network, score)
        raw = as_f32(outputs[0])
        if is_columns(shapes[0], network):
            columns, scores, classes = detection.best_column(raw[4:], score)
            found = raw[:4, columns].T
        else:
            rows, scores, classes = best_class(raw[:, 4:], score)
            found = raw[rows, :4]
        places = in_pixels(found, network, self.boxes)
        return Candidates(corners(places[:, :2], places[:, 2:]), scores, classes)


def is_columns(shape: tuple[int, ...], network: Size) -> bool:
    """Return whether the boxes of a YOLOv8 output are its columns."""
    boxes = all_cells(network, STRIDES)
    return shape[1] == boxes or (shape[0] != boxes and shape[0] < shape[1])


# YOLO-NAS and DAMO-YOLO, exported without NMS. Layout: documentation/source/models/QuickstartYoloNas and
# ``pp_yolo_e/post_prediction_callback.py`` of github.com/Deci-AI/super-gradients: boxes [8400, 4] and scores [8400, 80]
# for COCO at 640, after their sigmoid; every class that reaches the score counts.


@dataclass(frozen=True, slots=True)
class YoloNas(Ssd):
    """Scores [S, C], after their sigmoid, and boxes [S, 4] in network pixels, in either order."""

    uncertain: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = "yolo-nas"
    background: Literal["first", "none"] = "none"
    boxes: Literal["relative", "pixels"] = "pixels"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        roles = decoder.boxes_and_scores(signature.shapes)
        if roles is not None and signature.shapes[roles[0]][0] == signature.cells():
            rows, classes = signature.shapes[roles[1]]
            yield Fit(f"scores [{rows}, {classes}] beside boxes [{rows}, 4], a box per cell", 4, classes)


# YOLOv3 and v4 of github.com/Tianxiaomo/pytorch-YOLOv4. Layout: ``tool/yolo_layer.py`` (boxes, confs) and
# ``tool/utils.py`` (post_processing): the best class of each box, and suppression within it.


@dataclass(frozen=True, slots=True)
class YoloV4(Ssd):
    """Boxes [N, 1, 4], relative x1, y1, x2, y2, and scores [N, C], after their sigmoid, in either order."""

    uncertain: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = "yolov4"
    background: Literal["first", "none"] = "none"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        plain = _without_single(signature.shapes)
        if plain != tuple(signature.shapes) and (roles := decoder.boxes_and_scores(plain)) is not None:
            rows, classes = signature.shapes[roles[1]]
            yield Fit(f"scores [{rows or 'N'}, {classes}] beside boxes [{rows or 'N'}, 1, 4]", 4, classes)

    def _score_boxes(self, numbers: F32, score: float) -> tuple[detection.Index, F32, I32]:
        return best_class(numbers, score)

    def _roles(self, shapes: Shapes, network: Size) -> tuple[int, int]:
        return super(YoloV4, self)._roles(_without_single(shapes), network)


def _without_single(shapes: Shapes) -> Shapes:
    """Return the shapes with boxes [N, 1, 4] as [N, 4]."""
    return tuple([(shape[0], 4) if shape[1:] == (1, 4) else shape for shape in shapes])


# YOLOv8-pose and related models: a box, a score and points, as columns.
#
# Layout: https://docs.ultralytics.com/tasks/pose and /modes/export, [56, 8400] for COCO's 17 points at 640: x, y,
# w, h, score, then x, y, visibility of each point, in network pixels and after their sigmoid.


@dataclass(frozen=True, slots=True)
class YoloPose:
    """One output [4 + C + 3 * K, S]; or, NMS in the graph, [N, 6 + 3 * K] with corners, score, class, points.

    Attributes:
        labels: names of the K points.
        classes: how many C are; usually all bodies are of one.
        agnostic: whether bodies suppress those of other classes, too.
        boxes: of these and of points, network pixels, or parts of the network's width and height.
        dims: numbers of a point: x, y and a visibility; or x and y, whose points get a visibility of 1. The second of
            Ultralytics' ``kpt_shape``.
    """

    score: float = 0.25
    iou: float = 0.45
    limit: int = 100
    labels: tuple[str, ...] = ()
    classes: int = 1
    agnostic: bool = False
    boxes: Unit = "pixels"
    dims: Literal[2, 3] = 3

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        if 0 < rows <= MOST_QUERIES and columns > 6 and columns - 6 in [3 * points for points in BODIES]:
            yield Fit(f"[{rows}, 6 + {columns - 6}] is corners, score, class and points of final bodies", 3)
        if rows > 5 and (rows - 5) % 3 == 0 and (not columns or columns > rows):
            points = (rows - 5) // 3
            yield Fit(f"{rows} rows are a box, a score and {points} points", 4 if points in BODIES else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        decoder.check_labels(_point_count(shapes, network, self.classes, self.dims), self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        shapes = shapes_of(outputs)
        self.check(shapes, geometry.network)
        raw = as_f32(outputs[0])
        is_final = is_final_pose(shapes[0], geometry.network, self.dims)
        if is_final:
            found = raw[detection.final_rows(raw[:, 4], raw[:, 5], self.score)]
            boxes, scores, classes = found[:, :4], found[:, 4], found[:, 5].astype(np.int32)
        else:
            columns, scores, classes = detection.best_column(raw[4 : 4 + self.classes], self.score)
            found = raw[:, columns].T
            boxes = corners(found[:, :2], found[:, 2:4])
        if is_final and not self.agnostic:
            rows = detection.strongest(scores, self.limit)
        else:
            kinds = np.zeros_like(classes) if self.agnostic else classes
            rows = detection.suppress(boxes, scores, kinds, self.iou, self.limit)
        boxes, points = boxes[rows], found[rows, 6 if is_final else 4 + self.classes :]
        places = points.reshape(len(points), points.shape[1] // self.dims, self.dims)
        if self.dims == 2:
            places = np.concatenate([places, np.ones((*places.shape[:2], 1), np.float32)], axis=2)
        if self.boxes == "relative":
            boxes = in_pixels(boxes, geometry.network, self.boxes)
            places = places * np.array((*geometry.network, 1), np.float32)
        mapped = geometry.points(places)
        return Keypoints(geometry.boxes(boxes), scores[rows], classes[rows], points=mapped, names=self.labels)


def is_final_pose(shape: tuple[int, ...], network: Size, dims: int = 3) -> bool:
    """Return whether a pose model did its own NMS, [N, 6 + dims * K].

    Otherwise it has a row count of 5 + dims * K beside the cells of the network.
    """
    return shape[1] != all_cells(network, STRIDES) and (shape[1] - 6) % dims == 0 and shape[1] > 6


def _point_count(shapes: Shapes, network: Size, classes: int, dims: int) -> int:
    if len(shapes) == 1 and len(shapes[0]) == 2:
        rows, columns = shapes[0]
        if is_final_pose(shapes[0], network, dims):
            return (columns - 6) // dims
        if rows > 4 + classes and (rows - 4 - classes) % dims == 0:
            return (rows - 4 - classes) // dims
    reads = f"one output [{4 + classes} + {dims} * points, {all_cells(network, STRIDES)}]"
    raise wrong_shapes("keypoints: yolo-pose", reads, shapes, network)
