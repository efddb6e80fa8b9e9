"""Best placement of a network on two accelerators, as a minimum cut.

It is exact for any DAG and any costs that are not negative: Stone, "Multiprocessor scheduling with the aid of network
flow algorithms", IEEE TSE 1977, https://doi.org/10.1109/TSE.1977.233840. A node on the source's side runs on the first
accelerator, a node on the sink's side on the second. The cost of an arc counts where it leads from the source's side to
the sink's. A tensor that several units read has a node of its own, so that its transition is paid once.

SciPy's flows have 32-bit capacities. A plain placement runs every unit on one accelerator if that can run it. Costs are
scaled so that the cheaper plain placement costs 2**30 more than the sum of every unit's cheapest cost. The possible
loss by rounding is reported, and the costs of the result are exact.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.placement.integer import import_scipy
from edgert.placement.problem import GPU, Assignment, Cost, Edge, Network, Transition
from edgert.placement.run_load import Price, Use, preferred_assignment, run_use, stranded_error, transitions_of

F64 = npt.NDArray[np.float64]
Arc = tuple[int, int]
_SCALE = 2**30
_LARGEST = 1.001 * _SCALE  # capacity of arcs that no minimum cut contains, as the plain placement costs less


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
    return Cutter(network, first, second).solve(price)


class Cutter:
    """Network prepared for cuts between two accelerators at many prices.

    Raises:
        PlacementError: a unit can run on neither accelerator.
    """

    def __init__(self, network: Network, first: str, second: str) -> None:
        self._network, self._pair = network, (first, second)
        plain = [preferred_assignment(network, order) for order in (self._pair, self._pair[::-1])]
        self._plain = [one for one in plain if one is not None]
        if not self._plain:
            raise stranded_error(network, self._pair)
        units = range(len(network.units))
        self._source, self._sink, self._nodes = len(units), len(units) + 1, len(units) + 2
        self._busy = list(dict.fromkeys((first, second, network.home, GPU)))
        self._arcs, self._endless = list[Arc](), list[Arc]()
        self._tensors: list[tuple[int, list[int], bool]] = []  # node, readers, and whether any on the second counts
        self._loads: list[list[float]] = []  # of each arc: time, energy, traffic, busy times, tensors that enter
        for index, unit in enumerate(network.units):
            for name, arc in ((first, (index, self._sink)), (second, (self._source, index))):
                if (cost := unit.costs.get(name)) is None:
                    self._endless.append(arc)
                else:
                    self._add_arc(arc, cost, [(name, cost.time_ms)], enters=False)
        for edge in network.edges:
            self._add_edge(edge)
        both = [*((self._source, index) for index in units), *((index, self._sink) for index in units)]
        self._ends, self._table = np.array([*self._arcs, *both, *self._endless]).T, np.array(self._loads)

    def solve(self, price: Price, *, entry: float = 0.0) -> CheapestPlacement:
        """Return the cheapest placement.

        Args:
            price: price of the load of a run.
            entry: additional cost of every tensor that moves to the second accelerator.
        """
        first, second = self._pair
        busy = [price.busy.get(name, 0.0) for name in self._busy]
        worth = self._table @ np.array([price.latency, price.energy, price.traffic, *busy, entry])
        # The cost that a unit has on either side changes no decision, so it is left out of the flow.
        units, (tails, heads) = len(self._network.units), self._ends[:, : len(worth)]
        into = np.bincount(heads, worth * (tails == self._source), self._nodes)[:units]
        both = np.minimum(into, np.bincount(tails, worth * (heads == self._sink), self._nodes)[:units])
        plain = min(self._cost(one, price, entry) for one in self._plain)
        scale = _SCALE / max(plain - float(both.sum()), 1e-9 * plain, 1e-200)
        endless = np.full(len(self._endless), np.inf)
        is_second = self._sink_side(np.concatenate((worth, -both, -both, endless)) * scale)
        assignment = tuple(second if on_second else first for on_second in is_second[:units].tolist())
        for node, readers, is_entry in self._tensors:  # a flow leaves those that cost nothing on either side
            is_second[node] = is_second[readers].any() if is_entry else is_second[readers].all()
        is_cut = (~is_second[tails] & is_second[heads])[:, None]
        time_ms, energy_mj, traffic_bytes, *used_ms, _ = np.add.reduceat(self._table * is_cut, [0])[0].tolist()
        use = Use(time_ms, dict(zip(self._busy, used_ms, strict=True)), energy_mj, traffic_bytes)
        cost = float(np.add.reduceat(worth[:, None] * is_cut, [0])[0, 0])
        return CheapestPlacement(assignment, use, cost, cost - len(worth) / scale)

    def _cost(self, assignment: Assignment, price: Price, entry: float) -> float:
        ends = transitions_of(self._network, assignment)
        entries = sum(end == self._pair[1] for _, _, end, _ in ends) if entry else 0
        return run_use(self._network, assignment).cost(price) + entry * entries

    def _sink_side(self, capacity: F64) -> npt.NDArray[np.bool_]:
        """Return whether each node is on the sink's side of a minimum cut of the arcs."""
        sparse, graph = import_scipy("sparse"), import_scipy("sparse.csgraph")
        arcs = sparse.csr_array((capacity, tuple(self._ends)), shape=(self._nodes, self._nodes))
        arcs.data = np.rint(np.clip(arcs.data, 0, _LARGEST)).astype(np.int32)
        left = arcs - graph.maximum_flow(arcs, self._source, self._sink).flow
        reached = graph.breadth_first_order(left, self._source, return_predecessors=False)
        is_beyond = np.ones(self._nodes, bool)
        is_beyond[reached] = False
        return is_beyond

    def _add_arc(self, arc: Arc, part: Cost | Transition, busy: Iterable[tuple[str, float]], *, enters: bool) -> None:
        load = [part.time_ms, part.energy_mj, part.traffic_bytes, *[0.0] * len(self._busy), float(enters)]
        for name, busy_ms in busy:
            load[3 + self._busy.index(name)] += busy_ms
        self._arcs.append(arc)
        self._loads.append(load)

    def _add_edge(self, edge: Edge) -> None:
        """Add the arcs of a tensor, from its producer or home to its readers; an output also returns home."""
        home, producer, (first, second) = self._network.home, edge.producer, self._pair
        returns = home if edge.is_output and producer is not None else None
        for end, start, side in ((second, first, self._source), (first, second, self._sink)):
            origin, source = (home, side) if producer is None else (start, producer)
            transition = edge.transitions.get((origin, end)) if origin != end else None
            if transition and returns == end:  # home reads the tensor in any case
                target = self._sink if end == second else self._source
                self._add_transition(source, target, transition, origin, end)
            elif transition and edge.consumers:
                self._add_transition(source, self._reader(edge.consumers, end), transition, origin, end)
            back = edge.transitions.get((start, home)) if returns not in (None, first, second) else None
            if back and producer is not None:
                arc = (producer, self._sink) if start == first else (self._source, producer)
                self._add_arc(arc, back, back.busy(start, home), enters=False)

    def _reader(self, readers: Sequence[int], end: str) -> int:
        """Return the node of the only reader, or a new node that is at ``end`` if any reader is."""
        if len(readers) == 1:
            return readers[0]
        node, self._nodes = self._nodes, self._nodes + 1
        self._tensors.append((node, list(readers), end == self._pair[1]))
        self._endless += [(node, unit) if end == self._pair[1] else (unit, node) for unit in readers]
        return node

    def _add_transition(self, source: int, target: int, part: Transition, start: str, end: str) -> None:
        """Add an arc whose cost counts when the target is on the side of ``end`` and the source is not."""
        is_entry = end == self._pair[1]
        arc = (source, target) if is_entry else (target, source)
        self._add_arc(arc, part, part.busy(start, end), enters=is_entry)
