"""A window of a running pipeline as a trace."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.control.controlled import Controlled
from edgert.errors import ConfigError
from edgert.timeline.packed import packed, unpacked
from edgert.timeline.trace_file import check_trace_path, write_trace
from edgert.tracing import Recorded, Window
from edgert.units import parse_seconds

USUAL = "10s"
_LOOK_S = 0.05


def trace(run: Controlled, seconds: str = USUAL) -> dict[str, Any]:
    """Record a pipeline for so long, or to its end; return the recording as text, and what is in it."""
    recorded = recorded_for(run, seconds_of(seconds))
    return {**about(recorded), "recording": base64.b64encode(packed(recorded)).decode()}


def recorded_for(run: Controlled, seconds: float) -> Recorded:
    """Return what a pipeline does for so long, or until its end. Raises StageError where another trace is made."""
    with run.tracing.window() as window:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not run.has_ended:
            time.sleep(min(left_s, _LOOK_S))
        return _ended(run, window)


@contextmanager
def traced(run: Controlled, path: Path) -> Iterator[None]:
    """Record a pipeline until the block ends, and write the trace, also where the block raises.

    Raises:
        ConfigError: the ending of the path is none of a trace.
        ArtifactError: it cannot be written.
        StageError: another trace is made.
    """
    check_trace_path(path)
    with run.tracing.window() as window:
        try:
            yield
        finally:
            write_trace(_ended(run, window), path)


def _ended(run: Controlled, window: Window) -> Recorded:
    return window.end(run.file.config.name, run.label, run.governor_events())


def seconds_of(text: str) -> float:
    """Return the length of a window. Raises ConfigError for one that is none, or too long."""
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no time", why=str(error), fix="edgert ctl trace 10s") from error
    if not 0 < seconds <= limits.TRACE_S:
        why = f"it is more than 0 s and at most {limits.TRACE_S:g} s, as it is held in memory"
        fix = "edgert run --trace FILE records the newest minutes of a whole run"
        raise ConfigError(f"{text} is no length of a trace", why=why, fix=fix)
    return seconds


def about(recorded: Recorded) -> dict[str, Any]:
    """Return what is in a recording: seconds, events, and those that found no room."""
    events = sum(len(thread.events) for thread in recorded.threads)
    seconds = round((recorded.ended_ns - recorded.began_ns) / 1e9, 3)
    return {"pipeline": recorded.pipeline, "seconds": seconds, "events": events, "lost": recorded.lost}


def write_answer(result: dict[str, Any], path: Path) -> None:
    """Write the trace in the answer of a pipeline, and take it out of there. Raises EdgertError."""
    text = str(result.pop("recording", ""))
    write_trace(unpacked(base64.b64decode(text.encode("ascii", "replace"))), path)
    result["path"] = str(path)
