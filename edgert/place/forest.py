"""How many segments a placement has, as rows of an integer program.

A connected piece has one unit more than a spanning tree has edges, so segments are units less edges of a forest. The
forest keeps to edges with no longer path beside them: a segment is convex and holds such a path whole, and stays
connected without the edge. What makes it a forest of convex pieces is added where a solution breaks it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgert.place.problem import Assignment, Network
from edgert.place.program import Program
from edgert.place.segment import neighbours

Pair = tuple[int, int]
Row = tuple[dict[int, float], float]

_LONGEST_CYCLE = 8  # cycles up to here get all their rows before the first solution
_EPSILON = 1e-6


class Forest:
    """The segments of one accelerator.

    Args:
        program: takes the variables and rows.
        network: what is placed.
        runs: unit → variable that is 1 where the accelerator runs it.
        most: segments allowed.
    """

    def __init__(self, program: Program, network: Network, runs: Mapping[int, int], most: int) -> None:
        self._runs = runs
        self._after = neighbours(network)[1]
        self._reach = _reached(self._after)
        pairs = [pair for pair in _direct(self._after, self._reach) if runs.keys() >= set(pair)]
        self._joins = {pair: program.variable() for pair in pairs}
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
        """Rows that every partition into segments keeps and these values break. ``on``: units the accelerator runs."""
        for piece in self._pieces(on):
            for terms, most in (*self._no_cycle(piece), *self._convex(piece, on)):
                if sum(factor * values[variable] for variable, factor in terms.items()) > most + _EPSILON:
                    yield terms, most

    def _no_cycle(self, units: Sequence[int]) -> Iterator[Row]:
        """Fewer edges among units than units that run: one row for every unit, which is left out of the count."""
        inside = set(units)
        edges = {joined: 1.0 for pair, joined in self._joins.items() if inside >= set(pair)}
        left_out = units if len(units) <= _LONGEST_CYCLE else (units[0], units[-1])
        for unit in left_out:
            yield {**edges, **{self._runs[other]: -1.0 for other in units if other != unit}}, 0.0

    def _convex(self, piece: Sequence[int], on: Sequence[bool]) -> Iterator[Row]:
        """A tree path between two units is not whole unless the accelerator runs all between them."""
        for start in piece:
            outside = [unit for unit in range(len(on)) if self._reach[start] >> unit & 1 and not on[unit]]
            ends = [unit for unit in piece if any(self._reach[between] >> unit & 1 for between in outside)]
            for end in ends[:2]:
                path = self._path(start, end, on)
                edges = {self._joins[min(pair), max(pair)]: 1.0 for pair in pairwise(path)}
                for between in outside:
                    if self._reach[between] >> end & 1:
                        needed = {self._runs[between]: -1.0} if between in self._runs else {}
                        yield {**edges, **needed}, len(edges) - 1.0

    def _pieces(self, on: Sequence[bool]) -> Iterator[list[int]]:
        """Units that run, by connected piece."""
        left = {unit for unit in self._runs if on[unit]}
        while left:
            piece = _spread(min(left), self._beside, left)
            left -= piece.keys()
            yield sorted(piece)

    def _path(self, start: int, end: int, on: Sequence[bool]) -> list[int]:
        came = _spread(start, self._beside, {unit for unit in self._runs if on[unit]})
        path = [end]
        while path[-1] != start:
            path.append(came[path[-1]])
        return path


def forbid(assignment: Assignment, variables: Mapping[tuple[int, str], int]) -> Row:
    """The row that rules out one assignment."""
    chosen = [variables[choice] for choice in enumerate(assignment)]
    return dict.fromkeys(chosen, 1.0), len(chosen) - 1.0


def _reached(after: Sequence[Sequence[int]]) -> list[int]:
    """Per unit the set of units behind it, as bits."""
    reach = [0] * len(after)
    for unit in reversed(range(len(after))):
        for reader in after[unit]:
            reach[unit] |= reach[reader] | 1 << reader
    return reach


def _direct(after: Sequence[Sequence[int]], reach: Sequence[int]) -> Iterator[Pair]:
    """Edges with no longer path beside them."""
    for unit, readers in enumerate(after):
        for reader in readers:
            if not any(reach[other] >> reader & 1 for other in readers):
                yield unit, reader


def _spread(start: int, beside: Mapping[int, Sequence[int]], within: set[int]) -> dict[int, int]:
    """Every unit that can be reached → the one it was reached from."""
    came, waiting = {start: start}, deque([start])
    while waiting:
        unit = waiting.popleft()
        for other in beside[unit]:
            if other in within and other not in came:
                came[other] = unit
                waiting.append(other)
    return came


def _short_cycles(beside: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """The cycle that each edge beside a spanning forest closes, if it is short."""
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
    """Back to the root."""
    trail = [unit]
    while came[trail[-1]] != trail[-1]:
        trail.append(came[trail[-1]])
    return trail
