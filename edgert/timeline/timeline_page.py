"""The page of a recording: where the time of frames goes, and a time line of threads, queues and frames."""

import json
from collections.abc import Sequence
from typing import Any

from edgert.report.numbers import counted, milliseconds
from edgert.report.page import Badge, Cell, Column, Figure, Head, Part, Table, render, script_data
from edgert.timeline.stream_times import StreamTime, stream_times
from edgert.timeline.timeline_spans import Spans
from edgert.timeline.trace_formats import title_of

_MOST_SPANS = 60_000
"""Maximum number of spans on a page: about 3 MB, which a phone can still draw."""
_OPEN = 4  # number of streams whose times are not folded
_KINDS = ("frame", "thread", "queue", "run", "gpu", "note")  # from top to bottom
_KEYS = (
    ("source", "source"),
    ("stage", "stage"),
    ("part of it", "part"),
    ("waits in a queue", "wait"),
    ("no room", "room"),
    ("run under way", "run"),
    ("GPU", "gpu"),
    ("lost", "drop"),
    ("control", "control"),
)


def page_of(spans: Spans) -> str:
    """Return the page of a recording."""
    times = stream_times(spans)
    page = {
        "legend": _KEYS,
        "times": Part(
            lead="From capture to the last stage; a pale bar is a wait." if times else "",
            absent="" if times else "No frame came.",
            tables=[_shares(one, at >= _OPEN) for at, one in enumerate(times)],
        ),
        "losses": Part(tables=[_losses(times)]) if any(one.lost for one in times) else None,
        "data": script_data(json.dumps(_data(spans), separators=(",", ":"))),
    }
    return render("timeline.html.j2", _head(spans, times), page, "timeline")


def _head(spans: Spans, times: Sequence[StreamTime]) -> Head:
    recorded = spans.recorded
    seconds = (recorded.ended_ns - recorded.began_ns) / 1e9
    cautions = [recorded.label] if recorded.label else []
    if recorded.lost:
        cautions.append(f"{recorded.lost:,} older events are lost: the beginning of busy threads is missing.")
    slowest = times[:1]
    figures = [
        Figure(
            one.stream, milliseconds(one.median_ms), f"p99 {milliseconds(one.p99_ms)}; {counted(one.frames, 'frame')}"
        )
        for one in times[:6]
    ]
    lost = sum(count for one in times for _, count in one.lost)
    badges = [Badge(f"{counted(lost, 'frame')} lost", "bad")] if lost else []
    headline = _headline(slowest[0]) if slowest else f"{seconds:.3g} s without a frame."
    title, kicker = f"{recorded.pipeline}: time line", f"Time line of {seconds:.3g} s"
    return Head(title, kicker, recorded.pipeline, headline, badges, cautions, figures)


def _headline(slowest: StreamTime) -> str:
    """Return one sentence on the slowest stream, and on the place of most of its time."""
    took = f"A frame of {slowest.stream} takes {milliseconds(slowest.median_ms)} from capture to its last stage"
    if not slowest.shares:
        return f"{took}."
    most = slowest.shares[0]
    return f"{took}; {milliseconds(most.median_ms)} of it: {most.place}."


def _shares(one: StreamTime, is_folded: bool) -> Table:
    rows, longest = one.shares, max((share.median_ms for share in one.shares), default=0.0) or 1.0
    lengths = [Cell("", share.median_ms / longest, look="" if share.is_wait else "strong") for share in rows]
    words = f"{one.stream}: {milliseconds(one.median_ms)}, p99 {milliseconds(one.p99_ms)}"
    return Table(
        f"Where the time of frames of {one.stream} goes",
        (
            Column("place", [share.place for share in rows], "prose"),
            Column("median", [Cell(milliseconds(share.median_ms), share.median_ms) for share in rows], "number"),
            Column("p99", [Cell(milliseconds(share.p99_ms), share.p99_ms) for share in rows], "number"),
            Column("frames", [Cell(f"{share.frames:,}", share.frames) for share in rows], "minor number"),
            Column("share", lengths, "minor length"),
        ),
        heading="" if is_folded else words,
        folded=words if is_folded else "",
    )


def _losses(times: Sequence[StreamTime]) -> Table:
    rows = [(one.stream, words, count) for one in times for words, count in one.lost]
    return Table(
        "Lost frames",
        (
            Column("source", [Cell(stream, look="strong") for stream, _, _ in rows], "wrap"),
            Column("where, and why", [words for _, words, _ in rows], "prose"),
            Column("frames", [Cell(f"{count:,}", count) for _, _, count in rows], "number"),
        ),
        head=1,
    )


def _data(spans: Spans) -> dict[str, Any]:
    """Return the data that the script draws, with times in microseconds from the beginning."""
    recorded = spans.recorded
    began_ns, from_ns = recorded.began_ns, _from_ns(spans)
    names, categories, streams = dict[str, int](), dict[str, int](), dict[str, int]()
    tracks = []
    for track in sorted(spans.tracks, key=lambda one: _KINDS.index(one.kind)):
        drawn = [
            [
                round((span.begin_ns - began_ns) / 1e3, 1),
                round((span.end_ns - span.begin_ns) / 1e3, 1),
                names.setdefault(span.name, len(names)),
                categories.setdefault(span.category, len(categories)),
                *span.frames,
            ]
            for span in track.spans
            if span.begin_ns >= from_ns
        ]
        if drawn:
            tracks.append({"kind": track.kind, "title": title_of(track), "spans": drawn})
    frames = [[streams.setdefault(stream, len(streams)), index] for stream, index in spans.frames]
    return {
        "tracks": tracks, "names": [*names], "categories": [*categories], "streams": [*streams], "frames": frames,
        "from_us": (from_ns - began_ns) / 1e3, "end_us": (recorded.ended_ns - began_ns) / 1e3,
    }  # fmt: skip


def _from_ns(spans: Spans) -> int:
    """Return the time from which spans are drawn, so that they are at most :data:`_MOST_SPANS`."""
    begins = sorted((span.begin_ns for track in spans.tracks for span in track.spans), reverse=True)
    first = begins[-1] if begins else spans.recorded.began_ns
    return min(first, spans.recorded.began_ns) if len(begins) <= _MOST_SPANS else begins[_MOST_SPANS]
