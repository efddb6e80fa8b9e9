"""Mask R-CNN and Keypoint R-CNN of torchvision: final boxes, with a mask or the points of a body for each.

Layouts: https://pytorch.org/vision/stable/models/mask_rcnn.html and keypoint_rcnn.html. Pasting of masks:
``paste_mask_in_image`` of torchvision/models/detection/roi_heads.py (BSD-3-Clause). Labels start at 1, and the first
name of ``labels: coco91`` is the background's, so that a label is the index of its name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Keypoints
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import F32, Array, Roles, Shapes, Size, as_f32, roles_of, shapes_of
from edgert.stages.decode.detection import I32, Candidates, Head, Index, strongest
from edgert.stages.decode.guess import BODIES, Fit, OutputSignature, check_labels, wrong_shapes
from edgert.stages.decode.instances import cut_of, spans_of, with_masks

_READS = "boxes [N, 4], labels [N], scores [N] and"
_SURE = 0.5
"""Lowest probability of a mask's pixel."""
_BORDER = 1
"""Cells of zeros around a mask, so that it fades out at the border of its box."""


@dataclass(frozen=True, slots=True)
class MaskRcnn(Head):
    """Boxes [N, 4], labels [N], scores [N] and masks [N, 1, h, w] of probabilities, in any order.

    Masks are of the complete image, as torchvision's exports have them, or [N, 1, M, M] of the box, as its mask head
    has them. One of those is pasted into its box.
    """

    has_masks = True

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        """Yield a fit for final boxes beside a map of each."""
        if _beside(signature.shapes, 4) is not None:
            yield Fit("[N, 4] and twice [N] are final boxes, labels and scores, [N, 1, h, w] their masks", 5)

    def class_count(self, shapes: Shapes, network: Size) -> None:
        """Return None: shapes do not show it. Raises ModelError for other outputs."""
        found = _beside(shapes, 4)
        if found is None or shapes[found[1]][1] not in (0, 1):
            raise wrong_shapes("detect: mask-rcnn", f"{_READS} masks [N, 1, h, w]", shapes, network)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are the row of each."""
        self.class_count(shapes_of(outputs), network)
        roles, _ = _beside(shapes_of(outputs), 4) or (Roles(0, (0, 0), None), 0)
        boxes, scores, labels, rows = _found(outputs, roles, score)
        return Candidates(boxes, scores, labels, rows[:, None].astype(np.float32), overlap=False)

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """Return the record with masks; each may reach a little beyond its box, as torchvision's do."""
        assert kept.extras is not None
        masks, rows = next(one for one in outputs if one.ndim == 4), kept.extras[:, 0].astype(np.intp).tolist()
        height, width = masks.shape[2:]
        places = _places(kept.boxes, min(height, width))
        reached = places + np.array([0, 0, 1, 1], np.int32)
        spans = spans_of(reached.astype(np.float32), geometry)
        if height != width or height * width * 4 > geometry.network[0] * geometry.network[1]:

            def sums(row: int, left: int, top: int, right: int, bottom: int) -> F32:
                part: F32 = as_f32(masks[rows[row], 0, top:bottom, left:right]) - np.float32(_SURE)
                return part

            return with_masks(record, cut_of(sums, (width, height), geometry.network), spans, geometry, all_stay=True)

        def cut(row: int, span: I32) -> U8:
            return _pasted(as_f32(masks[rows[row], 0]), places[row], span)

        return with_masks(record, cut, spans, geometry, all_stay=True)


def _places(boxes: F32, cells: int) -> I32:
    """Return the pixels x1, y1, x2, y2, the last ones included, that masks with a border of zeros are pasted into."""
    center, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    half = half * np.float32((cells + 2 * _BORDER) / cells)
    return np.concatenate([center - half, center + half], axis=1).astype(np.int32)


def _pasted(mask: F32, place: I32, span: I32) -> U8:
    """Return the part of a pasted mask that a span asks for, (y2 - y1, x2 - x1) uint8."""
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

    A point's score is the sigmoid of its heat map's value. Its third number, whether it is visible, is always 1 and
    left out.

    Attributes:
        score: lowest of a body.
        limit: most bodies.
        labels: names of the points.
    """

    score: float = 0.25
    limit: int = 100
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        """Yield a fit for final boxes beside points of each and their scores."""
        found = _beside(signature.shapes, 3)
        if found is not None and signature.shapes[found[1]][1] in (0, *BODIES):
            yield Fit("[N, 4] and twice [N] are final boxes of bodies, [N, points, 3] their points", 5)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raise ModelError for other outputs, ConfigError for another number of names."""
        found = _beside(shapes, 3)
        if found is None or shapes[found[1]][2] not in (0, 3):
            raise wrong_shapes("keypoints: keypoint-rcnn", f"{_READS} points [N, points, 3]", shapes, network)
        if count := shapes[found[1]][1]:
            check_labels(count, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """Return bodies by falling score."""
        shapes = shapes_of(outputs)
        self.check(shapes, geometry.network)
        roles, place = _beside(shapes, 3) or (Roles(0, (0, 0), None), 0)
        boxes, scores, _, rows = _found(outputs, roles, self.score)
        best = strongest(scores, self.limit)
        boxes, scores, rows = boxes[best], scores[best], rows[best]
        points = as_f32(outputs[place][rows]).copy()
        points[..., 2] = 1 / (1 + np.exp(-as_f32(outputs[_of_points(shapes, roles, place)][rows])))
        return Keypoints.of(geometry.boxes(boxes), scores, geometry.points(points), self.labels)


def _of_points(shapes: Shapes, roles: Roles, place: int) -> int:
    """Return the index of the points' scores, which is what is left."""
    return next(index for index in range(len(shapes)) if index not in (roles.boxes, *roles.rows, place))


def _beside(shapes: Shapes, rank: int) -> tuple[Roles, int] | None:
    """Return the roles of final boxes, and the index of the one output of a rank beside them; None for other outputs.

    Beside points of rank 3 are their scores, too.
    """
    ranks = [len(shape) for shape in shapes]
    if sorted(ranks) != sorted([2, 1, 1, rank, *([2] if rank == 3 else [])]):
        return None
    boxes = next((index for index, shape in enumerate(shapes) if len(shape) == 2 and shape[1] == 4), None)
    if boxes is None:
        return None
    places = [boxes, *(index for index, length in enumerate(ranks) if length == 1)]
    roles = roles_of([shapes[place] for place in places])
    if roles is None:
        return None
    return Roles(boxes, (places[1], places[2]), None), ranks.index(rank)


def _found(outputs: Sequence[Array], roles: Roles, score: float) -> tuple[F32, F32, I32, Index]:
    """Return boxes in network pixels, scores and labels that score enough and are no background, and their rows."""
    first, second = (outputs[index] for index in roles.rows)
    labels, scores = (second, first) if second.dtype.kind in "iu" else (first, second)
    rows = np.flatnonzero((scores >= score) & (labels > 0))
    return as_f32(outputs[roles.boxes][rows]), as_f32(scores[rows]), labels[rows].astype(np.int32), rows
