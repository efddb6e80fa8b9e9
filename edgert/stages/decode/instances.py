"""Instance segmentation: detectors with a mask for each object."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np

from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Segmentation
from edgert.stages.crop import Geometry
from edgert.stages.decode import decoded
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, boxes_and_scores, shapes_of
from edgert.stages.decode.detection import I32, Candidates, Head, Unit, best_column, corners, final_rows, in_pixels
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.rows import Found, Level, Numbers, RowHead
from edgert.stages.decode.yolo import product_scores

# Layout: https://docs.ultralytics.com/tasks/segment and /modes/export, [116, 8400] and [32, 160, 160] for COCO at 640:
# x, y, w, h in network pixels, class scores after their sigmoid, and for each box the coefficients of the prototypes
# (Bolya et al., "YOLACT: Real-time Instance Segmentation", 2019, section 3). End to end (YOLO26, or ``nms=True``) the
# first is [300, 38]: x1, y1, x2, y2, score, class, and the same 32 numbers.


@dataclass(frozen=True, slots=True)
class YoloV8Seg(Head):
    """Two outputs, [4 + C + M, S] or final boxes [N, 6 + M], and prototypes [M, h, w], in either order.

    An object's mask is 1 where the weighted sum of prototypes, interpolated between cells, is above 0, which is 0.5
    after the sigmoid. It is cropped to the box, at the network's resolution. Objects with an empty mask are removed.
    """

    has_masks = True
    boxes: Unit = "pixels"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        found = find_tables(signature.shapes)
        if found is None:
            return
        (rows, columns), (masks, *_) = signature.shapes[found[0]], signature.shapes[found[1]]
        if rows > columns > 0 and rows == 3 * (signature.cells() or 0):
            return  # three rows for every cell, as of YOLOv5
        if columns == 6 + masks > 6:
            yield Fit(f"[{rows or 'N'}, 6 + {masks}] is final boxes beside {masks} prototypes of masks", 3)
        elif rows - masks > 4:
            yield Fit(f"[4 + {rows - 4 - masks} + {masks}, {columns or 'N'}] beside {masks} prototypes of masks", 3,
                      rows - 4 - masks)  # fmt: skip

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        found = find_tables(shapes)
        if found is not None and shapes[found[0]][1] == 6 + shapes[found[1]][0] > 6:
            return None
        classes = 0 if found is None else shapes[found[0]][0] - 4 - shapes[found[1]][0]
        if classes < 1:
            reads = "two outputs, [4 + classes + masks, boxes] or [boxes, 6 + masks], and [masks, h, w]"
            raise wrong_shapes("detect: yolov8-seg", reads, shapes, network)
        return classes

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are their coefficients of the prototypes."""
        classes = self.class_count(shapes_of(outputs), network)
        table, _ = sorted(outputs, key=np.ndim)
        if classes is None:
            found = as_f32(table[final_rows(table[:, 4], table[:, 5], score)])
            boxes = in_pixels(found[:, :4], network, self.boxes)
            return Candidates(boxes, found[:, 4], found[:, 5].astype(np.int32), found[:, 6:], overlap=False)
        columns, scores, kinds = best_column(as_f32(table[4 : 4 + classes]), score)
        found = as_f32(table[:, columns]).T
        places = in_pixels(found[:, :4], network, self.boxes)
        return Candidates(corners(places[:, :2], places[:, 2:]), scores, kinds, found[:, 4 + classes :])

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        assert kept.extras is not None
        _, prototypes = sorted(outputs, key=np.ndim)
        maps, shares = as_f32(prototypes), kept.extras

        def sums(row: int, left: int, top: int, right: int, bottom: int) -> F32:
            part = maps[:, top:bottom, left:right]
            found: F32 = (shares[row] @ part.reshape(len(part), -1)).reshape(part.shape[1:])
            return found

        cut = mask_cutter(sums, (maps.shape[2], maps.shape[1]), geometry.network)
        return with_masks(record, cut, spans_of(kept.boxes, geometry), geometry)


@dataclass(frozen=True, slots=True)
class YoloV5Seg(YoloV8Seg):
    """Two outputs, [N, 5 + C + M] and prototypes [M, h, w], in either order; score = objectness * class.

    Layout: ``models/yolo.py`` (Segment) and ``utils/segment/general.py`` of github.com/ultralytics/yolov5, [25200, 117]
    and [32, 160, 160] for COCO at 640. Masks are those of :class:`YoloV8Seg`.
    """

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if (found := find_tables(signature.shapes)) is not None:
            (rows, columns), (masks, *_) = signature.shapes[found[0]], signature.shapes[found[1]]
            exact = rows == 3 * (signature.cells() or 0) > 0
            if columns - 5 - masks > 0 and (exact or not rows):
                reason = f"[{rows or 'N'}, 5 + {columns - 5 - masks} + {masks}] beside {masks} prototypes of masks"
                yield Fit(reason, 4 if exact else 1, columns - 5 - masks)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        found = find_tables(shapes)
        classes = 0 if found is None else shapes[found[0]][1] - 5 - shapes[found[1]][0]
        if classes < 1:
            reads = "two outputs, [boxes, 5 + classes + masks] and [masks, h, w]"
            raise wrong_shapes("detect: yolov5-seg", reads, shapes, network)
        return classes

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are their coefficients of the prototypes."""
        end = 5 + self.class_count(shapes_of(outputs), network)
        table, _ = sorted(outputs, key=np.ndim)
        found = as_f32(table[table[:, 4] >= score])
        scores, classes, keep = product_scores(found[:, :end], score)
        places = in_pixels(found[keep, :4], network, self.boxes)
        return Candidates(corners(places[:, :2], places[:, 2:]), scores, classes, found[keep, end:])


def find_tables(shapes: Shapes) -> tuple[int, int] | None:
    """Return the indices of the output with boxes and of the prototypes; None for other outputs."""
    ranks = [len(shape) for shape in shapes]
    return (0, 1) if ranks == [2, 3] else (1, 0) if ranks == [3, 2] else None


# RF-DETR-seg. Layout and formulas: ``rfdetr/models/postprocess.py`` (_postprocess_masks) of github.com/roboflow/rf-detr
# and its ONNX export, ``dets``, ``labels`` and ``masks``.


@dataclass(frozen=True, slots=True)
class DetrSeg(RowHead):
    """Logits [Q, C], boxes [Q, 4] and masks [Q, h, w] of the complete image, in any order.

    A mask is 1 where its logits, interpolated between cells, are above 0; it may reach beyond its box.
    """

    has_masks = True

    activation: decoded.Activation = "auto"
    label_count: int = 0

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if _find_roles(signature.shapes) is not None:
            tables = OutputSignature(tuple(_table_shapes(signature.shapes)), "", signature.network)
            for fit in decoded.Detr.fits(tables):
                yield Fit(f"{fit.reason}, and as many masks", 3, fit.classes)

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        rest = _find_roles(shapes)
        if rest is None:
            reads = "logits [queries, classes], boxes [queries, 4] and masks [queries, h, w]"
            raise wrong_shapes("detect: detr-seg", reads, shapes, network)
        return self._detr.class_count(_table_shapes(shapes), network)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are the number of each box's query."""
        self.class_count(shapes_of(outputs), network)
        _, first, second = _find_roles(shapes_of(outputs)) or (0, 0, 0)
        return self._detr.read([outputs[first], outputs[second]], network, score)

    def why_all_rows(self, shapes: Shapes, network: Size) -> str:
        self.class_count(shapes, network)
        return self._detr.why_all_rows(_table_shapes(shapes), network)

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """See :meth:`RowHead.levels`; also reads the maps of the found queries."""
        self.class_count(shapes, network)
        which, *rest = _find_roles(shapes) or (0, 0, 0)
        (level,) = self._detr.levels(_table_shapes(shapes), network, score)

        def here(numbers: Numbers) -> Numbers:
            return numbers._replace(output=rest[numbers.output])

        cells = math.prod(shapes[which][1:])
        floors = tuple((here(numbers), floor) for numbers, floor in level.floors)
        wanted = (*map(here, level.wanted), Numbers(which, cells, step=cells))
        return (Level(level.rows, floors, wanted, level.above and here(level.above)),)

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        """See :meth:`RowHead.placed`; extras are the position of each box among the found rows."""
        (rows, (*parts, _)) = found[0]
        return self._detr.placed([Found(np.arange(len(rows)), tuple(parts))], _table_shapes(shapes), network, score)

    def seen(self, found: Sequence[Found], shapes: Shapes) -> Sequence[Array]:
        which, *_ = _find_roles(shapes) or (0, 0, 0)
        return [found[0].parts[-1].reshape(-1, *shapes[which][1:])]

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """Return the record with masks, each cropped to its part above 0."""
        assert kept.extras is not None
        maps = next(one for one in outputs if one.ndim == 3)
        queries = kept.extras[:, 0].astype(np.intp).tolist()
        size = maps.shape[2], maps.shape[1]
        found = [cv2.boundingRect((maps[query] > 0).view(np.uint8)) for query in queries]
        left, top, width, height = np.array(found, np.float64).reshape(-1, 4).T
        cells = np.stack([left - 1, top - 1, left + width + 1, top + height + 1], axis=1)
        boxes = np.clip(cells, 0, size * 2) * (np.array(geometry.network * 2) / (size * 2))
        boxes[width == 0] = 0

        def sums(row: int, left: int, top: int, right: int, bottom: int) -> F32:
            return as_f32(maps[queries[row], top:bottom, left:right])

        cut = mask_cutter(sums, size, geometry.network)
        return with_masks(record, cut, spans_of(boxes.astype(np.float32), geometry), geometry, all_stay=True)

    @property
    def _detr(self) -> decoded.Detr:
        return decoded.Detr(self.activation, self.label_count)


def _table_shapes(shapes: Shapes) -> Shapes:
    return [shape for shape in shapes if len(shape) == 2]


def _find_roles(shapes: Shapes) -> tuple[int, int, int] | None:
    """Return the indices of the maps, and of boxes and scores in the model's order; None for other outputs."""
    maps = [index for index, shape in enumerate(shapes) if len(shape) == 3]
    rest = [index for index, shape in enumerate(shapes) if len(shape) == 2]
    if len(shapes) != 3 or len(maps) != 1 or boxes_and_scores([shapes[index] for index in rest]) is None:
        return None
    return (maps[0], rest[0], rest[1]) if shapes[maps[0]][0] == shapes[rest[0]][0] else None


# Masks at the network's resolution, from values on a head's coarser grid.


def mask_cutter(sums: Callable[[int, int, int, int, int], F32], size: Size, network: Size) -> Callable[[int, I32], U8]:
    """Return a function that crops masks from maps: 1 where a map, interpolated between cell centers, is above 0.

    Args:
        sums: function of an object's row and left, top, right, bottom in cells, that returns this part of its map.
        size: (width, height) of a map in cells.
        network: (width, height) of the input, which a map covers.

    Returns:
        Function of an object's row and x1, y1, x2, y2 in network pixels, that returns this part of the mask, (y2 - y1,
        x2 - x1) uint8.
    """

    def cut(row: int, span: I32) -> U8:
        x1, y1, x2, y2 = span.tolist()
        if x1 >= x2 or y1 >= y2:
            return np.zeros((0, 0), np.uint8)
        left, right, x, width = _cells(x1, x2, size[0], network[0])
        top, bottom, y, height = _cells(y1, y2, size[1], network[1])
        grown = cv2.resize(sums(row, left, top, right, bottom), (width, height), interpolation=cv2.INTER_LINEAR)
        inside: U8 = (grown[y1 - y : y2 - y, x1 - x : x2 - x] > 0).view(np.uint8)
        return inside

    return cut


def _cells(first: int, last: int, count: int, pixels: int) -> tuple[int, int, int, int]:
    """Return the range of cells around these pixels, and the first pixel and number of pixels of this range.

    The range is widened until its ends lie on pixels.
    """
    step = count // math.gcd(count, pixels)
    low = max(first * count // pixels - 1, 0) // step * step
    high = min(-(-(-(-last * count // pixels) + 1) // step) * step, count)
    return low, high, low * pixels // count, (high - low) * pixels // count


def spans_of(boxes: F32, geometry: Geometry) -> I32:
    """Round (N, 4) x1, y1, x2, y2 in network pixels to pixels inside both the box and the image."""
    scale = np.array([geometry.scale_x, geometry.scale_y] * 2)
    image = np.round((geometry.bounds - np.array([geometry.offset_x, geometry.offset_y] * 2)) / scale, 3)
    low, high = np.maximum(image[:2], 0), np.minimum(image[2:], geometry.network)
    spans = np.ceil(np.clip(boxes, np.tile(low, 2), np.tile(high, 2)))
    return np.nan_to_num(spans).astype(np.int32)


def with_masks(
    record: Detections, cut: Callable[[int, I32], U8], spans: I32, geometry: Geometry, all_stay: bool = False
) -> Detections:
    """Return the record with a mask for every object.

    ``cut`` is a :func:`mask_cutter`; ``spans`` are (N, 4) network pixels. With ``all_stay``, empty masks stay, too.
    """
    scale, offset = (geometry.scale_x, geometry.scale_y), (geometry.offset_x, geometry.offset_y)
    regions = (spans * np.array(scale * 2) + np.array(offset * 2)).tolist()
    rows = enumerate(zip(spans, regions, strict=True))
    masks = tuple([Segmentation(cut(row, span), tuple(region)) for row, (span, region) in rows])
    found = replace(record, masks=masks)
    seen = np.array([all_stay or bool(mask.mask.any()) for mask in masks], np.bool_)
    return found if seen.all() else found[seen]
