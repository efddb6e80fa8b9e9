"""The zones stage: which objects are in which zone, since when, and which crossed a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgert.errors import StageError, nearest
from edgert.runtime.frame import Frame, full_frame
from edgert.runtime.records import Detections, Result
from edgert.stages.context import SimpleStage
from edgert.stages.zones.by_track import ByTrack
from edgert.stages.zones.geometry import F64, Lines, Points, Polygons, off_border, within_frame
from edgert.stages.zones.heat import HeatMap
from edgert.units import whole_number

Inside = Literal["foot", "center", "overlap"]
NEVER = np.int64(-1)
_NONE: npt.NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Area:
    """A zone or a line as the pipeline file has it.

    Attributes:
        points: around the zone, or along the line; parts 0–1 of the frame, or pixels of the source.
        streams: the only cameras that have it; all where empty.
        classes: the only objects that count, by label or number; all where empty.
        inside: which point of an object says that it is in the zone, or that enough of its box is.
        part: of the box that is in the zone, with ``inside: overlap``.
    """

    name: str
    points: Points
    streams: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    inside: Inside = "foot"
    part: float = 0.5

    def pixels(self, width: int, height: int) -> Points:
        """Return the points in pixels of an image of that size; coordinates up to 1 are fractions of it."""
        if max(max(point) for point in self.points) > 1:
            return self.points
        return [(x * width, y * height) for x, y in self.points]


@dataclass(frozen=True, slots=True)
class Change:
    """An object that entered or left a zone, or crossed a line, in this frame.

    Attributes:
        place: name of the zone or line.
        what: ``entered`` or ``left`` a zone. A line is crossed ``in``, to the right as seen along it from its first
            point, or ``out``, to the left.
        track: number of the object.
        label: its class.
        seconds: for how long it had been in the zone that it left; else 0.
    """

    place: str
    what: Literal["entered", "left", "in", "out"]
    track: int
    label: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Zones:
    """Result of a zones stage for a frame with Z zones, L lines and N objects.

    Attributes:
        zones, lines: names of those that this stream has.
        shapes: (points, 2) float64 pixels of the source image of every zone, then of every line.
        objects: the detections that were looked at; ``inside`` has their rows.
        inside: (Z, N) bool, which objects are in which zone.
        seconds: (Z, N) float64 for how long each has been there; 0 for those that are not, or have no number.
        changes: of this frame.
        totals: (Z + L, 2) int64 since the start: objects that entered and left each zone, and crossed each line in and
            out.
    """

    zones: tuple[str, ...]
    lines: tuple[str, ...]
    shapes: tuple[F64, ...]
    objects: Detections
    inside: npt.NDArray[np.bool_]
    seconds: F64
    changes: tuple[Change, ...]
    totals: npt.NDArray[np.int64]

    def to_json(self) -> dict[str, Any]:
        """Return the record as ``sink: jsonl`` writes it."""
        rows = [np.flatnonzero(inside) for inside in self.inside]
        totals = self.totals.tolist()
        found = {
            "type": "zones",
            "zones": [
                {
                    "name": name,
                    "count": len(here),
                    "classes": _counted(self.objects, here),
                    **({"ids": self.objects.ids[here].tolist()} if self.objects.ids is not None else {}),
                    "seconds": np.round(self.seconds[zone, here], 3).tolist(),
                    "entered": totals[zone][0],
                    "left": totals[zone][1],
                }
                for zone, (name, here) in enumerate(zip(self.zones, rows, strict=True))
            ],
            "lines": [
                {"name": name, "in": into, "out": out}
                for name, (into, out) in zip(self.lines, totals[len(self.zones) :], strict=True)
            ],
        }
        changes = [
            {
                "place": one.place,
                "what": one.what,
                "id": one.track,
                "label": one.label,
                **({"seconds": round(one.seconds, 3)} if one.what == "left" else {}),
            }
            for one in self.changes
        ]
        return {**found, "changes": changes}


def _counted(objects: Detections, rows: npt.NDArray[np.intp]) -> dict[str, int]:
    classes, counts = np.unique(objects.classes[rows], return_counts=True)
    return {label_of(objects, one): count for one, count in zip(classes.tolist(), counts.tolist(), strict=True)}


def label_of(objects: Detections, number: int) -> str:
    """Return the name of a class, or its number as text."""
    return objects.labels[number] if 0 <= number < len(objects.labels) else str(number)


def class_numbers(
    classes: Sequence[str], labels: Sequence[str], where: str, who: str = "the detector"
) -> npt.NDArray[np.int64]:
    """Convert class names or numbers to numbers. Raises StageError for a name that ``who`` does not have."""
    found = {name: labels.index(name) if name in labels else whole_number(name) for name in classes}
    for name, number in found.items():
        if number is None:
            raise StageError(
                f"no class {name!r}{nearest(name, labels)}",
                why=f"{who} names {len(labels) or 'no'} classes",
                where=where,
                fix="write one of its labels, or a class number",
            )
    return np.array([found[name] for name in classes], np.int64)


class ZonesStage(SimpleStage):
    """Stage that finds the zones and lines of each stream's objects.

    Times are positions in the stream, so that they are right of a recording that is read faster than it was made.

    Args:
        name: of the stage; the key of its record.
        zones, lines: of all streams.
        settle: seconds for which an object must be on the other side of a zone's border before it counts.
        forget: seconds after which an object that is not seen any more has left.
        heat: where maps of the places are written in which objects were, if anywhere.
    """

    def __init__(
        self,
        name: str,
        zones: Sequence[Area],
        lines: Sequence[Area],
        settle: float = 0.0,
        forget: float = 2.0,
        heat: HeatMap | None = None,
    ) -> None:
        self.name, self._zones, self._lines, self._heat = name, zones, lines, heat
        self._settle_ns, self._forget_ns = round(settle * 1e9), round(forget * 1e9)
        self._streams: dict[str, _Stream] = {}

    def process(self, result: Result) -> Result:
        found = result.latest(Detections)
        if found is None:  # no model looked at this frame
            return result
        frame, name = full_frame(result.frame), result.frame.stream
        stream = self._streams.get(name)
        if stream is None or stream.size != (frame.width, frame.height):
            stream = self._streams[name] = self._stream(frame, stream)
        if self._heat is not None:
            self._heat.add(name, anchors(found.boxes, "foot") / stream.size)
        return result.with_output(self.name, stream.look(found, result.frame.media_ns))

    def close(self) -> None:
        self._streams.clear()
        if self._heat is not None:
            self._heat.write()

    def _stream(self, frame: Frame, before: _Stream | None) -> _Stream:
        zones, lines = (
            [one for one in some if not one.streams or frame.stream in one.streams]
            for some in (self._zones, self._lines)
        )
        for one in (*zones, *lines):
            _check_within(one, frame, self.name)
        stream = _Stream(self.name, zones, lines, (frame.width, frame.height), self._settle_ns, self._forget_ns)
        if before is not None:  # the camera's size changed; what was counted stays
            stream.totals[:] = before.totals
        return stream


def _check_within(area: Area, frame: Frame, stage: str) -> None:
    points = np.array(area.pixels(frame.width, frame.height))
    low, high = points.min(axis=0), points.max(axis=0)
    if (low >= (frame.width, frame.height)).any() or (high <= 0).any():
        raise StageError(
            f"{area.name!r} lies outside of the frame",
            why=f"it reaches from {low[0]:g}, {low[1]:g} to {high[0]:g}, {high[1]:g}, and frames of {frame.stream!r} "
            f"are {frame.width}x{frame.height}",
            where=f"stages.{stage}",
            fix="write it in pixels of this camera, or as parts 0-1 of the frame; streams: limits it to some cameras",
        )


def anchors(boxes: npt.NDArray[np.floating[Any]], inside: Inside) -> F64:
    """Return (N, 2) points of (N, 4) boxes: the middle of the lower side, an object's foot, or of the box."""
    x, y = (boxes[:, 0] + boxes[:, 2]) / 2, boxes[:, 3] if inside == "foot" else (boxes[:, 1] + boxes[:, 3]) / 2
    return np.stack([x, y], axis=1).astype(np.float64)


class _Stream:
    """One camera: its zones in pixels, and what is known of every object."""

    def __init__(
        self,
        stage: str,
        zones: Sequence[Area],
        lines: Sequence[Area],
        size: tuple[int, int],
        settle_ns: int,
        forget_ns: int,
    ) -> None:
        self.size, self._stage, self._zones, self._lines = size, stage, zones, lines
        self._settle_ns, self._forget_ns = settle_ns, forget_ns
        self._zone_names, self._line_names = tuple(one.name for one in zones), tuple(one.name for one in lines)
        places = [one.pixels(*size) for one in (*zones, *lines)]
        self._shapes = tuple(np.array(points, np.float64) for points in places)
        self._polygons = {
            how: ([row for row, one in enumerate(zones) if one.inside == how])
            for how in dict.fromkeys(one.inside for one in zones)
        }
        self._of_polygons = {how: Polygons([places[row] for row in rows]) for how, rows in self._polygons.items()}
        self._parts = np.array([one.part for one in zones])[:, None]
        self._crossings = Lines([off_border(line, size) for line in places[len(zones) :]])
        self._wanted: npt.NDArray[np.bool_] | None = None  # (Z + L, classes), made for the detector's labels
        self._labels: tuple[str, ...] | None = None
        count = len(zones)
        self._known = ByTrack(
            point=np.full(2, np.nan),
            seen=np.array(NEVER),
            classes=np.array(0, np.int64),
            since=np.full(count, NEVER),
            other=np.full(count, NEVER),
        )
        self.totals = np.zeros((count + len(lines), 2), np.int64)

    def look(self, found: Detections, now_ns: int) -> Zones:
        """Update the zones with the next frame."""
        feet, counts = within_frame(anchors(found.boxes, "foot"), self.size), self._counts(found)
        here = self._here(found, feet) & counts[: len(self._zones)]
        changes: list[Change] = []
        seconds = np.zeros(here.shape)
        if found.ids is not None:
            rows = self._known.rows(found.ids)
            self._cross(found, feet, counts[len(self._zones) :], rows, changes)
            here = self._settled(here, rows, now_ns, found, changes)
            since = self._known["since"][:, rows]
            seconds = np.where(since == NEVER, 0.0, (now_ns - since) / 1e9)
            self._known["seen"][rows], self._known["classes"][rows] = now_ns, found.classes
            self._forget(now_ns, found, changes)
        self._count(changes)
        return Zones(
            self._zone_names, self._line_names, self._shapes, found, here, seconds, tuple(changes), self.totals.copy()
        )

    def _here(self, found: Detections, feet: F64) -> npt.NDArray[np.bool_]:
        """Return (Z, N) which objects are in which zone now."""
        here = np.zeros((len(self._zones), len(found)), bool)
        for how, rows in self._polygons.items():
            polygons = self._of_polygons[how]
            if how == "overlap":
                boxes = np.clip(found.boxes.astype(np.float64), 0, self.size * 2)  # what is not seen is in no zone
                here[rows] = polygons.overlaps(boxes) >= self._parts[rows]
            else:
                points = feet if how == "foot" else within_frame(anchors(found.boxes, how), self.size)
                here[rows] = polygons.contain(points)
        return here

    def _counts(self, found: Detections) -> npt.NDArray[np.bool_]:
        """Return (Z + L, N) whether objects of this class count there."""
        highest = int(found.classes.max(initial=0))
        if self._wanted is None or self._labels != found.labels or highest >= self._wanted.shape[1]:
            self._labels, areas = found.labels, (*self._zones, *self._lines)
            self._wanted = np.ones((len(areas), max(highest + 1, len(found.labels))), bool)
            for row, one in enumerate(areas):
                if one.classes:
                    numbers = class_numbers(one.classes, found.labels, f"stages.{self._stage}")
                    self._wanted[row] = np.isin(np.arange(self._wanted.shape[1]), numbers)
        return self._wanted[:, found.classes]

    def _cross(
        self,
        found: Detections,
        feet: F64,
        counts: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.intp],
        changes: list[Change],
    ) -> None:
        if not self._line_names:
            return
        known = self._known["point"]
        crossed = self._crossings.crossed(known[:, rows].T, feet) * counts
        for line, row in np.argwhere(crossed).tolist():
            what: Literal["in", "out"] = "in" if crossed[line, row] > 0 else "out"
            changes.append(Change(self._line_names[line], what, *self._who(found, row)))
        known[:, rows] = feet.T

    def _settled(
        self,
        here: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.intp],
        now_ns: int,
        found: Detections,
        changes: list[Change],
    ) -> npt.NDArray[np.bool_]:
        """Return (Z, N) which objects count as inside, after they have been there, or elsewhere, for long enough."""
        all_since, all_other = self._known["since"], self._known["other"]
        since, other = all_since[:, rows], all_other[:, rows]
        inside = since != NEVER
        differs = here != inside
        other = np.where(differs, np.where(other == NEVER, now_ns, other), NEVER)
        turned = differs & (now_ns - other >= self._settle_ns)
        for zone, row in np.argwhere(turned).tolist():
            if inside[zone, row]:
                spent = (other[zone, row] - since[zone, row]) / 1e9
                changes.append(Change(self._zone_names[zone], "left", *self._who(found, row), float(spent)))
            else:
                changes.append(Change(self._zone_names[zone], "entered", *self._who(found, row)))
        all_since[:, rows] = np.where(turned, np.where(inside, NEVER, other), since)
        all_other[:, rows] = np.where(turned, NEVER, other)
        settled: npt.NDArray[np.bool_] = inside ^ turned
        return settled

    def _forget(self, now_ns: int, found: Detections, changes: list[Change]) -> None:
        """Let objects that are no longer seen leave the zones that they were in."""
        seen = self._known["seen"]
        gone = now_ns - seen > self._forget_ns
        if not gone.any():
            return
        since = self._known["since"]
        for zone, row in np.argwhere((since != NEVER) & gone).tolist():
            label = label_of(found, int(self._known["classes"][row]))
            spent = float(seen[row] - since[zone, row]) / 1e9
            changes.append(Change(self._zone_names[zone], "left", int(self._known.ids[row]), label, spent))
        self._known.keep(~gone)

    def _count(self, changes: Sequence[Change]) -> None:
        places: Mapping[str, int] = {name: row for row, name in enumerate((*self._zone_names, *self._line_names))}
        for one in changes:
            self.totals[places[one.place], 0 if one.what in ("entered", "in") else 1] += 1

    @staticmethod
    def _who(found: Detections, row: int) -> tuple[int, str]:
        assert found.ids is not None
        return int(found.ids[row]), label_of(found, int(found.classes[row]))
