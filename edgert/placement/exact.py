"""Best placement of one network under side conditions, as an integer program."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from edgert.errors import PlacementError
from edgert.placement.integer import Answer, Forest, Program, forbid
from edgert.placement.min_cut import Found
from edgert.placement.problem import Assignment, Edge, Network, Transition
from edgert.placement.run_load import Price, loads, preferring, priced, priced_transition, segments, stranded, use

_TOLERANCE = 1e-6  # HiGHS satisfies rows with this tolerance; they are scaled to 1

_EXPLAIN_S = 1.0  # for each condition of an impossible problem: it only improves the error's text


@dataclass(frozen=True, slots=True)
class Condition:
    """An upper limit on a priced load: its name for people, the price, and the largest sum."""

    name: str
    price: Price
    most: float


def exact(
    network: Network,
    among: Sequence[str],
    price: Price,
    conditions: Sequence[Condition] = (),
    *,
    loadables: Mapping[str, int] | None = None,
    time_limit_s: float = 20.0,
) -> Found:
    """Return the cheapest placement that keeps every condition and the limits on segments (``loadables``).

    Segments count as :func:`edgert.placement.run_load.segments` cuts them. If time runs out, the best plain placement
    that keeps the conditions is the answer, with its gap.

    Args:
        network: to place.
        among: accelerators to use.
        price: to minimize.
        conditions: limits on other sums.
        loadables: accelerator → most segments on it.
        time_limit_s: for the search.

    Raises:
        PlacementError: no placement keeps the conditions (names what each can reach), or none was found in time.
    """
    loadables = loadables or {}
    model = _Model(network, among, price, conditions, loadables)
    end, bound = time.monotonic() + time_limit_s, -float("inf")
    best = plain(network, among, price, conditions, loadables)
    while (left_s := end - time.monotonic()) > 0:
        answer = model.program.solve(time_limit_s=left_s)
        bound = max(bound, answer.bound * model.scale)
        if answer.is_infeasible:
            raise _impossible(network, among, conditions, loadables)
        if answer.values is None:
            break
        if not model.refine(answer):
            assignment = model.assignment(answer)
            found = (use(network, assignment).cost(price), assignment)
            best = found if best is None else min(best, found)
            break
    if best is None:
        raise PlacementError(
            f"no placement of {network.name} was found in time",
            why="the search found none that keeps the limits, and has not proven that there is none",
            fix="allow more time, or relax a limit",
        )
    return Found(best[1], use(network, best[1]), best[0], min(bound, best[0]))


class _Model:
    """The program: which unit runs where, which tensor goes where, which neighbors are one segment."""

    def __init__(
        self,
        network: Network,
        among: Sequence[str],
        price: Price,
        conditions: Sequence[Condition],
        loadables: Mapping[str, int],
    ) -> None:
        start = preferring(network, (network.home, *among))
        if preferring(network, among) is None or start is None:
            raise stranded(network, among)
        self.scale = max(use(network, start).cost(price), 1e-12)
        self.program, self._network, self._among = Program(), network, among
        self._price, self._loadables = price, loadables
        self._runs = {
            (index, name): self.program.variable(priced(unit.costs[name], price, name) / self.scale, whole=True)
            for index, unit in enumerate(network.units)
            for name in among
            if name in unit.costs
        }
        self._transitions: list[tuple[int, tuple[str, str], Transition]] = []
        for index in range(len(network.units)):
            self.program.equal({self._runs[index, name]: 1.0 for name in self._able(index)}, 1.0)
        for edge in network.edges:
            self._add_transitions(edge)
        for condition in conditions:
            self._keep(condition)
        self._forests = {
            name: Forest(self.program, network, {at: run for (at, on), run in self._runs.items() if on == name}, most)
            for name, most in loadables.items()
            if name in among
        }

    def assignment(self, answer: Answer) -> Assignment:
        """Return the assignment of the answer's values."""
        assert answer.values is not None
        values = answer.values
        return tuple(
            max(self._able(index), key=lambda name: float(values[self._runs[index, name]]))
            for index in range(len(self._network.units))
        )

    def refine(self, answer: Answer) -> bool:
        """Add rows if the answer has too many segments; return whether it has."""
        assert answer.values is not None
        assignment = self.assignment(answer)
        names = [segment.accelerator for segment in segments(self._network, assignment)] if self._forests else []
        over = [name for name in self._forests if names.count(name) > self._loadables[name]]
        rows = [
            row
            for name in over
            for row in self._forests[name].broken([name == other for other in assignment], answer.values)
        ]
        if over and not rows:
            rows = [forbid(assignment, self._runs)]
        for row in rows:
            self.program.at_most(*row)
        return bool(over)

    def _able(self, unit: int) -> list[str]:
        return [name for name in self._among if name in self._network.units[unit].costs]

    def _add_transitions(self, edge: Edge) -> None:
        """Add one variable per pair of accelerators: 1 where the tensor makes that transition, which has a cost."""
        home = self._network.home
        starts = [home] if edge.producer is None else self._able(edge.producer)
        ends = dict.fromkeys([*self._among, home])
        moves = {pair: edge.transitions.get(pair) for pair in product(starts, ends) if pair[0] != pair[1]}
        if not any(moves.values()):
            return
        moved: dict[tuple[str, str], int] = {}
        for pair, transition in moves.items():
            cost = priced_transition(transition, self._price, *pair) / self.scale if transition else 0.0
            moved[pair] = self.program.variable(cost)
            if transition:
                self._transitions.append((moved[pair], pair, transition))
        for end in ends:
            arriving = {variable: -1.0 for (_, other), variable in moved.items() if other == end}
            if arriving and not (end == home and edge.producer is None):
                self._needed(edge, end, arriving)
        if edge.producer is not None and len(starts) > 1 and len(ends) > 2:
            for (start, _), variable in moved.items():
                self.program.at_most({variable: 1.0, self._runs[edge.producer, start]: -1.0}, 0.0)

    def _needed(self, edge: Edge, end: str, arriving: dict[int, float]) -> None:
        """Require a tensor to arrive where it is read unless it was computed there."""
        made = {self._runs[edge.producer, end]: -1.0} if (edge.producer, end) in self._runs else {}  # type: ignore[index]
        for reader in dict.fromkeys(self._runs[unit, end] for unit in edge.consumers if (unit, end) in self._runs):
            self.program.at_most({**arriving, **made, reader: 1.0}, 0.0)
        if edge.is_output and end == self._network.home:
            self.program.at_most({**arriving, **made}, -1.0)

    def _keep(self, condition: Condition) -> None:
        terms = {variable: priced_transition(one, condition.price, *pair) for variable, pair, one in self._transitions}
        for (index, name), variable in self._runs.items():
            terms[variable] = priced(self._network.units[index].costs[name], condition.price, name)
        size = max(abs(condition.most), *map(abs, terms.values()), 1e-12)
        self.program.at_most({variable: value / size for variable, value in terms.items()}, condition.most / size)


def keeps(
    network: Network, assignment: Assignment, conditions: Sequence[Condition], loadables: Mapping[str, int]
) -> bool:
    """Return whether an assignment keeps all conditions and limits on segments."""
    run = use(network, assignment)
    if any(run.cost(one.price) > one.most + _TOLERANCE * abs(one.most) + 1e-12 for one in conditions):
        return False
    counts = loads(network, assignment).segments if loadables else {}
    return all(counts.get(name, 0) <= most for name, most in loadables.items())


def plain(
    network: Network,
    among: Sequence[str],
    price: Price,
    conditions: Sequence[Condition],
    loadables: Mapping[str, int],
) -> tuple[float, Assignment] | None:
    """Return the cheapest plain placement that keeps the conditions, or None.

    A plain placement runs every unit on one accelerator wherever that can run it.
    """
    found = {preferring(network, (name, network.home, *among)) for name in among}
    kept = [one for one in found if one and keeps(network, one, conditions, loadables)]
    return min(((use(network, one).cost(price), one) for one in kept), default=None)


def _impossible(
    network: Network, among: Sequence[str], conditions: Sequence[Condition], loadables: Mapping[str, int]
) -> PlacementError:
    """Return the error, with the best value of each condition by itself, with enough loadables."""
    reasons = []
    for condition in conditions:
        alone = exact(network, among, condition.price, time_limit_s=_EXPLAIN_S)
        reasons.append(f"{condition.name} at most {condition.most:.4g}: alone it can be {alone.cost:.4g}")
    reasons += [f"at most {most} loadables on {name}" for name, most in loadables.items()]
    return PlacementError(
        f"no placement of {network.name} keeps all its limits", why="; ".join(reasons), fix="relax one of them"
    )
