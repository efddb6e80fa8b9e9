"""Spans in the JSON of Chrome's tracing, which many other viewers read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from edgert.timeline.perfetto import title_of
from edgert.timeline.timeline_spans import Span, Spans, Track

_FIRST_LANE = 1 << 24
"""Numbers of rows that are no threads begin above those that the kernel gives to threads."""


def chrome_bytes(spans: Spans) -> bytes:
    """Return the whole file, an event a line."""
    recorded = spans.recorded
    about = {"pipeline": recorded.pipeline, "lost_events": recorded.lost, "label": recorded.label}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in _events(spans))
    return f'{head[:-1]}, "traceEvents": [\n{lines}\n]}}\n'.encode()


def _events(spans: Spans) -> Iterator[dict[str, Any]]:
    process = spans.recorded.process
    yield _named("process_name", process, 0, f"edgert {spans.recorded.pipeline}")
    seen = set[int]()  # frames whose flow has begun
    steps = list[tuple[Span, int]]()
    for number, track in enumerate(spans.tracks):
        row = track.thread_id or _FIRST_LANE + number
        yield _named("thread_name", process, row, title_of(track))
        for span in track.spans:
            yield _span(span, track, process, row, spans)
            if span.category in ("source", "stage"):
                steps.append((span, row))
        for at_ns, count in track.counts:
            name = f"waiting for {track.name}"
            yield {"ph": "C", "ts": at_ns / 1e3, "pid": process, "name": name, "args": {"results": count}}
    for span, row in sorted(steps, key=lambda one: one[0].begin_ns):
        for frame in span.frames:
            kind = "t" if frame in seen else "s"
            seen.add(frame)
            at = {"ts": span.begin_ns / 1e3, "pid": process, "tid": row}
            yield {"ph": kind, **at, "id": frame, "name": "frame", "cat": "frame", "bp": "e"}


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}


def _span(span: Span, track: Track, process: int, row: int, spans: Spans) -> dict[str, Any]:
    """Return a span, or a moment, as an event."""
    args = dict(span.about)
    if span.frames:
        stream, index = spans.frames[span.frames[0] - 1]
        args = {"stream": stream, "frame": index, **args}
    is_moment = span.end_ns <= span.begin_ns and track.kind in ("thread", "note")
    how = {"ph": "i", "s": "t"} if is_moment else {"ph": "X", "dur": (span.end_ns - span.begin_ns) / 1e3}
    about = {"name": span.name, "cat": span.category, "args": args}
    return {**how, "ts": span.begin_ns / 1e3, "pid": process, "tid": row, **about}
