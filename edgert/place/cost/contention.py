"""How much bandwidth is left for one accelerator while others use the memory: what is left over, but never less than a
floor.

The form and its fit to the matrix that PCCS measured on an AGX Xavier, https://doi.org/10.1145/3466752.3480101 and
https://github.com/processorcentricmodel/PCCS/blob/51ffb72/model_construction/input.txt; for other boards the same
shares of their bandwidth are assumed.
"""

from __future__ import annotations

from edgert.place.cost.coefficients import ContentionCost


def achieved_gb_s(own_gb_s: float, others_gb_s: float, ceiling_gb_s: float, floor_gb_s: float) -> float:
    """Bandwidth that an accelerator gets which alone would use ``own_gb_s``, while others ask for ``others_gb_s``."""
    return min(own_gb_s, max(ceiling_gb_s - others_gb_s, floor_gb_s))


def slowdown(own_gb_s: float, others_gb_s: float, bandwidth_gb_s: float, cost: ContentionCost) -> float:
    """How many times longer work bound by memory takes, at least 1; ``bandwidth_gb_s`` is the DRAM's own."""
    got = achieved_gb_s(own_gb_s, others_gb_s, cost.ceiling * bandwidth_gb_s, cost.floor * bandwidth_gb_s)
    return own_gb_s / got if got else 1.0
