"""Integer programs, built term by term and solved by SciPy's HiGHS, and rows that count a placement's segments.

The number of segments is the number of units minus the number of edges of a spanning forest. The forest leaves out
edges that run parallel to a longer path: a segment is convex, so it contains that path and stays connected. Rows that
keep it a forest of convex pieces are added when a solution violates them.
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

# SciPy is used only through this module, and imported on first use.


def import_scipy(module: str) -> Any:
    """Return a module of SciPy; raise PlacementError that names the extra to install if SciPy is missing."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ModuleNotFoundError as missing:
        raise PlacementError(
            "placement needs SciPy",
            why=str(missing),
            fix=installation.command("plan"),
        ) from missing


F64 = npt.NDArray[np.float64]
Terms = Mapping[int, float]
"""Coefficients by variable."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Solution of a program.

    Attributes:
        values: values of the variables; None where none were found in time or none exist.
        cost: cost of the values.
        bound: lower bound on the cost.
        is_infeasible: whether no values can keep all rows.
    """

    values: F64 | None
    cost: float
    bound: float
    is_infeasible: bool


class Program:
    """Minimization of a weighted sum of variables, each between 0 and its limit, under rows of constraints."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[Terms, float]] = []

    def add_variable(self, cost: float = 0.0, *, whole: bool = False, most: float = 1.0) -> int:
        """Add a variable and return its index."""
        self._costs.append(cost)
        self._most.append(most)
        self._whole.append(whole)
        return len(self._costs) - 1

    def add_upper_bound(self, terms: Terms, most: float) -> None:
        """Add the constraint that the sum of the terms is at most ``most``."""
        self._rows.append((terms, most))

    def add_equality(self, terms: Terms, value: float) -> None:
        """Add the constraint that the sum of the terms equals ``value``."""
        self.add_upper_bound(terms, value)
        self.add_upper_bound({variable: -factor for variable, factor in terms.items()}, -value)

    def solve(self, *, time_limit_s: float, gap: float = 1e-6) -> Answer:
        """Return the best values to within a relative gap, or the best that were found in time."""
        optimize = import_scipy("optimize")
        most = np.array([most for _, most in self._rows])
        lengths = np.array([len(terms) for terms, _ in self._rows], int)
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.fromiter((variable for terms, _ in self._rows for variable in terms), np.int64)
        factor = np.fromiter((value for terms, _ in self._rows for value in terms.values()), np.float64)
        shape = (len(self._rows), len(self._costs))
        matrix = import_scipy("sparse").csr_array((factor, (row, column)), shape=shape)
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
"""Constraint: coefficients by variable, and the largest sum."""

_LONGEST_CYCLE = 8  # longest cycle whose rows are all added before the first solution
_EPSILON = 1e-6


class Forest:
    """Variables and constraints that count the segments of one accelerator.

    Args:
        program: program that receives the variables and rows.
        network: network to place.
        runs: unit → variable that is 1 where the accelerator runs it.
        most: maximum number of segments.
    """

    def __init__(self, program: Program, network: Network, runs: Mapping[int, int], most: int) -> None:
        self._runs = runs
        self._after = neighbors(network)[1]
        self._reach = [0] * len(self._after)  # bit set of the units behind each unit
        for unit in reversed(range(len(self._after))):
            for reader in self._after[unit]:
                self._reach[unit] |= self._reach[reader] | 1 << reader
        self._joins = {  # edges without a longer parallel path
            (unit, reader): program.add_variable()
            for unit, readers in enumerate(self._after)
            for reader in readers
            if unit in runs and reader in runs and not any(self._reach[other] >> reader & 1 for other in readers)
        }
        self._beside: dict[int, list[int]] = {unit: [] for unit in runs}
        for (one, other), joined in self._joins.items():
            self._beside[one].append(other)
            self._beside[other].append(one)
            program.add_upper_bound({joined: 1, runs[one]: -1}, 0)
            program.add_upper_bound({joined: 1, runs[other]: -1}, 0)
        program.add_upper_bound(
            {**dict.fromkeys(runs.values(), 1.0), **dict.fromkeys(self._joins.values(), -1.0)}, most
        )
        for cycle in _short_cycles(self._beside):
            for row in self._cycle_rows(cycle):
                program.add_upper_bound(*row)

    def violated_rows(self, on: Sequence[bool], values: npt.NDArray[np.float64]) -> Iterator[Row]:
        """Yield rows that these values violate although every partition into segments keeps them.

        ``on`` says for each unit whether the accelerator runs it.
        """
        left = {unit for unit in self._runs if on[unit]}
        while left:
            piece = sorted(_search_parents(min(left), self._beside, left))  # units that run, connected
            left -= set(piece)
            for terms, most in (*self._cycle_rows(piece), *self._convexity_rows(piece, on)):
                if sum(factor * values[variable] for variable, factor in terms.items()) > most + _EPSILON:
                    yield terms, most

    def _cycle_rows(self, units: Sequence[int]) -> Iterator[Row]:
        """Yield rows, each leaving out one unit, that allow fewer chosen edges among units than units that run."""
        inside = set(units)
        edges = {joined: 1.0 for pair, joined in self._joins.items() if inside >= set(pair)}
        left_out = units if len(units) <= _LONGEST_CYCLE else (units[0], units[-1])
        for unit in left_out:
            yield {**edges, **{self._runs[other]: -1.0 for other in units if other != unit}}, 0.0

    def _convexity_rows(self, piece: Sequence[int], on: Sequence[bool]) -> Iterator[Row]:
        """Yield rows that allow a tree path between two units only if the accelerator runs all units between them."""
        for start in piece:
            outside = [unit for unit in range(len(on)) if self._reach[start] >> unit & 1 and not on[unit]]
            ends = [unit for unit in piece if any(self._reach[between] >> unit & 1 for between in outside)]
            for end in ends[:2]:
                came = _search_parents(start, self._beside, {unit for unit in self._runs if on[unit]})
                edges = {self._joins[min(pair), max(pair)]: 1.0 for pair in pairwise(_path_to_start(end, came))}
                for between in outside:
                    if self._reach[between] >> end & 1:
                        needed = {self._runs[between]: -1.0} if between in self._runs else {}
                        yield {**edges, **needed}, len(edges) - 1.0


def forbidding_row(assignment: Assignment, variables: Mapping[tuple[int, str], int]) -> Row:
    """Return the row that rules out one assignment."""
    chosen = [variables[choice] for choice in enumerate(assignment)]
    return dict.fromkeys(chosen, 1.0), len(chosen) - 1.0


def _search_parents(start: int, beside: Mapping[int, Sequence[int]], within: set[int]) -> dict[int, int]:
    came, waiting = {start: start}, deque([start])
    while waiting:
        unit = waiting.popleft()
        for other in beside[unit]:
            if other in within and other not in came:
                came[other] = unit
                waiting.append(other)
    return came


def _short_cycles(beside: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    seen: set[int] = set()
    for root in beside:
        if root not in seen:
            came = _search_parents(root, beside, set(beside))
            seen |= came.keys()
            for one in came:
                for other in beside[one]:
                    if one < other and came[one] != other and came[other] != one:
                        cycle = set(_path_to_start(one, came)) ^ set(_path_to_start(other, came))
                        top = next(
                            unit for unit in _path_to_start(one, came) if unit in set(_path_to_start(other, came))
                        )
                        if len(cycle) < _LONGEST_CYCLE:
                            yield sorted({*cycle, top})


def _path_to_start(unit: int, came: Mapping[int, int]) -> list[int]:
    trail = [unit]
    while came[trail[-1]] != trail[-1]:
        trail.append(came[trail[-1]])
    return trail
