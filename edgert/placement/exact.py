"""Best placement of one network under additional conditions, by an integer program."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from edgert.errors import PlacementError
from edgert.placement.integer import Answer, Forest, Program, forbidding_row
from edgert.placement.min_cut import CheapestPlacement
from edgert.placement.problem import Assignment, Edge, Network, Transition
from edgert.placement.run_load import Price, preferred_assignment, run_load, run_use, segments, stranded_error

_TOLERANCE = 1e-6  # HiGHS satisfies rows with this tolerance; they are scaled to 1

_EXPLAIN_S = 1.0  # time limit to explain one condition of an infeasible problem in the error


@dataclass(frozen=True, slots=True)
class Condition:
    """Upper limit on a priced load: its name for people, the price, and the largest allowed sum."""

    name: str
    price: Price
    most: float


def exact_placement(
    network: Network,
    among: Sequence[str],
    price: Price,
    conditions: Sequence[Condition] = (),
    *,
    loadables: Mapping[str, int] | None = None,
    time_limit_s: float = 20.0,
) -> CheapestPlacement:
    """Return the cheapest placement that keeps every condition and the limits on segments.

    Segments are those of :func:`edgert.placement.run_load.segments`. If time runs out, the answer is the best plain
    placement that keeps the conditions, with its gap.

    Args:
        network: network to place.
        among: accelerators to use.
        price: price of the load to minimize.
        conditions: limits on other priced loads.
        loadables: accelerator → maximum number of segments.
        time_limit_s: time limit of the search.

    Raises:
        PlacementError: no placement keeps the conditions, or none was found in time.
    """
    loadables = loadables or {}
    model = _Model(network, among, price, conditions, loadables)
    end, bound = time.monotonic() + time_limit_s, -float("inf")
    best = cheapest_plain_placement(network, among, price, conditions, loadables)
    while (left_s := end - time.monotonic()) > 0:
        answer = model.program.solve(time_limit_s=left_s)
        bound = max(bound, answer.bound * model.scale)
        if answer.is_infeasible:
            raise _infeasible_error(network, among, conditions, loadables)
        if answer.values is None:
            break
        if not model.refine(answer):
            assignment = model.assignment(answer)
            found = (run_use(network, assignment).cost(price), assignment)
            best = found if best is None else min(best, found)
            break
    if best is None:
        raise PlacementError(
            f"no placement of {network.name} was found in time",
            why="the search found none within the limits, and could not prove that none exists",
            fix="relax a limit, or place fewer networks",
        )
    return CheapestPlacement(best[1], run_use(network, best[1]), best[0], min(bound, best[0]))


class _Model:
    """Integer program of a placement: where units run, where tensors go, and which neighbors form a segment."""

    def __init__(
        self,
        network: Network,
        among: Sequence[str],
        price: Price,
        conditions: Sequence[Condition],
        loadables: Mapping[str, int],
    ) -> None:
        start = preferred_assignment(network, (network.home, *among))
        if preferred_assignment(network, among) is None or start is None:
            raise stranded_error(network, among)
        self.scale = max(run_use(network, start).cost(price), 1e-12)
        self.program, self._network, self._among = Program(), network, among
        self._price, self._loadables = price, loadables
        self._runs = {
            (index, name): self.program.add_variable(price.of_unit(unit.costs[name], name) / self.scale, whole=True)
            for index, unit in enumerate(network.units)
            for name in among
            if name in unit.costs
        }
        self._transitions: list[tuple[int, tuple[str, str], Transition]] = []
        for index in range(len(network.units)):
            self.program.add_equality({self._runs[index, name]: 1.0 for name in self._accelerators_of(index)}, 1.0)
        for edge in network.edges:
            self._add_transitions(edge)
        for condition in conditions:
            self._add_condition(condition)
        self._forests = {
            name: Forest(self.program, network, {at: run for (at, on), run in self._runs.items() if on == name}, most)
            for name, most in loadables.items()
            if name in among
        }

    def assignment(self, answer: Answer) -> Assignment:
        """Return the assignment that the answer's values describe."""
        assert answer.values is not None
        values = answer.values
        return tuple(
            max(self._accelerators_of(index), key=lambda name: float(values[self._runs[index, name]]))
            for index in range(len(self._network.units))
        )

    def refine(self, answer: Answer) -> bool:
        """Add rows that exclude an answer with too many segments; return whether it has too many."""
        assert answer.values is not None
        assignment = self.assignment(answer)
        names = [segment.accelerator for segment in segments(self._network, assignment)] if self._forests else []
        over = [name for name in self._forests if names.count(name) > self._loadables[name]]
        rows = [
            row
            for name in over
            for row in self._forests[name].violated_rows([name == other for other in assignment], answer.values)
        ]
        if over and not rows:
            rows = [forbidding_row(assignment, self._runs)]
        for row in rows:
            self.program.add_upper_bound(*row)
        return bool(over)

    def _accelerators_of(self, unit: int) -> list[str]:
        return [name for name in self._among if name in self._network.units[unit].costs]

    def _add_transitions(self, edge: Edge) -> None:
        """Add a variable for each pair of accelerators, which is 1 where the tensor moves between them."""
        home = self._network.home
        starts = [home] if edge.producer is None else self._accelerators_of(edge.producer)
        ends = dict.fromkeys([*self._among, home])
        moves = {pair: edge.transitions.get(pair) for pair in product(starts, ends) if pair[0] != pair[1]}
        if not any(moves.values()):
            return
        moved: dict[tuple[str, str], int] = {}
        for pair, transition in moves.items():
            cost = self._price.of_transition(transition, *pair) / self.scale if transition else 0.0
            moved[pair] = self.program.add_variable(cost)
            if transition:
                self._transitions.append((moved[pair], pair, transition))
        for end in ends:
            arriving = {variable: -1.0 for (_, other), variable in moved.items() if other == end}
            if arriving and not (end == home and edge.producer is None):
                self._require_arrival(edge, end, arriving)
        if edge.producer is not None and len(starts) > 1 and len(ends) > 2:
            for (start, _), variable in moved.items():
                self.program.add_upper_bound({variable: 1.0, self._runs[edge.producer, start]: -1.0}, 0.0)

    def _require_arrival(self, edge: Edge, end: str, arriving: dict[int, float]) -> None:
        """Require a tensor to arrive where it is read unless it was computed there."""
        computed = {self._runs[edge.producer, end]: -1.0} if (edge.producer, end) in self._runs else {}  # type: ignore[index]
        for reader in dict.fromkeys(self._runs[unit, end] for unit in edge.consumers if (unit, end) in self._runs):
            self.program.add_upper_bound({**arriving, **computed, reader: 1.0}, 0.0)
        if edge.is_output and end == self._network.home:
            self.program.add_upper_bound({**arriving, **computed}, -1.0)

    def _add_condition(self, condition: Condition) -> None:
        terms = {variable: condition.price.of_transition(one, *pair) for variable, pair, one in self._transitions}
        for (index, name), variable in self._runs.items():
            terms[variable] = condition.price.of_unit(self._network.units[index].costs[name], name)
        size = max(abs(condition.most), *map(abs, terms.values()), 1e-12)
        self.program.add_upper_bound(
            {variable: value / size for variable, value in terms.items()}, condition.most / size
        )


def keeps_limits(
    network: Network, assignment: Assignment, conditions: Sequence[Condition], loadables: Mapping[str, int]
) -> bool:
    """Return whether an assignment keeps all conditions and limits on segments."""
    run = run_use(network, assignment)
    if any(run.cost(one.price) > one.most + _TOLERANCE * abs(one.most) + 1e-12 for one in conditions):
        return False
    counts = run_load(network, assignment).segments if loadables else {}
    return all(counts.get(name, 0) <= most for name, most in loadables.items())


def cheapest_plain_placement(
    network: Network,
    among: Sequence[str],
    price: Price,
    conditions: Sequence[Condition],
    loadables: Mapping[str, int],
) -> tuple[float, Assignment] | None:
    """Return (cost, assignment) of the cheapest plain placement that keeps the conditions, or None.

    A plain placement runs every unit on one accelerator if that can run it.
    """
    found = {preferred_assignment(network, (name, network.home, *among)) for name in among}
    kept = [one for one in found if one and keeps_limits(network, one, conditions, loadables)]
    return min(((run_use(network, one).cost(price), one) for one in kept), default=None)


def _infeasible_error(
    network: Network, among: Sequence[str], conditions: Sequence[Condition], loadables: Mapping[str, int]
) -> PlacementError:
    reasons = []
    for condition in conditions:
        alone = exact_placement(network, among, condition.price, time_limit_s=_EXPLAIN_S)
        reasons.append(f"{condition.name} at most {condition.most:.4g}: alone it can be {alone.cost:.4g}")
    reasons += [f"at most {most} loadables on {name}" for name, most in loadables.items()]
    return PlacementError(
        f"no placement of {network.name} keeps all its limits", why="; ".join(reasons), fix="relax one of them"
    )
