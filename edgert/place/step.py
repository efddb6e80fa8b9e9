"""An engine as steps, one after the other: what its execution context does with a frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from edgert.place.load import handed
from edgert.place.problem import Assignment, Crossing, Network
from edgert.place.segment import Segment, segments

S = TypeVar("S", bound="Step")

_NO_TIME_MS = 1e-9  # what is left of a time when all shares of it are taken away may not be exactly nothing


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

    A tensor is handed over once, to the first segment of an accelerator that reads it. Who hands it over is busy right
    after its segment, who reformats and who takes it right before theirs; the rest only takes time. The times add up to
    the latency of a run.
    """
    cuts = segments(network, assignment)
    place = {unit: index for index, segment in enumerate(cuts) for unit in segment.units}
    before: list[list[Step]] = [[] for _ in range(len(cuts) + 1)]
    after: list[list[Step]] = [[] for _ in cuts]
    for edge, start, end, crossing in handed(network, assignment):
        given, *taken = _moved(crossing, start, end)
        reader = min((place[unit] for unit in edge.consumers if assignment[unit] == end), default=len(cuts))
        before[reader] += taken
        (before[reader] if edge.producer is None else after[place[edge.producer]]).append(given)
    found: list[Step] = []
    for index, segment in enumerate(cuts):
        found += [*_in_turn(before[index], segment.accelerator), _run(network, segment), *after[index]]
    return _joined([*found, *_in_turn(before[-1], network.home)])


def _run(network: Network, segment: Segment) -> Step:
    costs = [network.units[unit].costs[segment.accelerator] for unit in segment.units]
    return Step(segment.accelerator, sum(cost.time_ms for cost in costs), sum(cost.traffic_bytes for cost in costs))


def _moved(crossing: Crossing, start: str, end: str) -> list[Step]:
    """Of who hands over, of the GPU, of who takes it, of nobody; the traffic is with who moves it."""
    shares = crossing.busy(start, end)
    traffic = (0.0, crossing.traffic_bytes, 0.0) if crossing.gpu_ms else (crossing.traffic_bytes, 0.0, 0.0)
    busy = [Step(name, busy_ms, moved) for (name, busy_ms), moved in zip(shares, traffic, strict=True)]
    return [*busy, Step(None, crossing.time_ms - sum(busy_ms for _, busy_ms in shares))]


def _in_turn(found: list[Step], last: str) -> list[Step]:
    """Grouped by accelerator, so that each is asked for once; ``last`` comes last."""
    return sorted(found, key=lambda step: (step.accelerator == last, step.accelerator is None, step.accelerator or ""))


def _joined(found: list[Step]) -> tuple[Step, ...]:
    """Neighbours on one accelerator are one step; steps of no time are none."""
    joined: list[Step] = []
    for step in found:
        if step.time_ms <= _NO_TIME_MS:
            continue
        if joined and joined[-1].accelerator == step.accelerator:
            before = joined.pop()
            traffic = before.traffic_bytes + step.traffic_bytes
            step = replace(step, time_ms=before.time_ms + step.time_ms, traffic_bytes=traffic)
        joined.append(step)
    return tuple(joined)
