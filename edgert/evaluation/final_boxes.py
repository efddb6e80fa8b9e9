"""Agreement of two models' final boxes, such as those after non-maximum suppression.

They cannot be compared number by number, because boxes with almost equal scores may change places.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.evaluation.score import SAME_IOU, count_pairs, overlaps
from edgert.stages.decode import decoder, guess

Outputs = Mapping[str, npt.NDArray[Any]]
_APART = 0.05
"""Largest mean difference of equal masks or keypoints, as a share of the output's largest value."""
_CLOSE = 1e-3
"""Largest difference of equal corners, as a share of the largest coordinate."""


@dataclass(frozen=True, slots=True)
class BoxAgreement:
    """Number of boxes that two models share.

    Both have a pair's box: of the same class, overlapping, with equal masks and keypoints.
    """

    first: int
    second: int
    pairs: int

    @property
    def share(self) -> float:
        """Twice the pairs divided by the boxes of both, 0 to 1; 1 if neither has a box."""
        total = self.first + self.second
        return 2 * self.pairs / total if total else 1.0

    def __add__(self, other: "BoxAgreement") -> "BoxAgreement":
        return BoxAgreement(self.first + other.first, self.second + other.second, self.pairs + other.pairs)

    def __str__(self) -> str:
        if not self.first + self.second:
            return "no boxes in the example, so nothing was compared"
        return f"{self.share:.1%} of {self.first} and {self.second} boxes agree"


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes (N, 4), classes (N,), and further (N, …) arrays by output."""

    boxes: npt.NDArray[Any]
    classes: npt.NDArray[Any]
    more: Mapping[str, npt.NDArray[Any]]


def has_final_boxes(outputs: Outputs) -> bool:
    """Return whether outputs are boxes [N, 4], labels [N] and scores [N], or [N, 6], perhaps with further arrays."""
    return _column_boxes(outputs) is not None or _row_boxes(outputs) is not None


def agreement(first: Outputs, second: Outputs, overlap: float = SAME_IOU) -> BoxAgreement | None:
    """Return the agreement of two models' boxes on one image; None if one has no final boxes.

    Outputs have boxes [N, 4], labels [N] and scores [N], or [N, 6] of corners, score and class.
    """
    ours, theirs = (_column_boxes(one) or _row_boxes(one) for one in (first, second))
    if ours is None or theirs is None:
        return None
    shared = overlaps(ours.boxes, theirs.boxes)
    far = np.abs(ours.boxes[:, None] - theirs.boxes).max(axis=2)
    shared[far <= _CLOSE * np.abs(ours.boxes).max(initial=0)] = 1.0  # boxes without an area never overlap
    shared[ours.classes[:, None] != theirs.classes] = 0.0
    for name in ours.more.keys() & theirs.more.keys():
        shared[_different_pairs(ours.more[name], theirs.more[name], shared >= overlap)] = 0.0
    return BoxAgreement(len(ours.boxes), len(theirs.boxes), count_pairs(shared, overlap))


def _different_pairs(
    ours: npt.NDArray[Any], theirs: npt.NDArray[Any], requested: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which of the requested pairs, (N, M), have masks or points that differ too much."""
    found = np.zeros(requested.shape, np.bool_)
    largest = max(float(np.abs(ours).max(initial=0)), 1e-12)
    for row, column in np.argwhere(requested).tolist():
        found[row, column] = float(np.abs(ours[row] - theirs[column]).mean()) > _APART * largest
    return found


def _column_boxes(outputs: Outputs) -> _Boxes | None:
    arrays = {name: array[0] if array.ndim > 1 and array.shape[0] == 1 else array for name, array in outputs.items()}
    if sum(array.ndim == 2 and array.shape[1] == 4 for array in arrays.values()) != 1:
        arrays = dict(outputs)  # one box without a batch dimension
    names = list(arrays)
    flat = [name for name in names if arrays[name].ndim < 3 and "keypoint" not in name]
    roles = decoder.roles_of([arrays[name].shape for name in flat])
    if roles is None:
        return None
    integer = [index for index in roles.rows if arrays[flat[index]].dtype.kind in "iu"]
    if len(integer) != 1:
        return None
    boxes, count = arrays[flat[roles.boxes]], roles.count
    known = int(arrays[flat[count]].reshape(-1)[0]) if count is not None else len(boxes)
    more = {name: arrays[name][:known].astype(np.float32) for name in names if name not in flat}
    more = {name: array for name, array in more.items() if len(array) == min(known, len(boxes))}
    return _Boxes(boxes[:known], arrays[flat[integer[0]]].reshape(-1)[:known], more)


def _row_boxes(outputs: Outputs) -> _Boxes | None:
    arrays = [array[0] if array.ndim == 3 else array for array in outputs.values()]
    if not decoder.is_rows_of_six([array.shape for array in arrays]):
        return None
    if len(arrays[0]) > guess.MOST_QUERIES or np.any(arrays[0][:, 5] % 1):  # cells as rows, or scores of two classes
        return None
    table = arrays[0][arrays[0][:, 4] > 0]
    return _Boxes(table[:, :4], table[:, 5], {})
