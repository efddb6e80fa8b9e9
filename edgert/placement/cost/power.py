"""Power of a board: its idle readings, the numbers of ``configs/costs/power.yaml``, and formulas.

The module's watts, as its own sensor reads them, in a mode:

    idle + overhead · (GPU + DLA + CPU + decoder + bytes · pJ)

An engine's watts are linear in its units and clock and quadratic in its voltage. The voltage falls with the clock from
that of the *chip's* fastest clock to a floor: one chip draws the same at the same clocks on every module.

A GPU draws its watts while kernels run, part of them only for multiplications. Between kernels it draws nothing: a
launch costs time, not energy. ``overhead`` is what memory controllers, the fabric and regulators draw with each of
these.
"""

from __future__ import annotations

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
"""Relative voltage: its floor, and its slope from the fastest clock to standstill without the floor.

They are from one AGX Orin's GPU and CPU rails under stress in four modes,
https://forums.developer.nvidia.com/t/maximum-power-consumption-bounds-for-orin-agx/323456. For other chips none are
published. A DLA is assumed to be like a GPU."""
_USUAL_MATH = 0.35
"""Share of the peak at which published networks multiply, where only the GPU's load is known."""

_IDLE_ERROR = 0.15
"""Relative deviation of readings of one idle board by different people from their mean.

It is that of an Orin Nano Super, whose readings differ most. Most boards have one reading."""


class Clocks(Part):
    """Fastest clocks of a chip on any module, MHz; at these its voltages are the highest."""

    gpu: Amount
    cpu: Amount
    dla: Amount | None = None


class PowerCost(Part):
    """Watts of a chip's parts at their fastest clock's voltage; None: nothing is published.

    Attributes:
        clocks: at which these voltages are reached.
        gpu_w: one SM at 1 GHz with all its units busy.
        stalled: share of that while a kernel runs that multiplies nothing.
        dla_w: one busy DLA core at 1 GHz.
        cpu_w: one busy core at 1 GHz.
        decoder_w: the video decoder, busy.
        dram_pj_per_byte: of traffic.
        overhead: watts of the module for each of these.
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
        efficiency: of the power supply and the carrier's regulators.
        carrier_w: board → watts of its developer kit's carrier at the plug with all else off, as in MLPerf's runs.
        peripherals_w: board → additional watts of the kit as sold.
        source: of these numbers.
    """

    efficiency: Share
    carrier_w: dict[str, Amount]
    peripherals_w: dict[str, Amount] = Field(default_factory=dict)
    source: str


class ChipPower(Part):
    """Published power figures of one chip.

    Attributes:
        cost: the numbers.
        wall: of developer kits; None: not known.
        accuracy: on networks that the fit had not seen; None: nothing published to compare with.
        assumed: dotted keys of numbers that were not fitted, and the reason for their values.
        sources: addresses of the rows.
    """

    cost: PowerCost
    wall: Wall | None = None
    accuracy: Accuracy | None = None
    assumed: dict[str, str] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()


_CHIPS = TypeAdapter(dict[str, ChipPower])


@cache
def power_cost(soc: str) -> ChipPower:
    """Return the published power figures of a chip. Raises ConfigError: there are none, or the file is damaged."""
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
        static_w: on and idle.
        gpu_w: more while a kernel runs.
        dla_w: more while one DLA core computes; 0 without one.
        dram_pj_per_byte: of traffic.
        math_w: more while the GPU multiplies at its peak.
        cpu_w: more for each busy core.
        decoder_w: more while the video decoder is busy; None: not known.
        unknown: parts of the board without published figures, counted as 0 above: ``idle``, ``GPU``, ``DLA``, ``CPU``.
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
        """Whether watts can be predicted at all: the idle board's and its GPU's are published."""
        return not {"idle", "GPU"} & set(self.unknown)

    @property
    def busy_gpu_w(self) -> float:
        """Additional watts while the GPU runs typical networks."""
        return self.gpu_w + _USUAL_MATH * self.math_w

    def unit_w(self, name: str) -> float:
        """Return the additional watts of a busy unit without energy per step: a core, or the video decoder."""
        return {"cpu": self.cpu_w, "nvdec": self.decoder_w or 0.0}.get(name, 0.0)

    def energy_mj(self, accelerator: str, time_ms: float, traffic_bytes: float, peak_ms: float = 0.0) -> float:
        """Return the energy that an accelerator draws beyond idle, in millijoules.

        Args:
            accelerator: ``gpu``, ``dla0`` or ``dla1``.
            time_ms: that it is busy; of a GPU, without launches.
            traffic_bytes: to and from DRAM.
            peak_ms: that a GPU would take for its multiply-adds, at its peak.
        """
        engine = self.gpu_w * time_ms + self.math_w * peak_ms if accelerator == GPU else self.dla_w * time_ms
        return engine + traffic_bytes * self.dram_pj_per_byte * 1e-9


def power(board: Board, mode: Mode, cost: PowerCost | None = None) -> Power:
    """Return the watts of the board in this mode.

    Args:
        board: the board.
        mode: its power mode.
        cost: None: that of the board's chip.

    Raises:
        ConfigError: nothing at all is known of the board's chip.
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
    """Return the watts at the plug of the board's developer kit, as sold, while the module draws so many.

    None: unknown.
    """
    wall = power_cost(board.soc).wall
    if wall is None or board.name not in wall.peripherals_w:
        return None
    return module_w / wall.efficiency + wall.carrier_w[board.name] + wall.peripherals_w[board.name]


def power_error(board: Board, mode: Mode, module_w: float | None) -> float | None:
    """Return the relative error of so many watts.

    It is that of modules under load, or that of idle ones where idle power dominates. It is None without a published
    figure to compare with.
    """
    accuracy = power_cost(board.soc).accuracy
    if accuracy is None or not module_w:
        return None
    return max(accuracy.p90, _IDLE_ERROR * (board.idle_w(mode) or 0.0) / module_w)


MODULE_WATTS = "watts are of the module, as its own sensor reads them, not of the developer kit at the plug"


def about_watts(boards: tuple[Board, ...]) -> list[str]:
    """Return notes on what is assumed of the watts of these boards, and of modes that nobody has published.

    For one board the notes are complete; for several they have what differs from board to board.
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
            found.append(f"watts of {board.name} are not known: no reading of it idle (idle: in its board file)")
    return found


def relative_energy(clock: float, slope: float = _GPU_SLOPE) -> float:
    """Return the energy of the same work at a share of the chip's fastest clock, relative to that at the fastest.

    It is the square of the voltage over the highest voltage.
    """
    return max(_FLOOR, 1 - slope * (1 - min(clock, 1.0))) ** 2


def _dynamic(
    watts: float | None, units: int | None, clock_mhz: float | None, fastest_mhz: float | None, slope: float
) -> float | None:
    """Return the watts of so many units at a clock; None where one of the numbers is unknown."""
    if watts is None or units is None or clock_mhz is None or fastest_mhz is None:
        return None
    return watts * units * clock_mhz / 1e3 * relative_energy(clock_mhz / fastest_mhz, slope)
