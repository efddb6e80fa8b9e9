"""What a camera delivered: when frames came, and how many objects were on each. One JSON object per line.

    {"time_s": 0.033, "objects": 4, "stream": "camera"}

``objects`` counts 0 and ``stream`` any source where they are left out. Lines of ``sink: jsonl`` are a trace, too:
their time is ``timestamp_ns``, and their objects are those of the last record of detections or keypoints.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.errors import ConfigError, cause

_FIX = 'one object per line: {"time_s": 0.033, "objects": 4}, or what sink: jsonl wrote'
_MOST = 100_000
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
    for stream, time_ms, objects, where in _lines(text, path):
        before = found[stream]
        if before and time_ms <= before[-1][0]:
            raise ConfigError("a frame that came before the last one", why=f"{time_ms:g} ms after {before[-1][0]:g} ms",
                              where=where, fix="lines of a stream stand in the order of time")  # fmt: skip
        before.append((time_ms, objects))
    if not found or any(len(frames) < 2 for frames in found.values()):
        raise ConfigError(f"trace {path} is too short", why="a stream needs two frames to have a rate", fix=_FIX)
    return {stream: _trace(frames) for stream, frames in found.items()}


def _trace(frames: list[tuple[float, int]]) -> Trace:
    first_ms = frames[0][0]
    return Trace(tuple(time_ms - first_ms for time_ms, _ in frames), tuple(objects for _, objects in frames))


def _lines(text: str, path: Path) -> Iterator[tuple[str, float, int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            data = json.loads(line)
            yield *_frame(data), where
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError("a line of the trace does not parse", why=str(error), where=where, fix=_FIX) from error


def _frame(data: Any) -> tuple[str, float, int]:
    """(stream, milliseconds, objects). Raises ValueError or TypeError."""
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    if "time_s" not in data and "timestamp_ns" not in data:
        raise ValueError("it has neither time_s nor timestamp_ns")
    time_ms = 1e3 * float(data["time_s"]) if "time_s" in data else float(data["timestamp_ns"]) / 1e6
    objects = data["objects"] if "objects" in data else _counted(data.get("outputs", {}))
    if not math.isfinite(time_ms) or not isinstance(objects, int) or not 0 <= objects <= _MOST:
        raise ValueError(f"time {time_ms} ms, objects {objects!r}")
    return str(data.get("stream", "")), time_ms, objects


def _counted(outputs: Any) -> int:
    if not isinstance(outputs, dict):
        raise ValueError(f"outputs is {outputs!r}")
    counts = [
        len(record["objects"])
        for record in outputs.values()
        if isinstance(record, dict) and record.get("type") in _COUNTED
    ]
    return counts[-1] if counts else 0
