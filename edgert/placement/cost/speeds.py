"""Peak speeds of a board's accelerators in a power mode, of which formulas take their shares, and what they draw."""

from dataclasses import dataclass

from edgert.board.record import Board
from edgert.board.sections import Mode, Precision
from edgert.errors import ConfigError
from edgert.placement.cost.coefficients import PowerCost
from edgert.placement.cost.work import Scalars

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
PRECISION_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "int8": 1}
_TF32 = 8.0
"""Compute capability from which TensorRT multiplies FP32 on tensor cores by default (TF32), at half the rate of FP16:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/accuracy-considerations.html"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Peaks of one accelerator. Every field is one number, or an array with one for each unit.

    Attributes:
        macs_per_s: multiply-adds a second where operands come in matrices.
        plain_macs_per_s: multiply-adds a second of CUDA cores; of the DLA, nothing that it has.
        clock_hz: its clock.
        bytes_per_s: of the DRAM, which all share.
        memory_share: DRAM clock over the board's fastest one.
        value_bytes: of one activation or weight.
        precision: index into ``PRECISIONS``.
    """

    macs_per_s: Scalars
    plain_macs_per_s: Scalars
    clock_hz: Scalars
    bytes_per_s: Scalars
    memory_share: Scalars
    value_bytes: Scalars
    precision: Scalars


def gpu_speed(board: Board, mode: Mode, precision: Precision) -> Speed:
    """Peaks of the GPU; where it has no fast path for INT8 it runs FP16, as TensorRT does.

    Raises:
        ConfigError: a clock or a rate of the mode is unknown.
    """
    if precision == "int8" and board.gpu.ops_per_clock.int8 is None:
        precision = "fp16"
    tops = board.gpu_tops(mode, precision)
    if precision == "fp32" and float(board.gpu.compute) >= _TF32 and tops is not None:
        tops = max(tops, (board.gpu_tops(mode, "fp16") or 0.0) / 2)
    plain = board.gpu_tops(mode, "fp32")
    if tops is None or plain is None or mode.gpu_mhz is None:
        raise _unknown(board, mode)
    pairs = 1 if precision == "fp32" else 2  # halves are multiplied in pairs
    return _speed(board, mode, precision, tops, pairs * plain, mode.gpu_mhz)


def dla_speed(board: Board, mode: Mode, precision: Precision, core: int, fp16_share: float) -> Speed | None:
    """Peaks of one DLA core; None where the mode has no such core or the DLA no such precision.

    Args:
        fp16_share: of the INT8 rate, for boards whose FP16 rate is not published.

    Raises:
        ConfigError: the memory's clock is unknown.
    """
    clock_mhz = mode.dla_clock_mhz(core)
    if clock_mhz is None or precision == "fp32":
        return None
    tops = board.dla_tops(mode, precision, core) or fp16_share * (board.dla_tops(mode, "int8", core) or 0.0)
    return _speed(board, mode, precision, tops, 0.0, clock_mhz) if tops else None


def _speed(board: Board, mode: Mode, precision: Precision, tops: float, plain_tops: float, clock_mhz: float) -> Speed:
    bandwidth = board.bandwidth_gb_s(mode)
    if bandwidth is None or mode.emc_mhz is None:
        raise _unknown(board, mode)
    return Speed(
        macs_per_s=tops * 1e12 / 2,
        plain_macs_per_s=plain_tops * 1e12 / 2,
        clock_hz=clock_mhz * 1e6,
        bytes_per_s=bandwidth * 1e9,
        memory_share=mode.emc_mhz / board.memory.emc_max_mhz,
        value_bytes=PRECISION_BYTES[precision],
        precision=PRECISIONS.index(precision),
    )


def _unknown(board: Board, mode: Mode) -> ConfigError:
    known = [other.name for other in board.modes if not other.unknown]
    return ConfigError(
        f"the speed of {board.name} in mode {mode.name!r} cannot be predicted",
        why=f"nobody has published its {', '.join(mode.unknown) or 'rate per clock'}",
        fix=f"modes with known clocks: {', '.join(known) or 'none'}; or write them into a board file of your own",
    )


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
