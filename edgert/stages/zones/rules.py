"""The stage that makes events of zones, lines and objects, by rules."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgert.clock import Clock, rfc3339, time_of_day_ns
from edgert.runtime.records import Classification, Crops, Detections, Result
from edgert.stages.context import SimpleStage
from edgert.stages.zones.areas import NEVER, Zones, class_numbers, label_of
from edgert.stages.zones.by_track import ByTrack
from edgert.stages.zones.schedule import Hours, is_within

Phase = Literal["begin", "update", "end"]
_REMEMBERED_NS = 60 * 10**9
"""Time for which an object's state is kept after it was last seen."""
_STREAM = np.zeros(1, np.int64)
"""The track number of events without an object."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition for events.

    Attributes:
        zones: zones, one of which the object must be in; empty: anywhere.
        lines: lines, one of which the object must cross.
        way: direction of the crossing; None: either.
        classes: classes of the object; all where empty.
        score: least score of the object.
        attributes: labels by stage, one of which the stage must have found in the object's crop.
        count: number of objects that together make one event; None: every object makes its own.
        absent: whether the event lasts while there is no such object.
        hold_ns: time that the condition must hold before the event begins.
        gap_ns: longest interruption that does not end the event.
        once: whether an object makes at most one event.
        every_ns: least time between two events of a stream.
        update_ns: period of reports while an event lasts; 0: there are none.
        during: hours of the week; always where empty.
    """

    name: str
    zones: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    way: Literal["in", "out"] | None = None
    classes: tuple[str, ...] = ()
    score: float = 0.0
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    count: int | None = None
    absent: bool = False
    hold_ns: int = 0
    gap_ns: int = 10**9
    once: bool = False
    every_ns: int = 0
    update_ns: int = 0
    during: tuple[Hours, ...] = ()

    @property
    def is_of_stream(self) -> bool:
        """Whether all objects of a stream together make one event."""
        return self.count is not None or self.absent


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
        """Return the record as plain data, in the form of ``sink: jsonl``."""
        return {"type": "events", "events": [one.to_json() for one in self.events]}


class EventsStage(SimpleStage):
    """Stage that makes events of results. A result without events gets no record.

    Durations are measured by positions in the stream, times by the clock.

    Args:
        run: id of the run, which makes the ids of events unique; a replay uses that of its recording.
    """

    def __init__(self, name: str, rules: Sequence[Rule], clock: Clock, run: str = "") -> None:
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

    def __init__(self, stage: str, stream: str, rules: Sequence[Rule], ids: Iterator[str]) -> None:
        self._stage, self._stream, self._ids = stage, stream, ids
        crossing = [rule for rule in rules if rule.lines]
        single = [rule for rule in rules if not rule.lines and not rule.is_of_stream]
        shared = [rule for rule in rules if not rule.lines and rule.is_of_stream]
        self._rules, self._crossing = (*crossing, *single, *shared), crossing
        self._limits = {rule.name: _Limit(rule) for rule in rules}
        self._by_object, self._by_stream = (
            _LastingEvents(stream, some, [self._limits[rule.name] for rule in some], ids) for some in (single, shared)
        )
        self._single = slice(len(crossing), len(crossing) + len(single))
        self._shared = slice(self._single.stop, len(rules))
        self._least = np.array([rule.count or 1 for rule in shared])
        self._absent = np.array([rule.absent for rule in shared], bool)
        self._scores = np.array([rule.score for rule in self._rules], np.float32)[:, None]
        self._classes: npt.NDArray[np.bool_] | None = None  # (R, classes), made for the detector's labels
        self._labels: tuple[str, ...] | None = None
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}  # rule and stage → that one's labels
        self._anywhere = np.array([not rule.zones for rule in self._rules])[:, None]
        self._places: npt.NDArray[np.float32] | None = None  # (R, Z), made for the zones of this stream
        self._zones: tuple[str, ...] | None = None

    def events(self, result: Result, time_ns: int) -> Iterator[Event]:
        """Yield the events of one frame."""
        zones, frame = result.latest(Zones), result.frame
        found = zones.objects if zones is not None else result.detections
        matches = self._matches(result, found, zones)
        for rule, matching in zip(self._crossing, matches, strict=False):
            yield from self._crossings(rule, matching, result, zones, time_ns)
        if self._by_object.rules and found.ids is not None:
            view = _FrameView(frame.index, frame.media_ns, time_ns, found, zones, matches[self._single])
            yield from self._by_object.step(view, found.ids, view.matches)
        if self._by_stream.rules:
            view = _FrameView(frame.index, frame.media_ns, time_ns, found, zones, matches[self._shared])
            holds = (view.matches.sum(axis=1) >= self._least) != self._absent
            yield from self._by_stream.step(view, _STREAM, holds[:, None])

    def _matches(self, result: Result, found: Detections, zones: Zones | None) -> npt.NDArray[np.bool_]:
        """Return (R, N) whether an object matches a rule."""
        matches: npt.NDArray[np.bool_] = (found.scores >= self._scores) & self._by_class(found)[:, found.classes]
        if zones is None:
            matches &= self._anywhere
        else:
            if self._places is None or self._zones != zones.zones:
                self._zones = zones.zones
                named = [[name in rule.zones for name in zones.zones] for rule in self._rules]
                self._places = np.array(named, np.float32).reshape(len(self._rules), len(zones.zones))
            matches &= (self._places @ zones.inside.astype(np.float32) > 0) | self._anywhere
        for row, rule in enumerate(self._rules):
            for stage, labels in rule.attributes.items():
                crops = result.outputs.get(stage)
                if isinstance(crops, Crops):
                    self._check_labels(rule, stage, crops)
                matches[row] &= _has_label(crops, labels, len(found))
        return matches

    def _check_labels(self, rule: Rule, stage: str, crops: Crops) -> None:
        """Raise StageError for a label of a rule that a stage does not have."""
        key = rule.name, stage
        for record in crops.records:
            if isinstance(record, Classification) and self._known.get(key) is not record.labels:
                where = f"stages.{self._stage}.rules.{rule.name}"
                class_numbers(rule.attributes[stage], record.labels, where, f"stage {stage!r}")
                self._known[key] = record.labels

    def _by_class(self, found: Detections) -> npt.NDArray[np.bool_]:
        """Return (R, classes) whether a class matches a rule."""
        highest = int(found.classes.max(initial=0))
        if self._classes is None or self._labels != found.labels or highest >= self._classes.shape[1]:
            self._labels = found.labels
            every = np.arange(max(highest + 1, len(found.labels)))
            where = f"stages.{self._stage}"
            wanted = [class_numbers(rule.classes, found.labels, where) for rule in self._rules]
            self._classes = np.array([np.isin(every, one) if len(one) else every >= 0 for one in wanted])
        return self._classes

    def _crossings(
        self, rule: Rule, matching: npt.NDArray[np.bool_], result: Result, zones: Zones | None, time_ns: int
    ) -> Iterator[Event]:
        """Yield an event without duration for every matching object that crosses a line of a rule."""
        for change in zones.changes if zones is not None else ():
            if zones is None or change.place not in rule.lines or rule.way not in (None, change.what):
                continue
            found = zones.objects
            row = int(np.flatnonzero(found.ids == change.track)[0])
            if matching[row] and self._limits[rule.name].allows(result.frame.media_ns, time_ns):
                score, (x1, y1, x2, y2) = float(found.scores[row]), found.boxes[row].tolist()
                yield Event(
                    next(self._ids), rule.name, "begin", self._stream, time_ns, 0.0, change.place, change.what,
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

    def __init__(self, rule: Rule) -> None:
        self._rule, self._last_ns = rule, NEVER

    def allows(self, now_ns: int, time_ns: int) -> bool:
        """Return whether an event may begin now; record that it begins."""
        too_early = self._last_ns != NEVER and now_ns - self._last_ns < self._rule.every_ns
        if too_early or not is_within(self._rule.during, time_ns):
            return False
        self._last_ns = now_ns
        return True


class _LastingEvents:
    """Events with a duration, by rule and object.

    Columns of R rules: ``since`` and ``last`` are when a rule's condition began to hold and last held. ``number`` is
    that of the present event, or 0; ``done`` whether there was one; ``reported`` the time of the last report. ``score``
    and ``frame`` are the best so far.
    """

    def __init__(self, stream: str, rules: Sequence[Rule], limits: Sequence[_Limit], ids: Iterator[str]) -> None:
        self._stream, self.rules, self._limits, self._ids = stream, rules, limits, ids
        count = len(rules)
        never = np.full(count, NEVER)
        self._known = ByTrack(
            since=never, last=never, reported=never, number=np.zeros(count, np.int64), done=np.zeros(count, bool),
            score=np.zeros(count), frame=np.zeros(count, np.int64), seen=np.array(NEVER),
        )  # fmt: skip
        self._hold = np.array([rule.hold_ns for rule in rules], np.int64)[:, None]
        self._gap = np.array([rule.gap_ns for rule in rules], np.int64)[:, None]
        self._update = np.array([rule.update_ns for rule in rules], np.int64)[:, None]
        self._once = np.array([rule.once for rule in rules], bool)[:, None]
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
        empty = Event(next(self._ids), self.rules[rule].name, "begin", self._stream, view.time_ns - held_ns)
        event = self._updated(view, empty, rule, at)
        self._live[self._count] = event
        known["number"][rule, row], known["done"][rule, row] = self._count, True
        known["reported"][rule, row] = view.now_ns
        known["score"][rule, row], known["frame"][rule, row] = event.score, view.frame
        return self._report(event, "begin", held_ns / 1e9, known, rule, row)

    def _updated(self, view: _FrameView, event: Event, rule: int, at: int) -> Event:
        """Return the event with the object's values in the frame."""
        places, found = self.rules[rule].zones, view.found
        count = int(view.matches[rule].sum())
        if self.rules[rule].is_of_stream:
            return replace(event, place=places[0] if len(places) == 1 else "", count=count)
        assert found.ids is not None
        if places and view.zones is not None:
            names = view.zones.zones
            places = tuple(name for name in places if name in names and view.zones.inside[names.index(name), at])
        return replace(
            event, place=places[0] if places else "", track=int(found.ids[at]),
            label=label_of(found, int(found.classes[at])), score=float(found.scores[at]),
            box=tuple(found.boxes[at].tolist()), count=count,
        )  # fmt: skip

    def _improve(self, view: _FrameView, known: ByTrack, rows: npt.NDArray[np.intp]) -> None:
        """Keep the frame with the highest score of each object."""
        if self.rules[0].is_of_stream:
            return
        better = (known["number"][:, rows] != 0) & (view.found.scores > known["score"][:, rows])
        rule, at = np.nonzero(better)
        known["score"][rule, rows[at]] = view.found.scores[at]
        known["frame"][rule, rows[at]] = view.frame

    @staticmethod
    def _report(event: Event, phase: Phase, seconds: float, known: ByTrack, rule: int, row: int) -> Event:
        best = float(known["score"][rule, row]), int(known["frame"][rule, row])
        return replace(event, phase=phase, seconds=seconds, best_score=best[0], best_frame=best[1])
