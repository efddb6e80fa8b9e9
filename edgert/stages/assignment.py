"""The linear assignment problem: pairs of two sets with the largest total weight.

Exact, and quick where most weights are zero and most rows have one clear favorite, as overlaps of tracks and detections
have. Rows that want different columns are paired at once as arrays. Only a row that lost its favorite column is settled
alone, by one shortest augmenting path (H. W. Kuhn, 1955; R. Jonker and A. Volgenant, 1987) through the weights above
zero. Those are too few for array operations to pay, hence lists and a heap.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

_FREE = -1


def assign(weights: F64) -> tuple[Index, Index]:
    """Return pairs of rows and columns, none used twice, with the largest total weight.

    A weight of zero is no pair: rows and columns may stay alone, and do where nothing is gained. Among equally good
    answers the choice is deterministic.

    Args:
        weights: (R, C) float64, finite, not negative. Not modified.

    Returns:
        ``rows`` and ``columns``, each (K,), with rows rising.
    """
    if 0 in weights.shape:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    price, column_of, row_of = _seed(weights)
    losers = ((column_of == _FREE) & (price > 0)).nonzero()[0]
    if len(losers):
        free = [0.0] * weights.shape[1]
        matching = _Matching(weights, price.tolist(), free, column_of.tolist(), row_of.tolist())
        for row in losers.tolist():
            _augment(matching, row)
        column_of = np.array(matching.column_of, np.intp)
    rows = (column_of != _FREE).nonzero()[0]
    return rows, column_of.take(rows)


@dataclass(slots=True)
class _Matching:
    """A matching that grows, and the prices that prove it best.

    For every pair ``row_price + column_price >= weight``, with equality where they are matched; prices are never
    negative, and a column without a partner costs nothing. Once every row without a partner costs nothing either, the
    matching is optimal (complementary slackness of the linear program).
    """

    weights: F64
    row_price: list[float]
    column_price: list[float]
    column_of: list[int]
    row_of: list[int]


def _seed(weights: F64) -> tuple[F64, Index, Index]:
    """Return each row's best weight as its price, each row's column if no row gains more there, each column's row."""
    count, width = weights.shape
    wanted = weights.argmax(axis=1)
    price = weights[np.arange(count), wanted]
    column_of, row_of = np.full(count, _FREE, np.intp), np.full(width, _FREE, np.intp)
    eager = price.argsort(kind="stable")
    row_of[wanted.take(eager)] = eager  # of several, the last stays: the one with most to gain
    if price[row_of[0]] == 0:  # a row of zeros wants column 0
        row_of[0] = _FREE
    columns = (row_of != _FREE).nonzero()[0]
    column_of[row_of.take(columns)] = columns
    return price, column_of, row_of


def _augment(matching: _Matching, start: int) -> None:
    """Bring one more row into the matching, or find whom to leave out, along the path that costs least (Dijkstra).

    The path runs start, column, its row, another column... It ends at a column without a partner, or at the row that is
    cheapest left alone.
    """
    tree = {start: 0.0}  # row: what it costs to come there
    came_from: dict[int, int] = {}  # column on the tree: the row before it
    reach: dict[int, float] = {}
    queue: list[tuple[float, int, int]] = []  # cost, column, the row before it
    give_up, loser = matching.row_price[start], start
    row, cost = start, 0.0
    while True:
        _look(matching, row, cost, give_up, reach, queue)
        while queue and queue[0][1] in came_from:
            heapq.heappop(queue)
        if not queue or queue[0][0] >= give_up:
            cost, column = give_up, _FREE
            break
        cost, column, came_from[column] = heapq.heappop(queue)
        row = matching.row_of[column]
        if row == _FREE:
            break
        tree[row] = cost
        if cost + matching.row_price[row] < give_up:
            give_up, loser = cost + matching.row_price[row], row
    for row, start_cost in tree.items():  # make the path tight without breaking a price elsewhere
        matching.row_price[row] = max(matching.row_price[row] - (cost - start_cost), 0.0)
        if matching.column_of[row] != _FREE:
            matching.column_price[matching.column_of[row]] += cost - start_cost
    # Hand each column on the path to the row before it; with no free column at its end, the loser's is passed on.
    if column == _FREE:
        column, matching.column_of[loser] = matching.column_of[loser], _FREE
    while column != _FREE:
        row = came_from[column]
        matching.row_of[column] = row
        column, matching.column_of[row] = matching.column_of[row], column


def _look(
    matching: _Matching,
    row: int,
    cost: float,
    give_up: float,
    reach: dict[int, float],
    queue: list[tuple[float, int, int]],
) -> None:
    """Queue the columns that this row brings nearer than before, and nearer than giving up."""
    weights, prices = matching.weights[row], matching.column_price
    liked = weights.nonzero()[0]
    cost += matching.row_price[row]
    for column, weight in zip(liked.tolist(), weights.take(liked).tolist(), strict=True):
        step = cost + prices[column] - weight
        if step < reach.get(column, give_up):
            reach[column] = step
            heapq.heappush(queue, (step, column, row))
