"""Watts of a board whose sensor does not tell: idle, and the GPU as busy as it says."""

from __future__ import annotations

from pathlib import Path

from edgert.board.detect import detect
from edgert.budget.meter.clock import gpu_gauges
from edgert.budget.meter.meters import Meters, Model
from edgert.budget.meter.reading import Reading, modelled
from edgert.clock import Clock
from edgert.place.cost.coefficients import coefficients
from edgert.place.cost.power import power

_LOAD = "gpu.load"


def meters_here(clock: Clock, root: Path = Path("/")) -> Meters:
    """The meters of this machine, with modelled power where it is a board that edgert knows and no sensor tells."""
    return Meters(root, clock, power_model(root))


def power_model(root: Path) -> Model | None:
    """Gives modelled watts of the board that ``root`` is the file system of; None for any other machine.

    Its CPU cores are not in it, so it is too low rather than too high: edgert.place.cost.power has the formula and
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
        return modelled(watts.static_w + watts.gpu_w * busy, "W", f"cost model of {board.name}", "without CPU cores")

    return read
