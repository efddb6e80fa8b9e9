"""What a board draws and how warm it gets while it works, and what its sensor says of it.

Heat is one resistance and one capacity, the simplest model with a time constant:
C dT/dt = P - (T - ambient) / R. No resistance of a module with its cooler is published, so :class:`Cooling` is an
assumption that people set for theirs.

At the passive trip point clocks are lowered as Linux's step-wise thermal governor does it: a step at each look while it
is too warm, and a step back at each look below (drivers/thermal/gov_step_wise.c). How large steps are and how often it
looks stands in each board's device tree: both are assumed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from edgert.budget.meter.energy import SENSOR_AVERAGE_S
from edgert.place.cost.power import Power, relative_energy
from edgert.place.event import Used

TICK_MS = 100.0
_STEP, _SLOWEST, _STEP_S = 0.05, 0.25, 1.0  # of the clock, its least, and between two looks
_WINDOW = round(SENSOR_AVERAGE_S * 1e3 / TICK_MS)


@dataclass(frozen=True, slots=True)
class Cooling:
    """How heat leaves the board.

    Attributes:
        c_per_w: degrees above the surroundings for each watt, in the long run.
        tau_s: seconds until 63 % of a change has happened.
        ambient_c: the surroundings.
        throttle_c: where clocks are lowered by the hardware.
    """

    c_per_w: float
    tau_s: float = 60.0
    ambient_c: float = 25.0
    throttle_c: float = 95.0


class Plant:
    """Power and temperature, tick by tick.

    Args:
        power: watts of idling and of each accelerator, joules of each byte.
        cooling: how heat leaves.

    Attributes:
        clock: what the heat leaves of the accelerators' clocks, up to 1.
    """

    def __init__(self, power: Power, cooling: Cooling) -> None:
        self.power, self.cooling = power, cooling
        self.power_w = power.static_w
        self.temperature_c = cooling.ambient_c + cooling.c_per_w * power.static_w
        self.energy_j = 0.0
        self.clock, self._looked_s = 1.0, 0.0
        self._before: dict[str, tuple[float, float]] = {}
        self._ticks: deque[float] = deque([power.static_w] * _WINDOW, maxlen=_WINDOW)

    @property
    def sensed_w(self) -> float:
        """What a Jetson's sensor says: the mean of the last 0.4 s."""
        return sum(self._ticks) / len(self._ticks)

    @property
    def margin_c(self) -> float:
        """Degrees to throttling."""
        return self.cooling.throttle_c - self.temperature_c

    def tick(self, used: Mapping[str, Used], seconds: float = TICK_MS / 1e3) -> None:
        """Time went by.

        Args:
            used: what the accelerators did since the beginning.
        """
        drawn_mj = 0.0
        for name, one in used.items():
            worked_ms, traffic = self._before.get(name, (0.0, 0.0))
            time_ms = (one.worked_ms - worked_ms) * relative_energy(self.clock)
            drawn_mj += self.power.energy_mj(name, time_ms, one.traffic_bytes - traffic)
            self._before[name] = one.worked_ms, one.traffic_bytes
        self.power_w = self.power.static_w + drawn_mj / 1e3 / seconds
        self.energy_j += self.power_w * seconds
        self._ticks.append(self.power_w)
        settled_c = self.cooling.ambient_c + self.cooling.c_per_w * self.power_w
        self.temperature_c += (settled_c - self.temperature_c) * (1 - math.exp(-seconds / self.cooling.tau_s))
        self._throttle(seconds)

    def _throttle(self, seconds: float) -> None:
        self._looked_s += seconds
        if self._looked_s < _STEP_S:
            return
        self._looked_s = 0.0
        step = -_STEP if self.margin_c <= 0 else _STEP
        self.clock = min(max(self.clock + step, _SLOWEST), 1.0)
