"""Power of a board, from its idle readings, the numbers of ``configs/costs/power.yaml``, and formulas.

In a power mode the module's own sensor reads:

    idle + overhead · (GPU + DLA + CPU + decoder + bytes · pJ)

The power of an engine is linear in its units and clock and quadratic in its voltage. The voltage falls with the clock
from that of the *chip's* fastest clock to a floor: a chip draws the same at the same clocks on every module.

A GPU draws power while kernels run, part of it only for multiplications. A launch takes time but no energy.
``overhead`` accounts for memory controllers, the fabric and regulators.
"""

from dataclasses import dataclass
from functools import cache

from pydantic import Field, TypeAdapter

from edgert.board.record import Board
from edgert.board.sections import Mode
from edgert.errors import ConfigError, nearest
from edgert.placement.cost.coefficients import Accuracy, Amount, Part, Share, folder, validated
from edgert.placement.problem import GPU

_FLOOR = 0.7
_GPU_SLOPE, _CPU_SLOPE = 0.53, 0.8
"""Floor of the relative voltage, and slopes of the relative voltage over the relative clock.

They come from the GPU and CPU rails of one AGX Orin under stress in four modes,
https://forums.developer.nvidia.com/t/maximum-power-consumption-bounds-for-orin-agx/323456. None are published for other
chips. A DLA is assumed to behave like a GPU."""
_TYPICAL_MATH = 0.35
"""Share of its peak at which a busy GPU multiplies in published networks."""

_IDLE_ERROR = 0.15
"""Relative deviation of different people's idle readings of one board from their mean.

It is that of the Orin Nano Super, whose readings differ most. Most boards have only one reading."""


class Clocks(Part):
    """Fastest clocks of a chip on any module, in MHz, at which its voltages are highest."""

    gpu: Amount
    cpu: Amount
    dla: Amount | None = None


class PowerCost(Part):
    """Power of a chip's parts at the voltage of their fastest clock; None where nothing is published.

    Attributes:
        clocks: clocks at which these voltages are reached.
        gpu_w: watts of one SM at 1 GHz with all its units busy.
        stalled: share of ``gpu_w`` while a kernel runs that multiplies nothing.
        dla_w: watts of one busy DLA core at 1 GHz.
        cpu_w: watts of one busy CPU core at 1 GHz.
        decoder_w: watts of the busy video decoder.
        dram_pj_per_byte: picojoules per byte of memory traffic.
        overhead: watts of the module per watt of these parts.
    """

    clocks: Clocks
    gpu_w: Amount | None = None
    stalled: Share = 0.65
    dla_w: Amount | None = None
    cpu_w: Amount | None = None
    decoder_w: Amount | None = None
    dram_pj_per_byte: Amount
    overhead: float = Field(default=1.0, ge=1)


class Wall(Part):
    """Conversion from the module to the plug: ``module / efficiency + carrier + peripherals``.

    Attributes:
        efficiency: efficiency of the power supply and the carrier's regulators.
        carrier_w: board → watts at the plug for its developer kit's carrier with all else off, as in MLPerf's runs.
        peripherals_w: board → additional watts of the kit as sold.
        source: address of these numbers.
    """

    efficiency: Share
    carrier_w: dict[str, Amount]
    peripherals_w: dict[str, Amount] = Field(default_factory=dict)
    source: str


class ChipPower(Part):
    """Published power figures of one chip.

    Attributes:
        cost: power of the chip's parts.
        wall: conversion to the plug of developer kits; None if unknown.
        accuracy: error on networks left out of the fit; None where nothing is published to compare with.
        assumed: dotted key of a number that was not fitted → reason for its value.
        sources: addresses of the published measurements.
    """

    cost: PowerCost
    wall: Wall | None = None
    accuracy: Accuracy | None = None
    assumed: dict[str, str] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()


_CHIPS = TypeAdapter(dict[str, ChipPower])


@cache
def power_cost(soc: str) -> ChipPower:
    """Return the published power figures of a chip; raise ConfigError if there are none or the file is damaged."""
    chips = validated(folder() / "power.yaml", _CHIPS, "watts")
    if soc not in chips:
        raise ConfigError(
            f"no power figures for chip {soc!r}{nearest(soc, chips)}", why=f"figures exist for {', '.join(chips)}"
        )
    return chips[soc]


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of a module in a mode, ``overhead`` included.

    Attributes:
        static_w: watts of the idle module.
        gpu_w: additional watts while a kernel runs.
        dla_w: additional watts while one DLA core computes; 0 without a DLA.
        dram_pj_per_byte: picojoules per byte of memory traffic.
        math_w: additional watts while the GPU multiplies at its peak.
        cpu_w: additional watts for each busy core.
        decoder_w: additional watts while the video decoder is busy; None if unknown.
        unknown: parts without published figures, counted as 0 above: ``idle``, ``GPU``, ``DLA``, ``CPU``.
    """

    static_w: float
    gpu_w: float
    dla_w: float
    dram_pj_per_byte: float
    math_w: float = 0.0
    cpu_w: float = 0.0
    decoder_w: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether watts can be predicted: figures of the idle board and its GPU are published."""
        return not {"idle", "GPU"} & set(self.unknown)

    @property
    def busy_gpu_w(self) -> float:
        """Additional watts while the GPU runs typical networks."""
        return self.gpu_w + _TYPICAL_MATH * self.math_w

    def unit_w(self, name: str) -> float:
        """Return the additional watts of a busy CPU core (``cpu``) or video decoder (``nvdec``); 0 for others."""
        return {"cpu": self.cpu_w, "nvdec": self.decoder_w or 0.0}.get(name, 0.0)

    def energy_mj(self, accelerator: str, time_ms: float, traffic_bytes: float, peak_ms: float = 0.0) -> float:
        """Return an accelerator's energy beyond the idle board's, in millijoules.

        Args:
            accelerator: ``gpu``, ``dla0`` or ``dla1``.
            time_ms: time it is busy; for a GPU without launches.
            traffic_bytes: bytes to and from DRAM.
            peak_ms: time that a GPU would take for its multiply-adds at its peak.
        """
        engine = self.gpu_w * time_ms + self.math_w * peak_ms if accelerator == GPU else self.dla_w * time_ms
        return engine + traffic_bytes * self.dram_pj_per_byte * 1e-9


def power(board: Board, mode: Mode, cost: PowerCost | None = None) -> Power:
    """Return the power of the board in a mode.

    Args:
        board: board whose power is computed.
        mode: power mode of the board.
        cost: power of the chip's parts; None for the published figures.

    Raises:
        ConfigError: nothing is published about the board's chip.
    """
    cost = cost or power_cost(board.soc).cost
    idle_w, clocks, dla_mhz = board.idle_w(mode), cost.clocks, mode.dla_clock_mhz()
    gpu = _dynamic(cost.gpu_w, mode.sms, mode.gpu_mhz, clocks.gpu, _GPU_SLOPE)
    dla = 0.0 if not mode.dla_cores else _dynamic(cost.dla_w, 1, dla_mhz, clocks.dla, _GPU_SLOPE)
    cpu = _dynamic(cost.cpu_w, 1, mode.cpu_mhz, clocks.cpu, _CPU_SLOPE)
    parts = {"idle": idle_w, "GPU": gpu, "DLA": dla, "CPU": cpu}
    full = cost.overhead * (gpu or 0.0)
    return Power(
        static_w=idle_w or 0.0,
        gpu_w=cost.stalled * full,
        dla_w=cost.overhead * (dla or 0.0),
        dram_pj_per_byte=cost.overhead * cost.dram_pj_per_byte,
        math_w=(1 - cost.stalled) * full,
        cpu_w=cost.overhead * (cpu or 0.0),
        decoder_w=None if cost.decoder_w is None else cost.overhead * cost.decoder_w,
        unknown=tuple(name for name, watts in parts.items() if watts is None),
    )


def wall_w(board: Board, module_w: float) -> float | None:
    """Return the watts at the plug of the board's developer kit while the module draws this much; None if unknown."""
    wall = power_cost(board.soc).wall
    if wall is None or board.name not in wall.peripherals_w:
        return None
    return module_w / wall.efficiency + wall.carrier_w[board.name] + wall.peripherals_w[board.name]


def power_error(board: Board, mode: Mode, module_w: float | None) -> float | None:
    """Return the expected relative error of a predicted power; None where nothing is published to compare with.

    It is the error of modules under load, or that of idle modules if idle power dominates.
    """
    accuracy = power_cost(board.soc).accuracy
    if accuracy is None or not module_w:
        return None
    return max(accuracy.p90, _IDLE_ERROR * (board.idle_w(mode) or 0.0) / module_w)


MODULE_WATTS = "watts are of the module, as its own sensor reads them, not of the developer kit at the plug"


def about_watts(boards: tuple[Board, ...]) -> list[str]:
    """Return notes on assumptions about the power of these boards and about modes with estimated clocks.

    For one board the notes are complete; for several boards they have only what differs.
    """
    found = [MODULE_WATTS]
    for board in boards:
        estimated = {mode.name: ", ".join(mode.estimated) for mode in board.modes if mode.estimated}
        ratios = "estimated by ratios of what is published, not measured"
        found += [f"{board.name} {name}: {ratios}: {keys}" for name, keys in estimated.items()]
        assumed = power_cost(board.soc).assumed
        shown = assumed if len(boards) == 1 else {key: why for key, why in assumed.items() if key == "cost"}
        found += [f"watts of {board.soc}: {why}" for why in shown.values()]
        if not board.idle:
            found.append(f"watts of {board.name} are unknown: its board file has no idle reading (idle:)")
    return found


def relative_energy(clock: float, slope: float = _GPU_SLOPE) -> float:
    """Return the relative energy of work at a share of the chip's fastest clock: the square of the relative voltage."""
    return max(_FLOOR, 1 - slope * (1 - min(clock, 1.0))) ** 2


def _dynamic(
    watts: float | None, units: int | None, clock_mhz: float | None, fastest_mhz: float | None, slope: float
) -> float | None:
    if watts is None or units is None or clock_mhz is None or fastest_mhz is None:
        return None
    return watts * units * clock_mhz / 1e3 * relative_energy(clock_mhz / fastest_mhz, slope)
