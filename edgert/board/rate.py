"""How fast a board is on paper: what its clocks, units and bus allow at most. No workload reaches these numbers.

None stands for what cannot be known: a clock or a rate that nobody has published, or a unit that is not there.
"""

from __future__ import annotations

from edgert.board.mode import Mode
from edgert.board.section import Dla, Gpu, Memory, Precision

_TRANSFERS = 2
"""Of a double data rate memory in each clock of its controller (JEDEC JESD209)."""


def bandwidth_gb_s(memory: Memory, mode: Mode) -> float | None:
    """DRAM bandwidth in 10⁹ bytes a second: clock × 2 transfers × width of the bus."""
    if mode.emc_mhz is None:
        return None
    return mode.emc_mhz * _TRANSFERS * memory.bus_bits / 8 / 1000


def gpu_tops(gpu: Gpu, mode: Mode, precision: Precision) -> float | None:
    """Dense 10¹² operations a second of the SMs that are on; None also for a precision the GPU has no fast path for."""
    rate = getattr(gpu.ops_per_clock, precision)
    if rate is None or mode.sms is None or mode.gpu_mhz is None:
        return None
    return float(rate * mode.sms * mode.gpu_mhz / 1e6)


def dla_tops(dla: Dla, mode: Mode, precision: Precision, core: int = 0) -> float | None:
    """Dense 10¹² operations a second of one DLA core; None for FP32, which no DLA knows, and without that core."""
    rate = getattr(dla.ops_per_clock, precision, None)
    clock_mhz = mode.dla_clock_mhz(core)
    return None if rate is None or clock_mhz is None else float(rate * clock_mhz / 1e6)
