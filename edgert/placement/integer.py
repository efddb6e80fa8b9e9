"""Integer programs, built term by term and solved by SciPy's HiGHS, and rows that count a placement's segments.

A connected piece has one unit more than a spanning tree has edges, so segments are units less edges of a forest. The
forest uses only edges with no longer path beside them. A segment is convex, so it contains such a path whole, and stays
connected without the edge. Rows that make it a forest of convex pieces are added where a solution breaks them.
"""

import importlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert import installation
from edgert.errors import PlacementError
from edgert.placement.problem import Assignment, Network
from edgert.placement.run_load import neighbors

# All use of SciPy is here: flows, linear programs and integer programs, imported on first use.

I32 = npt.NDArray[np.int32]


def optional(module: str) -> Any:
    """Return a module of SciPy. Raises PlacementError: SciPy is not installed; names the extra that contains it."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ModuleNotFoundError as missing:
        raise PlacementError(
            "placement needs SciPy",
            why=str(missing),
            fix=installation.command("plan"),
        ) from missing


def sink_side(capacity: I32, head: I32, rows: I32, source: int, sink: int) -> npt.NDArray[np.bool_]:
    """Return which nodes a maximum flow leaves unreachable from the source: the sink's side of a minimum cut.

    Args:
        capacity: of the arcs, as data of a CSR matrix with sorted columns; every arc's reverse is among them.
        head: columns of that matrix.
        rows: row offsets of that matrix.
        source: node.
        sink: node.
    """
    sparse, graph = optional("sparse"), optional("sparse.csgraph")
    shape = (len(rows) - 1,) * 2
    flow = graph.maximum_flow(sparse.csr_array((capacity, head, rows), shape=shape), source, sink).flow
    left = capacity - flow.data > 0
    starts = np.concatenate(([0], np.cumsum(left, dtype=np.int32)))[rows]
    open_arcs = sparse.csr_array((np.ones(int(starts[-1]), np.int32), head[left], starts), shape=shape)
    reached = graph.breadth_first_order(open_arcs, source, return_predecessors=False)
    beyond = np.ones(len(rows) - 1, bool)
    beyond[reached] = False
    return beyond


# Linear and mixed-integer programs, built term by term and solved by HiGHS.

F64 = npt.NDArray[np.float64]
Terms = Mapping[int, float]
"""Coefficients by variable."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Solution of a program.

    Attributes:
        values: of the variables; None where none were found in time or none exist.
        cost: of the values.
        bound: no values cost less.
        is_infeasible: proven that no values keep all rows.
    """

    values: F64 | None
    cost: float
    bound: float
    is_infeasible: bool


class Program:
    """Minimization of a sum over variables, from 0 to 1 or to their own limit, under rows."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[Terms, float]] = []

    def variable(self, cost: float = 0.0, *, whole: bool = False, most: float = 1.0) -> int:
        """Add a variable and return its index."""
        self._costs.append(cost)
        self._most.append(most)
        self._whole.append(whole)
        return len(self._costs) - 1

    def at_most(self, terms: Terms, most: float) -> None:
        """Add a row: the sum of the terms is at most this."""
        self._rows.append((terms, most))

    def equal(self, terms: Terms, value: float) -> None:
        """Add two rows: the sum of the terms equals this."""
        self.at_most(terms, value)
        self.at_most({variable: -factor for variable, factor in terms.items()}, -value)

    def solve(self, *, time_limit_s: float, gap: float = 1e-6) -> Answer:
        """Return the best values, to a relative gap, or what was found in time."""
        optimize = optional("optimize")
        most = np.array([most for _, most in self._rows])
        lengths = np.array([len(terms) for terms, _ in self._rows], int)
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.fromiter((variable for terms, _ in self._rows for variable in terms), np.int64)
        factor = np.fromiter((value for terms, _ in self._rows for value in terms.values()), np.float64)
        shape = (len(self._rows), len(self._costs))
        matrix = optional("sparse").csr_array((factor, (row, column)), shape=shape)
        found = optimize.milp(
            np.array(self._costs),
            integrality=np.array(self._whole, int),
            bounds=optimize.Bounds(0, np.array(self._most)),
            constraints=optimize.LinearConstraint(matrix, -np.inf, most) if self._rows else (),
            options={"time_limit": max(time_limit_s, 0.01), "mip_rel_gap": gap},
        )
        if found.x is None:
            return Answer(None, np.inf, -np.inf, found.status == 2)
        bound = found.fun if found.mip_dual_bound is None else found.mip_dual_bound
        return Answer(np.asarray(found.x), float(found.fun), float(bound), False)


Row = tuple[dict[int, float], float]

_LONGEST_CYCLE = 8  # cycles up to this length get all their rows before the first solution
_EPSILON = 1e-6


class Forest:
    """Variables and constraints that count the segments of one accelerator.

    Args:
        program: receives the variables and rows.
        network: what is placed.
        runs: unit → variable that is 1 where the accelerator runs it.
        most: segments allowed.
    """

    def __init__(self, program: Program, network: Network, runs: Mapping[int, int], most: int) -> None:
        self._runs = runs
        self._after = neighbors(network)[1]
        self._reach = [0] * len(self._after)  # per unit the set of units behind it, as bits
        for unit in reversed(range(len(self._after))):
            for reader in self._after[unit]:
                self._reach[unit] |= self._reach[reader] | 1 << reader
        self._joins = {  # edges with no longer path beside them
            (unit, reader): program.variable()
            for unit, readers in enumerate(self._after)
            for reader in readers
            if unit in runs and reader in runs and not any(self._reach[other] >> reader & 1 for other in readers)
        }
        self._beside: dict[int, list[int]] = {unit: [] for unit in runs}
        for (one, other), joined in self._joins.items():
            self._beside[one].append(other)
            self._beside[other].append(one)
            program.at_most({joined: 1, runs[one]: -1}, 0)
            program.at_most({joined: 1, runs[other]: -1}, 0)
        program.at_most({**dict.fromkeys(runs.values(), 1.0), **dict.fromkeys(self._joins.values(), -1.0)}, most)
        for cycle in _short_cycles(self._beside):
            for row in self._no_cycle(cycle):
                program.at_most(*row)

    def broken(self, on: Sequence[bool], values: npt.NDArray[np.float64]) -> Iterator[Row]:
        """Yield rows that every partition into segments keeps and these values break.

        ``on`` says which units the accelerator runs.
        """
        left = {unit for unit in self._runs if on[unit]}
        while left:
            piece = sorted(_spread(min(left), self._beside, left))  # units that run, connected
            left -= set(piece)
            for terms, most in (*self._no_cycle(piece), *self._convex(piece, on)):
                if sum(factor * values[variable] for variable, factor in terms.items()) > most + _EPSILON:
                    yield terms, most

    def _no_cycle(self, units: Sequence[int]) -> Iterator[Row]:
        """Yield rows that allow fewer edges among units than units that run: a row for every unit, left out of it."""
        inside = set(units)
        edges = {joined: 1.0 for pair, joined in self._joins.items() if inside >= set(pair)}
        left_out = units if len(units) <= _LONGEST_CYCLE else (units[0], units[-1])
        for unit in left_out:
            yield {**edges, **{self._runs[other]: -1.0 for other in units if other != unit}}, 0.0

    def _convex(self, piece: Sequence[int], on: Sequence[bool]) -> Iterator[Row]:
        """Yield rows that allow a whole tree path between two units only if the accelerator runs all between them."""
        for start in piece:
            outside = [unit for unit in range(len(on)) if self._reach[start] >> unit & 1 and not on[unit]]
            ends = [unit for unit in piece if any(self._reach[between] >> unit & 1 for between in outside)]
            for end in ends[:2]:
                came = _spread(start, self._beside, {unit for unit in self._runs if on[unit]})
                edges = {self._joins[min(pair), max(pair)]: 1.0 for pair in pairwise(_trail(end, came))}
                for between in outside:
                    if self._reach[between] >> end & 1:
                        needed = {self._runs[between]: -1.0} if between in self._runs else {}
                        yield {**edges, **needed}, len(edges) - 1.0


def forbid(assignment: Assignment, variables: Mapping[tuple[int, str], int]) -> Row:
    """Return the row that rules out one assignment."""
    chosen = [variables[choice] for choice in enumerate(assignment)]
    return dict.fromkeys(chosen, 1.0), len(chosen) - 1.0


def _spread(start: int, beside: Mapping[int, Sequence[int]], within: set[int]) -> dict[int, int]:
    """Return every unit that can be reached → the one it was reached from."""
    came, waiting = {start: start}, deque([start])
    while waiting:
        unit = waiting.popleft()
        for other in beside[unit]:
            if other in within and other not in came:
                came[other] = unit
                waiting.append(other)
    return came


def _short_cycles(beside: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Yield the short cycles that edges outside a spanning forest close."""
    seen: set[int] = set()
    for root in beside:
        if root not in seen:
            came = _spread(root, beside, set(beside))
            seen |= came.keys()
            for one in came:
                for other in beside[one]:
                    if one < other and came[one] != other and came[other] != one:
                        cycle = set(_trail(one, came)) ^ set(_trail(other, came))
                        top = next(unit for unit in _trail(one, came) if unit in set(_trail(other, came)))
                        if len(cycle) < _LONGEST_CYCLE:
                            yield sorted({*cycle, top})


def _trail(unit: int, came: Mapping[int, int]) -> list[int]:
    """Return the path from a unit back to the start."""
    trail = [unit]
    while came[trail[-1]] != trail[-1]:
        trail.append(came[trail[-1]])
    return trail
