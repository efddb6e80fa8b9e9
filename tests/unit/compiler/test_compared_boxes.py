"""Forms of detectors are compared by their final boxes, all others number by number."""

from __future__ import annotations

import numpy as np

from edgert.compiler.model_steps import BOXES_TOLERANCE, BOXES_TOLERANCE_INT8, TOLERANCE, distance, tolerance

BOXES = np.array([[0, 0, 10, 10], [20, 20, 60, 70], [5, 5, 50, 90]], np.float32)
LABELS, SCORES = np.array([1, 2, 3]), np.array([0.9, 0.8, 0.7], np.float32)
FOUND = {"boxes": BOXES, "labels": LABELS, "scores": SCORES}


def test_boxes_that_change_places_are_the_same() -> None:
    turned = {name: array[::-1] for name, array in FOUND.items()}
    apart = distance([FOUND, FOUND], [turned, FOUND])
    assert apart["relative_error"] == 0 and apart["boxes"] == "100.0% of 6 and 6 boxes agree"
    assert tolerance(apart, TOLERANCE["fp16"], "fp16") == BOXES_TOLERANCE["fp16"]
    assert tolerance(apart, TOLERANCE["gpu"], "gpu") == BOXES_TOLERANCE_INT8


def test_boxes_that_one_form_lacks_are_an_error() -> None:
    fewer = {name: array[:1] for name, array in FOUND.items()}
    assert distance([FOUND], [fewer])["relative_error"] == 0.5
    assert distance([FOUND], [{"boxes": np.full(3, np.nan)}])["relative_error"] is None


def test_other_outputs_are_compared_number_by_number() -> None:
    logits = {"logits": np.array([[1.0, 2.0]])}
    apart = distance([logits], [{"logits": np.array([[1.0, 2.2]])}])
    assert "boxes" not in apart and 0.05 < apart["relative_error"] < 0.1
    assert tolerance(apart, 0.02, "fp16") == 0.02
