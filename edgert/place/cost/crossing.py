"""What handing a tensor between GPU and DLA costs: a reformat kernel on the GPU, and starting the other engine.

Reformats run on the GPU in both directions (https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ), so a crossing
takes GPU time even where the GPU computes nothing else. The fixed parts belong to whom they were measured on: they are
what a run on the GPU alone, or on the DLA alone, took longer when it also had to give a tensor away. A loadable's start
keeps the DLA busy as it does in the published rates of one whole loadable after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgert.place.cost.coefficients import CrossingCost, GpuCost
from edgert.place.cost.power import Power
from edgert.place.cost.speed import Speed
from edgert.place.problem import GPU, Crossing

_PASSES = 2  # read in one format, written in the other


@dataclass(frozen=True, slots=True)
class Reformat:
    """A kernel that copies from one format to another: milliseconds of its launch, and DRAM bytes a millisecond."""

    launch_ms: float
    bytes_per_ms: float

    @classmethod
    def on(cls, speed: Speed, cost: GpuCost) -> Reformat:
        """That of one GPU in one mode."""
        launch_ms = cost.launch_us * 1e-3 + cost.launch_kcycles * 1e6 / float(speed.clock_hz)
        return cls(launch_ms, float(speed.bytes_per_s) * cost.bandwidth / 1e3)

    def time_ms(self, size_bytes: float) -> float:
        """To copy so much."""
        return self.launch_ms + _PASSES * size_bytes / self.bytes_per_ms


def crossing(
    size_bytes: float, start: str, end: str, cost: CrossingCost, reformat: Reformat, watts: Power, run_us: float = 0.0
) -> Crossing:
    """One tensor from accelerator ``start`` to ``end``; between two DLA cores it is reformatted once, too.

    Args:
        size_bytes: of the tensor, in the precision it is handed over in.
        run_us: that starting a loadable takes; counted where ``end`` is a DLA.
    """
    is_into, is_out_of = end != GPU, start != GPU
    gpu_ms = reformat.time_ms(size_bytes) + is_into * cost.to_dla_us / 1e3
    from_ms, to_ms = is_out_of * cost.from_dla_us / 1e3, is_into * run_us / 1e3
    traffic = float(_PASSES * size_bytes)
    energy_mj = watts.energy_mj(GPU, gpu_ms, traffic) + watts.dla_w * (from_ms + to_ms)
    return Crossing(gpu_ms + from_ms + to_ms, gpu_ms, energy_mj, traffic, from_ms, to_ms)
