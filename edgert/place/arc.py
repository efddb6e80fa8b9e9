"""A network as arcs for a minimum cut between two accelerators.

A node on the source's side is on the first accelerator, one on the sink's side on the second. An arc that leads from
the source's side to the sink's is paid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgert.place.load import preferring, stranded
from edgert.place.problem import GPU, Cost, Crossing, Edge, Network

SOURCE, SINK = -1, -2
TIME, ENERGY, TRAFFIC, FIRST, SECOND, REFORMAT, HOME, ENTRIES = range(8)
"""Columns of an arc's load: as in Load; busy time of the first and the second; the shares of handing over of the GPU
and of the home where they are neither of the two; tensors that the second is handed."""

_NUMBERS = 8
"""Of an arc: time, energy, traffic; busy time of who hands over, the GPU and who takes it; columns of the first and the
last of these. A unit's arc has all busy time in one place, and the same column twice."""

Arc = tuple[int, int]
F64 = npt.NDArray[np.float64]


class Arcs:
    """One network's nodes (its units, then tensors that several units read) and arcs.

    Attributes:
        nodes: how many.
        finite: arcs that can be paid; ``loads()`` has what for.
        endless: arcs that cannot be cut.
        second_any: (node, unit): the node is on the second's side as soon as one of its units is.
        first_any: the same of the first's side.

    Raises:
        PlacementError: a unit can run on neither accelerator; names them.
    """

    def __init__(self, network: Network, first: str, second: str) -> None:
        self._network, self._pair = network, (first, second)
        self._columns = {network.home: HOME, GPU: REFORMAT, first: FIRST, second: SECOND}
        if preferring(network, self._pair) is None:
            raise stranded(network, self._pair)
        self.nodes = len(network.units)
        self.finite: list[Arc] = []
        self.endless: list[Arc] = []
        self.second_any: list[Arc] = []
        self.first_any: list[Arc] = []
        self._numbers: list[float] = []  # of all finite arcs, flat: NumPy reads that fastest
        for index, unit in enumerate(network.units):
            self._run((index, SINK), unit.costs.get(first), FIRST)
            self._run((SOURCE, index), unit.costs.get(second), SECOND)
        for edge in network.edges:
            self._hand(edge)

    def loads(self) -> F64:
        """(finite arcs, columns)."""
        numbers = np.array(self._numbers).reshape(-1, _NUMBERS)
        start, end = numbers[:, _NUMBERS - 2 :].T.astype(np.intp)
        rows, loads = np.arange(len(numbers)), np.zeros((len(numbers), ENTRIES + 1))
        loads[:, : TRAFFIC + 1] = numbers[:, : TRAFFIC + 1]
        for share, column in enumerate((start, self._columns[GPU], end), TRAFFIC + 1):
            loads[rows, column] += numbers[:, share]
        loads[:, ENTRIES] = (end == SECOND) & (start != end)
        return loads

    def preferring(self, index: int) -> list[bool]:
        """Whether each unit is on the second accelerator when all run on the first (0) or second (1) where they can."""
        wish, second_wish = self._pair[index], index == 1
        return [(wish in unit.costs) == second_wish for unit in self._network.units]

    def _run(self, arc: Arc, cost: Cost | None, column: int) -> None:
        if cost is None:
            self.endless.append(arc)
        else:
            self.finite.append(arc)
            self._numbers += (cost.time_ms, cost.energy_mj, cost.traffic_bytes, cost.time_ms, 0.0, 0.0, column, column)

    def _cross(self, arc: Arc, one: Crossing, start: str, end: str) -> None:
        self.finite.append(arc)
        shares = (one.from_ms, one.gpu_ms, one.to_ms, self._columns[start], self._columns[end])
        self._numbers += (one.time_ms, one.energy_mj, one.traffic_bytes, *shares)

    def _hand(self, edge: Edge) -> None:
        """A tensor: from its producer or home to its readers and, an output, home."""
        (first, second), home, crossings = self._pair, self._network.home, edge.crossings
        source, sink = (SOURCE, SINK) if edge.producer is None else (edge.producer, edge.producer)
        origins = (first, second) if edge.producer is not None else (home, home)
        returns = home if edge.is_output and edge.producer is not None else None
        if origins[0] != second and (crossing := crossings.get((origins[0], second))):
            self._to_second(edge.consumers, source, crossing, origins[0], is_sure=returns == second)
        if origins[1] != first and (crossing := crossings.get((origins[1], first))):
            self._to_first(edge.consumers, sink, crossing, origins[1], is_sure=returns == first)
        if returns is not None and returns not in self._pair:
            if crossing := crossings.get((first, home)):
                self._cross((source, SINK), crossing, first, home)
            if crossing := crossings.get((second, home)):
                self._cross((SOURCE, source), crossing, second, home)

    def _to_second(
        self, consumers: Sequence[int], source: int, crossing: Crossing, start: str, *, is_sure: bool
    ) -> None:
        """Paid when the source is on the first's side and a reader on the second's; ``is_sure``: the home is there."""
        second = self._pair[1]
        if is_sure:
            self._cross((source, SINK), crossing, start, second)
        elif len(consumers) == 1:
            self._cross((source, consumers[0]), crossing, start, second)
        elif consumers:
            self._cross((source, self.nodes), crossing, start, second)
            members = [(self.nodes, unit) for unit in consumers]
            self.second_any += members
            self.endless += members
            self.nodes += 1

    def _to_first(self, consumers: Sequence[int], sink: int, crossing: Crossing, start: str, *, is_sure: bool) -> None:
        """Paid when the source, here ``sink``, is on the second's side and a reader on the first's."""
        first = self._pair[0]
        if is_sure:
            self._cross((SOURCE, sink), crossing, start, first)
        elif len(consumers) == 1:
            self._cross((consumers[0], sink), crossing, start, first)
        elif consumers:
            self._cross((self.nodes, sink), crossing, start, first)
            self.first_any += [(self.nodes, unit) for unit in consumers]
            self.endless += [(unit, self.nodes) for unit in consumers]
            self.nodes += 1
