"""What a simulation found, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgert.budget.loop import Governed
from edgert.runtime.metric import Percentiles


@dataclass(frozen=True, slots=True)
class Moment:
    """One stretch of time, of a second where the whole is no shorter.

    Attributes:
        at_s: its end.
        fps: results that the last stages took.
        p50_ms, p99_ms: of their latencies; None where there were none.
        dropped: frames.
        power_w: average drawn; None where it is not known.
        temperature_c: at the end of it.
        busy: accelerator → part of the time, 0 to 1; of cores, how many were busy.
        setting: the governor's; empty without one.
    """

    at_s: float
    fps: float
    p50_ms: float | None
    p99_ms: float | None
    dropped: int
    power_w: float | None
    temperature_c: float | None
    busy: Mapping[str, float]
    setting: str = ""

    @property
    def energy_j_per_frame(self) -> float | None:
        """Of each frame that came out; None where none did, or power is not known."""
        return self.power_w / self.fps if self.power_w is not None and self.fps else None


@dataclass(frozen=True, slots=True)
class StageCount:
    """What came to a thread, what it passed on, and what it never saw."""

    results_in: int
    results_out: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """A pipeline's simulated run; frames, fps, drops and latency mean what they mean in the summary of a real one.

    Attributes:
        seconds: simulated.
        frames_in, frames_out: that sources gave, and that the last stages took.
        dropped: lost on the way.
        latency_ms: from capture to the end of the last stages.
        power_w, energy_j_per_frame: averages, the latter over ``frames_out``; None where power is not known.
        temperature_c: the highest.
        throttled_s: for how long heat kept clocks down.
        busy: accelerator → part of the time; of cores, how many were busy.
        governed: what a governor did; None without one.
    """

    seconds: float
    frames_in: int
    frames_out: int
    dropped: int
    fps: float
    latency_ms: Percentiles
    power_w: float | None
    energy_j_per_frame: float | None
    temperature_c: float | None
    throttled_s: float
    busy: Mapping[str, float]
    stages: Mapping[str, StageCount]
    moments: tuple[Moment, ...]
    governed: Governed | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        moments = [{**asdict(one), "energy_j_per_frame": one.energy_j_per_frame} for one in self.moments]
        return {**asdict(self), "moments": moments}
