"""What was recorded of a real run: a camera's trace, and the times of stages.

A trace has when frames came, and how many objects were on each, one JSON object per line:

    {"time_s": 0.033, "objects": 4, "stream": "camera"}

``objects`` counts 0 and ``stream`` any source where they are left out. Lines of ``sink: jsonl`` are a trace, too:
their time is ``timestamp_ns``, and their objects are those of the last record of detections or keypoints.
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
from edgert.jitter import STEADY, Jitter, check_quantiles, check_slow_phases

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
    """Stream → trace; the empty name is for any source.

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
            raise ConfigError("a frame that came before the last one", why=f"{time_ms:g} ms after {before[-1][0]:g} ms",
                              where=where, fix="sort the lines of each stream by time")  # fmt: skip
        before.append((time_ms, objects))
    if not found or any(len(frames) < 2 for frames in found.values()):
        raise ConfigError(f"trace {path} is too short", why="a stream needs two frames to have a rate", fix=_FIX)
    return {
        stream: Trace(tuple(time_ms - frames[0][0] for time_ms, _ in frames), tuple(objects for _, objects in frames))
        for stream, frames in found.items()
    }


def _frame(data: Any) -> tuple[str, float, int]:
    """(stream, milliseconds, objects). Raises ValueError or TypeError."""
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


# Times of stages besides their models, with their jitter, from the summary of a run.

_MEASURED_FIX = "write one: edgert run pipeline.yaml --json run.json, on that machine and at an easy rate"


@dataclass(frozen=True, slots=True)
class StageTime:
    """One thread's times in a run.

    Attributes:
        busy_ms: mean per result, with its model.
        jitter: of that, of one result after another; of each in a batch.
        wakeup_latency_ms: how late it went on when something came that it waited for: quantiles at
            :data:`edgert.jitter.AT`. Empty: nobody measured it.
        batch_fill_ms: of ``busy_ms``, what it takes until a result waits for others to be passed on with.
        hand_over_ms: what passing a result on takes it on top of that, as it wakes those that wait for it.
        startup_ms: when it was ready, after the first result of all threads.
        first_result_ms: when its first result went on, after that of the first of all threads.
    """

    busy_ms: float = 0.0
    jitter: Jitter = STEADY
    wakeup_latency_ms: tuple[float, ...] = ()
    batch_fill_ms: float = 0.0
    hand_over_ms: float = 0.0
    startup_ms: float = 0.0
    first_result_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of a run's stages, by the names of their threads."""

    threads: Mapping[str, StageTime] = field(default_factory=dict)

    def of(self, name: str) -> StageTime:
        """A thread's; nothing where the run had none of that name."""
        return self.threads.get(name, StageTime())

    def of_stage(self, name: str) -> StageTime:
        """Of a stage that is one thread now; of its first branch where it had several."""
        return self.threads.get(f"{name}:0") or self.of(name)

    def of_part(self, name: str, stage: str) -> StageTime:
        """Of a branch that is one thread; where the run had other branches, of the first."""
        return self.threads.get(name) or self.of_stage(stage)


def read_stage_times(path: Path) -> StageTimes:
    """Reads a summary that ``edgert run --json`` wrote. Raises ConfigError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        stages = {str(name): dict(stage) for name, stage in data["stages"].items()}
        busy_ms = {name: float(stage["busy_ms_per_result"]) for name, stage in stages.items()}
        timing = {str(name): dict(stage) for name, stage in data.get("simulation", {}).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {cause(error)}"
        raise ConfigError(f"{path} is no summary of a run", why=why, fix=_MEASURED_FIX) from error
    try:
        return StageTimes({name: _stage_time(busy_ms[name], timing.get(name, {})) for name in stages})
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise ConfigError(f"{path} has impossible times", why=str(error), fix=_MEASURED_FIX) from error


def _stage_time(busy_ms: float, timing: Mapping[str, Any]) -> StageTime:
    rest = {name: float(timing.get(name) or 0.0) for name in ("batch_fill_ms", "startup_ms", "first_result_ms")}
    for name, value in {"busy_ms_per_result": busy_ms, **rest}.items():
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} is {value}")
    jitter = check_quantiles(tuple(map(float, timing.get("jitter", ()))))
    slow_phases = check_slow_phases(tuple(map(float, timing.get("slow_phases", ()))))
    wakeup_latency_ms = check_quantiles(tuple(map(float, timing.get("wakeup_latency_ms", ()))))
    return StageTime(busy_ms, Jitter(jitter, slow_phases), wakeup_latency_ms, **rest)
