"""Spans as a trace of Perfetto: https://ui.perfetto.dev opens the file, and nothing of it leaves the machine.

The format is Protocol Buffers (https://protobuf.dev/programming-guides/encoding). Of ``perfetto_trace.proto`` a few
messages are used: their fields are written here, by number, without the package that has all of them. Each packet has
its length in front: of a file that is cut off, all before the cut can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from edgert.timeline.timeline_spans import Category, Span, Spans, Track

_SEQUENCE, _PROCESS = 1, 1  # of all packets; the uuid of the process's track, others follow
_MONOTONIC, _REALTIME = 3, 1  # BuiltinClock
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_STREAM, _FRAME = 1, 2  # interned names of the annotations that most events have
_FLOWS: tuple[Category, ...] = ("source", "stage")
_TITLES = {"queue": "queue before {}", "run": "{}: runs under way", "gpu": "{} on the GPU", "frame": "frames of {}"}


def perfetto_bytes(spans: Spans) -> bytes:
    """Return the whole file."""
    return b"".join(_length(1, packet) for packet in _packets(spans))


def title_of(track: Track) -> str:
    """Return what a track is called for people."""
    return _TITLES.get(track.kind, "{}").format(track.name)


def _packets(spans: Spans) -> Iterator[bytes]:
    recorded = spans.recorded
    began_ns, words = recorded.began_ns, _Interned()
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
        events += _events(track, uuid, spans, words)
        if track.counts:
            uuid += 1
            counter = _length(8, _number(3, 2))  # UNIT_COUNT
            described.append(_number(1, uuid) + _number(5, _PROCESS) + _text(2, f"waiting for {track.name}") + counter)
            place = _number(9, _COUNTER) + _number(11, uuid)
            events += ((at_ns, _length(11, place + _number(30, count))) for at_ns, count in track.counts)
    defaults = _length(59, _number(58, _MONOTONIC))
    yield _number(10, _SEQUENCE) + _number(13, 1) + _number(87, 1) + defaults + _length(12, words.message())
    for track_descriptor in described:
        yield _length(60, track_descriptor) + _number(10, _SEQUENCE)
    events.sort(key=lambda one: one[0])  # those of one track and time stay in their order
    tail = _number(10, _SEQUENCE) + _number(13, 2)
    for at_ns, event in events:
        yield _number(8, at_ns) + tail + event


def _events(track: Track, uuid: int, spans: Spans, words: _Interned) -> Iterator[tuple[int, bytes]]:
    """Yield time and TrackEvent of a track's spans: each begin has its end, and those within come before it."""
    around, place = list[int](), _number(11, uuid)
    end = _length(11, _number(9, _END) + place)
    for span in track.spans:
        while around and around[-1] <= span.begin_ns:
            yield around.pop(), end
        is_moment = span.end_ns <= span.begin_ns and track.kind in ("thread", "note")
        kind = _INSTANT if is_moment else _BEGIN
        yield span.begin_ns, _length(11, _number(9, kind) + place + _described(span, track, spans, words))
        if not is_moment:
            around.append(span.end_ns)
    while around:
        yield around.pop(), end


def _described(span: Span, track: Track, spans: Spans, words: _Interned) -> bytes:
    """Return category, name, flows and annotations of a span."""
    parts = [words.category(span.category)]
    is_common = track.kind in ("thread", "gpu") and span.category not in ("drop", "fail")
    parts.append(_number(10, words.name(span.name)) if is_common else _text(23, span.name))
    if span.category in _FLOWS:
        parts += (b"\xf9\x02" + struct.pack("<Q", frame) for frame in span.frames)  # fixed64 number 47
    if span.frames and track.kind != "thread":
        stream, index = spans.frames[span.frames[0] - 1]
        parts += (words.stream(stream), words.frame(index))
    for key, value in span.about:
        if key == "stream":
            parts.append(words.stream(str(value)))
        elif key == "frame":
            parts.append(words.frame(int(value)))
        else:
            said = _number(4, value) if isinstance(value, int) else _text(6, value)
            parts.append(_length(4, _text(10, key) + said))
    return b"".join(parts)


class _Interned:
    """Texts that most events have, each written once."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._categories: dict[str, int] = {}

    def name(self, name: str) -> int:
        """Return the number of an event's name."""
        return self._names.setdefault(name, len(self._names) + 1)

    def category(self, category: str) -> bytes:
        """Return the field of a category."""
        return _number(3, self._categories.setdefault(category, len(self._categories) + 1))

    def stream(self, stream: str) -> bytes:
        """Return the annotation of a stream."""
        number = self._streams.setdefault(stream, len(self._streams) + 1)
        return _length(4, _number(1, _STREAM) + _number(17, number))

    @staticmethod
    def frame(index: int) -> bytes:
        """Return the annotation of a frame's number."""
        return _length(4, _number(1, _FRAME) + _number(4, index))

    def message(self) -> bytes:
        """Return the InternedData of all."""
        annotations = {"stream": _STREAM, "frame": _FRAME}
        each = ((1, self._categories), (2, self._names), (3, annotations), (29, self._streams))
        return b"".join(
            _length(field, _number(1, number) + _text(2, text))
            for field, texts in each
            for text, number in texts.items()
        )


# Fields of Protocol Buffers.

_SMALL = [bytes((n,)) for n in range(128)]


def _varint(number: int) -> bytes:
    """Return a number in base 128, the least significant digit first; a negative one in two's complement of 64 bits."""
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


def _text(field: int, text: str) -> bytes:
    return _length(field, text.encode("utf-8", "replace"))
