"""What a placement has to keep to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgert.errors import PlacementError
from edgert.place.problem import Network


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit.

    Attributes:
        power_w: of the whole board.
        static_w: drawn whatever runs; counts against ``power_w`` and, for the energy of a frame, with its latency.
        traffic_bytes_s: what the memory gives.
        memory_bytes: of all engines together: weights, and the most that their tensors need at once.
        latency_ms: of one run of every network, alone on the board.
        loadables: accelerator → segments it can still take, over all engines.
    """

    power_w: float | None = None
    static_w: float = 0.0
    traffic_bytes_s: float | None = None
    memory_bytes: int | None = None
    latency_ms: float | None = None
    loadables: Mapping[str, int] = field(default_factory=dict)

    @property
    def dynamic_w(self) -> float | None:
        """What is left for running.

        Raises:
            PlacementError: nothing is.
        """
        if self.power_w is None:
            return None
        if self.power_w <= self.static_w:
            raise PlacementError(
                f"{self.power_w:g} W is too little for any placement",
                why=f"the board draws {self.static_w:g} W before anything runs",
                fix="raise the power budget, or choose a power mode that draws less",
            )
        return self.power_w - self.static_w


def engine_bytes(network: Network) -> int:
    """Memory of one engine: the weights, and the most that tensors need at once when units run in order."""
    size = [0] * (len(network.units) + 1)
    for edge in network.edges:
        start = 0 if edge.producer is None else edge.producer
        end = len(network.units) - 1 if edge.is_output else max(edge.consumers, default=start)
        size[start] += edge.size_bytes
        size[end + 1] -= edge.size_bytes
    live = peak = 0
    for change in size:
        live += change
        peak = max(peak, live)
    return peak + sum(unit.weight_bytes for unit in network.units)
