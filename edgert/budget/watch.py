"""Thread of the governor beside a running pipeline, which reads meters and latency twice a second."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgert.budget.loop import PERIOD_S, GovernorReport, Loop
from edgert.budget.rules import Budget, Observation, Tolerances
from edgert.clock import Clock
from edgert.meters.all import Meters, Sample
from edgert.meters.energy import Energy
from edgert.meters.rails import MARGIN
from edgert.meters.usage import PROCESS

_LOG = logging.getLogger(__name__)

CORES = "cores"
"""Unit of a budget of CPU time, which replaces watts."""
CPU_SAMPLES = 4
"""Number of observations over which CPU time is averaged, two seconds. In half a second a camera gives a dozen frames,
so that one frame more or less would change too much."""
CPU_TOLERANCES = Tolerances(sensor_s=(CPU_SAMPLES + 1) * PERIOD_S, surge=0.1, agree=0.05)
"""Tolerances for CPU time: its average must cover only the setting in use, and work per frame varies more than the
noise of a power sensor."""
ALLOWED_TOLERANCES = replace(
    CPU_TOLERANCES,
    over=-0.5,
    surge=0.5,
    margin_down=-0.3,
    margin_known=-0.3,
    margin_new=-0.3,
    hold_s=5.0,
    wary=0.0,
    own_error=0.15,
)
"""Tolerances beside a CPU token bucket, which keeps the budget by passing fewer frames.

Cores change their speed by up to half for seconds. The bucket handles such changes, and only larger, lasting ones
change the setting. A wrong prediction is mostly about the cost of a frame, which is the same in every setting. So a
failure after a step up says little about the setting."""
VARIANT_TOLERANCES = replace(
    ALLOWED_TOLERANCES, over=-0.2, surge=0.2, margin_down=-0.1, margin_known=-0.1, margin_new=-0.1
)
"""Tolerances where a smaller model is available, better at all frames than the larger at two thirds."""
_LEAST_SHARE = 0.05  # smallest share of granted frames from which the cost of all frames can be estimated

_RSS, _NVMAP = "memory.rss", "memory.nvmap"
_MOST_NOTES = 100


@dataclass(frozen=True, slots=True)
class Used:
    """Power or CPU time that a run used.

    Attributes:
        unit: ``W``, or ``cores``.
        limit: budget.
        mean: mean over the covered time; None without readings.
        total: watts or cores times seconds.
        covered_s: time with readings.
        modeled_s: part of the covered time with modeled values.
        missing_s: time without readings.
    """

    unit: str
    limit: float
    mean: float | None
    total: float
    covered_s: float
    modeled_s: float
    missing_s: float


class Observer:
    """Source of a governor's observations, for one thread.

    Args:
        meters: meters of the machine, read once per observation.
        budget: budget whose unit says what to read: watts, or cores of CPU time.
        latency_ms: function that returns the 99th percentile of recent latencies; None without results.
        granted: function that returns the share of the setting's frames since the last call that the CPU budget
            allowed. The observed CPU time is scaled up to all frames.
        pressure: function that returns the fill of the fullest queue of live frames, and losses since the last call.
        past: observer before this one in the same run, whose energy counts are continued.
    """

    def __init__(
        self,
        meters: Meters,
        budget: Budget,
        latency_ms: Callable[[], float | None] = lambda: None,
        granted: Callable[[], float] = lambda: 1.0,
        pressure: Callable[[], tuple[float | None, int]] = lambda: (None, 0),
        past: Observer | None = None,
    ) -> None:
        self._meters, self._budget, self._latency_ms, self._granted = meters, budget, latency_ms, granted
        self._pressure = pressure
        self._energy: Energy = past._energy if past is not None and past._budget.unit == budget.unit else Energy()
        self._cores: deque[tuple[float, float]] = deque(maxlen=CPU_SAMPLES)
        self._notes: deque[str] = deque(maxlen=_MOST_NOTES)
        self.nvmap_bytes: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the meters, such as one that vanished and its replacement."""
        return tuple(self._notes)

    @property
    def used(self) -> Used | None:
        """Power or CPU time used so far; None without a budget for it."""
        budget, energy = self._budget, self._energy
        if budget.power_w is None:
            return None
        amounts = energy.average_w, energy.joules, energy.covered_s, energy.modeled_s, energy.missing_s
        return Used(budget.unit, budget.power_w, *amounts)

    def observe(self) -> Observation:
        """Read all meters once and return the observation; never raises."""
        sample = self._meters.sample()
        self._notes.extend(sample.notes)
        rss, nvmap = sample[_RSS].value, sample[_NVMAP].value
        if nvmap is not None:
            self.nvmap_bytes = max(self.nvmap_bytes or 0, round(nvmap))
        queued, lost = self._pressure()
        return Observation(
            sample.at_ns,
            self._drawn(sample),
            latency_ms=self._latency_ms(),
            margin_c=sample[MARGIN].value,
            memory_bytes=None if rss is None else round(rss),
            queued=queued,
            lost=lost,
        )

    def _drawn(self, sample: Sample) -> float | None:
        """Return watts, or the cores that all frames would have used; None without a budget or a reading."""
        if self._budget.power_w is None:
            return None
        if self._budget.unit != CORES:
            self._energy.add(sample.at_ns, sample.power)
            recent_w = self._energy.recent_w(PERIOD_S) if sample.power.is_known else None
            return sample.power.value if recent_w is None else recent_w  # a sensor's first reading is also a mean
        self._energy.add(sample.at_ns, sample[PROCESS])
        used = sample[PROCESS].value
        if used is None:
            return None
        self._cores.append((used, self._granted()))
        taken, granted = sum(cores for cores, _ in self._cores), sum(share for _, share in self._cores)
        return taken / max(granted, _LEAST_SHARE * len(self._cores))


class Watch(threading.Thread):
    """Thread that runs the governor every :data:`PERIOD_S` from :meth:`start` to :meth:`stop`.

    Args:
        loop: governor of the run.
        observer: source of observations.
        clock: clock of the pipeline.
        fail: function called with an error, after which the thread ends.
        notes: further warnings to report, such as a budget that cannot be watched here.

    Attributes:
        observer: source of observations; ``used`` and ``nvmap_bytes`` may be read from any thread.
    """

    def __init__(
        self,
        loop: Loop,
        observer: Observer,
        clock: Clock,
        fail: Callable[[Exception], None],
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(name="edgert:governor", daemon=True)
        self._loop, self.observer, self._clock, self._fail, self._notes = loop, observer, clock, fail, notes
        self._stop_event = threading.Event()

    def run(self) -> None:
        """Run the governor until :meth:`stop`; never raises."""
        for note in self._notes:
            _LOG.warning("%s", note)
        try:
            while not self._clock.wait(self._stop_event, PERIOD_S):
                action = self._loop.step(self.observer.observe())  # the summary reports all actions
                if action.kind != "keep":
                    is_switch = action.kind == "switch"
                    code = {"code": "budget.switched" if is_switch else "budget.exceeded"}
                    _LOG.log(logging.INFO if is_switch else logging.WARNING, "budgets: %s", action.reason, extra=code)
        except Exception as error:  # noqa: BLE001 - ends the pipeline
            self._fail(error)

    def stop(self) -> None:
        """End the thread after its observation; may be called before the start, and more than once."""
        self._stop_event.set()
        if self.ident is not None and self is not threading.current_thread():
            self.join()

    def report(self) -> GovernorReport:
        """Return the report so far; callable from any thread."""
        return self._loop.report((*self._notes, *self.observer.notes))
