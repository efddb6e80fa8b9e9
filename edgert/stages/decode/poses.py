"""Poses and landmarks in further layouts: classified or final coordinates, or parts with fields that link them."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.records import Keypoints
from edgert.stages.assignment import assign
from edgert.stages.crop import Geometry
from edgert.stages.decode import decoder
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, check_labels, shapes_of
from edgert.stages.decode.detection import Index, corners, strongest, suppress
from edgert.stages.decode.guess import BODIES, Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.maps import one_body


@dataclass(frozen=True, slots=True)
class SimCC:
    """Two outputs [K, across] and [K, down]: for each of K points of one body, a score per fraction of a pixel.

    Li et al., "SimCC: a Simple Coordinate Classification Perspective for Human Pose Estimation", 2022. As in RTMPose
    (``mmpose/codecs/utils/post_processing.py`` of github.com/open-mmlab/mmpose), a point is where both are highest, and
    its score is the lower of the two. A point without a score above 0 is missing. An image has one body.
    """

    score: float = 0.25
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.network is not None and _cells_per_pixel(signature.shapes, signature.network):
            yield Fit(f"{signature.shapes[0][0]} points, by scores of columns and rows", 4)

    def check(self, shapes: Shapes, network: Size) -> None:
        if not _cells_per_pixel(shapes, network):
            raise wrong_shapes(
                "keypoints: simcc", "two outputs [points, n * width], [points, n * height]", shapes, network
            )
        check_labels(shapes[0][0], self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """Return one body, or none; its box is the hull of the detected points."""
        self.check(shapes_of(outputs), geometry.network)
        split = _cells_per_pixel(shapes_of(outputs), geometry.network)
        across, down = map(as_f32, outputs if outputs[0].shape[1] == split * geometry.network[0] else outputs[::-1])
        x, y = across.argmax(axis=1), down.argmax(axis=1)
        each = np.arange(len(x))
        scores = np.minimum(across[each, x], down[each, y])
        points = np.stack([x / split, y / split, np.clip(scores, 0, 1)], axis=1).astype(np.float32)
        return one_body(points, self.score, self.labels, geometry)


_MOST_SPLIT = 4
"""Largest number of parts of a pixel; published models have 2 or 3."""


def _cells_per_pixel(shapes: Shapes, network: Size) -> float:
    """Return cells per pixel of SimCC outputs in either order; 0 for other outputs."""
    if len(shapes) != 2 or any(len(shape) != 2 for shape in shapes) or shapes[0][0] != shapes[1][0] or 0 in shapes[0]:
        return 0
    for across, down in ((shapes[0][1], shapes[1][1]), (shapes[1][1], shapes[0][1])):
        if across * network[1] == down * network[0] and network[0] <= across <= _MOST_SPLIT * network[0]:
            return across / network[0]
    return 0


@dataclass(frozen=True, slots=True)
class MoveNet:
    """One output [1, 17, 3] of one body: y, x and score of its points; or [bodies, 56] of several.

    A row of 56 is y, x, score of each point, then ymin, xmin, ymax, xmax and score of the body. All are relative to the
    network's width and height. Layouts: https://www.tensorflow.org/hub/tutorials/movenet and the model pages of MoveNet
    and MoveNet.MultiPose. The score of a single body is the mean of its points' scores.
    """

    score: float = 0.25
    limit: int = 100
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if count := _movenet_points(signature.shapes):
            yield Fit(f"{count} points of y, x and score", 5 if count in BODIES else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        count = _movenet_points(shapes)
        if not count:
            reads = "one output [1, points, 3] or [bodies, 3 * points + 5]"
            raise wrong_shapes("keypoints: movenet", reads, shapes, network)
        check_labels(count, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        self.check(shapes_of(outputs), geometry.network)
        raw, size = as_f32(outputs[0]), np.array(geometry.network, np.float32)
        if raw.shape[-1] == 3:
            points = raw.reshape(-1, 3)[:, [1, 0, 2]]
            points[:, :2] *= size
            return one_body(points, self.score, self.labels, geometry)
        found = raw[raw[:, -1] >= self.score]
        found = found[strongest(found[:, -1], self.limit)]
        boxes = found[:, [-4, -5, -2, -3]] * np.tile(size, 2)
        points = found[:, :-5].reshape(len(found), (raw.shape[1] - 5) // 3, 3)[:, :, [1, 0, 2]]
        points[..., :2] *= size
        return Keypoints.of(geometry.boxes(boxes), found[:, -1].copy(), geometry.points(points), self.labels)


def _movenet_points(shapes: Shapes) -> int:
    """Return the number of points in MoveNet's outputs; 0 for other outputs."""
    one = shapes[0] if len(shapes) == 1 else ()
    if len(one) == 3 and one[0] == 1 and one[2] == 3:
        return one[1]
    return 17 if len(one) == 2 and one[1] == 3 * 17 + 5 and one[0] < 100 else 0


@dataclass(frozen=True, slots=True)
class Landmarks:
    """One output with the points of one object: x, y of each, or x, y, z.

    Attributes:
        unit: ``relative`` for 0 to 1 over the network's input, ``centered`` for -1 to 1, ``pixels`` for its pixels.
        numbers: numbers per point; the third is ignored.
        labels: names of the points.
    """

    unit: Literal["relative", "centered", "pixels"] = "relative"
    numbers: Literal[2, 3] = 2
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        length = 2 * rows if columns == 2 else signature.vector or 0
        count, side = length // 2, max(signature.network or (0, 0))
        is_named = any(word in signature.names for word in ("landmark", "kps", "keypoint", "points"))
        if length % 2 or length < 8:
            return
        if is_named:
            yield Fit(f"{length} numbers are {count} points", 4)
        elif count in _OF_A_FACE and 0 < side <= _CROP and (count, side) != _CARS:
            yield Fit(f"{length} numbers of a small crop are {count} points of a face", 4)
        elif count in _DATA_SETS:
            yield Fit(f"{length} numbers can be {count} points", 2)

    def check(self, shapes: Shapes, network: Size) -> None:
        sizes = [size for size in shapes[0] if size != 1] if len(shapes) == 1 else []
        if len(sizes) == 2 and sizes[1] == self.numbers:
            sizes = [sizes[0] * sizes[1]]
        if len(sizes) != 1 or sizes[0] % self.numbers:
            raise wrong_shapes("keypoints: landmarks", f"one output [{self.numbers} * points]", shapes, network)
        check_labels(sizes[0] // self.numbers, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """Return one object, with scores of 1, because the model has none; its box is the hull of the points."""
        self.check(shapes_of(outputs), geometry.network)
        points = np.ones((outputs[0].size // self.numbers, 3), np.float32)
        points[:, :2] = as_f32(outputs[0]).reshape(-1, self.numbers)[:, :2]
        if self.unit == "centered":
            points[:, :2] = (points[:, :2] + 1) / 2
        if self.unit != "pixels":
            points[:, :2] *= geometry.network
        return one_body(points, 0.0, self.labels, geometry)


_DATA_SETS = (5, 68, 98, 106, 468, 478)
"""Numbers of points of a face in WIDER Face, iBUG 300-W, WFLW, JD-landmark and MediaPipe's two meshes."""
_OF_A_FACE, _CROP = _DATA_SETS[1:], 256
"""Numbers of points that are not a common number of classes, and the largest crop of such networks. PFLD takes 112x112,
InsightFace's 2d106det 192x192."""
_CARS = (98, 224)
"""Number of points and input size that may also be a classifier of the 196 classes of Stanford Cars."""


@dataclass(frozen=True, slots=True)
class YoloV7Pose:
    """One output [N, 6 + 3 * K], three rows per cell (github.com/WongKinYiu/yolov7, branch pose; yolov7-face).

    A row is center x, y, width, height, objectness, class, and x, y, score of K points. All are in network pixels and
    after their sigmoids.
    """

    score: float = 0.25
    iou: float = 0.45
    limit: int = 100
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        count = (columns - 6) // 3
        if (
            signature.network is not None
            and rows in _three_a_cell(signature.network)
            and columns == 6 + 3 * count
            and count > 0
        ):
            yield Fit(f"[{rows}, 6 + {3 * count}] is {count} points of each box", 4 if count in (5, *BODIES) else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        rows, columns = shapes[0] if len(shapes) == 1 and len(shapes[0]) == 2 else (0, 0)
        if rows not in _three_a_cell(network) or columns < 9 or columns % 3:
            reads = f"one output [{_three_a_cell(network)[0]}, 6 + 3 * points]"
            raise wrong_shapes("keypoints: yolov7-pose", reads, shapes, network)
        check_labels((columns - 6) // 3, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        self.check(shapes_of(outputs), geometry.network)
        found = as_f32(outputs[0][outputs[0][:, 4] >= self.score])
        found = found[found[:, 4] * found[:, 5] >= self.score]
        boxes, scores = corners(found[:, :2], found[:, 2:4]), found[:, 4] * found[:, 5]
        rows = suppress(boxes, scores, np.zeros(len(scores), np.int32), self.iou, self.limit)
        points = found[rows, 6:].reshape(len(rows), (found.shape[1] - 6) // 3, 3)
        return Keypoints.of(geometry.boxes(boxes[rows]), scores[rows], geometry.points(points), self.labels)


def _three_a_cell(network: Size) -> tuple[int, int]:
    return 3 * decoder.all_cells(network, (8, 16, 32)), 3 * decoder.all_cells(network, (8, 16, 32, 64))


# Parts of all bodies, and fields that link them: trt_pose.
#
# Peaks, their refinement, line integrals, assignment and components are those of ``trt_pose/parse/*.cpp`` of
# github.com/NVIDIA-AI-IOT/trt_pose (MIT), after Cao et al., "Realtime Multi-Person 2D Pose Estimation using Part
# Affinity Fields", 2017. The links are the skeleton of its ``tasks/human_pose/human_pose.json``, from 0.

_LINKS = (
    (15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 7), (6, 8), (7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3),
    (2, 4), (3, 5), (4, 6), (17, 0), (17, 5), (17, 6), (17, 11), (17, 12),
)  # fmt: skip
_PEAK, _LINK = 0.1, 0.1
_WINDOW, _SAMPLES, _MOST_PARTS = 5, 7, 100


@dataclass(frozen=True, slots=True)
class TrtPose:
    """Two outputs: parts [18, h, w], and fields [42, h, w] with y and x of the direction of each of 21 links.

    A body's score is the mean of all parts' values at their peaks, 0 for missing parts.
    """

    score: float = 0.0
    limit: int = 100
    labels: tuple[str, ...] = ()
    links: tuple[tuple[int, int], ...] = _LINKS

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.network is not None and cls()._roles(signature.shapes) is not None:
            yield Fit("18 maps of parts and 42 fields between them", 5)

    def check(self, shapes: Shapes, network: Size) -> None:
        roles = self._roles(shapes)
        if roles is None:
            reads = f"two outputs, parts [points, h, w] and fields [{2 * len(self.links)}, h, w]"
            raise wrong_shapes("keypoints: trt-pose", reads, shapes, network)
        check_labels(shapes[roles[0]][0], self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """Return bodies, best score first; their boxes are the hulls of the points."""
        self.check(shapes_of(outputs), geometry.network)
        parts, fields = (as_f32(outputs[index]) for index in self._roles(shapes_of(outputs)) or ())
        kinds, places, values = _find_parts(parts)
        pairs = _link_parts(kinds, places, fields, self.links)
        bodies = _group_bodies(kinds, pairs, len(parts), self.limit)
        here = bodies >= 0
        points = np.zeros((*bodies.shape, 3), np.float32)
        points[here] = np.column_stack([places, values])[bodies[here]]
        scale = (geometry.network[0] / parts.shape[2], geometry.network[1] / parts.shape[1])
        points[..., :2] *= np.array(scale, np.float32)
        scores = points[..., 2].sum(axis=1, dtype=np.float32) / np.float32(len(parts))
        rows = strongest(scores, self.limit)
        rows = rows[scores[rows] >= self.score]
        points, here = points[rows], here[rows, :, None]
        low, high = np.where(here, points[..., :2], np.inf), np.where(here, points[..., :2], -np.inf)
        hulls = np.concatenate([low.min(axis=1), high.max(axis=1)], axis=1)
        return Keypoints.of(geometry.boxes(hulls), scores[rows], geometry.points(points), self.labels)

    def _roles(self, shapes: Shapes) -> tuple[int, int] | None:
        """Return the indices of parts and fields; None for other outputs."""
        if len(shapes) != 2 or any(len(shape) != 3 for shape in shapes) or shapes[0][1:] != shapes[1][1:]:
            return None
        least = 1 + max(map(max, self.links))
        for parts, fields in ((0, 1), (1, 0)):
            if shapes[fields][0] == 2 * len(self.links) and least <= shapes[parts][0] != shapes[fields][0]:
                return parts, fields
        return None


def _find_parts(maps: F32) -> tuple[Index, F32, F32]:
    """Return the peaks of (C, h, w) maps, map by map: (N,) map index, (N, 2) x, y in cells, (N,) values."""
    half = _WINDOW // 2
    each = np.ascontiguousarray(maps.transpose(1, 2, 0))
    around = cv2.dilate(each, np.ones((_WINDOW, _WINDOW), np.uint8)).reshape(each.shape)
    kinds, y, x = np.nonzero(((each >= _PEAK) & (each == around)).transpose(2, 0, 1))
    first = np.searchsorted(kinds, kinds)  # index of the map's first peak
    kept = np.arange(len(kinds)) - first < _MOST_PARTS
    kinds, y, x = kinds[kept], y[kept], x[kept]
    steps = np.arange(-half, half + 1)
    rows, columns = y[:, None] + steps, x[:, None] + steps
    height, width = maps.shape[1:]
    weights = maps[kinds[:, None, None], _reflect(rows, height)[:, :, None], _reflect(columns, width)[:, None]]
    total = weights.sum(axis=(1, 2))
    across = (weights.sum(axis=1) * columns).sum(axis=1) / total
    down = (weights.sum(axis=2) * rows).sum(axis=1) / total
    return kinds, np.stack([across, down], axis=1).astype(np.float32) + np.float32(0.5), maps[kinds, y, x]


def _reflect(at: npt.NDArray[np.int_], size: int) -> npt.NDArray[np.int_]:
    at = np.abs(at)
    return np.where(at >= size, 2 * size - 2 - at, at)


def _link_parts(kinds: Index, places: F32, fields: F32, links: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return pairs of parts, as rows of ``kinds``, in the order of the links.

    The pairs of each link are the assignment with the highest sum of line integrals through its field, without pairs
    below the threshold.
    """
    first = np.searchsorted(kinds, np.arange(2 + max(map(max, links))))
    ours, theirs = np.array(links).T
    counts, others = (first[some + 1] - first[some] for some in (ours, theirs))
    link = np.repeat(np.arange(len(links)), counts * others)
    number = np.arange(len(link)) - np.repeat(np.cumsum(counts * others) - counts * others, counts * others)
    ends = first[ours[link]] + number // others[link], first[theirs[link]] + number % others[link]
    begin, way = places[ends[0]], places[ends[1]] - places[ends[0]]
    unit = way / (np.sqrt((way * way).sum(axis=1, keepdims=True)) + np.float32(1e-5))
    part = (np.arange(_SAMPLES, dtype=np.float32) / np.float32(_SAMPLES - 1))[:, None, None]
    cells = (begin + part * way).astype(np.int64)
    x, y = np.moveaxis(cells, 2, 0)
    height, width = fields.shape[1:]
    is_in = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = np.where(is_in, x, 0), np.where(is_in, y, 0)
    along = fields[2 * link, y, x] * unit[:, 1] + fields[2 * link + 1, y, x] * unit[:, 0]
    scores = np.where(is_in, along, 0).sum(axis=0, dtype=np.float32) / np.float32(_SAMPLES)
    found, at = list[tuple[int, int]](), 0
    for a, b, height, width in np.stack([first[ours], first[theirs], counts, others], axis=1).tolist():
        table = scores[at : at + height * width].reshape(height, width)
        at += height * width
        if height and width:
            pairs = zip(*_assign_all(table), strict=True)
            found += [(a + row, b + column) for row, column in pairs if table[row, column] > _LINK]
    return found


def _assign_all(table: F32) -> tuple[list[int], list[int]]:
    """Return rows and columns of the assignment with the highest sum, of as many pairs as possible."""
    if len(table) > table.shape[1]:
        columns, rows = _assign_all(table.T)
        return rows, columns
    wanted: list[int] = table.argmax(axis=1).tolist()
    if len(set(wanted)) == len(wanted):  # every row has another best column
        return list(range(len(wanted))), wanted
    # The offset makes every further pair worth more than any score, so that none is left out.
    least, most = float(table.min()), float(table.max())
    found = assign(table.astype(np.float64) - least + (most - least + 1) * len(table))
    return found[0].tolist(), found[1].tolist()


def _group_bodies(kinds: Index, pairs: Sequence[tuple[int, int]], count: int, limit: int) -> npt.NDArray[np.int64]:
    """Return (bodies, count) parts by kind, -1 for a missing one; the pairs connect the parts of a body.

    Components are searched breadth first; of two parts of a kind the later stays.
    """
    near: list[list[int]] = [[] for _ in kinds]
    for one, other in pairs:
        near[one].append(other)
        near[other].append(one)
    kind, seen, bodies = kinds.tolist(), set[int](), list[list[int]]()
    for first in range(len(kind)):
        if first in seen or len(bodies) >= limit:
            continue
        body, queue = [-1] * count, deque([first])
        while queue:
            part = queue.popleft()
            if part not in seen:
                seen.add(part)
                body[kind[part]] = part
                queue.extend(near[part])
        bodies.append(body)
    return np.array(bodies, np.int64).reshape(len(bodies), count)
