"""Power modes and clock caps of a board as settings of a governor, and what carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgert.budget.control import PowerControl


@dataclass(frozen=True, slots=True)
class PowerStep:
    """One way to clock a board.

    Attributes:
        name: for people; empty for the way it was found.
        power_w: drawn at the rates that the pipeline asks for, or at what it sustains where that is less.
        idle_w: of that, without work.
        headroom: how many times the asked rates it sustains.
        latency_ms: 99th percentile of engines.
        mode: power mode to switch to; empty: that it was found in.
        gpu_hz: cap of the GPU's clock; 0: none.
    """

    name: str
    power_w: float
    idle_w: float
    headroom: float
    latency_ms: float
    mode: str = ""
    gpu_hz: int = 0

    def sustained(self, work: float = 1.0) -> float:
        """Part of the asked rates that goes through, of frames that are so much of the work that was planned."""
        return min(1.0, self.headroom / work)

    def drawn_w(self, share: float, work: float = 1.0) -> float:
        """At so large a part of the asked rates."""
        at_asked_w = (self.power_w - self.idle_w) / self.sustained()
        return self.idle_w + at_asked_w * work * min(share, self.sustained(work))


class PowerSteps:
    """Takes one step at a time, each from the way the board was found. For one thread.

    Args:
        steps: the first is the way it was found.
        control: restores it at its own end; owned by whoever entered it.
    """

    def __init__(self, steps: Sequence[PowerStep], control: PowerControl) -> None:
        self.steps, self._control = tuple(steps), control
        self._now = self.steps[0]

    def take(self, step: PowerStep) -> None:
        """Makes the board run that way; nothing happens if it does. Blocks for a second where nvpmodel is asked.

        Raises:
            BudgetError: the mode takes a reboot, or is gone.
            DeviceError: it cannot be changed.
        """
        if step == self._now:
            return
        self._control.restore()
        self._now = self.steps[0]
        if step.mode:
            self._control.set_mode(step.mode)
        if step.gpu_hz:
            self._control.cap_gpu(step.gpu_hz)
        self._now = step
