"""Whole networks rewritten for a DLA: they compute the same, and the rules of Orin, INT8, TensorRT 10.3 take them.

Errors are the largest absolute difference of any output to the original's, with ONNX Runtime, as a part of the largest
output; float32 sums in another order.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dla import Target
from edgert.backend.ort import Function
from edgert.graph import Model, count, inputs, load, read, to_bytes
from edgert.graph.dla_rewrites.apply import Proof, cut_head, fit_model, prepare_for_dla, prove
from edgert.graph.partition import extract
from edgert.placement.dla_share import Survey, survey
from tests.helpers.evaluation_data import data
from tests.helpers.resnet import resnet50

ORIN = Target(generation=2, tensorrt="10.3", precision="int8")
DEMO = Path(__file__).parents[2] / "pipelines" / "assets" / "parts.onnx"
WORST = 1e-4
FAINT = 1e-6
"""Largest error that counts as none where noise makes a network say next to nothing."""
SHAPES = {"ppocr_mobile_v2_det_ch": {"x": (1, 3, 320, 448)}}
OTHERS = (
    "squeezenet_fp32",
    "mobilenet_v1_025_224",
    "fastestdet",
    "ultraface_rfb_320",
    "deeplab_v3_mnv2_05",
    "ppocr_mobile_v2_det_ch",
)


@lru_cache(maxsize=1)
def made() -> Model:
    return resnet50()


def original(name: str) -> Model:
    if name == "resnet50":
        return made()
    return load(DEMO if name == "parts" else data("models", f"{name}.onnx"))


def run(model: Model, feed: Mapping[str, Any]) -> list[Any]:
    return list(Function(model)(feed).values())


def noise(model: Model) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {spec.name: rng.uniform(-1, 1, spec.shape).astype(spec.dtype) for spec in inputs(model)}  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def rewritten(name: str) -> tuple[Model, Model, Proof]:
    before = prepare_for_dla(original(name), SHAPES.get(name))
    after, changes = fit_model(before)
    onnx.checker.check_model(after.proto, full_check=True)
    proof = prove(before, after, [noise(before)], run)
    assert proof.largest > 0
    assert proof.error <= max(WORST * proof.largest, FAINT), (proof, changes)
    return before, after, proof


def work_in(found: Survey) -> list[int]:
    """Multiply-adds of every segment that has any, with ``yes`` alone."""
    return [region.macs for region in found.regions if region.macs]


def test_resnet50_is_on_the_dla_whole() -> None:
    before, after, proof = rewritten("resnet50")
    assert sum(cost.params for cost in count(before)) == pytest.approx(25.5e6, rel=0.01)
    found = survey(read(after), ORIN)
    others = [node.op for node, verdict in zip(found.nodes, found.verdicts, strict=True) if verdict.answer != "yes"]
    assert set(others) <= {"Reshape"}  # of the scores, after the network
    assert found.summary.macs_yes == 1.0
    assert len(found.regions) == 1
    assert proof.error < 1e-3


def test_the_demo_detector_has_all_its_work_on_the_dla_in_one_segment() -> None:
    before, after, proof = rewritten("parts")
    assert to_bytes(fit_model(before)[0]) == to_bytes(after)
    found = survey(read(after), ORIN)
    assert found.summary.macs_yes == 1.0
    assert len(work_in(found)) == 1
    assert proof.error < 1e-4


HEADS: dict[str, list[str]] = {
    "parts": [
        "/heads.0/Concat_output_0 float32[1, 10, 32, 40]",
        "/heads.1/Concat_output_0 float32[1, 10, 16, 20]",
        "/heads.2/Concat_output_0 float32[1, 10, 8, 10]",
    ],
    "yolox_nano_416": ["1066 float32[1, 85, 52, 52]", "1108 float32[1, 85, 26, 26]", "1150 float32[1, 85, 13, 13]"],
    "nanodet_m_320": [
        "888 float32[1, 32, 40, 40]",
        "889 float32[1, 80, 40, 40]",
        "910 float32[1, 32, 20, 20]",
        "911 float32[1, 80, 20, 20]",
        "932 float32[1, 32, 10, 10]",
        "933 float32[1, 80, 10, 10]",
    ],
}
"""Where each detector's head is cut off: the maps that its boxes and scores are read from."""


@pytest.mark.parametrize("name", HEADS)
def test_a_detector_without_its_head_is_one_segment(name: str) -> None:
    _, after, _ = rewritten(name)
    graph = read(after)
    allowed = survey(graph, ORIN).allowed
    cut = cut_head(graph, lambda node: node.name in allowed)
    assert sorted(map(str, cut.tensors)) == HEADS[name]
    assert not cut.front
    assert {node.op for node in cut.tail} <= {"Reshape", "Transpose", "Concat"}
    found = survey(extract(graph, [spec.name for spec in cut.tensors]), ORIN)
    assert sum(found.macs) == sum(cost.macs for cost in count(after))
    assert {verdict.answer for verdict in found.verdicts} == {"yes"}
    assert len(found.regions) == 1
    assert found.summary.macs_yes == 1.0


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_compute_the_same_and_have_no_less_on_the_dla(name: str) -> None:
    before, after, _ = rewritten(name)
    first, second = (survey(read(model), ORIN) for model in (before, after))
    assert second.summary.no <= first.summary.no
    assert second.summary.macs_yes >= first.summary.macs_yes - 1e-9


def test_fastestdet_and_squeezenet_are_on_the_dla_whole() -> None:
    for name in ("fastestdet", "squeezenet_fp32"):
        found = survey(read(rewritten(name)[1]), ORIN)
        assert {verdict.answer for verdict in found.verdicts} == {"yes"}
        assert len(found.regions) == 1
