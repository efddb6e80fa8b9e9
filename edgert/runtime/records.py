"""Records: the output of models and trackers for a frame, as typed NumPy arrays.

Coordinates are pixels of the source image, also for resized or cropped inputs. Arrays are owned by the record, and
read-only by convention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from edgert.clock import time_of_day_ns
from edgert.frozen import with_fast_init
from edgert.runtime.frame import (
    U8,
    Frame,
    has_pixels,
    without_delivery as undelivered,
    without_pixels as without_planes,
)

if TYPE_CHECKING:
    from typing_extensions import Self

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_SHOWN = 5
"""Maximum number of objects in the text of :class:`Detections`."""


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """N detected objects.

    Attributes:
        boxes: (N, 4) float32 x1, y1, x2, y2 in source pixels.
        scores: (N,) float32 in 0–1, descending.
        classes: (N,) int32 index into ``labels``.
        labels: class names; empty when the model has none.
        ids: (N,) int64 track numbers, from 1; None before a tracker has seen them.
        corners: (N, 4, 2) float32 x, y of oriented boxes, in order around each, not clipped to the image; ``boxes`` are
            then their upright hulls. None where boxes are upright.
        masks: N segmentations at the network's resolution, 1 on the object and 0 elsewhere. Each covers its object's
            box, or the image area that the model read. None where the model makes no masks.
        points: (N, K, 3) float32 x, y in source pixels and a score in 0–1, which is the object's score if the model
            does not score points. None where the model makes no keypoints.
        names: names of the K points; empty when unknown.
        predicted: whether a tracker predicted the objects on a frame that no model processed.
        positions: (N, 3) float32 meters to the right, down and forward from the camera, NaN where unknown; None before
            a stage ``distance`` measured them.
    """

    boxes: F32
    scores: F32
    classes: I32
    labels: tuple[str, ...] = ()
    ids: I64 | None = None
    corners: F32 | None = None
    masks: tuple[Segmentation, ...] | None = None
    points: F32 | None = None
    names: tuple[str, ...] = ()
    predicted: bool = False
    positions: F32 | None = None

    def __repr__(self) -> str:
        """Return the number of objects and the first of them, instead of whole arrays and all labels."""
        shown = "".join(f"; {one}" for one in self[:_SHOWN]) + "; …" * (len(self) > _SHOWN)
        return f"{type(self).__name__}({len(self)}{shown})"

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[Detection]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> Detection: ...

    @overload
    def __getitem__(self, rows: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Self: ...

    def __getitem__(
        self, rows: int | np.integer[Any] | slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]
    ) -> Detection | Self:
        """Return one detection, or the detections selected by a slice, an array of indices or a boolean mask (N,).

        Raises:
            IndexError: there is no such row, or the mask does not have N values.
        """
        if isinstance(rows, int | np.integer):
            return _detection_of_row(self, range(len(self))[rows])
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.size == 0 and rows.dtype != bool:  # NumPy makes an empty list an array of floats
                rows = rows.astype(np.intp)
        ids = None if self.ids is None else self.ids[rows]
        corners = None if self.corners is None else self.corners[rows]
        masks = None if self.masks is None else tuple([self.masks[row] for row in np.arange(len(self))[rows].tolist()])
        points = None if self.points is None else self.points[rows]
        boxes, scores, classes = self.boxes[rows], self.scores[rows], self.classes[rows]
        positions = None if self.positions is None else self.positions[rows]
        own = boxes, scores, classes, self.labels, ids, corners, masks, points, self.names, self.predicted, positions
        return type(self)(*own)

    def to_supervision(self, size: tuple[int, int] | None = None) -> Any:
        """Return the detections as ``supervision.Detections``; see :mod:`edgert.runtime.supervision_form`."""
        from edgert.runtime import supervision_form

        return supervision_form.to_supervision(self, size)


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """One row of :class:`Detections`.

    Attributes:
        box: (4,) float32 x1, y1, x2, y2 in source pixels.
        score: confidence in 0–1.
        class_index: index of the class.
        label: name of the class; empty when the model has no names.
        id: track number, from 1; None before a tracker has seen it.
        corners: (4, 2) float32 x, y of an oriented box; None where boxes are upright.
        mask: pixels that the object covers; None where the model makes no masks.
        points: (K, 3) float32 x, y and score of the keypoints; None where the model makes no keypoints.
        position: (3,) float32 meters to the right, down and forward from the camera; None where nothing measured it.
    """

    box: F32
    score: float
    class_index: int
    label: str = ""
    id: int | None = None
    corners: F32 | None = None
    mask: Segmentation | None = None
    points: F32 | None = None
    position: F32 | None = None

    def __str__(self) -> str:
        """Return one line, such as ``#7 car 0.70 [199 201 240 231]``."""
        number = "" if self.id is None else f"#{self.id} "
        return f"{number}{self.label or self.class_index} {self.score:.2f} {np.rint(self.box).astype(int)}"


def label_of(labels: Sequence[str], number: int) -> str:
    """Return the label of a class, or its number as text."""
    return labels[number] if 0 <= number < len(labels) else str(number)


def _detection_of_row(detections: Detections, row: int) -> Detection:
    index = int(detections.classes[row])
    return Detection(
        detections.boxes[row],
        float(detections.scores[row]),
        index,
        detections.labels[index] if 0 <= index < len(detections.labels) else "",
        None if detections.ids is None else int(detections.ids[row]),
        None if detections.corners is None else detections.corners[row],
        None if detections.masks is None else detections.masks[row],
        None if detections.points is None else detections.points[row],
        None if detections.positions is None else detections.positions[row],
    )


class Keypoints(Detections):
    """Detections of a keypoint model, such as N bodies, which always have points.

    If the model has no boxes, ``boxes`` are the hulls of the points.
    """

    __slots__ = ()

    @classmethod
    def of(cls, boxes: F32, scores: F32, points: F32, names: tuple[str, ...] = ()) -> Keypoints:
        """Return objects of one class from (N, 4) boxes, (N,) scores and (N, K, 3) points, float32 source pixels."""
        return cls(boxes, scores, np.zeros(len(scores), np.int32), points=points, names=names)


@dataclass(frozen=True, slots=True, eq=False)
class Classification:
    """The K best classes: ``scores`` (K,) float32 probabilities, descending, and ``classes`` (K,) int32 indices."""

    scores: F32
    classes: I32
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the classes and their scores, instead of whole arrays and all labels."""
        pairs = zip(self.classes.tolist(), self.scores.tolist(), strict=True)
        return f"Classification({'; '.join(f'{label_of(self.labels, one)} {score:.2f}' for one, score in pairs)})"


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """One class per pixel.

    Attributes:
        mask: (h, w) uint8 class indices at the network's resolution, padding removed.
        region: (x1, y1, x2, y2) source pixels that the mask covers.
        labels: class names; empty when the model has none.
    """

    mask: U8
    region: tuple[float, float, float, float]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Attributes:
    """Outputs of a model with several heads: a classification or a number by name of the head."""

    heads: Mapping[str, Classification | float]


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """A (D,) float32 vector of length 1 under the Euclidean norm.

    Attributes:
        name: name of the most similar vector of the gallery; empty if none is similar enough, or without a gallery.
        similarity: cosine with the most similar vector, -1–1; None without a gallery.
    """

    vector: F32
    name: str = ""
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Text read in the image, and its score, 0–1; an empty text has score 0."""

    text: str
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class DepthMap:
    """Depth of every pixel.

    Attributes:
        depth: (h, w) float32 at the network's resolution, padding removed.
        region: (x1, y1, x2, y2) source pixels that the map covers.
        unit: ``metric`` (meters), ``inverse`` (greater is nearer) or ``relative`` (greater is farther).
    """

    depth: F32
    region: tuple[float, float, float, float]
    unit: str


@dataclass(frozen=True, slots=True, eq=False)
class OutputImage:
    """An image made by a model from the input image. It becomes the result's ``image``.

    Attributes:
        pixels: (h, w, 3) uint8 BGR, padding removed.
        region: (x1, y1, x2, y2) source pixels that it covers.
    """

    pixels: U8
    region: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class AnomalyMap:
    """Anomaly score of the image, and a map of it.

    Attributes:
        scores: (h, w) float32 at the network's resolution, padding removed.
        region: (x1, y1, x2, y2) source pixels that the map covers.
        score: anomaly score of the image.
        threshold: lowest score of an anomalous image.
    """

    scores: F32
    region: tuple[float, float, float, float]
    score: float
    threshold: float

    @property
    def is_anomalous(self) -> bool:
        """Whether the image is anomalous."""
        return self.score >= self.threshold


@dataclass(frozen=True, slots=True, eq=False)
class Crops:
    """Records of a second model that ran on crops of another stage's detections.

    Attributes:
        parent: name of the stage whose detections were cropped.
        rows: (M,) int32 rows of that stage's detections.
        records: M records, one per row, in source pixels.
    """

    parent: str
    rows: I32
    records: tuple[Any, ...]


Record = Any
"""One of the records above, or any object that a user's decoder or stage returns."""
_R = TypeVar("_R")


@with_fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A frame and its records so far; the data that flows from stage to stage.

    Attributes:
        frame: the image; its lease covers ``planes``.
        outputs: records by stage name, in the order in which the stages ran.
        image: (height, width, 3) uint8 BGR image of a draw stage or a model; else None. For a frame on a GPU, it is a
            :class:`~edgert.memory.cuda.DeviceView` between stages that read such images. Other stages, callbacks and
            ``Pipeline.results`` get an array. Valid while a reference to it exists.
        stage: name of the stage from which ``Pipeline.results`` and similar methods read the result; else empty.
        models: first characters of the model's digest, by stage name, for stages whose model was swapped.
    """

    frame: Frame
    outputs: Mapping[str, Record] = field(default_factory=dict)
    image: U8 | None = None
    stage: str = ""
    _ticket: int = field(default=0, repr=False)  # see ticket_of
    models: Mapping[str, str] = field(default_factory=dict)

    @property
    def timestamp_ns(self) -> int:
        """Capture time by the monotonic clock, in nanoseconds."""
        return self.frame.timestamp_ns

    @property
    def time_ns(self) -> int:
        """Capture time in nanoseconds since the epoch, by the present setting of this machine's clock."""
        return time_of_day_ns(self.frame.timestamp_ns)

    @property
    def detections(self) -> Detections:
        """The newest detections, with ids after a tracker; an empty record if no stage made any."""
        found = self.latest(Detections)
        return _NO_DETECTIONS if found is None else found

    def latest(self, kind: type[_R]) -> _R | None:
        """Return the newest record of one kind, or None."""
        records = reversed(list(self.outputs.values()))
        return next((record for record in records if isinstance(record, kind)), None)

    def with_output(self, stage: str, record: Record) -> Result:
        """Return this result with one more record. An :class:`OutputImage` also becomes the result's image."""
        image = record.pixels if type(record) is OutputImage else self.image
        outputs = {**self.outputs, stage: record}
        return Result(self.frame, outputs, image, self.stage, self._ticket, self.models)  # `replace` is slower


# Functions for stages; programs that read results do not need them.


def merge_results(first: Result, second: Result) -> Result:
    """Return one result with the records of two results of one frame, and with pixels if either has them."""
    image = second.image if first.image is None else first.image
    frame = first.frame if has_pixels(first.frame) else second.frame
    models = {**first.models, **second.models} if second.models else first.models
    return replace(first, frame=frame, outputs={**first.outputs, **second.outputs}, image=image, models=models)


def without_outputs(result: Result, stages: Collection[str]) -> Result:
    """Return the result without the records of these stages."""
    return replace(result, outputs={name: record for name, record in result.outputs.items() if name not in stages})


def without_delivery(result: Result) -> Result:
    """Return the result with its frame as :func:`edgert.runtime.frame.without_delivery` returns it."""
    return result if result.frame.extra.delivery is None else replace(result, frame=undelivered(result.frame))


def without_pixels(result: Result) -> Result:
    """Return the result with a frame without pixels. No lease is released."""
    if not has_pixels(result.frame):
        return result
    bare = without_planes(result.frame)
    return Result(bare, result.outputs, result.image, result.stage, result._ticket, result.models)


def ticket_of(result: Result) -> int:
    """Return the number of a result among those that the branches of one stage process.

    It is negative for a :func:`lost_placeholder`, and 0 where one thread runs the stage.
    """
    return result._ticket


def with_ticket(result: Result, ticket: int) -> Result:
    """Return the result with a ticket; see :func:`ticket_of`."""
    return replace(result, _ticket=ticket)


def lost_placeholder(result: Result) -> Result:
    """Return a placeholder for a lost result, for a reorder buffer that waits for its ticket."""
    return replace(result, _ticket=-abs(result._ticket))


_NO_DETECTIONS = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))
