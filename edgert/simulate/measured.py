"""What stages take besides their models and how that jitters, from the summary of a run that was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.errors import ConfigError, cause
from edgert.jitter import STEADY, Jitter, check_quantiles, check_slow_phases

_FIX = "write one: edgert run pipeline.yaml --json run.json, on that machine and at an easy rate"


@dataclass(frozen=True, slots=True)
class StageTime:
    """One thread's times in a run.

    Attributes:
        busy_ms: mean per result, with its model.
        jitter: of that, of one result after another; of each in a batch.
        wakeup_latency_ms: how late it went on when something came that it waited for: quantiles at
            :data:`edgert.jitter.AT`. Empty: nobody measured it.
        batch_fill_ms: of ``busy_ms``, what it takes until a result waits for others to be passed on with.
        startup_ms: when it was ready, after the first result of all threads.
        first_result_ms: when its first result went on, after that of the first of all threads.
    """

    busy_ms: float = 0.0
    jitter: Jitter = STEADY
    wakeup_latency_ms: tuple[float, ...] = ()
    batch_fill_ms: float = 0.0
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
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {cause(error)}"
        raise ConfigError(f"{path} is no summary of a run", why=why, fix=_FIX) from error
    try:
        return StageTimes({name: _stage_time(busy_ms[name], timing.get(name, {})) for name in stages})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} has impossible times", why=str(error), fix=_FIX) from error


def _stage_time(busy_ms: float, timing: Mapping[str, Any]) -> StageTime:
    if not math.isfinite(busy_ms) or busy_ms < 0:
        raise ValueError(f"busy_ms_per_result is {busy_ms}")
    jitter = check_quantiles(tuple(map(float, timing.get("jitter", ()))))
    slow_phases = check_slow_phases(tuple(map(float, timing.get("slow_phases", ()))))
    rest = (_milliseconds(timing, name) for name in ("batch_fill_ms", "startup_ms", "first_result_ms"))
    wakeup_latency_ms = check_quantiles(tuple(map(float, timing.get("wakeup_latency_ms", ()))))
    return StageTime(busy_ms, Jitter(jitter, slow_phases), wakeup_latency_ms, *rest)


def _milliseconds(timing: Mapping[str, Any], name: str) -> float:
    """0 where they are not given."""
    value = float(timing.get(name) or 0.0)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value}")
    return value
