"""The stage that finds which objects are in which zone, for how long, and which crossed a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from edgert.config.fields import Fraction, Name, OutputPath, Seconds
from edgert.config.flow import Where, sources_of
from edgert.config.stages import PackageStage, ShortFor, StageConfig
from edgert.errors import ConfigError, StageError, nearest
from edgert.runtime.frame import Frame, full_frame
from edgert.runtime.records import Detections, Result, label_of
from edgert.stages.context import Context, SimpleStage
from edgert.stages.zones.by_track import ByTrack
from edgert.stages.zones.geometry import F64, Lines, Polygons, in_pixels, off_border, within_frame
from edgert.stages.zones.heat import HeatMap
from edgert.stages.zones.section import Inside, Line, Zone, is_tracked
from edgert.units import whole_number

NEVER = np.int64(-1)
_NONE: npt.NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Change:
    """An object that entered or left a zone, or crossed a line, in this frame.

    Attributes:
        place: name of the zone or line.
        what: ``entered`` or ``left`` for a zone. For a line, ``in`` is to the right, as seen along it from its first
            point, and ``out`` to the left.
        track: track number of the object.
        label: class of the object.
        seconds: time that the object was in the zone that it left; else 0.
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
        zones, lines: names of the stream's zones and lines.
        shapes: points of every zone, then of every line, (points, 2) float64 in pixels of the source.
        objects: the N detections.
        inside: (Z, N) bool, whether an object is in a zone.
        seconds: (Z, N) float64, time that an object has been in a zone; 0 for objects outside or without a track.
        changes: changes in this frame.
        totals: (Z + L, 2) int64 since the start: objects that entered and left each zone, or crossed each line in and
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
        rows = [np.flatnonzero(inside) for inside in self.inside]
        totals = self.totals.tolist()
        found = {
            "type": "zones",
            "zones": [
                {
                    "name": name,
                    "count": len(here),
                    "classes": _class_counts(self.objects, here),
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


def _class_counts(objects: Detections, rows: npt.NDArray[np.intp]) -> dict[str, int]:
    classes, counts = np.unique(objects.classes[rows], return_counts=True)
    return {label_of(objects.labels, one): count for one, count in zip(classes.tolist(), counts.tolist(), strict=True)}


def class_numbers(
    classes: Sequence[str], labels: Sequence[str], where: str, who: str = "the detector"
) -> npt.NDArray[np.int64]:
    """Return the numbers of classes that are given by label or number. Raises StageError for an unknown label.

    ``who`` names the owner of the labels in the error.
    """
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


class ClassTable:
    """Table of the classes that each of several zones or rules is for, made for the labels of the detections.

    Args:
        classes: labels or numbers for each; empty for all classes.
        where: place of the error for an unknown label.
    """

    def __init__(self, classes: Iterable[Sequence[str]], where: str) -> None:
        self._classes, self._where = tuple(classes), where
        self._table = np.zeros((0, 0), bool)
        self._labels: tuple[str, ...] | None = None

    def counts(self, found: Detections) -> npt.NDArray[np.bool_]:
        """Return (zones or rules, N) whether each is for an object's class. Raises StageError for an unknown label."""
        highest = int(found.classes.max(initial=0))
        if self._labels != found.labels or highest >= self._table.shape[1]:
            every = np.arange(max(highest + 1, len(found.labels)))
            wanted = [class_numbers(one, found.labels, self._where) for one in self._classes]
            rows = [np.isin(every, numbers) if len(numbers) else every >= 0 for numbers in wanted]
            self._table, self._labels = np.array(rows, bool).reshape(len(rows), len(every)), found.labels
        return self._table[:, found.classes]


class ZonesSection(PackageStage):
    """Zones with tracked objects, and lines that they cross: see [zones](zones.md)."""

    live: ClassVar[tuple[str, ...]] = ("zones", "lines", "inside")
    takes_images: ClassVar[bool] = False
    detects: ClassVar[bool] = False
    zones: dict[Name, Annotated[Zone, ShortFor("points")]] = Field(
        default_factory=dict,
        description="name: [[x, y], …], as parts 0-1 of the frame or in pixels; or name: {points: …, streams: [CAMERA],"
        " classes: [person], inside: center}",
    )
    lines: dict[Name, Annotated[Line, ShortFor("points")]] = Field(
        default_factory=dict,
        description="name: [[x, y], [x, y]]; a crossing to the right counts as in, to the left as out",
    )
    inside: Inside = Field(
        default="foot",
        description="what must be in a zone: foot (middle of the box's lower side), center, or overlap",
    )
    part: Fraction = Field(default=0.5, gt=0, description="part of the box, for inside: overlap")
    settle: Seconds = Field(default=0.0, description="time across a border before it counts")
    forget: Seconds = Field(default=2.0, description="time unseen after which an object has left")
    heatmap: OutputPath | None = Field(
        default=None,
        description="PNG of where objects stood, written every minute; `{stream}` makes one per camera",
    )

    @model_validator(mode="after")
    def _has_places(self) -> ZonesSection:
        if not self.zones and not self.lines:
            raise ValueError("expected zones: or lines:, like {yard: [[0.1, 0.4], [0.9, 0.4], [0.9, 1], [0.1, 1]]}")
        if both := self.zones.keys() & self.lines.keys():
            raise ValueError(f"a zone and a line are both called {min(both)!r}")
        return self

    def check(self, name: str, stages: Mapping[str, StageConfig], where: Where) -> None:
        """Raise ConfigError for lines without a tracker, unknown cameras, and cameras that share a heat map."""
        if self.lines and not is_tracked(name, stages):
            raise ConfigError(
                f"stage {name!r} has lines, but no stage before it tracks objects",
                why="crossing a line is detected from an object's earlier positions",
                where=where(("stages", name, "lines")),
                fix="let it listen to a track stage: {track: bytetrack, from: …}",
            )
        streams = sources_of(stages)[name]
        if self.heatmap is not None and len(streams) > 1 and "{stream}" not in str(self.heatmap):
            what = f"{self.heatmap} would show {' and '.join(sorted(streams))}"
            raise ConfigError(what, where=where(("stages", name, "heatmap")), fix="put {stream} into heatmap")
        for key, areas in (("zones", self.zones), ("lines", self.lines)):
            for one, area in areas.items():
                for stream in area.streams:
                    if stream not in streams:
                        raise ConfigError(
                            f"{one!r} is of camera {stream!r}, whose frames do not reach stage {name!r}"
                            f"{nearest(stream, streams)}",
                            where=where(("stages", name, key, one)),
                            fix=f"cameras here: {', '.join(sorted(streams))}",
                        )

    def make(self, name: str, context: Context) -> ZonesStage:
        return ZonesStage(name, self)


class ZonesStage(SimpleStage):
    """Stage that finds the zones and lines of each stream's objects.

    Times are positions in the stream, so that they are right for recordings that are read faster than they were made.
    """

    def __init__(self, name: str, section: ZonesSection) -> None:
        self.name, self._section = name, section
        self._heat = HeatMap(section.heatmap) if section.heatmap is not None else None
        self._streams: dict[str, _Stream] = {}

    def process(self, result: Result) -> Result:
        found = result.latest(Detections)
        if found is None:  # no model ran on this frame
            return result
        frame, name = full_frame(result.frame), result.frame.stream
        stream = self._streams.get(name)
        if stream is None or stream.size != (frame.width, frame.height):
            stream = self._streams[name] = self._stream(frame, stream)
        if self._heat is not None:
            self._heat.add(name, anchors(found.boxes, "foot") / stream.size)
        return result.with_output(self.name, stream.update(found, result.frame.media_ns))

    def close(self) -> None:
        self._streams.clear()
        if self._heat is not None:
            self._heat.write()

    def _stream(self, frame: Frame, before: _Stream | None) -> _Stream:
        stream = _Stream(self.name, self._section, frame)
        if before is not None:  # the image size changed; the totals stay
            stream.totals[:] = before.totals
        return stream


def _check_within(name: str, points: F64, frame: Frame, stage: str) -> None:
    low, high = points.min(axis=0), points.max(axis=0)
    if (low >= (frame.width, frame.height)).any() or (high <= 0).any():
        raise StageError(
            f"{name!r} lies outside of the frame",
            why=f"it reaches from {low[0]:g}, {low[1]:g} to {high[0]:g}, {high[1]:g}, and frames of {frame.stream!r} "
            f"are {frame.width}x{frame.height}",
            where=f"stages.{stage}",
            fix="write it in pixels of this camera, or as parts 0-1 of the frame; streams: limits it to some cameras",
        )


def anchors(boxes: npt.NDArray[np.floating[Any]], inside: Inside) -> F64:
    """Return one point of each of (N, 4) boxes, (N, 2): the middle of the lower side (``foot``), or of the box."""
    x, y = (boxes[:, 0] + boxes[:, 2]) / 2, boxes[:, 3] if inside == "foot" else (boxes[:, 1] + boxes[:, 3]) / 2
    return np.stack([x, y], axis=1).astype(np.float64)


class _Stream:
    """The zones of one camera in pixels, and the state of every object."""

    def __init__(self, stage: str, section: ZonesSection, frame: Frame) -> None:
        self.size, self._part = (frame.width, frame.height), section.part
        self._settle_ns, self._forget_ns = round(section.settle * 1e9), round(section.forget * 1e9)
        zones, lines = (
            {name: one for name, one in some.items() if not one.streams or frame.stream in one.streams}
            for some in (section.zones, section.lines)
        )
        self._areas = {**zones, **lines}
        self._zone_names, self._line_names = tuple(zones), tuple(lines)
        self._shapes = tuple(in_pixels(one.points, self.size) for one in self._areas.values())
        for name, points in zip(self._areas, self._shapes, strict=True):
            _check_within(name, points, frame, stage)
        ways: list[Inside] = [section.zones[name].inside or section.inside for name in zones]
        self._zone_rows = {how: [row for row, one in enumerate(ways) if one == how] for how in dict.fromkeys(ways)}
        self._polygons = {how: Polygons([self._shapes[row] for row in rows]) for how, rows in self._zone_rows.items()}
        self._crossings = Lines([off_border(line, self.size) for line in self._shapes[len(zones) :]])
        self._classes = ClassTable((one.classes for one in self._areas.values()), f"stages.{stage}")
        count = len(zones)
        self._known = ByTrack(
            point=np.full(2, np.nan),
            seen=np.array(NEVER),
            classes=np.array(0, np.int64),
            since=np.full(count, NEVER),
            other=np.full(count, NEVER),
        )
        self.totals = np.zeros((count + len(lines), 2), np.int64)

    def update(self, found: Detections, now_ns: int) -> Zones:
        feet, counts = within_frame(anchors(found.boxes, "foot"), self.size), self._classes.counts(found)
        here = self._inside_now(found, feet) & counts[: len(self._zone_names)]
        changes: list[Change] = []
        seconds = np.zeros(here.shape)
        if found.ids is not None:
            rows = self._known.rows(found.ids)
            self._cross(found, feet, counts[len(self._zone_names) :], rows, changes)
            here = self._settle(here, rows, now_ns, found, changes)
            since = self._known["since"][:, rows]
            seconds = np.where(since == NEVER, 0.0, (now_ns - since) / 1e9)
            self._known["seen"][rows], self._known["classes"][rows] = now_ns, found.classes
            self._forget(now_ns, found, changes)
        self._add_totals(changes)
        return Zones(
            self._zone_names, self._line_names, self._shapes, found, here, seconds, tuple(changes), self.totals.copy()
        )

    def _inside_now(self, found: Detections, feet: F64) -> npt.NDArray[np.bool_]:
        """Return (Z, N) whether an object is in a zone in this frame."""
        here = np.zeros((len(self._zone_names), len(found)), bool)
        for how, rows in self._zone_rows.items():
            polygons = self._polygons[how]
            if how == "overlap":
                boxes = np.clip(found.boxes.astype(np.float64), 0, self.size * 2)  # only the visible part counts
                here[rows] = polygons.overlaps(boxes) >= self._part
            else:
                points = feet if how == "foot" else within_frame(anchors(found.boxes, how), self.size)
                here[rows] = polygons.contain(points)
        return here

    def _cross(
        self,
        found: Detections,
        feet: F64,
        counts: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.intp],
        changes: list[Change],
    ) -> None:
        """Add the objects that crossed a line to ``changes``."""
        if not self._line_names:
            return
        known = self._known["point"]
        crossed = self._crossings.crossed(known[:, rows].T, feet) * counts
        for line, row in np.argwhere(crossed).tolist():
            what: Literal["in", "out"] = "in" if crossed[line, row] > 0 else "out"
            changes.append(Change(self._line_names[line], what, *self._who(found, row)))
        known[:, rows] = feet.T

    def _settle(
        self,
        here: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.intp],
        now_ns: int,
        found: Detections,
        changes: list[Change],
    ) -> npt.NDArray[np.bool_]:
        """Return (Z, N) whether an object counts as inside: a change counts once it has lasted for ``settle``."""
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
        """Remove objects that are no longer seen, from their zones too."""
        seen = self._known["seen"]
        gone = now_ns - seen > self._forget_ns
        if not gone.any():
            return
        since = self._known["since"]
        for zone, row in np.argwhere((since != NEVER) & gone).tolist():
            label = label_of(found.labels, int(self._known["classes"][row]))
            spent = float(seen[row] - since[zone, row]) / 1e9
            changes.append(Change(self._zone_names[zone], "left", int(self._known.ids[row]), label, spent))
        self._known.keep(~gone)

    def _add_totals(self, changes: Sequence[Change]) -> None:
        places = list(self._areas)
        for one in changes:
            self.totals[places.index(one.place), 0 if one.what in ("entered", "in") else 1] += 1

    @staticmethod
    def _who(found: Detections, row: int) -> tuple[int, str]:
        assert found.ids is not None
        return int(found.ids[row]), label_of(found.labels, int(found.classes[row]))
