"""What handing a tensor between GPU and DLA costs: a reformat kernel on the GPU, and starting the other engine.

Reformats run on the GPU in both directions (https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ), so a crossing
takes GPU time even where the GPU computes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgert.place.cost.coefficients import CrossingCost, GpuCost
from edgert.place.cost.power import Power
from edgert.place.cost.speed import Speed
from edgert.place.problem import Crossing

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
    gpu_ms = reformat.time_ms(size_bytes)
    fixed_us = (cost.to_dla_us + run_us if end != "gpu" else 0.0) + (cost.from_dla_us if start != "gpu" else 0.0)
    traffic = float(_PASSES * size_bytes)
    return Crossing(fixed_us / 1e3 + gpu_ms, gpu_ms, watts.energy_mj("gpu", gpu_ms, traffic), traffic)
