"""Conversion of a recording to spans, on tracks of threads, queues, runs, GPUs and frames.

A wait in a queue lasts from the ``put`` of a result to the step that takes it, or to its drop. A track whose spans
overlap has several lanes. On a lane, each span ends before the next begins, or contains it.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edgert.tracing import Event, Recorded

Kind = Literal["thread", "queue", "run", "gpu", "frame", "note"]
"""Content of a track: a thread; results that wait for a stage; batches that are under way; work of a GPU; frames, from
capture to their last stage; actions of a governor."""
Category = Literal["source", "stage", "part", "wait", "room", "run", "gpu", "frame", "drop", "fail", "copy", "control",
                   "governor"]  # fmt: skip
_STEPS = ("step", "submit", "collect", "give")


class Span(NamedTuple):
    """One bar on a track, or a moment, if it ends when it begins.

    Attributes:
        begin_ns, end_ns: times of the pipeline's clock.
        name: text on the bar.
        category: kind of work.
        frames: numbers of its frames, from 1; see :attr:`Spans.frames`.
        about: further details, by name.
    """

    begin_ns: int
    end_ns: int
    name: str
    category: Category
    frames: tuple[int, ...] = ()
    about: tuple[tuple[str, str | int], ...] = ()


class Track(NamedTuple):
    """A row of spans.

    Attributes:
        kind: content of the track.
        name: title, which is the same for all lanes of a track.
        thread_id: the kernel's id of a thread; else 0.
        spans: spans by begin, the longer first.
        counts: (time, number) of waiting results, on the first lane of a queue.
    """

    kind: Kind
    name: str
    thread_id: int
    spans: Sequence[Span]
    counts: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Spans:
    """A recording as tracks.

    Attributes:
        tracks: tracks of threads, then queues, runs, GPUs, frames and notes.
        frames: stream and index of each frame; spans number them from 1.
    """

    recorded: Recorded
    tracks: Sequence[Track]
    frames: Sequence[tuple[str, int]]


@dataclass(slots=True)
class _Frame:
    """The progress of a frame: its number, its capture, and the end of the last step on it."""

    number: int
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class _Reading:
    """State while events are read in the order of time.

    Attributes:
        frames: newest frame by stream and index.
        all_frames: all frames, with stream and index.
        waiting: edge and begin of each wait, by stage, stream and index.
        under_way: time when an asynchronous stage took a result, by the same key.
        rows: spans of tracks without a thread, by kind and name.
        depth: time and change of the number of waiting results, by stage.
    """

    frames: dict[tuple[str, int], _Frame] = field(default_factory=dict)
    all_frames: list[tuple[tuple[str, int], _Frame]] = field(default_factory=list)
    waiting: dict[tuple[str, str, int], list[tuple[int, int]]] = field(default_factory=dict)
    under_way: dict[tuple[str, str, int], int] = field(default_factory=dict)
    rows: dict[tuple[Kind, str], list[Span]] = field(default_factory=dict)
    depth: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def frame(self, stream: str, index: int, at_ns: int, is_new: bool = False) -> _Frame:
        """Return a frame. One that was captured before the recording begins with its first event."""
        found = self.frames.get((stream, index))
        if found is None or is_new:  # a source that starts over gives the same numbers again
            found = self.frames[stream, index] = _Frame(len(self.all_frames) + 1, at_ns, at_ns)
            self.all_frames.append(((stream, index), found))
        return found

    def add(self, kind: Kind, name: str, span: Span) -> None:
        """Add a span to a track without a thread."""
        self.rows.setdefault((kind, name), []).append(span)

    def end_wait(self, stage: str, stream: str, index: int, at_ns: int, lost: str = "") -> None:
        """End the wait of a result, or of all its parts, because a stage takes it or it is lost."""
        key = stage, stream, index
        if (waits := self.waiting.pop(key, None)) is None:
            return
        ended = {edge: (edge, began_ns) for edge, began_ns in reversed(waits)}  # the first wait of each edge
        for one in ended.values():
            waits.remove(one)
            self._wait(key, one[1], at_ns, lost)
        if waits:
            self.waiting[key] = waits

    def _wait(self, key: tuple[str, str, int], began_ns: int, at_ns: int, lost: str) -> None:
        stage, stream, index = key
        about = (("lost", lost),) if lost else ()
        name = f"{stream} {index}" + (f" lost: {lost}" if lost else "")
        number = self.frame(stream, index, began_ns).number
        category: Category = "drop" if lost else "wait"
        self.add("queue", stage, Span(began_ns, max(at_ns, began_ns), name, category, (number,), about))
        self.depth.setdefault(stage, []).extend(((began_ns, 1), (at_ns, -1)))

    def finish(self, at_ns: int) -> None:
        """End all waits and frames at the end of the recording."""
        for key in [*self.waiting]:
            while key in self.waiting:
                self.end_wait(*key, at_ns)
        for (stream, index), frame in self.all_frames:
            span = Span(frame.began_ns, frame.ended_ns, f"{stream} {index}", "frame", (frame.number,))
            self.add("frame", stream, span)


def spans_of(recorded: Recorded) -> Spans:
    """Return the spans of a recording."""
    reading, threads = _Reading(), [list[Span]() for _ in recorded.threads]
    events = ((at, event) for at, thread in enumerate(recorded.threads) for event in thread.events)
    for at, event in sorted(events, key=lambda one: (one[1][1], _FIRST.get(one[1][0], 2))):
        span = _span(reading, event)
        if span is not None:
            threads[at].append(span)
    reading.finish(recorded.ended_ns)
    tracks = []
    for thread, spans in zip(recorded.threads, threads, strict=True):
        kind: Kind = "thread" if thread.thread_id else "note"
        if spans:
            tracks.append(Track(kind, thread.name, thread.thread_id, nested(spans)))
    tracks.sort(key=lambda one: (one.kind, one.spans[0].category != "source", one.spans[0].begin_ns))
    order: tuple[Kind, ...] = ("queue", "run", "gpu", "frame")
    for key in sorted(reading.rows, key=lambda one: order.index(one[0])):
        counts = _running_counts(reading.depth.get(key[1], ())) if key[0] == "queue" else ()
        for lane in lanes(reading.rows[key]):
            tracks.append(Track(*key, 0, lane, counts))
            counts = ()
    return Spans(recorded, tracks, [frame for frame, _ in reading.all_frames])


_FIRST = {"give": 0, "put": 1}  # order of events of one time: a source's frame, its put, others


def _span(reading: _Reading, event: Event) -> Span | None:
    """Return the span of an event on its thread's track, if it has one; update the state of frames and queues."""
    kind, begin, end, name, stream, index, more = event
    if kind in _STEPS:
        frames = _frames(reading, event)
        about: tuple[tuple[str, str | int], ...] = (("stream", stream), ("frame", index))
        if len(frames) > 1:
            about = (*about, ("frames", len(frames)))
        shown = f"{name}: {kind}" if kind in ("submit", "collect") else name
        return Span(begin, end, shown, "source" if kind == "give" else "stage", frames, about)
    if kind == "put":
        reading.waiting.setdefault((name, stream, index), []).append((more, begin))
        return None
    if kind in ("drop", "fail"):
        has_failed = kind == "fail"
        number = reading.frame(stream, index, begin).number
        reading.end_wait(name, stream, index, begin, "error" if has_failed else str(more))
        words = (("stream", stream), ("frame", index), ("error" if has_failed else "cause", str(more)))
        shown = f"{name} failed" if has_failed else f"lost before {name}: {more}"
        return Span(begin, end, shown, "fail" if has_failed else "drop", (number,), words)
    if kind == "gpu":
        reading.add("gpu", name, Span(begin, end, f"{more} images", "gpu"))
        return None
    if kind == "copy":
        return Span(begin, end, "copy", "copy", (), (("bytes", int(more)),))
    if kind == "room":
        return Span(begin, end, f"no room before {name}", "room")
    if kind in ("operation", "governor"):
        category: Category = "control" if kind == "operation" else "governor"
        details = tuple((str(key), str(value)) for key, value in (more or {}).items())
        return Span(begin, end, name, category, (), details)
    return Span(begin, end, name, "part")


def _frames(reading: _Reading, event: Event) -> tuple[int, ...]:
    """Return the numbers of a step's frames; update their progress."""
    kind, begin, end, name, stream, index, more = event
    if kind == "give":
        frame = reading.frame(stream, index, int(more), is_new=True)
        frame.ended_ns = max(end, frame.began_ns)
        return (frame.number,)
    found = []
    for one, number in [(stream, index)] if more is None else more:
        frame = reading.frame(one, number, begin)
        frame.ended_ns = max(end, frame.ended_ns)
        found.append(frame.number)
        if kind != "collect":
            reading.end_wait(name, one, number, begin)
    if kind == "submit":
        for one, number in more:
            reading.under_way[name, one, number] = begin
    elif kind == "collect":
        begun = [at for key in more if (at := reading.under_way.pop((name, *key), None)) is not None]
        if begun:
            words = f"{len(found)} frames" if len(found) > 1 else f"{stream} {index}"
            reading.add("run", name, Span(min(begun), end, words, "run", tuple(found)))
    return tuple(found)


def nested(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of a thread by begin, cut so that each lies within the one around it."""
    made, around = list[Span](), list[int]()
    for span in sorted(spans, key=lambda one: (one.begin_ns, -one.end_ns)):
        while around and around[-1] <= span.begin_ns:
            around.pop()
        if around and span.end_ns > around[-1]:
            span = span._replace(end_ns=around[-1])
        made.append(span)
        if span.end_ns > span.begin_ns:
            around.append(span.end_ns)
    return made


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Return spans on the least number of lanes on which none overlap."""
    made, free = list[list[Span]](), list[tuple[int, int]]()
    for span in sorted(spans, key=lambda one: (one.begin_ns, -one.end_ns)):
        if free and free[0][0] <= span.begin_ns:
            _, lane = heapq.heappop(free)
        else:
            lane = len(made)
            made.append([])
        made[lane].append(span)
        heapq.heappush(free, (span.end_ns, lane))
    return made


def _running_counts(changes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the number from each time on, by the sum of changes."""
    made, count = list[tuple[int, int]](), 0
    for at_ns, change in sorted(changes):
        count += change
        if made and made[-1][0] == at_ns:
            made[-1] = at_ns, count
        else:
            made.append((at_ns, count))
    return made
