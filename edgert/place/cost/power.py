"""What a board draws: idle, plus each busy engine, plus every byte of DRAM traffic.

    energy = static * time + engine * busy time + traffic * energy per byte

An engine's watts grow with its clock and the square of its voltage. Voltages are not published; they are taken to rise
from 0.6 of the highest at standstill to the highest at full clock, as is typical of the tables in nvpmodel's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgert.board.mode import Mode
from edgert.board.record import Board
from edgert.place.cost.coefficients import PowerCost

_LOWEST_VOLTAGE = 0.6


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of a board in a mode.

    Attributes:
        static_w: on and idle.
        gpu_w: more while the GPU computes.
        dla_w: more while one DLA core computes; 0 without one.
        dram_pj_per_byte: of traffic.
    """

    static_w: float
    gpu_w: float
    dla_w: float
    dram_pj_per_byte: float

    def engine_w(self, accelerator: str) -> float:
        """Of ``"gpu"``, or of any DLA core."""
        return self.gpu_w if accelerator == "gpu" else self.dla_w

    def energy_mj(self, accelerator: str, time_ms: float, traffic_bytes: float) -> float:
        """Drawn beyond idle by an accelerator that is busy for so long and moves so much."""
        return self.engine_w(accelerator) * time_ms + traffic_bytes * self.dram_pj_per_byte * 1e-9

    def average_w(self, period_ms: float, energy_mj: float) -> float:
        """Of work that costs ``energy_mj`` beyond idle in every period."""
        return self.static_w + energy_mj / period_ms


def power(board: Board, mode: Mode, cost: PowerCost) -> Power:
    """What the board draws in this mode; engines whose clock is unknown count nothing."""
    gpu = cost.gpu_w * (mode.sms or 0) * _dynamic(mode.gpu_mhz, board.gpu.max_mhz)
    dla = cost.dla_w * _dynamic(mode.dla_clock_mhz(), board.dla.max_mhz)
    return Power(cost.static_w * static_size(board), gpu, dla, cost.dram_pj_per_byte)


def static_size(board: Board) -> float:
    """Memory channels of a board over those of the widest: what idle watts of boards with one chip are scaled by."""
    return max(board.memory.bus_bits / 256, 0.5)


def relative_energy(clock: float) -> float:
    """Of the same work at a part of the full clock: the square of the voltage over the highest."""
    return (_LOWEST_VOLTAGE + (1 - _LOWEST_VOLTAGE) * clock) ** 2


def _dynamic(clock_mhz: float | None, max_mhz: float | None) -> float:
    """Gigahertz times the square of the voltage over the highest."""
    if clock_mhz is None:
        return 0.0
    return clock_mhz / 1e3 * relative_energy(min(clock_mhz / (max_mhz or clock_mhz), 1.0))
