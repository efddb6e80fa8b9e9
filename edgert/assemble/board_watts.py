"""The board of a pipeline file, its modeled power, and the clock settings that a governor may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.board import HOST
from edgert.board.detect import detect
from edgert.board.record import Board, find_board
from edgert.budget.control import PowerControl
from edgert.clock import Clock
from edgert.config import PipelineFile
from edgert.errors import ConfigError
from edgert.meters.all import Meters, Model
from edgert.meters.clocks import gpu_gauges
from edgert.meters.reading import Reading, modeled
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.cost.speeds import power

# The board that a pipeline file is written for.

THIS_MACHINE = ("auto", HOST)
"""Values of ``board:`` for the machine edgert runs on; ``host`` is its processor only."""


def board_of(file: PipelineFile) -> Board | None:
    """The board that ``board:`` names, or describes in a file of the user's own; None for this machine.

    Raises:
        ConfigError: there is no such board, with the line of the pipeline file; or its own file has mistakes.
    """
    name = file.config.board
    if name in THIS_MACHINE:
        return None
    try:
        return find_board(name, file.document.path.parent)
    except ConfigError as error:
        if not error.where:
            error.where, error.fix = file.where("board"), f"auto or host for this machine; {error.fix}"
        raise


# Modeled watts of a board without a readable sensor: idle, and the GPU at its reported load.

_LOAD = "gpu.load"


def meters_here(clock: Clock, root: Path = Path("/")) -> Meters:
    """The meters of this machine, with modeled power where it is a board that edgert knows and no sensor can be
    read."""
    return Meters(root, clock, power_model(root))


def power_model(root: Path) -> Model | None:
    """Gives modeled watts of the board that ``root`` is the file system of; None for any other machine.

    Its CPU cores are not in it, so it is too low rather than too high: edgert.placement.cost.speeds has the formula and
    where its numbers come from.
    """
    machine = detect(root)
    board, load = machine.board, gpu_gauges(root).get(_LOAD)
    if board is None:
        return None
    mode = board.mode(machine.mode) if board.has_mode(machine.mode) else board.usual_mode
    watts = power(board, mode, coefficients(board.soc).power)

    def read() -> Reading:
        percent = None if load is None else load().value
        busy = 1.0 if percent is None else percent / 100
        return modeled(watts.static_w + watts.gpu_w * busy, "W", f"cost model of {board.name}", "without CPU cores")

    return read


@dataclass(frozen=True, slots=True)
class PowerStep:
    """A clock setting of a board: a power mode, or a cap of the GPU's clock, with what is predicted of it.

    Attributes:
        name: for people; empty for the clocks it was found with.
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
    """Takes one step at a time, each starting from the clocks the board was found with. For one thread.

    Args:
        steps: the first is the clocks it was found with.
        control: restores it at its own end; owned by whoever entered it.
    """

    def __init__(self, steps: Sequence[PowerStep], control: PowerControl) -> None:
        self.steps, self._control = tuple(steps), control
        self._now = self.steps[0]

    def take(self, step: PowerStep) -> None:
        """Sets the board to that step; does nothing if it already is. Blocks for a second where nvpmodel is asked.

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
