"""Linear assignment: pairs of rows and columns with the largest total weight.

The solver is exact, and fast where most weights are zero and most rows have one clear best column, as with overlaps of
tracks and detections. Rows with different best columns are paired at once as arrays. Each other row takes one shortest
augmenting path (H. W. Kuhn, 1955; R. Jonker and A. Volgenant, 1987) through the weights above zero. These are too few
for array operations to pay, so the search uses lists and a heap.
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

    A row and a column with weight zero are never paired, so some may stay without a partner. Among equally good answers
    the choice is deterministic.

    Args:
        weights: (R, C) float64, finite, not negative. Not modified.

    Returns:
        ``rows`` and ``columns``, each (K,), in ascending order of rows.
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
    """Partial matching, with the prices (dual variables) that prove it optimal.

    For every pair ``row_price + column_price >= weight``, with equality where they are matched. Prices are never
    negative, and that of a column without a partner is 0. Once that of every row without a partner is 0 too, the
    matching is optimal (complementary slackness of the linear program).
    """

    weights: F64
    row_price: list[float]
    column_price: list[float]
    column_of: list[int]
    row_of: list[int]


def _seed(weights: F64) -> tuple[F64, Index, Index]:
    """Return the price of each row (its best weight), the column of each row, and the row of each column.

    A row gets its best column unless another row has a larger weight there.
    """
    count, width = weights.shape
    wanted = weights.argmax(axis=1)
    price = weights[np.arange(count), wanted]
    column_of, row_of = np.full(count, _FREE, np.intp), np.full(width, _FREE, np.intp)
    by_price = price.argsort(kind="stable")
    row_of[wanted.take(by_price)] = by_price  # the last of several writes stays: the row with the largest weight
    if price[row_of[0]] == 0:  # argmax of a row of zeros is column 0
        row_of[0] = _FREE
    columns = (row_of != _FREE).nonzero()[0]
    column_of[row_of.take(columns)] = columns
    return price, column_of, row_of


def _augment(matching: _Matching, start: int) -> None:
    """Add one row to the matching along the path of least cost (Dijkstra), which may leave out another row.

    The path runs start, column, its row, another column... It ends at a column without a partner, or at the row that
    costs least without one.
    """
    tree = {start: 0.0}  # row → cost of the path to it
    came_from: dict[int, int] = {}  # column on the tree → the row before it
    reach: dict[int, float] = {}
    queue: list[tuple[float, int, int]] = []  # cost, column, the row before it
    give_up, loser = matching.row_price[start], start
    row, cost = start, 0.0
    while True:
        _queue_columns(matching, row, cost, give_up, reach, queue)
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
    for row, start_cost in tree.items():  # equality along the path, without breaking an inequality elsewhere
        matching.row_price[row] = max(matching.row_price[row] - (cost - start_cost), 0.0)
        if matching.column_of[row] != _FREE:
            matching.column_price[matching.column_of[row]] += cost - start_cost
    # Give each column on the path to the row before it, starting with the free column or the loser's.
    if column == _FREE:
        column, matching.column_of[loser] = matching.column_of[loser], _FREE
    while column != _FREE:
        row = came_from[column]
        matching.row_of[column] = row
        column, matching.column_of[row] = matching.column_of[row], column


def _queue_columns(
    matching: _Matching,
    row: int,
    cost: float,
    give_up: float,
    reach: dict[int, float],
    queue: list[tuple[float, int, int]],
) -> None:
    """Queue the columns whose cost is lower by way of this row than before, and than leaving a row out."""
    weights, prices = matching.weights[row], matching.column_price
    columns = weights.nonzero()[0]
    cost += matching.row_price[row]
    for column, weight in zip(columns.tolist(), weights.take(columns).tolist(), strict=True):
        step = cost + prices[column] - weight
        if step < reach.get(column, give_up):
            reach[column] = step
            heapq.heappush(queue, (step, column, row))
