"""The detector that ships with the demo, judged from its file on scenes it was never trained or selected on."""

from pathlib import Path

import onnx
import pytest

from edgert.config import load_pipeline
from edgert.dataset.labels import GroundTruthBoxes
from edgert.graph import load
from edgert.runtime import Detections
from edgert.wiring.exporter_metadata import declared_settings
from edgert.wiring.settings import Setting
from pipelines.conveyor import LABELS
from tests.helpers.demo_detector import average_precision, compare

ASSETS = Path(__file__).resolve().parents[2] / "pipelines" / "assets"
MODEL = ASSETS / "parts.onnx"
SEEDS = range(500, 510)
DLA_OPS = {"Conv", "Relu", "MaxPool", "Resize", "Add", "Concat", "Sigmoid"}
TAIL_OPS = {"Reshape", "Transpose"}


@pytest.fixture(scope="module")
def graph() -> onnx.GraphProto:
    return onnx.load(MODEL).graph


@pytest.fixture(scope="module")
def seen() -> tuple[list[Detections], GroundTruthBoxes]:
    return compare(MODEL, SEEDS, frames_each=8)


def test_it_finds_the_parts_of_scenes_it_never_saw(seen: tuple[list[Detections], GroundTruthBoxes]) -> None:
    assert len(seen[0]) == 80
    assert average_precision(*seen) >= 0.90


def test_its_scores_are_worth_a_threshold_of_one_half(seen: tuple[list[Detections], GroundTruthBoxes]) -> None:
    """What a viewer sees at score 0.5: nearly every part boxed, nearly no box without a part."""
    found, wanted = seen
    sure = [one[one.scores >= 0.5] for one in found]
    shown, there = sum(map(len, sure)), sum(len(one.classes) for one in wanted.images)
    assert 0.85 * there <= shown <= 1.1 * there
    assert average_precision(sure, wanted) >= 0.85


def test_labels_and_output_belong_together(graph: onnx.GraphProto) -> None:
    labels = (ASSETS / "parts.txt").read_text().split()
    assert tuple(labels) == LABELS
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [1, 3, 256, 320]
    assert [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim] == [1, 1680, 5 + len(LABELS)]


def test_its_body_holds_only_what_a_dla_can_run(graph: onnx.GraphProto) -> None:
    assert {node.op_type for node in graph.node} <= DLA_OPS | TAIL_OPS
    after = {name for node in graph.node if node.op_type in TAIL_OPS for name in node.output}
    readers = {node.op_type for node in graph.node if after.intersection(node.input)}
    assert readers <= TAIL_OPS | {"Concat"}


def test_the_file_is_small_and_says_what_it_is() -> None:
    assert MODEL.stat().st_size <= 1_500_000
    model = onnx.load(MODEL)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["labels"].split(",") == list(LABELS)
    assert {"seed", "recipe", "input"} <= facts.keys()
    parts, declared = load_pipeline(ASSETS.parent / "hello.yaml").config.models["parts"], declared_settings(load(MODEL))
    fed, task = parts.input, parts.task
    assert {"color", "mean", "std", "resize", "anchor", "pad"} == declared.input.keys()
    assert not Setting(fed.model_copy(update=dict(declared.input)), task).differing(Setting(fed, task))
    assert declared.labels == LABELS
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
