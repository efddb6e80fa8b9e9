"""Whether a head's numbers are past their sigmoid stands in its graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.config.model_section import DetectTask
from edgert.graph import load
from edgert.wiring.head_activation import denied, with_activation
from edgert.wiring.starter import starter
from tests.helpers.exports import Export

QUERIES = ((100, 80), (100, 4))


def head(path: Path, *ends: str) -> Path:
    """Three maps as YOLOv5 has them, each behind the operators of ``ends``."""
    b, maps = Export(images=(1, 3, 64, 64)), list[str]()
    x, width = b.conv("images", 3, 8, 3, 2), 8
    for _ in range(4):
        x = b.node("Relu", b.conv(x, width, 8, 3, 2))
        maps.append(x)
    outs = []
    for one, side in zip(maps[1:], (8, 4, 2), strict=True):
        y = b.node("Transpose", b.reshape(b.conv(one, 8, 3 * 7, 1), 1, 3, 7, side, side), perm=[0, 1, 3, 4, 2])
        for end in ends:
            y = b.node("Mul", y, b.scalar(2)) if end == "Mul" else b.node(end, y)
        outs.append(y)
    return b.save(path, *outs)


def queries(path: Path, end: str = "") -> Path:
    b = Export(images=(1, 3, 64, 64))
    x = b.tokens(b.conv("images", 3, 100, 3, 2), 100)
    x = b.node("Transpose", b.linear(b.node("Transpose", x, perm=[0, 2, 1]), 1024, 64), perm=[0, 1, 2])
    scores = b.linear(x, 64, 80)
    return b.save(path, b.node(end, scores) if end else scores, b.node("Sigmoid", b.linear(x, 64, 4)))


@pytest.mark.parametrize(
    ("ends", "activation"),
    [((), "sigmoid"), (("Identity",), "sigmoid"), (("Sigmoid",), "none"), (("Sigmoid", "Mul"), None), (("Mul",), None)],
)
def test_raw_maps(ends: tuple[str, ...], activation: str | None, tmp_path: Path) -> None:
    path = head(tmp_path / "m.onnx", *ends)
    task = with_activation(DetectTask(detect="yolo-raw"), load(path), (), 0)
    assert task.options.get("activation") == activation  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("end", "labels", "activation"),
    [("Sigmoid", 0, "none"), ("", 80, "sigmoid"), ("", 79, None), ("", 0, None), ("Softmax", 80, None)],
)
def test_queries(end: str, labels: int, activation: str | None, tmp_path: Path) -> None:
    model = load(queries(tmp_path / "m.onnx", end))
    task = with_activation(DetectTask(detect="detr"), model, QUERIES, labels)
    assert task.options.get("activation") == activation  # type: ignore[union-attr]


def test_what_is_given_stays(tmp_path: Path) -> None:
    given = DetectTask(detect="yolo-raw", options={"activation": "auto"})
    model = load(head(tmp_path / "m.onnx", "Sigmoid"))
    assert with_activation(given, model, (), 0) is given
    other = DetectTask(detect="yolov8")
    assert with_activation(other, model, (), 0) is other


def test_new_writes_it(tmp_path: Path) -> None:
    made = starter(head(tmp_path / "m.onnx", "Sigmoid"), directory=tmp_path)
    assert "detect: yolo-raw" in made.text
    assert "activation: none" in made.text


@pytest.mark.parametrize(
    ("ends", "wrong"),
    [
        (("Softmax",), {"classify: multilabel"}),
        (("Softmax", "Identity"), {"classify: multilabel"}),
        (("Sigmoid",), {"classify: auto", "classify: softmax", "classify: logits"}),
        ((), set()),
        (("Softmax", "Relu"), set()),
    ],
)
def test_shares_are_of_one_class_and_numbers_by_themselves_of_any(
    ends: tuple[str, ...], wrong: set[str], tmp_path: Path
) -> None:
    b = Export(images=(1, 3, 8, 8))
    y = b.linear(b.reshape("images", 1, 192), 192, 5)
    for end in ends:
        y = b.node(end, y)
    assert denied(load(b.save(tmp_path / "m.onnx", y))) == wrong
