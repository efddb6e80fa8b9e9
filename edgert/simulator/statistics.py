"""Results of a simulation, in total and for each second, and the meter that collects them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgert.budget.loop import GovernorReport
from edgert.placement.schedule import AcceleratorUse
from edgert.runtime.metrics import Percentiles
from edgert.runtime.throttle import QueuePressure
from edgert.simulator.hardware import ThermalModel
from edgert.simulator.sources import Camera
from edgert.simulator.spans import Second
from edgert.simulator.threads import Thread


@dataclass(frozen=True, slots=True)
class Moment:
    """Statistics of one interval, usually one second.

    Attributes:
        at_s: end of the interval.
        fps: results per second that the last stages took.
        p50_ms, p99_ms: percentiles of their latency; None without results.
        dropped: number of dropped results.
        power_w: mean power; None if unknown.
        temperature_c: temperature at the end.
        busy: accelerator → share of the time, 0 to 1; for CPU cores, the mean number that was busy.
        setting: setting of the governor; empty without one.
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
        """Joules per frame that left; None without frames or if the power is unknown."""
        return self.power_w / self.fps if self.power_w is not None and self.fps else None


@dataclass(frozen=True, slots=True)
class StageCount:
    """Results that a thread received, passed on and missed."""

    results_in: int
    results_out: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulated run of a pipeline; frames, fps, drops and latency are defined as in the summary of a real run.

    Attributes:
        seconds: simulated time.
        frames_in, frames_out: frames that sources gave, and that the last stages took.
        dropped: results lost between stages.
        fps: frames per second that the last stages took.
        latency_ms: time from capture to the end of the last stage.
        power_w, energy_j_per_frame: mean power, and energy per frame out; None if unknown.
        temperature_c: highest temperature.
        throttled_s: time for which heat lowered clocks.
        busy: accelerator → share of the time; for CPU cores, the mean number that was busy.
        stages: stage → counts of results.
        moments: statistics of each second.
        steady_hz: results per second of all last stages after the first quarter of them, when queues are full.
        governed: report of the governor; None without one.
        second: second recorded in detail; None if not recorded.
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
    steady_hz: float = 0.0
    governed: GovernorReport | None = None
    second: Second | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without the recorded second, whose thousands of times only a drawing uses."""
        moments = [{**asdict(one), "energy_j_per_frame": one.energy_j_per_frame} for one in self.moments]
        plain = {**asdict(replace(self, second=None)), "moments": moments}
        del plain["second"]
        return plain


_MOMENT_MS = 1000.0
_RECENT_MS = 2000.0  # interval of the p99 for the governor
_NEAR_MS = 1e-6


class Meter:
    """Meter that counts every result of the last stages, and takes statistics of each second.

    Args:
        cameras: sources.
        threads: threads.
        thermal: power and temperature; None if unknown.
        end_ms: latest end of the simulation.
    """

    def __init__(
        self, cameras: Sequence[Camera], threads: Sequence[Thread], thermal: ThermalModel | None, end_ms: float
    ) -> None:
        self._cameras, self._threads, self._thermal = cameras, threads, thermal
        self._ends = [thread for thread in threads if not thread.outlets]
        self._moment_ms = min(_MOMENT_MS, end_ms)
        self._times_ms: list[float] = []
        self._latencies_ms: list[float] = []
        self._moments: list[Moment] = []
        self._seen = self._out = self._dropped = 0
        self._energy_j = self._hottest_c = self._throttled_ms = self._ticked_ms = 0.0
        self._busy_ms: dict[str, float] = {}
        is_live = all(camera.source.is_live for camera in cameras)
        self._pressure = QueuePressure([one for thread in threads for one in thread.inlets if is_live or not one.waits])

    def note(self, now_ms: float, born_ms: float) -> None:
        """Record a result that a last stage took."""
        self._times_ms.append(now_ms)
        self._latencies_ms.append(now_ms - born_ms)

    def recent_p99_ms(self, now_ms: float) -> float | None:
        """Return the 99th percentile of the latency in the last two seconds; None without results."""
        first = int(np.searchsorted(self._times_ms, now_ms - _RECENT_MS))
        return _percentile(self._latencies_ms[first:], 99)

    @property
    def last(self) -> Moment | None:
        """Statistics of the latest second that is over."""
        return self._moments[-1] if self._moments else None

    def pressure(self) -> tuple[float | None, int]:
        """Return the fill of the fullest queue of live frames, 0 to 1, and their losses since the last call."""
        return self._pressure.look()

    def tick(self, now_ms: float, used: Mapping[str, AcceleratorUse], setting: str) -> None:
        """Update the statistics after a tick."""
        if self._thermal is not None:
            self._hottest_c = max(self._hottest_c, self._thermal.temperature_c)
            self._throttled_ms += (now_ms - self._ticked_ms) * (self._thermal.clock < 1)
        self._ticked_ms = now_ms
        started_ms = 1e3 * self._moments[-1].at_s if self._moments else 0.0
        if now_ms - started_ms >= self._moment_ms - _NEAR_MS:
            self._moments.append(self._moment(now_ms, now_ms - started_ms, used, setting))

    def result(self, now_ms: float, used: Mapping[str, AcceleratorUse], governed: GovernorReport | None) -> Simulated:
        """Return the results at the end of the simulation."""
        frames_in = sum(camera.passed for camera in self._cameras)
        frames_out = max((thread.taken for thread in self._ends), default=frames_in)
        seconds = now_ms / 1e3
        thermal = self._thermal
        known_s = self._ticked_ms / 1e3
        power_w = thermal.energy_j / known_s if thermal and known_s else None
        values = self._latencies_ms
        p50, p95, p99 = (_percentile(values, percent) or 0.0 for percent in (50, 95, 99))
        return Simulated(
            seconds=seconds,
            frames_in=frames_in,
            frames_out=frames_out,
            dropped=self._lost(),
            fps=frames_out / seconds,
            latency_ms=Percentiles(p50, p95, p99, float(np.mean(values)) if values else 0.0, len(values)),
            power_w=power_w,
            energy_j_per_frame=power_w * seconds / frames_out if power_w is not None and frames_out else None,
            temperature_c=self._hottest_c if thermal else None,
            throttled_s=self._throttled_ms / 1e3,
            busy={name: one.busy_ms / now_ms for name, one in used.items()},
            stages={
                **{one.source.name: StageCount(one.passed, one.passed, one.lost) for one in self._cameras},
                **{one.node.name: StageCount(one.taken, one.passed, one.dropped) for one in self._threads},
            },
            moments=tuple(self._moments),
            steady_hz=self._steady_hz(),
            governed=governed,
        )

    def _moment(self, now_ms: float, passed_ms: float, used: Mapping[str, AcceleratorUse], setting: str) -> Moment:
        latencies = self._latencies_ms[self._seen :]
        out, dropped = max((thread.taken for thread in self._ends), default=0), self._lost()
        energy_j = self._thermal.energy_j if self._thermal else 0.0
        before = self._busy_ms
        self._busy_ms = {name: one.busy_ms for name, one in used.items()}
        moment = Moment(
            at_s=now_ms / 1e3,
            fps=1e3 * (out - self._out) / passed_ms,
            p50_ms=_percentile(latencies, 50),
            p99_ms=_percentile(latencies, 99),
            dropped=dropped - self._dropped,
            power_w=1e3 * (energy_j - self._energy_j) / passed_ms if self._thermal else None,
            temperature_c=self._thermal.temperature_c if self._thermal else None,
            busy={name: (busy - before.get(name, 0.0)) / passed_ms for name, busy in self._busy_ms.items()},
            setting=setting,
        )
        self._seen, self._out, self._dropped, self._energy_j = len(self._latencies_ms), out, dropped, energy_j
        return moment

    def _steady_hz(self) -> float:
        times_ms = self._times_ms[len(self._times_ms) // 4 :]
        passed_ms = times_ms[-1] - times_ms[0] if times_ms else 0.0
        return 1e3 * (len(times_ms) - 1) / passed_ms if passed_ms > 0 else 0.0

    def _lost(self) -> int:
        return sum(thread.dropped for thread in self._threads)


def _percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile without interpolation, as in the summary of a run; None without values."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if values else None
