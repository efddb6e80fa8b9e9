"""Shapes for models with open dimensions, from the section ``input:``."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from edgert.backend import Span
from edgert.config import EmbedTask, InputConfig, ModelConfig
from edgert.engine import check_open, default_profile, open_spans, own_precision
from edgert.errors import ModelError
from edgert.graph.model import from_proto
from tests.helpers.models import Dims, conv

OPEN: Dims = ("n", 3, "h", "w")
RANGES = {"H": [32, 48, 64], "W": [32, 64, 96], "N": [1, 1, 4]}


def section(**written: Any) -> ModelConfig:
    return ModelConfig(onnx=Path("m.onnx"), task=EmbedTask(embed="none"), input=InputConfig.model_validate(written))


def test_ranges_become_the_shapes_of_an_engine_and_the_usual_one_is_run() -> None:
    config = section(shape=RANGES)
    assert open_spans(conv(OPEN), config) == {"x": Span((1, 3, 32, 32), (1, 3, 48, 64), (4, 3, 64, 96))}
    assert default_profile(conv(OPEN), config) == {"default": {"x": (1, 3, 48, 64)}}


def test_one_number_is_one_size() -> None:
    config = section(shape={"H": 48, "W": 64})
    assert not config.input.shape.is_open and open_spans(conv(OPEN), config) == {}
    assert default_profile(conv(OPEN), config) == {"default": {"x": (1, 3, 48, 64)}}


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 3), (8, 4)])
def test_a_pipeline_fills_as_many_rows_as_the_shape_allows(batch: int, rows: int) -> None:
    assert default_profile(conv(OPEN), section(shape=RANGES), batch)["default"]["x"][0] == rows


def test_letters_follow_the_layout() -> None:
    spans = open_spans(conv((1, "c", "h", "w")), section(shape={"H": [8, 16, 24], "W": 32}))
    assert spans["x"] == Span((1, 3, 8, 32), (1, 3, 16, 32), (1, 3, 24, 32))
    check_open(conv((1, 3, "h", 32)), section(shape={"H": [8, 16, 24], "W": 32}))
    assert default_profile(conv((1, "h", "w", 3)), section(size="32x16")) == {"default": {"x": (1, 16, 32, 3)}}


def test_a_size_that_the_model_fixes_has_no_range() -> None:
    with pytest.raises(ModelError) as caught:
        check_open(conv((1, 3, 48, "w")), section(shape=RANGES))
    assert caught.value.what == "input 'x' cannot have N from 1 to 4"
    assert "the model fixes it to 1: x float32[1, 3, 48, w]" in caught.value.why
    assert "leave N out of input: shape" in caught.value.fix


@pytest.mark.parametrize(
    ("shape", "size", "fits"),
    [
        ((1, 3, 48, 64), "64x48", True),
        ((1, 3, 48, 64), "48x64", False),
        ((1, 3, 48, 64), "32x32", False),
        ((1, 48, 64, 3), "64x48", True),
        ((1, 48, 64, 3), "32x32", False),
        ((1, 3, 48, "w"), "96x48", True),
        ((1, 3, 48, "w"), "96x96", False),
        (OPEN, "96x96", True),
    ],
)
def test_a_size_is_one_that_the_model_can_have(shape: tuple[int | str, ...], size: str, fits: bool) -> None:
    for check in (check_open, default_profile):
        if fits:
            check(conv(shape), section(size=size))
            continue
        with pytest.raises(ModelError, match=f"cannot be run at {size}: its input 'x' is fixed at") as caught:
            check(conv(shape), section(size=size))
        assert "leave input: size out" in caught.value.fix and "imgsz=" in caught.value.fix


def test_a_size_is_that_of_the_profiles() -> None:
    profiled = section(size="64x48").model_copy(update={"profiles": {"default": {"x": (1, 3, 48, 96)}}})
    with pytest.raises(ModelError, match="cannot be run at 64x48: its input 'x' is fixed at 96x48"):
        check_open(conv(OPEN), profiled)


def test_a_model_made_from_it_at_the_usual_size_is_taken_as_it_is() -> None:
    """Quantized models have one size; the file's own was checked."""
    assert open_spans(conv((1, 3, 48, 64)), section(shape=RANGES)) == {}


def test_an_open_dimension_that_nothing_names_is_told() -> None:
    with pytest.raises(ModelError, match="input 'x' has dynamic dimensions") as caught:
        default_profile(conv(OPEN), section(shape={"H": 48}))
    assert "input: {size: WIDTHxHEIGHT}" in caught.value.fix


@pytest.mark.parametrize(
    ("op", "kind", "precision"), [("Relu", 1, "fp32"), ("Relu", 10, "fp16"), ("ConvInteger", 1, "int8")]
)
def test_the_precision_of_a_file_is_that_of_its_numbers(op: str, kind: int, precision: str) -> None:
    weights = onnx.TensorProto(name="w", data_type=kind)
    proto = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto(op_type=op)], initializer=[weights]))
    assert own_precision(from_proto(proto)) == precision
