"""The time of each stream's frames, by place: in stages, and in the queues before them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from edgert.timeline.timeline_spans import Spans

_LEAST_SHARE = 0.01
"""Fraction of the longest time below which a place is left out."""


@dataclass(frozen=True, slots=True)
class Share:
    """Time that a stream's frames spend in one place.

    Attributes:
        place: name for messages, such as ``waits before find``.
        is_wait: whether frames only wait there.
        frames: number of frames that were there.
        median_ms, p99_ms: time of these frames in the place.
    """

    place: str
    is_wait: bool
    frames: int
    median_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class StreamTime:
    """The time of one stream's frames, from capture to the end of their last stage.

    Attributes:
        frames: number of frames that were recorded from their source on, and not lost.
        median_ms, p99_ms: time of these frames.
        lost: number of lost frames, by place and cause.
        shares: their time by place, the longest first.
    """

    stream: str
    frames: int
    median_ms: float
    p99_ms: float
    lost: tuple[tuple[str, int], ...]
    shares: tuple[Share, ...]


def stream_times(spans: Spans) -> list[StreamTime]:
    """Return the times of all streams, the slowest first."""
    taken: dict[tuple[str, str, bool], dict[int, int]] = {}
    for number, place, is_wait, ns in _times_by_place(spans):
        stream = spans.frames[number - 1][0]
        of_place = taken.setdefault((stream, place, is_wait), {})
        of_place[number] = of_place.get(number, 0) + ns
    whole, lost = _total_times(spans)
    found = []
    for stream in sorted({stream for stream, _ in spans.frames}):
        mine = [ns for number, ns in whole.items() if spans.frames[number - 1][0] == stream]
        shares = [
            Share(place, is_wait, len(each), *_figures([*each.values()]))
            for (one, place, is_wait), each in taken.items()
            if one == stream
        ]
        least_ms = _LEAST_SHARE * max((share.p99_ms for share in shares), default=0)
        shares = [share for share in shares if share.p99_ms >= least_ms]
        shares.sort(key=lambda share: -share.median_ms)
        losses = Counter(words for one, words in lost if one == stream)
        found.append(StreamTime(stream, len(mine), *_figures(mine), tuple(losses.most_common()), tuple(shares)))
    return sorted(found, key=lambda one: -one.median_ms)


def _times_by_place(spans: Spans) -> Iterator[tuple[int, str, bool, int]]:
    """Yield frame, place, whether it is a wait, and nanoseconds, for each time that a frame was in a place."""
    captured = {
        span.frames[0]: span.begin_ns for track in spans.tracks if track.kind == "frame" for span in track.spans
    }
    for track in spans.tracks:
        for span in track.spans:
            ns = span.end_ns - span.begin_ns
            if track.kind == "queue" and span.category == "wait":
                yield span.frames[0], f"waits before {track.name}", True, ns
            elif track.kind == "run":
                for number in span.frames:
                    yield number, f"{track.name}: a run", False, ns
            elif track.kind == "thread" and span.category == "stage":
                if not span.name.endswith((": submit", ": collect")):
                    yield span.frames[0], span.name, False, ns
            elif span.category == "source":
                yield span.frames[0], f"from capture to {span.name}", True, span.end_ns - captured[span.frames[0]]


def _total_times(spans: Spans) -> tuple[dict[int, int], list[tuple[str, str]]]:
    """Return nanoseconds of each frame that was not lost, and stream and text of each loss."""
    given = {span.frames[0] for track in spans.tracks for span in track.spans if span.category == "source"}
    lost, losses = set[int](), list[tuple[str, str]]()
    for track in spans.tracks:
        for span in track.spans if track.kind == "thread" else ():
            if span.category in ("drop", "fail"):
                lost.add(span.frames[0])
                losses.append((spans.frames[span.frames[0] - 1][0], span.name))
    frames = (span for track in spans.tracks if track.kind == "frame" for span in track.spans)
    came = {one.frames[0]: one.end_ns - one.begin_ns for one in frames if one.frames[0] in given - lost}
    return came, losses


def _figures(times_ns: Sequence[int]) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds; zeros without times."""
    if not times_ns:
        return 0.0, 0.0
    ordered = sorted(times_ns)
    return median(ordered) / 1e6, ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))] / 1e6
