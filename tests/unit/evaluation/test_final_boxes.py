"""How far the final boxes of two models agree, whatever their order and number."""

from typing import Any

import numpy as np
import pytest

from edgert.evaluation.final_boxes import agreement, has_final_boxes

BOXES = np.array([[0, 0, 10, 10], [20, 20, 60, 70], [5, 5, 5, 9], [100, 90, 130, 99]], np.float32)


def outputs(rows: list[int], labels: tuple[int, ...] = (1, 2, 3, 4), **more: Any) -> dict[str, Any]:
    chosen = {name: array[rows] for name, array in more.items()}
    classes = np.array(labels, np.int64)[rows]
    return {"boxes": BOXES[rows], "labels": classes, "scores": np.linspace(1, 0.5, len(rows), dtype="f4"), **chosen}


def share(first: dict[str, Any], second: dict[str, Any]) -> float:
    found = agreement(first, second)
    assert found is not None
    return found.share


def test_boxes_agree_in_any_order_and_without_an_area() -> None:
    assert share(outputs([0, 1, 2, 3]), outputs([3, 1, 2, 0])) == 1


def test_boxes_of_another_class_or_place_or_number_do_not() -> None:
    every = outputs([0, 1, 2, 3])
    assert share(every, outputs([0, 1, 2, 3], (1, 2, 9, 4))) == 0.75
    assert share(every, outputs([0, 1])) == pytest.approx(4 / 6)
    assert share(every, {**every, "boxes": BOXES + 50}) == 0
    found = agreement(every, outputs([0, 1]))
    assert str(found) == "66.7% of 4 and 2 boxes agree"
    assert str(agreement(outputs([]), outputs([]))) == "no boxes in the example, so nothing was compared"


def test_masks_and_points_belong_to_their_box() -> None:
    masks = np.zeros((4, 1, 8, 8), np.float32)
    masks[:, :, :4] = 1
    first, moved = outputs([0, 1, 2, 3], masks=masks), outputs([3, 2, 1, 0], masks=masks)
    assert share(first, moved) == 1
    moved["masks"] = moved["masks"].copy()
    moved["masks"][0] = 0
    assert share(first, moved) == 0.75


def test_rows_of_six_and_outputs_with_a_batch() -> None:
    rows = np.concatenate([BOXES, np.full((4, 1), 0.5, "f4"), np.arange(4, dtype="f4")[:, None]], axis=1)
    assert share({"output0": rows[None]}, {"output0": rows[None, ::-1]}) == 1
    batched = {name: array[None] for name, array in outputs([0, 1, 2, 3]).items()}
    assert share(batched, outputs([3, 2, 1, 0])) == 1
    assert share(outputs([1]), outputs([1])) == 1


def test_what_else_a_model_gives_is_no_boxes() -> None:
    assert has_final_boxes(outputs([0, 1])) and not has_final_boxes({"logits": np.zeros((1, 1000), "f4")})
    assert agreement({"logits": np.zeros((1, 1000), "f4")}, {"logits": np.zeros((1, 1000), "f4")}) is None
