"""What a board draws: the numbers of ``configs/costs/power.yaml``, written by ``scripts/fit_power``, and formulas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from pydantic import Field, TypeAdapter, ValidationError

from edgert.board.record import Board
from edgert.board.sections import Mode
from edgert.config.document import read
from edgert.errors import ConfigError, nearest
from edgert.installation import data_folder
from edgert.placement.cost.coefficients import Accuracy, Amount, Part
from edgert.placement.problem import GPU


class PowerCost(Part):
    """Of this module.

    Attributes:
        static_w: of a board with a 256-bit memory that is on and idle, supply included.
        gpu_w: one SM busy at 1 GHz.
        dla_w: one DLA core busy at 1 GHz.
        dram_pj_per_byte: of traffic.
    """

    static_w: Amount
    gpu_w: Amount
    dla_w: Amount
    dram_pj_per_byte: Amount


class ChipPower(Part):
    """What is known of one chip's watts.

    Attributes:
        cost: the numbers.
        accuracy: of left-out networks; None: nothing published to compare with.
        assumed: dotted keys of numbers that were not fitted, and why they are what they are.
        sources: addresses of the rows.
    """

    cost: PowerCost
    accuracy: Accuracy | None = None
    assumed: dict[str, str] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()


_CHIPS = TypeAdapter(dict[str, ChipPower])


@cache
def power_cost(soc: str) -> ChipPower:
    """What is known of a chip's watts.

    Raises:
        ConfigError: nothing is, or the file is damaged.
    """
    document = read(data_folder("configs") / "costs" / "power.yaml", env={})
    try:
        chips = _CHIPS.validate_python(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"wrong value in a file of watts at {key}", why=first["msg"], where=document.where(first["loc"])
        ) from error
    if soc not in chips:
        raise ConfigError(
            f"no watts for chip {soc!r}{nearest(soc, chips)}", why=f"there are some for {', '.join(chips)}"
        )
    return chips[soc]


# What a board draws: idle, plus each busy engine, plus every byte of DRAM traffic.
#
# energy = static * time + engine * busy time + traffic * energy per byte
#
# An engine's watts grow with its clock and the square of its voltage. Voltages are not published; they are taken to
# rise from 0.6 of the highest at standstill to the highest at full clock, as is typical of the tables in nvpmodel's
# kernels.

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

    def energy_mj(self, accelerator: str, time_ms: float, traffic_bytes: float) -> float:
        """Drawn beyond idle by an accelerator that is busy for so long and moves so much."""
        watts = self.gpu_w if accelerator == GPU else self.dla_w
        return watts * time_ms + traffic_bytes * self.dram_pj_per_byte * 1e-9


def power(board: Board, mode: Mode, cost: PowerCost | None = None) -> Power:
    """What the board draws in this mode; engines whose clock is unknown count nothing.

    Args:
        cost: None: that of the board's chip.
    """
    cost = cost or power_cost(board.soc).cost
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
