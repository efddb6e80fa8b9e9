"""Traces of a running pipeline over some seconds, or during a block."""

import base64
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from edgert import limits, units
from edgert.control.controlled import Controlled
from edgert.errors import ConfigError, DeviceError, raised_as
from edgert.runtime.json_form import encoded
from edgert.runtime.worker import SHORT_TURNS
from edgert.timeline import trace_file
from edgert.tracing import Event, Recorded, ThreadEvents, Window

DEFAULT_LENGTH = "10s"
_POLL_S = 0.05


def trace(run: Controlled, seconds: str = DEFAULT_LENGTH) -> dict[str, Any]:
    """Record a pipeline for some time, or until its end; return the recording as Base64, and a description."""
    recorded = record_for(run, parse_length(seconds))
    with SHORT_TURNS:
        return {**describe(recorded), "recording": base64.b64encode(pack(recorded)).decode()}


def record_for(run: Controlled, seconds: float) -> Recorded:
    """Record a pipeline for some seconds, or until its end. Raises StageError: another trace is being recorded."""
    with run.tracing.window() as window:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not run.has_ended:
            time.sleep(min(left_s, _POLL_S))
        return _end_window(run, window)


@contextmanager
def traced(run: Controlled, path: Path) -> Iterator[None]:
    """Record a pipeline during the block, and write the trace, even if the block raises."""
    trace_file.check_trace_path(path)
    with run.tracing.window() as window:
        try:
            yield
        finally:
            trace_file.write_trace(_end_window(run, window), path)


def _end_window(run: Controlled, window: Window) -> Recorded:
    return window.end(run.file.config.name, run.label, run.governor_events())


def parse_length(text: str) -> float:
    """Return the length of a trace in seconds. Raises ConfigError: it is not a time, or out of range."""
    with raised_as(ConfigError, f"{text!r} is not a time", of=ValueError, fix="edgert ctl trace 10s"):
        seconds = units.parse_seconds(text)
    if not 0 < seconds <= limits.TRACE_S:
        why = f"a trace is held in memory, so it has more than 0 s and at most {limits.TRACE_S:g} s"
        fix = "edgert run --trace FILE records the newest minutes of a run"
        raise ConfigError(f"{text} cannot be the length of a trace", why=why, fix=fix)
    return seconds


def describe(recorded: Recorded) -> dict[str, Any]:
    """Return the pipeline of a recording, its length in seconds, and its numbers of events and lost events."""
    events = sum(len(thread.events) for thread in recorded.threads)
    seconds = round((recorded.ended_ns - recorded.began_ns) / 1e9, 3)
    return {"pipeline": recorded.pipeline, "seconds": seconds, "events": events, "lost": recorded.lost}


def write_answer(result: dict[str, Any], path: Path) -> None:
    """Write the recording in a pipeline's answer as a trace, and replace it there by the path."""
    text = str(result.pop("recording", ""))
    with raised_as(DeviceError, "the pipeline sent a damaged recording", of=ValueError):
        content = base64.b64decode(text.encode("ascii", "replace"))
    trace_file.write_trace(unpack(content), path)
    result["path"] = str(path)


# Compression of a recording, in steps so small that the running pipeline is hardly delayed.

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
