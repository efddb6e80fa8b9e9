"""Recordings of a real run: a camera's trace, and the times of stages.

A trace has when frames came, and how many objects were on each, one JSON object per line:

    {"time_s": 0.033, "objects": 4, "stream": "camera"}

``objects`` counts 0 and ``stream`` any source where they are left out. Lines of ``sink: jsonl`` are a trace, too: their
time is ``timestamp_ns``, and their objects are those of the last record of detections or keypoints.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert import limits
from edgert.errors import ConfigError, cause

_FIX = 'one object per line: {"time_s": 0.033, "objects": 4}, or what sink: jsonl wrote'
_COUNTED = ("detections", "keypoints")


@dataclass(frozen=True, slots=True)
class Trace:
    """One stream.

    Attributes:
        times_ms: of its frames, from the first.
        objects: on each.
    """

    times_ms: tuple[float, ...]
    objects: tuple[int, ...]


def read_trace(path: Path) -> Mapping[str, Trace]:
    """Return stream → trace; the empty name is for any source.

    Raises:
        ConfigError: it cannot be read; a line is wrong, with its number; or a stream has fewer than two frames.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read trace {path}", why=cause(error), fix=_FIX) from error
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            stream, time_ms, objects = _frame(json.loads(line))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ConfigError("a line of the trace does not parse", why=str(error), where=where, fix=_FIX) from error
        before = found[stream]
        if before and time_ms <= before[-1][0]:
            raise ConfigError("a frame comes before the last one", why=f"{time_ms:g} ms after {before[-1][0]:g} ms",
                              where=where, fix="sort the lines of each stream by time")  # fmt: skip
        before.append((time_ms, objects))
    if not found or any(len(frames) < 2 for frames in found.values()):
        raise ConfigError(f"trace {path} is too short", why="a stream needs two frames to have a rate", fix=_FIX)
    return {
        stream: Trace(tuple(time_ms - frames[0][0] for time_ms, _ in frames), tuple(objects for _, objects in frames))
        for stream, frames in found.items()
    }


def _frame(data: Any) -> tuple[str, float, int]:
    """Return (stream, milliseconds, objects). Raises ValueError or TypeError."""
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    if "time_s" not in data and "timestamp_ns" not in data:
        raise ValueError("it has neither time_s nor timestamp_ns")
    time_ms = 1e3 * float(data["time_s"]) if "time_s" in data else float(data["timestamp_ns"]) / 1e6
    outputs = data.get("outputs", {})
    if "objects" not in data and not isinstance(outputs, dict):
        raise ValueError(f"outputs is {outputs!r}")
    objects = data.get("objects", 0)
    for record in outputs.values() if "objects" not in data else ():
        if isinstance(record, dict) and record.get("type") in _COUNTED:
            objects = len(record["objects"])  # of the last record that has any
    if not math.isfinite(time_ms) or not isinstance(objects, int) or not 0 <= objects <= limits.TRACE_OBJECTS:
        raise ValueError(f"time {time_ms} ms, objects {objects!r}")
    return str(data.get("stream", "")), time_ms, objects


# Times of stages, with their models, from the summary of a run.

_MEASURED_FIX = "write one: edgert run pipeline.yaml --json run.json, on that machine and at an easy rate"


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Mean milliseconds per result of a run's stages, by the names of their threads."""

    threads: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """Return a thread's time; 0 where the run had no thread of that name."""
        return self.threads.get(name, 0.0)

    def of_stage(self, name: str) -> float:
        """Return the time of a stage that is one thread now; that of its first branch where it had several."""
        return self.threads.get(f"{name}:0", self.of(name))

    def of_part(self, name: str, stage: str) -> float:
        """Return the time of a branch that is one thread; that of the first where the run had other branches."""
        return self.threads.get(name, self.of_stage(stage))


def read_stage_times(path: Path) -> StageTimes:
    """Read a summary that ``edgert run --json`` wrote. Raises ConfigError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        times_ms = {str(name): float(stage["busy_ms_per_result"]) for name, stage in data["stages"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {cause(error)}"
        raise ConfigError(f"{path} is no summary of a run", why=why, fix=_MEASURED_FIX) from error
    for name, time_ms in times_ms.items():
        if not math.isfinite(time_ms) or time_ms < 0:
            why = f"busy_ms_per_result of {name} is {time_ms}"
            raise ConfigError(f"{path} has impossible times", why=why, fix=_MEASURED_FIX)
    return StageTimes(times_ms)
