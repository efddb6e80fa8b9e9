"""What handing a tensor between GPU and DLA costs: a reformat kernel on the GPU, and starting the other engine.

Reformats run on the GPU in both directions (https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ), so a crossing
takes GPU time even where the GPU computes nothing else.
"""

from __future__ import annotations

from edgert.place.cost.coefficients import CrossingCost
from edgert.place.problem import Crossing

_PASSES = 2  # read in one format, written in the other


def crossing(size_bytes: float, start: str, end: str, cost: CrossingCost, gpu_w: float, pj_per_byte: float) -> Crossing:
    """One tensor from accelerator ``start`` to ``end``; between two DLA cores it is reformatted once, too.

    Args:
        size_bytes: of the tensor, in the precision it is handed over in.
        gpu_w: of the busy GPU, beyond what the board draws idle.
        pj_per_byte: of DRAM traffic.
    """
    gpu_ms = size_bytes / cost.bytes_per_us / 1e3
    fixed_us = (cost.to_dla_us if end != "gpu" else 0.0) + (cost.from_dla_us if start != "gpu" else 0.0)
    traffic = _PASSES * size_bytes
    return Crossing(fixed_us / 1e3 + gpu_ms, gpu_ms, gpu_w * gpu_ms + traffic * pj_per_byte * 1e-9, traffic)
