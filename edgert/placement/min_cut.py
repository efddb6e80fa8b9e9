"""Best placement of networks on two accelerators, as a minimum cut.

It is exact for any DAG and any costs that are not negative: Stone, "Multiprocessor scheduling with the aid of network
flow algorithms", IEEE TSE 1977, https://doi.org/10.1109/TSE.1977.233840. A tensor that several units read has a node of
its own, so that its transition is paid once.

SciPy's flows have 32-bit capacities. A plain placement runs every unit on one accelerator if that can run it. Each
network is scaled so that its cheaper plain placement costs 2**30 more than the sum of every unit's cheapest cost. The
possible loss by rounding is reported, and the costs of the result are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from edgert.placement.integer import sink_side
from edgert.placement.problem import GPU, Assignment, Edge, Network, Transition
from edgert.placement.run_load import Price, Use, stranded_error

# A network becomes arcs of a minimum cut between two accelerators.
#
# A node on the source's side runs on the first accelerator, a node on the sink's side on the second. The cost of an arc
# counts where it leads from the source's side to the sink's.

SOURCE, SINK = -1, -2
TIME, ENERGY, TRAFFIC, FIRST, SECOND, REFORMAT, HOME, ENTRIES = range(8)
"""Columns of an arc's load.

They are latency, energy and traffic, then busy time of the first and the second accelerator. Busy time of transitions
on the GPU and the home accelerator follows, where these are not one of the two. The last column counts tensors that
move to the second accelerator."""

_NUMBERS = 8
"""Count of numbers stored for an arc.

They are time, energy and traffic; busy time of the source accelerator, the GPU and the target accelerator; and the
columns of source and target. A unit's arc has one accelerator, so these two columns are the same."""

Arc = tuple[int, int]
F64 = npt.NDArray[np.float64]


class Arcs:
    """Arcs and nodes of one flow network; nodes are units, then tensors that several units read.

    Attributes:
        finite: arcs with a cost; ``loads()`` has a row for each.
        endless: arcs that cannot be cut.
        second_any, first_any: (tensor, unit) pairs; a tensor is on that side if any of its units is.
        second: whether each unit is on the second accelerator, for two plain placements: all on the first where
            possible, and all on the second where possible.

    Raises:
        PlacementError: a unit can run on neither accelerator.
    """

    def __init__(self, network: Network, first: str, second: str) -> None:
        self._network, self._pair = network, (first, second)
        self._columns = {network.home: HOME, GPU: REFORMAT, first: FIRST, second: SECOND}
        self.nodes = len(network.units)
        self.second = [
            [first not in one.costs for one in network.units],
            [second in one.costs for one in network.units],
        ]
        if any(not_first and not on_second for not_first, on_second in zip(*self.second, strict=True)):
            raise stranded_error(network, self._pair)
        self.finite: list[Arc] = []
        self.endless: list[Arc] = []
        self.second_any: list[Arc] = []
        self.first_any: list[Arc] = []
        self._numbers: list[float] = []  # of all finite arcs, flat, which NumPy reads fastest
        for index, unit in enumerate(network.units):
            for name, arc, column in ((first, (index, SINK), FIRST), (second, (SOURCE, index), SECOND)):
                if (cost := unit.costs.get(name)) is None:
                    self.endless.append(arc)
                else:
                    self.finite.append(arc)
                    run = cost.time_ms, cost.energy_mj, cost.traffic_bytes, cost.time_ms, 0.0, 0.0, column, column
                    self._numbers += run
        for edge in network.edges:
            self._add_edge(edge)

    def loads(self) -> F64:
        """Return the loads of the finite arcs, (arcs, columns)."""
        numbers = np.array(self._numbers).reshape(-1, _NUMBERS)
        start, end = numbers[:, _NUMBERS - 2 :].T.astype(np.intp)
        rows, loads = np.arange(len(numbers)), np.zeros((len(numbers), ENTRIES + 1))
        loads[:, : TRAFFIC + 1] = numbers[:, : TRAFFIC + 1]
        for share, column in enumerate((start, self._columns[GPU], end), TRAFFIC + 1):
            loads[rows, column] += numbers[:, share]
        loads[:, ENTRIES] = (end == SECOND) & (start != end)
        return loads

    def _add_transition(self, arc: Arc, one: Transition, start: str, end: str) -> None:
        self.finite.append(arc)
        columns = self._columns[start], self._columns[end]
        self._numbers += (one.time_ms, one.energy_mj, one.traffic_bytes, one.from_ms, one.gpu_ms, one.to_ms, *columns)

    def _add_edge(self, edge: Edge) -> None:
        """Add the arcs of a tensor, from its producer or home to its readers; an output also returns home."""
        (first, second), home, transitions = self._pair, self._network.home, edge.transitions
        readers, producer = edge.consumers, edge.producer
        returns = home if edge.is_output and producer is not None else None
        start, source = (home, SOURCE) if producer is None else (first, producer)
        if start != second and (transition := transitions.get((start, second))):
            self._add_arrival(readers, source, transition, start, True, returns == second)
        start, source = (home, SINK) if producer is None else (second, producer)
        if start != first and (transition := transitions.get((start, first))):
            self._add_arrival(readers, source, transition, start, False, returns == first)
        if returns is not None and returns not in self._pair:
            if transition := transitions.get((first, home)):
                self._add_transition((source, SINK), transition, first, home)
            if transition := transitions.get((second, home)):
                self._add_transition((SOURCE, source), transition, second, home)

    def _add_arrival(
        self, readers: Sequence[int], source: int, one: Transition, start: str, to_second: bool, is_sure: bool
    ) -> None:
        """Add an arc whose cost counts when the source is on one side and a reader on the other.

        ``is_sure`` says that the home accelerator, on that other side, reads the tensor in any case.
        """
        if len(readers) == 1 and not is_sure:
            end = readers[0]
        elif is_sure:
            end = SINK if to_second else SOURCE
        elif readers:  # the transition is paid once for all readers
            end = self.nodes
            self.nodes += 1
            members = [(end, unit) for unit in readers]
            (self.second_any if to_second else self.first_any).extend(members)
            self.endless += members if to_second else [(unit, end) for unit in readers]
        else:
            return
        self._add_transition((source, end) if to_second else (end, source), one, start, self._pair[to_second])


I64 = npt.NDArray[np.int64]
Side = npt.NDArray[np.bool_]
"""Whether each node is on the second accelerator's side."""

_SCALE, _ENDLESS = 2**30, 2**31 - 1


@dataclass(frozen=True, slots=True)
class CheapestPlacement:
    """Cheapest placement of one network.

    Attributes:
        assignment: accelerator of every unit.
        cost: priced load, with the additional costs of transitions.
        bound: lower bound on the cost; for a cut, the cost minus the possible loss by rounding.
    """

    assignment: Assignment
    use: Use
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Upper bound on how much cheaper the best may be, as a share of the cost."""
        return max(0.0, self.cost - self.bound) / max(self.cost, 1e-12)


def cut(network: Network, first: str, second: str, price: Price) -> CheapestPlacement:
    """Return the cheapest assignment of the units to two accelerators.

    Raises:
        PlacementError: a unit can run on neither accelerator.
    """
    return Cutter((network,), first, second).solve(price)[0]


class Cutter:
    """Networks prepared for cuts between two accelerators at many prices, all in one flow problem.

    Raises:
        PlacementError: a unit can run on neither accelerator.
    """

    def __init__(self, networks: Sequence[Network], first: str, second: str) -> None:
        self._pair, self._units = (first, second), [len(network.units) for network in networks]
        self._homes = [network.home for network in networks]
        blocks = [Arcs(network, first, second) for network in networks]
        self._starts: I64 = np.cumsum([0, *(block.nodes for block in blocks)])
        self._source, self._sink = int(self._starts[-1]), int(self._starts[-1]) + 1
        self._arcs = self._renumber([block.finite for block in blocks])
        self._endless = self._renumber([block.endless for block in blocks])
        self._second_any = self._renumber([block.second_any for block in blocks])
        self._first_any = self._renumber([block.first_any for block in blocks])
        self._loads: F64 = np.concatenate([block.loads() for block in blocks])
        counts = [len(block.finite) for block in blocks]
        self._block, self._first_arc = np.repeat(np.arange(len(blocks)), counts), np.cumsum([0, *counts[:-1]])
        self._build_matrix()
        self._plain = []  # arcs paid when all units run on the first or the second where they can
        for index in (0, 1):
            side = np.zeros(self._sink + 1, bool)
            for start, block in zip(self._starts, blocks, strict=False):
                side[start : start + len(block.second[index])] = block.second[index]
            self._plain.append(self._cut_arcs(self._place_tensors(side)))

    def solve(self, price: Price, *, entry: F64 | float = 0.0) -> list[CheapestPlacement]:
        """Return the cheapest placement of each network.

        Args:
            price: price of the load of a run.
            entry: additional cost of every tensor that moves to the second accelerator: one number, or (networks,).
        """
        busy = [price.busy.get(name, 0.0) for name in (*self._pair, GPU)]
        worth = self._loads @ np.array([price.latency, price.energy, price.traffic, *busy, 0.0, 0.0])
        home = np.array([price.busy.get(name, 0.0) for name in self._homes])
        for column, added in ((ENTRIES, entry), (HOME, home)):
            worth += self._loads[:, column] * np.broadcast_to(added, len(self._units))[self._block]
        capacity: F64 = np.bincount(self._slots, worth, len(self._head)).astype(np.float64)
        # The cost that a unit has on either side changes no decision, so it is left out of the flow.
        both = np.minimum(capacity[self._in], capacity[self._out])
        capacity[self._in] -= both
        capacity[self._out] -= both
        common = np.bincount(self._unit_block, both, len(self._units)).astype(np.float64)
        plain = np.minimum(*(self._sum_by_network(worth[:, None] * paid)[:, 0] for paid in self._plain))
        scale = _SCALE / np.maximum(plain - common, 1e-200)
        whole = np.rint(np.minimum(capacity * scale[self._cell_block], 1.5 * _SCALE))
        whole[self._endless_slots] = _ENDLESS
        whole = np.minimum(whole, _ENDLESS).astype(np.int32)
        side = self._place_tensors(sink_side(whole, self._head, self._rows.astype(np.int32), self._source, self._sink))
        paid = self._cut_arcs(side)
        loads, costs = self._sum_by_network(self._loads * paid), self._sum_by_network(worth[:, None] * paid)[:, 0]
        slack = np.bincount(self._block, minlength=len(scale)) / scale
        found = []
        rows = zip(self._starts, self._units, self._homes, loads.tolist(), costs.tolist(), slack.tolist(), strict=False)
        for start, units, name, load, cost, lost in rows:
            used_ms = dict(zip(self._pair, (load[FIRST], load[SECOND]), strict=True))
            used_ms |= {one: load[column] for one, column in ((name, HOME), (GPU, REFORMAT)) if load[column]}
            assignment = tuple(self._pair[at] for at in side[start : start + units].tolist())
            found.append(
                CheapestPlacement(assignment, Use(load[TIME], used_ms, load[ENERGY], load[TRAFFIC]), cost, cost - lost)
            )
        return found

    def _renumber(self, blocks: Sequence[Sequence[Arc]]) -> I64:
        """Return pairs of nodes, (n, 2), numbered across all blocks with one source and one sink."""
        counts = [len(pairs) for pairs in blocks]
        flat = chain.from_iterable(chain.from_iterable(blocks))
        own = np.fromiter(flat, np.int64, 2 * sum(counts)).reshape(-1, 2)
        shifted = own + np.repeat(self._starts[:-1], counts)[:, None]
        return np.where(own >= 0, shifted, np.where(own == SOURCE, self._source, self._sink))

    def _build_matrix(self) -> None:
        """Build the structure of the sparse matrix: every arc and its reverse once, sorted."""
        nodes = self._sink + 1
        pairs = np.concatenate((self._arcs, self._endless))
        cells, slots = np.unique(np.concatenate((pairs, pairs[:, ::-1])) @ (nodes, 1), return_inverse=True)
        self._slots, self._endless_slots = np.split(slots[: len(pairs)], [len(self._arcs)])
        self._head, self._rows = (cells % nodes).astype(np.int32), np.searchsorted(cells, np.arange(nodes + 1) * nodes)
        self._unit_block = np.repeat(np.arange(len(self._units)), self._units)
        within = np.arange(sum(self._units)) - np.repeat(np.cumsum([0, *self._units[:-1]]), self._units)
        units = self._starts[self._unit_block] + within
        inner = np.minimum(self._head, cells // nodes)  # one end is in a block: source and sink come last
        self._cell_block = np.searchsorted(self._starts, inner, side="right") - 1
        self._in = np.searchsorted(cells, self._source * nodes + units)
        self._out = np.searchsorted(cells, units * nodes + self._sink)

    def _place_tensors(self, side: Side) -> Side:
        """Return the sides of all nodes, with those of tensors derived from the units that read them."""
        side = side.copy()
        side[self._source], side[self._sink] = False, True
        side[self._second_any[:, 0]], side[self._first_any[:, 0]] = False, True
        np.logical_or.at(side, self._second_any[:, 0], side[self._second_any[:, 1]])
        np.logical_and.at(side, self._first_any[:, 0], side[self._first_any[:, 1]])
        return side

    def _cut_arcs(self, side: Side) -> npt.NDArray[np.bool_]:
        """Return whether each arc is cut, (arcs, 1)."""
        is_cut: npt.NDArray[np.bool_] = (~side[self._arcs[:, 0]] & side[self._arcs[:, 1]])[:, None]
        return is_cut

    def _sum_by_network(self, rows: F64) -> F64:
        """Return the sums of the arcs' rows for each network."""
        summed: F64 = np.add.reduceat(rows, self._first_arc, axis=0)
        return summed
