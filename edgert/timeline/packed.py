"""Compression of a recording, in steps so small that the running pipeline is hardly delayed."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from edgert import limits
from edgert.errors import DeviceError
from edgert.runtime.json_form import encoded
from edgert.tracing import Event, Recorded, ThreadEvents

_PIECE = 256
"""Events that are encoded at a time, which holds Python's lock for about 0.1 ms."""
_UNPACKED = 16
"""Maximum growth of a recording when it is unpacked; real ones grow six- to tenfold."""


def pack(recorded: Recorded) -> bytes:
    """Return a recording as compressed lines of JSON, of about :data:`edgert.limits.TRACE_BYTES` at most.

    Further events count as lost.
    """
    made, packer = bytearray(), zlib.compressobj(level=1)
    for piece in _pieces(recorded):
        if "events" in piece and len(made) > limits.TRACE_BYTES:
            piece = {"thread": piece["thread"], "lost": len(piece["events"])}
        made += packer.compress(encoded(piece) + b"\n")
    return bytes(made + packer.flush())


def unpack(content: bytes) -> Recorded:
    """Return the recording that :func:`pack` compressed. Raises DeviceError for other content."""
    try:
        unpacker = zlib.decompressobj()
        lines = unpacker.decompress(content, _UNPACKED * limits.TRACE_BYTES).splitlines()
        if not unpacker.eof:
            raise ValueError("it is incomplete, or too long")
        return _join_pieces(map(json.loads, lines))
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DeviceError("the answer is no recording", why=str(error) or type(error).__name__) from error


def _pieces(recorded: Recorded) -> Iterator[Mapping[str, Any]]:
    """Yield a recording in pieces of plain data: its head, and for each thread a head and the events."""
    yield {
        "pipeline": recorded.pipeline, "process": recorded.process, "began_ns": recorded.began_ns,
        "ended_ns": recorded.ended_ns, "day_ns": recorded.day_ns, "label": recorded.label,
    }  # fmt: skip
    for number, thread in enumerate(recorded.threads):
        yield {"thread": number, "name": thread.name, "thread_id": thread.thread_id, "lost": thread.lost}
        events = iter(thread.events)
        while piece := list(islice(events, _PIECE)):
            yield {"thread": number, "events": piece}


def _join_pieces(pieces: Iterable[Mapping[str, Any]]) -> Recorded:
    """Return the recording of some pieces. Raises KeyError, TypeError or ValueError for malformed ones."""
    first, *others = pieces
    heads, lost = dict[int, Mapping[str, Any]](), dict[int, int]()
    events = dict[int, list[Event]]()
    for piece in others:
        number = int(piece["thread"])
        if "name" in piece:
            heads[number], events[number] = piece, []
        lost[number] = lost.get(number, 0) + int(piece.get("lost", 0))
        events[number].extend(_event(*one) for one in piece.get("events", ()))
    threads = [
        ThreadEvents(str(one["name"]), int(one["thread_id"]), events[number], lost[number])
        for number, one in heads.items()
    ]
    times = int(first["began_ns"]), int(first["ended_ns"]), int(first["day_ns"])
    return Recorded(str(first["pipeline"]), int(first["process"]), *times, threads, str(first["label"]))


def _event(kind: str, begin: int, end: int, name: str, stream: str, frame: int, more: Any) -> Event:
    """Return an event with parts of the right types. Raises TypeError or ValueError where that is impossible."""
    if kind in ("submit", "collect"):
        more = [(str(one), int(index)) for one, index in more]
    elif kind in ("give", "put", "copy", "gpu"):
        more = int(more)
    elif kind in ("operation", "governor"):
        more = {str(key): str(value) for key, value in more.items()}
    elif more is not None:
        more = str(more)
    return str(kind), int(begin), int(end), str(name), str(stream), int(frame), more
