"""Energy as the integral of power over monotonic time.

Jetson's power sensors average over about 0.4 s, so that faster samples repeat. So budgets are compared with energy over
a period, integrated by the trapezoid rule.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from edgert.board.host import read_text
from edgert.clock import Clock
from edgert.meters import reading

SENSOR_AVERAGE_S = 0.43
"""Averaging time that NVIDIA's nvpower.sh sets for the INA3221 of Jetsons: 512 samples in 430 ms."""
_LONGEST_S = 5.0  # longest interval between samples; the power in a longer one is unknown
_KEPT_S = 60.0


@dataclass(slots=True)
class Energy:
    """Energy since the first sample and mean power of the recent past, for one thread at a time.

    Attributes:
        joules: energy over the covered time.
        covered_s: time between known samples.
        modeled_s: part of the covered time with a modeled sample at one end.
        missing_s: time without known samples, which is never counted as 0 W.
    """

    joules: float = 0.0
    covered_s: float = 0.0
    modeled_s: float = 0.0
    missing_s: float = 0.0
    _last: tuple[int, float | None, reading.Kind] | None = None
    _spans: deque[tuple[int, int, float]] = field(default_factory=deque)

    def add(self, at_ns: int, sample: reading.Reading) -> None:
        """Add the next sample; ignore one that is not later than the one before."""
        last = self._last
        if last is not None and at_ns <= last[0]:
            return
        self._last = (at_ns, sample.value, sample.kind)
        if last is None:
            return
        span_s = (at_ns - last[0]) / 1e9
        if sample.value is None or last[1] is None or span_s > _LONGEST_S:
            self.missing_s += span_s
            return
        spent_j = (sample.value + last[1]) / 2 * span_s
        self.joules += spent_j
        self.covered_s += span_s
        self.modeled_s += span_s if "modeled" in (sample.kind, last[2]) else 0.0
        self._spans.append((last[0], at_ns, spent_j))
        while self._spans[0][1] < at_ns - _KEPT_S * 1e9:
            self._spans.popleft()

    @property
    def average_w(self) -> float | None:
        """Mean watts over the covered time; None if there is none."""
        return self.joules / self.covered_s if self.covered_s else None

    def recent_w(self, window_s: float) -> float | None:
        """Return the mean watts over the covered part of the last ``window_s``, at most 60 s; None if there is none.

        An interval that begins before the window counts with the part inside it.
        """
        if self._last is None:
            return None
        start_ns = self._last[0] - round(window_s * 1e9)
        joules = seconds = 0.0
        for begin_ns, end_ns, spent_j in reversed(self._spans):
            inside = (end_ns - max(begin_ns, start_ns)) / (end_ns - begin_ns)
            if inside <= 0:
                break
            joules += spent_j * inside
            seconds += (end_ns - begin_ns) * inside / 1e9
        return joules / seconds if seconds else None


# Energy counters of x86 processors (RAPL): https://docs.kernel.org/power/powercap/powercap.html.
#
# Since Linux 5.10 only root may read them. ``psys`` is the complete platform. Without it the packages count, without
# their parts: packages include ``core`` and ``uncore``, and not every processor has ``dram``.

_MOST_W = 5000.0


def rapl_gauges(root: Path, clock: Clock) -> dict[str, reading.Gauge]:
    """Return gauges of ``power.psys``, or of ``power.package-0`` and so on: mean watts since the last reading."""
    zones = reading.children(root / "sys/class/powercap")
    # intel-rapl:0, without its parts intel-rapl:0:0, and without intel-rapl-mmio:0, which is the same package
    folders = [zone for zone in zones if zone.name.startswith("intel-rapl:") and zone.name.count(":") == 1]
    found = [(read_text(folder / "name"), folder) for folder in folders]
    whole = [pair for pair in found if pair[0] == "psys"]
    packages = [pair for pair in found if pair[0].startswith("package")]
    return {f"power.{name}": _counter_gauge(folder, root, clock) for name, folder in whole or packages}


def _counter_gauge(folder: Path, root: Path, clock: Clock) -> reading.Gauge:
    """Return a gauge of the mean watts since the last reading, or since now, by the counter in a folder."""
    path, most = folder / "energy_uj", read_text(folder / "max_energy_range_uj")
    range_uj = float(most) if most.isdigit() else 0.0
    last: tuple[float, int] | None = None  # count in microjoules, and its time

    def watts() -> float:
        nonlocal last
        before, last = last, None
        last = reading.read_number(str(path), 0.0), clock.now_ns()
        if before is None or last[1] <= before[1]:
            raise ValueError(reading.NO_TIME)
        spent_uj = last[0] - before[0]
        spent_uj += range_uj if spent_uj < 0 else 0.0  # the counter wrapped around
        found = spent_uj * 1e3 / (last[1] - before[1])
        if not 0.0 <= found <= _MOST_W:
            raise ValueError(f"it reads {found:g} W, which is impossible")
        return found

    gauge = reading.gauge("W", reading.shown_path(path, root), watts)
    gauge()  # starts the count
    return gauge
