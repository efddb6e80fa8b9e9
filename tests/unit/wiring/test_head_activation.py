"""Whether a head's numbers are past their sigmoid stands in its graph."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgert.assemble.models import Models
from edgert.config import load_pipeline
from edgert.config.model_section import DetectTask
from edgert.engine import build_engine
from edgert.graph import load
from edgert.stages.decode.anchors import YoloRaw
from edgert.stages.decode.decoded import Detr
from edgert.stages.decode.detection import Detector
from edgert.wiring.head_activation import contradicted_decoders, with_activation
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


def queries(path: Path, end: str = "", *, together: bool = False) -> Path:
    b = Export(images=(1, 3, 64, 64))
    x = b.tokens(b.conv("images", 3, 100, 3, 2), 100)
    x = b.node("Transpose", b.linear(b.node("Transpose", x, perm=[0, 2, 1]), 1024, 64), perm=[0, 1, 2])
    scores, boxes = b.linear(x, 64, 80), b.node("Sigmoid", b.linear(x, 64, 4))
    scores = b.node(end, scores) if end else scores
    return b.save(path, b.node("Concat", boxes, scores, axis=2)) if together else b.save(path, scores, boxes)


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


def test_queries_beside_masks(tmp_path: Path) -> None:
    b = Export(images=(1, 3, 64, 64))
    maps = b.conv("images", 3, 100, 3, 2)
    x = b.node("Transpose", b.tokens(maps, 100), perm=[0, 2, 1])
    boxes, scores = b.node("Sigmoid", b.linear(x, 1024, 4)), b.linear(x, 1024, 80)
    model = load(b.save(tmp_path / "m.onnx", boxes, maps, scores))
    task = with_activation(DetectTask(detect="detr-seg"), model, ((100, 4), (100, 32, 32), (100, 80)), 80)
    assert task.options == {"activation": "sigmoid"}  # type: ignore[union-attr]


@pytest.mark.parametrize(("end", "activation"), [("Sigmoid", "none"), ("", None), ("Softmax", None)])
def test_queries_in_one_table(end: str, activation: str | None, tmp_path: Path) -> None:
    model = load(queries(tmp_path / "m.onnx", end, together=True))
    task = with_activation(DetectTask(detect="detr"), model, ((100, 84),), 80)
    assert task.options.get("activation") == activation  # type: ignore[union-attr]


@pytest.mark.parametrize(("labels", "activation"), [(80, "sigmoid"), (79, "softmax"), (0, "sigmoid"), (3, "sigmoid")])
def test_where_labels_do_not_show_it_a_pipeline_takes_what_auto_would(
    labels: int, activation: str, tmp_path: Path
) -> None:
    model = load(queries(tmp_path / "m.onnx"))
    task = with_activation(DetectTask(detect="detr"), model, QUERIES, labels, as_auto=True)
    assert task.options.get("activation") == activation  # type: ignore[union-attr]
    numbers = np.random.default_rng(labels).normal(-2, 2, (100, 80)).astype(np.float32)
    outputs, network = (numbers, np.full((100, 4), 0.5, np.float32)), (64, 64)
    asked, known = (Detr(one, labels).read(outputs, network, 0.3) for one in ("auto", activation))
    assert len(asked.scores) or activation == "softmax"
    for name in ("boxes", "scores", "classes", "extras"):
        np.testing.assert_array_equal(getattr(asked, name), getattr(known, name))


@pytest.mark.parametrize(("end", "activation"), [("", "sigmoid"), ("Sigmoid", "none"), ("Mul", "auto")])
def test_a_pipeline_asks_the_graph_and_not_every_frame(end: str, activation: str, tmp_path: Path) -> None:
    onnx = head(tmp_path / "m.onnx", *filter(None, [end]))
    text = {"models": {"m": {"onnx": str(onnx), "task": {"detect": "yolo-raw"}, "input": {"size": "64x64"}}},
            "stages": {"camera": {"source": "api"}, "see": {"infer": "m", "from": "camera"}}}  # fmt: skip
    (tmp_path / "p.yaml").write_text(json.dumps(text))
    made = Models(load_pipeline(tmp_path / "p.yaml"), None)
    engine = build_engine(load(onnx), made.config.models["m"], 1, 1)
    decoder = made._decoder("m", made.config.models["m"], engine, (64, 64))
    assert isinstance(decoder, Detector) and isinstance(decoder.head, YoloRaw)
    assert decoder.head.activation == activation


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
    assert contradicted_decoders(load(b.save(tmp_path / "m.onnx", y))) == wrong
