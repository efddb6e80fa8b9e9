"""A network as arcs for a minimum cut between two accelerators.

A node on the source's side is on the first accelerator, one on the sink's side on the second. An arc that leads from
the source's side to the sink's is paid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgert.place.load import preferring, stranded
from edgert.place.problem import Cost, Crossing, Edge, Network

SOURCE, SINK = -1, -2
TIME, ENERGY, TRAFFIC, FIRST, SECOND, REFORMAT, ENTRIES = range(7)
"""Columns of an arc's load: as in Load; busy time of the first and the second; the GPU's share of handing over; tensors
that the second is handed."""

Arc = tuple[int, int]
F64 = npt.NDArray[np.float64]

_ON_FIRST, _ON_SECOND, _INTO_FIRST, _INTO_SECOND = range(4)


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
        if preferring(network, self._pair) is None:
            raise stranded(network, self._pair)
        self.nodes = len(network.units)
        self.finite: list[Arc] = []
        self.endless: list[Arc] = []
        self.second_any: list[Arc] = []
        self.first_any: list[Arc] = []
        self._numbers: list[float] = []  # of each finite arc four, flat: NumPy reads that fastest
        self._kinds: list[int] = []
        for index, unit in enumerate(network.units):
            self._run((index, SINK), unit.costs.get(first), _ON_FIRST)
            self._run((SOURCE, index), unit.costs.get(second), _ON_SECOND)
        for edge in network.edges:
            self._hand(edge)

    def loads(self) -> F64:
        """(finite arcs, columns)."""
        numbers = np.array(self._numbers).reshape(-1, 4)
        kinds = np.array(self._kinds, np.int8)
        loads = np.zeros((len(kinds), ENTRIES + 1))
        loads[:, : TRAFFIC + 1], loads[:, REFORMAT] = numbers[:, :3], numbers[:, 3]
        loads[:, FIRST] = numbers[:, 0] * (kinds == _ON_FIRST)
        loads[:, SECOND] = numbers[:, 0] * (kinds == _ON_SECOND)
        loads[:, ENTRIES] = kinds == _INTO_SECOND
        return loads

    def preferring(self, index: int) -> list[bool]:
        """Whether each unit is on the second accelerator when all run on the first (0) or second (1) where they can."""
        wish, second_wish = self._pair[index], index == 1
        return [(wish in unit.costs) == second_wish for unit in self._network.units]

    def _run(self, arc: Arc, cost: Cost | None, kind: int) -> None:
        if cost is None:
            self.endless.append(arc)
        else:
            self.finite.append(arc)
            self._kinds.append(kind)
            self._numbers += (cost.time_ms, cost.energy_mj, cost.traffic_bytes, 0.0)

    def _cross(self, arc: Arc, crossing: Crossing, kind: int) -> None:
        self.finite.append(arc)
        self._kinds.append(kind)
        self._numbers += (crossing.time_ms, crossing.energy_mj, crossing.traffic_bytes, crossing.gpu_ms)

    def _hand(self, edge: Edge) -> None:
        """A tensor: from its producer or home to its readers and, an output, home."""
        (first, second), home, crossings = self._pair, self._network.home, edge.crossings
        source, sink = (SOURCE, SINK) if edge.producer is None else (edge.producer, edge.producer)
        origins = (first, second) if edge.producer is not None else (home, home)
        returns = home if edge.is_output and edge.producer is not None else None
        if origins[0] != second and (crossing := crossings.get((origins[0], second))):
            self._to_second(edge.consumers, source, crossing, is_sure=returns == second)
        if origins[1] != first and (crossing := crossings.get((origins[1], first))):
            self._to_first(edge.consumers, sink, crossing, is_sure=returns == first)
        if returns is not None and returns not in self._pair:
            if crossing := crossings.get((first, home)):
                self._cross((source, SINK), crossing, _INTO_FIRST)
            if crossing := crossings.get((second, home)):
                self._cross((SOURCE, source), crossing, _INTO_FIRST)

    def _to_second(self, consumers: Sequence[int], source: int, crossing: Crossing, *, is_sure: bool) -> None:
        """Paid when the source is on the first's side and a reader on the second's; ``is_sure``: the home is there."""
        if is_sure:
            self._cross((source, SINK), crossing, _INTO_SECOND)
        elif len(consumers) == 1:
            self._cross((source, consumers[0]), crossing, _INTO_SECOND)
        elif consumers:
            self._cross((source, self.nodes), crossing, _INTO_SECOND)
            members = [(self.nodes, unit) for unit in consumers]
            self.second_any += members
            self.endless += members
            self.nodes += 1

    def _to_first(self, consumers: Sequence[int], sink: int, crossing: Crossing, *, is_sure: bool) -> None:
        """Paid when the source, here ``sink``, is on the second's side and a reader on the first's."""
        if is_sure:
            self._cross((SOURCE, sink), crossing, _INTO_FIRST)
        elif len(consumers) == 1:
            self._cross((consumers[0], sink), crossing, _INTO_FIRST)
        elif consumers:
            self._cross((self.nodes, sink), crossing, _INTO_FIRST)
            self.first_any += [(self.nodes, unit) for unit in consumers]
            self.endless += [(unit, self.nodes) for unit in consumers]
            self.nodes += 1
