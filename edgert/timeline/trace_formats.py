"""Traces for Perfetto, which https://ui.perfetto.dev opens, and in Chrome's JSON, which many viewers read.

Perfetto's format is Protocol Buffers (https://protobuf.dev/programming-guides/encoding). The few messages of
``perfetto_trace.proto`` that are needed are written here, by the numbers of their fields. Each packet begins with its
length, so a file that is cut off can be read up to the cut.
"""

import json
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from edgert.timeline.timeline_spans import Category, Span, Spans, Track

_SEQUENCE, _PROCESS = 1, 1  # sequence of all packets; uuid of the process's track, which those of others follow
_MONOTONIC, _REALTIME = 3, 1  # BuiltinClock
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_FLOWS: tuple[Category, ...] = ("source", "stage")
_TITLES = {"queue": "queue before {}", "run": "{}: runs under way", "gpu": "{} on the GPU", "frame": "frames of {}"}


def perfetto_bytes(spans: Spans) -> bytes:
    """Return the content of a file for Perfetto."""
    return b"".join(_length(1, packet) for packet in _packets(spans))


def title_of(track: Track) -> str:
    """Return the title of a track."""
    return _TITLES.get(track.kind, "{}").format(track.name)


def _packets(spans: Spans) -> Iterator[bytes]:
    recorded = spans.recorded
    began_ns = recorded.began_ns
    clocks = ((_MONOTONIC, began_ns), (_REALTIME, began_ns + recorded.day_ns))
    snapshot = b"".join(_length(1, _number(1, clock) + _number(2, at_ns)) for clock, at_ns in clocks)
    yield _length(6, snapshot + _number(2, _MONOTONIC)) + _number(10, _SEQUENCE)
    title = f"edgert {recorded.pipeline}" + (f" ({recorded.label})" if recorded.label else "")
    process = _number(1, recorded.process) + _text(6, title)
    described = [_number(1, _PROCESS) + _length(3, process)]
    events = list[tuple[int, bytes]]()
    uuid = _PROCESS
    for track in spans.tracks:
        uuid += 1
        head = _number(1, uuid) + _number(5, _PROCESS)
        if track.kind == "thread":
            thread = _number(1, recorded.process) + _number(2, track.thread_id) + _text(5, track.name)
            described.append(head + _length(4, thread))
        else:
            described.append(head + _text(2, title_of(track)))
        events += _events(track, uuid, spans)
        if track.counts:
            uuid += 1
            counter = _length(8, _number(3, 2))  # UNIT_COUNT
            described.append(_number(1, uuid) + _number(5, _PROCESS) + _text(2, f"waiting for {track.name}") + counter)
            place = _number(9, _COUNTER) + _number(11, uuid)
            events += ((at_ns, _length(11, place + _number(30, count))) for at_ns, count in track.counts)
    defaults = _length(59, _number(58, _MONOTONIC))
    yield _number(10, _SEQUENCE) + _number(13, 1) + _number(87, 1) + defaults
    for track_descriptor in described:
        yield _length(60, track_descriptor) + _number(10, _SEQUENCE)
    events.sort(key=lambda one: one[0])  # stable, so events of one time keep their order
    tail = _number(10, _SEQUENCE) + _number(13, 2)
    for at_ns, event in events:
        yield _number(8, at_ns) + tail + event


def _events(track: Track, uuid: int, spans: Spans) -> Iterator[tuple[int, bytes]]:
    """Yield time and TrackEvent of the begins and ends of a track's spans, properly nested."""
    around, place = list[int](), _number(11, uuid)
    end = _length(11, _number(9, _END) + place)
    for span in track.spans:
        while around and around[-1] <= span.begin_ns:
            yield around.pop(), end
        is_moment = span.end_ns <= span.begin_ns and track.kind in ("thread", "note")
        kind = _INSTANT if is_moment else _BEGIN
        yield span.begin_ns, _length(11, _number(9, kind) + place + _span_fields(span, track, spans))
        if not is_moment:
            around.append(span.end_ns)
    while around:
        yield around.pop(), end


def _span_fields(span: Span, track: Track, spans: Spans) -> bytes:
    """Return category, name, flows and annotations of a span."""
    parts, about = [_text(22, span.category), _text(23, span.name)], span.about
    if span.category in _FLOWS:
        parts += (b"\xf9\x02" + struct.pack("<Q", frame) for frame in span.frames)  # fixed64 number 47
    if span.frames and track.kind != "thread":
        stream, index = spans.frames[span.frames[0] - 1]
        about = (("stream", stream), ("frame", index), *about)
    for key, value in about:
        said = _number(4, value) if isinstance(value, int) else _text(6, value)
        parts.append(_length(4, _text(10, key) + said))
    return b"".join(parts)


# Fields of Protocol Buffers.

_SMALL = [bytes((n,)) for n in range(128)]


def _varint(number: int) -> bytes:
    """Return a number as a varint; a negative one is a two's complement of 64 bits."""
    if 0 <= number < 128:
        return _SMALL[number]
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _length(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


@lru_cache(1 << 12)
def _text(field: int, text: str) -> bytes:
    return _length(field, text.encode("utf-8", "replace"))


# Chrome's JSON.

_FIRST_LANE = 1 << 24
"""First number of rows that are no threads, above the kernel's thread ids."""


def chrome_bytes(spans: Spans) -> bytes:
    """Return the content of a file in Chrome's JSON, with one event in each line."""
    recorded = spans.recorded
    about = {"pipeline": recorded.pipeline, "lost_events": recorded.lost, "label": recorded.label}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in _chrome_events(spans))
    return f'{head[:-1]}, "traceEvents": [\n{lines}\n]}}\n'.encode()


def _chrome_events(spans: Spans) -> Iterator[dict[str, Any]]:
    process = spans.recorded.process
    yield _metadata_event("process_name", process, 0, f"edgert {spans.recorded.pipeline}")
    seen = set[int]()  # frames whose flow has begun
    steps = list[tuple[Span, int]]()
    for number, track in enumerate(spans.tracks):
        row = track.thread_id or _FIRST_LANE + number
        yield _metadata_event("thread_name", process, row, title_of(track))
        for span in track.spans:
            yield _chrome_span(span, track, process, row, spans)
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


def _metadata_event(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}


def _chrome_span(span: Span, track: Track, process: int, row: int, spans: Spans) -> dict[str, Any]:
    args = dict(span.about)
    if span.frames:
        stream, index = spans.frames[span.frames[0] - 1]
        args = {"stream": stream, "frame": index, **args}
    is_moment = span.end_ns <= span.begin_ns and track.kind in ("thread", "note")
    how = {"ph": "i", "s": "t"} if is_moment else {"ph": "X", "dur": (span.end_ns - span.begin_ns) / 1e3}
    about = {"name": span.name, "cat": span.category, "args": args}
    return {**how, "ts": span.begin_ns / 1e3, "pid": process, "tid": row, **about}
