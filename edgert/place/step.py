"""An engine as steps, one after the other: what its execution context does with a frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from edgert.place.load import GPU, handed
from edgert.place.problem import Assignment, Crossing, Network
from edgert.place.segment import segments

S = TypeVar("S", bound="Step")


@dataclass(frozen=True, slots=True)
class Step:
    """Something that holds an accelerator, or only time.

    Attributes:
        accelerator: that runs it and nothing else meanwhile; None: it only takes time.
        time_ms: alone on the board.
        traffic_bytes: to and from DRAM.
    """

    accelerator: str | None
    time_ms: float
    traffic_bytes: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Alone on the board, on average."""
        return self.time_ms

    def times(self: S, factor: float) -> S:
        """So many of it, one after the other."""
        return replace(self, time_ms=self.time_ms * factor, traffic_bytes=self.traffic_bytes * factor)


def steps(network: Network, assignment: Assignment) -> tuple[Step, ...]:
    """The segments in order, each behind the tensors it is handed; outputs are handed home at the end.

    A tensor is handed over once, to the first segment of an accelerator that reads it. The GPU's share of handing over
    is a step of the GPU, the rest only takes time. The times add up to the latency of a run.
    """
    cuts = segments(network, assignment)
    place = {unit: index for index, segment in enumerate(cuts) for unit in segment.units}
    arriving: list[list[Crossing]] = [[] for _ in range(len(cuts) + 1)]
    for edge, target, crossing in handed(network, assignment):
        readers = [place[unit] for unit in edge.consumers if assignment[unit] == target]
        arriving[min(readers, default=len(cuts))].append(crossing)
    found: list[Step] = []
    for crossings, segment in zip(arriving, (*cuts, None), strict=True):
        found += [] if not crossings else _moved(crossings)
        if segment:
            costs = [network.units[unit].costs[segment.accelerator] for unit in segment.units]
            time_ms, traffic = sum(cost.time_ms for cost in costs), sum(cost.traffic_bytes for cost in costs)
            found.append(Step(segment.accelerator, time_ms, traffic))
    return _joined(found)


def _moved(crossings: list[Crossing]) -> list[Step]:
    gpu_ms = sum(crossing.gpu_ms for crossing in crossings)
    rest_ms = sum(crossing.time_ms for crossing in crossings) - gpu_ms
    traffic = sum(crossing.traffic_bytes for crossing in crossings)
    return [Step(GPU, gpu_ms, traffic if gpu_ms else 0.0), Step(None, rest_ms, 0.0)]


def _joined(found: list[Step]) -> tuple[Step, ...]:
    """Neighbours on one accelerator are one step; steps of no time are none."""
    joined: list[Step] = []
    for step in found:
        if step.time_ms <= 0:
            continue
        if joined and joined[-1].accelerator == step.accelerator:
            before = joined.pop()
            traffic = before.traffic_bytes + step.traffic_bytes
            step = replace(step, time_ms=before.time_ms + step.time_ms, traffic_bytes=traffic)
        joined.append(step)
    return tuple(joined)
