"""A board in a power mode as what simulations run on."""

from __future__ import annotations

from edgert.board.mode import Mode
from edgert.board.record import Board
from edgert.place.contention import Contention
from edgert.place.cost.coefficients import Coefficients
from edgert.place.cost.power import power
from edgert.simulate import Cooling, Rig

AMBIENT_C = 25.0
"""Around the board, where nobody says otherwise."""
_RISE_C = 40.0
"""Assumed, as no cooler is known: how much warmer than the air a module gets at the most that a mode is named for."""


def contention_of(board: Board, mode: Mode, costs: Coefficients) -> Contention:
    """What the memory of a board in this mode gives to accelerators that ask at once."""
    bandwidth = (board.bandwidth_gb_s(mode) or 0.0) * 1e9
    return Contention(costs.contention.ceiling * bandwidth, floor_bytes_s=costs.contention.floor * bandwidth)


def rig_of(board: Board, mode: Mode, costs: Coefficients, ambient_c: float = AMBIENT_C) -> Rig:
    """Cores, memory, power and heat. What processor cores draw is not known apart; some of it is in the idle power."""
    watts = power(board, mode, costs.power)
    named = [one.watts for one in board.modes if one.watts is not None]
    most_w = max(named, default=watts.static_w + watts.gpu_w)
    return Rig(
        cores=tuple(f"cpu{number}" for number in range(mode.cpu_cores or board.cpu.cores)),
        contention=contention_of(board, mode, costs),
        power=watts,
        cooling=Cooling(_RISE_C / most_w, ambient_c=ambient_c),
    )
