"""Mask R-CNN and Keypoint R-CNN of torchvision: final boxes, each with a mask or the points of a body.

Layouts: https://pytorch.org/vision/stable/models/mask_rcnn.html and keypoint_rcnn.html. Pasting of masks:
``paste_mask_in_image`` of torchvision/models/detection/roi_heads.py (BSD-3-Clause). Labels start at 1, and the first
name in ``labels: coco91`` is the background, so that a label is the index of its name.

MMDeploy (``mmdeploy/codebase/mmdet`` of github.com/open-mmlab/mmdeploy) writes boxes and scores in one table, ``dets``
[N, 5], labels that start at 0, and masks [N, h, w].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Keypoints
from edgert.stages.crop import Geometry
from edgert.stages.decode import decoder
from edgert.stages.decode.decoded import dets_and_labels
from edgert.stages.decode.decoder import F32, Array, Roles, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.detection import I32, Candidates, Head, Index, final_rows, strongest
from edgert.stages.decode.guess import BODIES, Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.instances import mask_cutter, spans_of, with_masks

_READS = "boxes [N, 4], labels [N], scores [N] and"
_SURE = 0.5
"""Lowest probability of a mask's pixel."""
_BORDER = 1
"""Cells of zeros around a mask, so that it ends smoothly at the border of its box."""


@dataclass(frozen=True, slots=True)
class MaskRcnn(Head):
    """Boxes [N, 4], labels [N], scores [N] and masks [N, 1, h, w] of probabilities, in any order.

    Or boxes with scores [N, 5], labels [N] and masks [N, h, w].

    Masks cover the complete image, as in torchvision's exports, or are [N, 1, M, M] of the box, as from its mask head.
    The latter are pasted into their boxes.
    """

    has_masks = True

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if _find_pair(signature.shapes) is not None:
            yield Fit("[N, 5] and [N] are final boxes with their scores, and labels, [N, h, w] their masks", 5)
        if _find_roles(signature.shapes, 4) is not None:
            yield Fit("[N, 4] and twice [N] are final boxes, labels and scores, [N, 1, h, w] their masks", 5)

    def class_count(self, shapes: Shapes, network: Size) -> None:
        found = _find_roles(shapes, 4)
        if _find_pair(shapes) is None and (found is None or shapes[found[1]][1] not in (0, 1)):
            reads = f"{_READS} masks [N, 1, h, w]; or boxes [N, 5], labels [N] and masks [N, h, w]"
            raise wrong_shapes("detect: mask-rcnn", reads, shapes, network)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are the row of each in the outputs."""
        self.class_count(shapes_of(outputs), network)
        if (pair := _find_pair(shapes_of(outputs))) is not None:
            dets, kinds = outputs[pair[0]], outputs[pair[1]]
            rows = final_rows(dets[:, 4], kinds, score)
            found = as_f32(dets[rows])
            boxes, scores, labels = found[:, :4], found[:, 4], kinds[rows].astype(np.int32)
        else:
            roles, _ = _find_roles(shapes_of(outputs), 4) or (Roles(0, (0, 0), None), 0)
            boxes, scores, labels, rows = _read_boxes(outputs, roles, score)
        return Candidates(boxes, scores, labels, rows[:, None].astype(np.float32), overlap=False)

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """Return the record with masks; each may reach slightly beyond its box, as in torchvision."""
        assert kept.extras is not None
        masks = next(one if one.ndim == 4 else one[:, None] for one in outputs if one.ndim > 2)
        rows, (height, width) = kept.extras[:, 0].astype(np.intp).tolist(), masks.shape[2:]
        places = _paste_boxes(kept.boxes, min(height, width))
        reached = places + np.array([0, 0, 1, 1], np.int32)
        spans = spans_of(reached.astype(np.float32), geometry)
        if height != width or height * width * 4 > geometry.network[0] * geometry.network[1]:

            def sums(row: int, left: int, top: int, right: int, bottom: int) -> F32:
                part: F32 = as_f32(masks[rows[row], 0, top:bottom, left:right]) - np.float32(_SURE)
                return part

            return with_masks(
                record, mask_cutter(sums, (width, height), geometry.network), spans, geometry, all_stay=True
            )

        def cut(row: int, span: I32) -> U8:
            return _paste_mask(as_f32(masks[rows[row], 0]), places[row], span)

        return with_masks(record, cut, spans, geometry, all_stay=True)


def _find_pair(shapes: Shapes) -> tuple[int, int] | None:
    """Return the indices of boxes with scores [N, 5] and labels [N] beside masks [N, h, w]; None for other outputs."""
    places = [place for place, shape in enumerate(shapes) if len(shape) < 3]
    pair = dets_and_labels([shapes[place] for place in places])
    masks = [shape for shape in shapes if len(shape) == 3]
    if len(shapes) != 3 or pair is None or len(masks) != 1 or masks[0][0] != shapes[places[0]][0]:
        return None
    return places[pair[0]], places[pair[1]]


def _paste_boxes(boxes: F32, cells: int) -> I32:
    """Return the pixels x1, y1, x2, y2 (inclusive) that masks, with their border of zeros, are pasted into."""
    center, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    half = half * np.float32((cells + 2 * _BORDER) / cells)
    return np.concatenate([center - half, center + half], axis=1).astype(np.int32)


def _paste_mask(mask: F32, place: I32, span: I32) -> U8:
    """Return the part (y2 - y1, x2 - x1) uint8 of a pasted mask that lies in a span."""
    x1, y1, x2, y2 = span.tolist()
    left, top, right, bottom = place.tolist()
    width, height = max(right - left + 1, 1), max(bottom - top + 1, 1)
    grown = cv2.resize(np.pad(mask, _BORDER), (width, height), interpolation=cv2.INTER_LINEAR)
    part = np.zeros((max(y2 - y1, 0), max(x2 - x1, 0)), np.uint8)
    low, high = (max(x1, left), max(y1, top)), (min(x2, left + width), min(y2, top + height))
    if low[0] < high[0] and low[1] < high[1]:
        inside = grown[low[1] - top : high[1] - top, low[0] - left : high[0] - left] > _SURE
        part[low[1] - y1 : high[1] - y1, low[0] - x1 : high[0] - x1] = inside
    return part


@dataclass(frozen=True, slots=True)
class KeypointRcnn:
    """Boxes [N, 4], labels [N], scores [N], points [N, K, 3] and their scores [N, K], in any order.

    A point's score is the sigmoid of its heat map's value. Its third number, visibility, is always 1 and ignored.
    """

    score: float = 0.25
    limit: int = 100
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        found = _find_roles(signature.shapes, 3)
        if found is not None and signature.shapes[found[1]][1] in (0, *BODIES):
            yield Fit("[N, 4] and twice [N] are final boxes of bodies, [N, points, 3] their points", 5)

    def check(self, shapes: Shapes, network: Size) -> None:
        found = _find_roles(shapes, 3)
        if found is None or shapes[found[1]][2] not in (0, 3):
            raise wrong_shapes("keypoints: keypoint-rcnn", f"{_READS} points [N, points, 3]", shapes, network)
        if count := shapes[found[1]][1]:
            decoder.check_labels(count, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        shapes = shapes_of(outputs)
        self.check(shapes, geometry.network)
        roles, place = _find_roles(shapes, 3) or (Roles(0, (0, 0), None), 0)
        boxes, scores, _, rows = _read_boxes(outputs, roles, self.score)
        best = strongest(scores, self.limit)
        boxes, scores, rows = boxes[best], scores[best], rows[best]
        points = as_f32(outputs[place][rows]).copy()
        points[..., 2] = decoder.sigmoid(as_f32(outputs[_point_scores_index(shapes, roles, place)][rows]))
        return Keypoints.of(geometry.boxes(boxes), scores, geometry.points(points), self.labels)


def _point_scores_index(shapes: Shapes, roles: Roles, place: int) -> int:
    """Return the index of the points' scores, the only output that has no other role."""
    return next(index for index in range(len(shapes)) if index not in (roles.boxes, *roles.rows, place))


def _find_roles(shapes: Shapes, rank: int) -> tuple[Roles, int] | None:
    """Return the roles of final boxes, and the index of the only other output of this rank; None for other outputs.

    With points, of rank 3, there must also be their scores.
    """
    ranks = [len(shape) for shape in shapes]
    if sorted(ranks) != sorted([2, 1, 1, rank, *([2] if rank == 3 else [])]):
        return None
    boxes = next((index for index, shape in enumerate(shapes) if len(shape) == 2 and shape[1] == 4), None)
    if boxes is None:
        return None
    places = [boxes, *(index for index, length in enumerate(ranks) if length == 1)]
    roles = decoder.roles_of([shapes[place] for place in places])
    if roles is None:
        return None
    return Roles(boxes, (places[1], places[2]), None), ranks.index(rank)


def _read_boxes(outputs: Sequence[Array], roles: Roles, score: float) -> tuple[F32, F32, I32, Index]:
    """Return boxes in network pixels, scores, labels and rows of the objects that reach the score."""
    first, second = (outputs[index] for index in roles.rows)
    labels, scores = (second, first) if second.dtype.kind in "iu" else (first, second)
    rows = final_rows(scores, labels, score, 1)
    return as_f32(outputs[roles.boxes][rows]), as_f32(scores[rows]), labels[rows].astype(np.int32), rows
