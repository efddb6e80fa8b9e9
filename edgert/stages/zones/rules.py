"""The stage that makes events of zones, lines and objects, by rules."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgert.clock import Clock, rfc3339, time_of_day_ns
from edgert.config.fields import Name
from edgert.config.flow import Where, upstream
from edgert.config.stages import InferStage, PackageStage, StageConfig
from edgert.errors import ConfigError, nearest
from edgert.runtime.records import Classification, Crops, Detections, Result, label_of
from edgert.stages.context import Context, SimpleStage
from edgert.stages.zones.areas import NEVER, ClassTable, Zones, ZonesSection, class_numbers
from edgert.stages.zones.by_track import ByTrack
from edgert.stages.zones.schedule import is_within
from edgert.stages.zones.section import RuleSection, is_tracked

Phase = Literal["begin", "update", "end"]
_REMEMBERED_NS = 60 * 10**9
"""Time for which an object's state is kept after it was last seen."""
_STREAM = np.zeros(1, np.int64)
"""The track number of events without an object."""


@dataclass(frozen=True, slots=True)
class Event:
    """A report of an event: its beginning, an update, or its end.

    Attributes:
        id: globally unique id, the same in all phases.
        time_ns: time since which the condition holds, nanoseconds of the epoch.
        seconds: time that the condition has held.
        place: zone or line; empty where the rule has none.
        way: direction of a crossing; else empty.
        track, label, score, box: present values of the object; 0 and empty for events of a stream.
        count: number of objects that match the rule.
        best_frame, best_score: number of the frame with the object's best score, and that score.
    """

    id: str
    rule: str
    phase: Phase
    stream: str
    time_ns: int
    seconds: float = 0.0
    place: str = ""
    way: str = ""
    track: int = 0
    label: str = ""
    score: float = 0.0
    box: tuple[float, float, float, float] | None = None
    count: int = 0
    best_frame: int = 0
    best_score: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain data, in the form of ``sink: jsonl``, without fields that do not apply."""
        found: dict[str, Any] = {"id": self.id, "rule": self.rule, "phase": self.phase, "stream": self.stream}
        found |= {"time": rfc3339(self.time_ns), "seconds": round(self.seconds, 3)}
        found |= {"place": self.place} if self.place else {}
        found |= {"way": self.way} if self.way else {}
        if self.box is None:
            return {**found, "count": self.count}
        found |= {"track": self.track, "label": self.label, "score": round(self.score, 4)}
        best = {"frame": self.best_frame, "score": round(self.best_score, 4)}
        return {**found, "box": [round(side, 2) for side in self.box], "best": best}


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a frame."""

    events: tuple[Event, ...]

    def to_json(self) -> dict[str, Any]:
        return {"type": "events", "events": [one.to_json() for one in self.events]}


class EventsSection(PackageStage):
    """Events by rules on zones, lines and objects: see [zones](zones.md)."""

    live: ClassVar[tuple[str, ...]] = ("rules",)
    takes_images: ClassVar[bool] = False
    detects: ClassVar[bool] = False
    rules: dict[Name, RuleSection] = Field(min_length=1, description="name: {zone: yard, classes: person, for: 3s}")

    def check(self, name: str, stages: Mapping[str, StageConfig], where: Where) -> None:
        """Raise ConfigError for rules with unknown zones, lines or stages, and for those that can never be true."""
        before = upstream(stages, name)
        places = [stage for other in before if isinstance(stage := stages[other], ZonesSection)]
        zones = {key: zone for one in places for key, zone in one.zones.items()}
        lines = {key: line for one in places for key, line in one.lines.items()}
        for rule_name, rule in self.rules.items():
            place = where(("stages", name, "rules", rule_name))
            for noun, named, known in (("zone", rule.zone, zones), ("line", rule.line, lines)):
                for one in named:
                    if one not in known:
                        raise ConfigError(
                            f"rule {rule_name!r} is about {noun} {one!r}, which no stage before it has"
                            f"{nearest(one, known)}",
                            where=place,
                            fix=f"{noun}s here: {', '.join(known)}" if known else f"add a stage: zones with {noun}s:",
                        )
                    _check_classes(rule_name, rule, noun, one, known[one].classes, place)
            for other in rule.attributes:
                _check_attribute(rule_name, other, stages, before, place)
            if rule.is_of_objects and not is_tracked(name, stages):
                raise ConfigError(
                    f"rule {rule_name!r} is about single objects, but no stage before it tracks them",
                    where=place,
                    fix="let it listen to a track stage, or count objects: count: 1",
                )

    def make(self, name: str, context: Context) -> EventsStage:
        return EventsStage(name, self.rules, context.clock, context.run)


def _check_classes(
    rule_name: str, rule: RuleSection, noun: str, area: str, classes: tuple[str, ...], place: str
) -> None:
    if rule.classes and classes and not set(rule.classes) & set(classes):
        raise ConfigError(
            f"rule {rule_name!r} can never be true: {noun} {area!r} is for {', '.join(classes)} only",
            where=place,
            fix=f"add {rule.classes[0]} to the {noun}'s classes:, or leave them out",
        )


def _check_attribute(
    rule_name: str, stage: str, stages: Mapping[str, StageConfig], before: frozenset[str], place: str
) -> None:
    found: Any = stages.get(stage)
    if stage not in before or not isinstance(found, InferStage) or found.crop is None:
        crops = [one for one in sorted(before) if getattr(stages[one], "crop", None) and stage != one]
        raise ConfigError(
            f"rule {rule_name!r} asks {stage!r}, which is no stage before it that looks at crops"
            f"{nearest(stage, crops)}",
            where=place,
            fix=f"stages that do: {', '.join(crops) or 'none'}",
        )


class EventsStage(SimpleStage):
    """Stage that makes events of results. A result without events gets no record.

    Durations are measured by positions in the stream, times by the clock.

    Args:
        run: id of the run, which makes the ids of events unique; a replay uses that of its recording.
    """

    def __init__(self, name: str, rules: Mapping[str, RuleSection], clock: Clock, run: str = "") -> None:
        self.name, self._rules, self._clock, self._run = name, rules, clock, run or uuid.uuid4().hex
        self._streams: dict[str, _Stream] = {}

    def process(self, result: Result) -> Result:
        found = result.latest(Detections)
        if found is None:
            return result
        frame = result.frame
        if frame.stream not in self._streams:
            ids = _event_ids(f"{self._run} {self.name} {frame.stream} {frame.timestamp_ns}")
            self._streams[frame.stream] = _Stream(self.name, frame.stream, self._rules, ids)
        events = tuple(self._streams[frame.stream].events(result, time_of_day_ns(frame.timestamp_ns, self._clock)))
        return result.with_output(self.name, Events(events)) if events else result

    def close(self) -> None:
        self._streams.clear()


@dataclass(frozen=True, slots=True)
class _FrameView:
    """One frame with its objects; ``matches`` is (R, N) bool, whether an object matches a rule."""

    frame: int
    now_ns: int
    time_ns: int
    found: Detections
    zones: Zones | None
    matches: npt.NDArray[np.bool_]


def _event_ids(seed: str) -> Iterator[str]:
    """Yield unique ids of 32 hexadecimal digits, always the same for a seed."""
    number = 0
    while True:
        yield blake2b(f"{seed} {number}".encode(), digest_size=16).hexdigest()
        number += 1


class _Stream:
    """The rules for one camera, with their state."""

    def __init__(self, stage: str, stream: str, rules: Mapping[str, RuleSection], ids: Iterator[str]) -> None:
        self._stage, self._stream, self._ids = stage, stream, ids
        crossing = {name: rule for name, rule in rules.items() if rule.line}
        single = {name: rule for name, rule in rules.items() if not rule.line and rule.is_of_objects}
        shared = {name: rule for name, rule in rules.items() if not rule.line and not rule.is_of_objects}
        self._named, self._limits = {**crossing, **single, **shared}, {name: _Limit(rules[name]) for name in crossing}
        self._rules, self._crossing = tuple(self._named.values()), crossing
        self._by_object, self._by_stream = (_LastingEvents(stream, some, ids) for some in (single, shared))
        self._single = slice(len(crossing), len(crossing) + len(single))
        self._shared = slice(self._single.stop, len(rules))
        self._least = np.array([rule.count or 1 for rule in shared.values()])
        self._absent = np.array([rule.absent is not None for rule in shared.values()], bool)
        self._scores = np.array([rule.score for rule in self._rules], np.float32)[:, None]
        self._classes = ClassTable((rule.classes for rule in self._rules), f"stages.{stage}")
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}  # rule and stage → that one's labels
        self._anywhere = np.array([not rule.zone for rule in self._rules])[:, None]
        self._places: npt.NDArray[np.float32] | None = None  # (R, Z), made for the zones of this stream
        self._zones: tuple[str, ...] | None = None

    def events(self, result: Result, time_ns: int) -> Iterator[Event]:
        zones, frame = result.latest(Zones), result.frame
        found = zones.objects if zones is not None else result.detections
        matches = self._matches(result, found, zones)
        for name, matching in zip(self._crossing, matches, strict=False):
            yield from self._crossings(name, matching, result, zones, time_ns)
        if self._by_object.rules and found.ids is not None:
            view = _FrameView(frame.index, frame.media_ns, time_ns, found, zones, matches[self._single])
            yield from self._by_object.step(view, found.ids, view.matches)
        if self._by_stream.rules:
            view = _FrameView(frame.index, frame.media_ns, time_ns, found, zones, matches[self._shared])
            holds = (view.matches.sum(axis=1) >= self._least) != self._absent
            yield from self._by_stream.step(view, _STREAM, holds[:, None])

    def _matches(self, result: Result, found: Detections, zones: Zones | None) -> npt.NDArray[np.bool_]:
        """Return (R, N) whether an object matches a rule."""
        matches: npt.NDArray[np.bool_] = (found.scores >= self._scores) & self._classes.counts(found)
        if zones is None:
            matches &= self._anywhere
        else:
            if self._places is None or self._zones != zones.zones:
                self._zones = zones.zones
                named = [[name in rule.zone for name in zones.zones] for rule in self._rules]
                self._places = np.array(named, np.float32).reshape(len(self._rules), len(zones.zones))
            matches &= (self._places @ zones.inside.astype(np.float32) > 0) | self._anywhere
        for row, (name, rule) in enumerate(self._named.items()):
            for stage, labels in rule.attributes.items():
                crops = result.outputs.get(stage)
                if isinstance(crops, Crops):
                    self._check_labels(name, labels, stage, crops)
                matches[row] &= _has_label(crops, labels, len(found))
        return matches

    def _check_labels(self, rule: str, labels: Sequence[str], stage: str, crops: Crops) -> None:
        """Raise StageError for a label of a rule that a stage does not have."""
        key = rule, stage
        for record in crops.records:
            if isinstance(record, Classification) and self._known.get(key) is not record.labels:
                where = f"stages.{self._stage}.rules.{rule}"
                class_numbers(labels, record.labels, where, f"stage {stage!r}")
                self._known[key] = record.labels

    def _crossings(
        self, name: str, matching: npt.NDArray[np.bool_], result: Result, zones: Zones | None, time_ns: int
    ) -> Iterator[Event]:
        """Yield an event without duration for every matching object that crosses a line of a rule."""
        rule = self._crossing[name]
        for change in zones.changes if zones is not None else ():
            if zones is None or change.place not in rule.line or rule.way not in (None, change.what):
                continue
            found = zones.objects
            row = int(np.flatnonzero(found.ids == change.track)[0])
            if matching[row] and self._limits[name].allows(result.frame.media_ns, time_ns):
                score, (x1, y1, x2, y2) = float(found.scores[row]), found.boxes[row].tolist()
                yield Event(
                    next(self._ids), name, "begin", self._stream, time_ns, 0.0, change.place, change.what,
                    change.track, change.label, score, (x1, y1, x2, y2), 1, result.frame.index, score,
                )  # fmt: skip


def _has_label(crops: object, labels: Sequence[str], count: int) -> npt.NDArray[np.bool_]:
    """Return (N,) whether a model on crops ranked one of the labels first for an object."""
    found = np.zeros(count, bool)
    if isinstance(crops, Crops):
        for row, record in zip(crops.rows.tolist(), crops.records, strict=True):
            if isinstance(record, Classification) and len(record.classes) and 0 <= row < count:
                number = int(record.classes[0])
                found[row] = (record.labels[number] if number < len(record.labels) else str(number)) in labels
    return found


class _Limit:
    """Rate limit and schedule of a rule's events in one stream."""

    def __init__(self, rule: RuleSection) -> None:
        self._during, self._every_ns = rule.during, round(1e9 * rule.every)
        self._last_ns: int | None = None

    def allows(self, now_ns: int, time_ns: int) -> bool:
        """Return whether an event may begin now; record that it begins."""
        too_early = self._last_ns is not None and now_ns - self._last_ns < self._every_ns
        if too_early or not is_within(self._during, time_ns):
            return False
        self._last_ns = now_ns
        return True


class _LastingEvents:
    """Events with a duration, by rule and object.

    Columns of R rules: ``since`` and ``last`` are when a rule's condition began to hold and last held. ``number`` is
    that of the present event, or 0; ``done`` whether there was one; ``reported`` the time of the last report. ``score``
    and ``frame`` are the best so far.
    """

    def __init__(self, stream: str, rules: Mapping[str, RuleSection], ids: Iterator[str]) -> None:
        self._stream, self._names, self.rules, self._ids = stream, list(rules), list(rules.values()), ids
        self._limits, count = [_Limit(rule) for rule in self.rules], len(rules)
        never = np.full(count, NEVER)
        self._known = ByTrack(
            since=never, last=never, reported=never, number=np.zeros(count, np.int64), done=np.zeros(count, bool),
            score=np.zeros(count), frame=np.zeros(count, np.int64), seen=np.array(NEVER),
        )  # fmt: skip
        times = [(rule.absent or rule.hold or 0.0, rule.gap, rule.update) for rule in self.rules]
        times_ns = np.rint(1e9 * np.array(times).reshape(-1, 3)).astype(np.int64)
        self._hold, self._gap, self._update = times_ns.T[..., None]
        self._once = np.array([rule.once for rule in self.rules], bool)[:, None]
        self._live: dict[int, Event] = {}
        self._count = 0

    def step(self, view: _FrameView, ids: npt.NDArray[np.int64], holds_now: npt.NDArray[np.bool_]) -> Iterator[Event]:
        """Update the state by the next frame; yield its events.

        ``holds_now`` is (R, N) whether a rule's condition holds for an object.
        """
        now, rows = view.now_ns, self._known.rows(ids)
        known = self._known
        holds = np.zeros(known["since"].shape, bool)
        holds[:, rows] = holds_now
        known["seen"][rows] = now
        since, last, number = known["since"], known["last"], known["number"]
        over = ~holds & (last != NEVER) & (now - last > self._gap)
        for rule, row in np.argwhere(over & (number != 0)).tolist():
            event = self._live.pop(int(number[rule, row]))
            yield self._report(event, "end", float(last[rule, row] - since[rule, row]) / 1e9, known, rule, row)
        since[over], last[over], number[over] = NEVER, NEVER, 0
        since[holds & (since == NEVER)] = now
        last[holds] = now
        ready = holds & (number == 0) & (now - since >= self._hold) & ~(self._once & known["done"])
        for rule, row in np.argwhere(ready).tolist():
            if self._limits[rule].allows(now, view.time_ns):
                yield self._begin(view, known, rule, row, int(np.flatnonzero(rows == row)[0]))
        if len(ids) and self._live:
            self._improve(view, known, rows)
        due = holds & (number != 0) & (self._update > 0) & (now - known["reported"] >= self._update)
        for rule, row in np.argwhere(due).tolist():
            known["reported"][rule, row] = now
            event = self._updated(view, self._live[int(number[rule, row])], rule, int(np.flatnonzero(rows == row)[0]))
            self._live[int(number[rule, row])] = event
            yield self._report(event, "update", float(now - since[rule, row]) / 1e9, known, rule, row)
        forgotten = (now - known["seen"] > _REMEMBERED_NS) & (number == 0).all(axis=0)
        self._known.keep(~forgotten)

    def _begin(self, view: _FrameView, known: ByTrack, rule: int, row: int, at: int) -> Event:
        self._count += 1
        held_ns = view.now_ns - int(known["since"][rule, row])
        empty = Event(next(self._ids), self._names[rule], "begin", self._stream, view.time_ns - held_ns)
        event = self._updated(view, empty, rule, at)
        self._live[self._count] = event
        known["number"][rule, row], known["done"][rule, row] = self._count, True
        known["reported"][rule, row] = view.now_ns
        known["score"][rule, row], known["frame"][rule, row] = event.score, view.frame
        return self._report(event, "begin", held_ns / 1e9, known, rule, row)

    def _updated(self, view: _FrameView, event: Event, rule: int, at: int) -> Event:
        """Return the event with the object's values in the frame."""
        places, found = self.rules[rule].zone, view.found
        count = int(view.matches[rule].sum())
        if not self.rules[rule].is_of_objects:
            return replace(event, place=places[0] if len(places) == 1 else "", count=count)
        assert found.ids is not None
        if places and view.zones is not None:
            names = view.zones.zones
            places = tuple(name for name in places if name in names and view.zones.inside[names.index(name), at])
        return replace(
            event, place=places[0] if places else "", track=int(found.ids[at]),
            label=label_of(found.labels, int(found.classes[at])), score=float(found.scores[at]),
            box=tuple(found.boxes[at].tolist()), count=count,
        )  # fmt: skip

    def _improve(self, view: _FrameView, known: ByTrack, rows: npt.NDArray[np.intp]) -> None:
        """Keep the frame with the highest score of each object."""
        if not self.rules[0].is_of_objects:
            return
        better = (known["number"][:, rows] != 0) & (view.found.scores > known["score"][:, rows])
        rule, at = np.nonzero(better)
        known["score"][rule, rows[at]] = view.found.scores[at]
        known["frame"][rule, rows[at]] = view.frame

    @staticmethod
    def _report(event: Event, phase: Phase, seconds: float, known: ByTrack, rule: int, row: int) -> Event:
        best = float(known["score"][rule, row]), int(known["frame"][rule, row])
        return replace(event, phase=phase, seconds=seconds, best_score=best[0], best_frame=best[1])
