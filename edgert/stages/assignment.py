"""Pairing two sets so that the weights of the pairs add up to the most: the linear assignment problem.

Exact, and quick where one partner stands out for most rows, as overlaps of tracks and detections do: rows that want
different columns are paired at once as arrays; only rows that compete are settled one by one, each by one shortest
augmenting path (H. W. Kuhn, 1955; R. Jonker and A. Volgenant, 1987), whose steps are operations on whole matrix rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

_FREE = -1


def assign(weights: F64) -> tuple[Index, Index]:
    """Pairs of rows and columns, none used twice, with the largest total weight.

    A weight of zero or less is no pair: rows and columns may stay alone, and do where nothing is gained. Among equally
    good answers the choice is deterministic.

    Args:
        weights: (R, C) float64, finite. Not modified.

    Returns:
        ``rows`` and ``columns``, each (K,), with rows rising.
    """
    if 0 in weights.shape:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    problem = _seed(weights)
    for row in np.flatnonzero((problem.column_of == _FREE) & (problem.row_price > 0)).tolist():
        _settle(problem, row)
    rows = np.flatnonzero(problem.column_of != _FREE)
    return rows, problem.column_of[rows]


@dataclass(slots=True)
class _Problem:
    """A matching that grows, and the prices that prove it best.

    For every pair ``row_price + column_price >= weight``, with equality where they are matched; prices are never
    negative, and a column without a partner costs nothing. Once every row without a partner costs nothing either, the
    matching is optimal (complementary slackness of the linear programme).
    """

    weights: F64
    row_price: F64
    column_price: F64
    column_of: Index
    row_of: Index


def _seed(weights: F64) -> _Problem:
    """Every row priced at its best weight, and matched there unless a later row wants the same column."""
    count, width = weights.shape
    rows = np.arange(count)
    wanted = weights.argmax(axis=1)
    price = np.maximum(weights[rows, wanted], 0.0)
    row_of, column_of = np.full(width, _FREE, np.intp), np.full(count, _FREE, np.intp)
    wanting = rows[price > 0]
    row_of[wanted[wanting]] = wanting
    won = wanting[row_of[wanted[wanting]] == wanting]
    column_of[won] = wanted[won]
    return _Problem(weights, price, np.zeros(width), column_of, row_of)


def _settle(problem: _Problem, start: int) -> None:
    """Bring one more row into the matching, or find whom to leave out, along the path that costs least (Dijkstra).

    The path runs start, column, its row, another column... It ends at a column without a partner, or at a row that is
    cheapest left alone.
    """
    weights, row_price, row_of = problem.weights, problem.row_price, problem.row_of
    open_price = problem.column_price.copy()  # infinite once a column lies on the tree: it is never reached again
    reach = np.full(len(open_price), np.inf)  # what it costs to come to each column that is not on the tree
    came_from = np.empty(len(open_price), np.intp)
    tree_rows, tree_columns, costs = [start], [], [0.0]
    row, cost = start, 0.0
    give_up, loser = float("inf"), start
    while True:
        price = float(row_price[row])
        if cost + price < give_up:
            give_up, loser = cost + price, row
        step = open_price - weights[row]
        step += cost + price
        nearer = step < reach
        np.copyto(reach, step, where=nearer)
        came_from[nearer] = row
        column = int(reach.argmin())
        cost = float(reach[column])
        if cost >= give_up:
            total, column = give_up, _FREE
            break
        row = int(row_of[column])
        if row == _FREE:
            total = cost
            break
        open_price[column] = reach[column] = np.inf
        tree_rows.append(row)
        tree_columns.append(column)
        costs.append(cost)
    _reprice(problem, tree_rows, tree_columns, total - np.array(costs))
    _flip(problem, start, column, loser, came_from)


def _reprice(problem: _Problem, rows: list[int], columns: list[int], saved: F64) -> None:
    """Make the path tight without breaking a price elsewhere; ``saved`` is the path's cost beyond each row."""
    problem.row_price[rows] = np.maximum(problem.row_price[rows] - saved, 0.0)
    if columns:
        problem.column_price[columns] += saved[1:]


def _flip(problem: _Problem, start: int, column: int, loser: int, came_from: Index) -> None:
    """Hand each column on the path to the row it was reached from."""
    if column == _FREE:
        column = int(problem.column_of[loser])
        problem.column_of[loser] = _FREE
        if loser == start:
            return
    row = _FREE
    while row != start:
        row = int(came_from[column])
        problem.row_of[column] = row
        problem.column_of[row], column = column, int(problem.column_of[row])
