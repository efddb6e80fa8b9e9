"""Traces of a running pipeline over some seconds, or during a block."""

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgert import limits, units
from edgert.control.controlled import Controlled
from edgert.errors import ConfigError, DeviceError
from edgert.runtime.worker import SHORT_TURNS
from edgert.timeline import packed, trace_file
from edgert.tracing import Recorded, Window

DEFAULT_LENGTH = "10s"
_POLL_S = 0.05


def trace(run: Controlled, seconds: str = DEFAULT_LENGTH) -> dict[str, Any]:
    """Record a pipeline for some time, or until its end; return the recording as Base64, and a description."""
    recorded = record_for(run, parse_length(seconds))
    with SHORT_TURNS:
        return {**describe(recorded), "recording": base64.b64encode(packed.pack(recorded)).decode()}


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
    try:
        seconds = units.parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a time", why=str(error), fix="edgert ctl trace 10s") from error
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
    try:
        content = base64.b64decode(text.encode("ascii", "replace"))
    except ValueError as error:
        raise DeviceError("the pipeline sent a damaged recording", why=str(error)) from error
    trace_file.write_trace(packed.unpack(content), path)
    result["path"] = str(path)
