"""The model that is quantized, what is refused, and ranges for everybody and for one engine."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgert.backend.ort import Function
from edgert.config import ModelConfig
from edgert.errors import ModelError
from edgert.graph import Model, from_proto, inputs, load, read, to_bytes
from edgert.graph.opset import opset
from edgert.quantization.calibrated import CalibratedModel, calibrate_section, prepare
from edgert.quantization.int8_model import section_recipe
from edgert.quantization.quantizer import Quantizer
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target, tensors_to_calibrate
from tests.helpers import models
from tests.helpers.models import Typed, choice, make, node
from tests.unit.quantization.network import IMAGES, SIZE, random_images

F32, F16, I8, U8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8
WEIGHT = np.ones((4, 3, 3, 3), np.float32)
CONV = node("Conv", ["x", "w"], ["y"], name="c")


def one(node: Any, kind: int = F32, **weights: Any) -> Model:
    return make([node], {"x": Typed(kind, (1, 3, 8, 8))}, {"y": Typed(kind, None)}, weights)


def at_opset(model: Model, version: int) -> Model:
    proto = model.copied_proto()
    proto.opset_import[0].version = version
    return from_proto(proto)


def test_shapes_are_fixed_the_opset_raised_and_norms_folded() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("BatchNormalization", ["a", "g", "z", "z", "g"], ["y"]),
    ]
    weights = {"w": WEIGHT, "g": np.ones(4, np.float32), "z": np.zeros(4, np.float32)}
    model = make(nodes, {"x": ("n", 3, 8, 8)}, {"y": None}, weights)
    ready = prepare(at_opset(model, 9))
    assert opset(ready) == 17
    assert [str(spec) for spec in inputs(ready)] == ["x float32[1, 3, 8, 8]"]
    (conv,) = ready.proto.graph.node
    assert conv.op_type == "Conv" and conv.name
    assert prepare(at_opset(model, 9)).digest == ready.digest
    assert prepare(ready).digest == ready.digest


def test_a_newer_opset_is_kept() -> None:
    assert opset(prepare(at_opset(models.conv(), 18))) == 18


def test_shapes_may_be_given() -> None:
    ready = prepare(models.conv(("n", 3, None, None)), {"x": (2, 3, 16, 8)})
    assert inputs(ready)[0].shape == (2, 3, 16, 8)
    with pytest.raises(ModelError, match="open dimensions: x float32"):
        prepare(models.conv(("n", 3, None, 8)))
    with pytest.raises(ModelError, match="no input 'z'"):
        prepare(models.conv(), {"z": (1, 3, 8, 8)})


def test_stored_tensors_among_the_inputs_are_none() -> None:
    proto = models.conv().copied_proto()
    proto.graph.input.extend(
        helper.make_tensor_value_info(item.name, item.data_type, list(item.dims)) for item in proto.graph.initializer
    )
    ready = prepare(from_proto(proto))
    assert [item.name for item in ready.proto.graph.input] == ["x"]


def test_weights_may_lie_beside_the_model(tmp_path: Path) -> None:
    proto = models.conv().copied_proto()
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert (tmp_path / "m.data").stat().st_size > 0
    graph = read(prepare(load(tmp_path / "m.onnx")))
    np.testing.assert_array_equal(graph.constants["w"], read(models.conv()).constants["w"])


@pytest.mark.parametrize(
    ("node", "stored"),
    [
        (node("QuantizeLinear", ["x", "s"], ["y"], name="q"), {"s": np.float32(1)}),
        (node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"], name="q"), {}),
        (node("ConvInteger", ["x", "w"], ["y"], name="q"), {"w": WEIGHT.astype(np.int8)}),
        (node("QLinearSigmoid", ["x"], ["y"], name="q", domain="com.microsoft"), {}),
    ],
)
def test_a_quantized_model_is_refused(node: Any, stored: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="already quantized") as caught:
        prepare(one(node, **stored))
    assert f"node 'q' is {node.op_type}" in caught.value.why and "give the float model" in caught.value.fix
    assert ("--target dla" in caught.value.fix) == (node.op_type == "QuantizeLinear")  # others have no scales of it


CAST = [node("Cast", ["x"], ["f"], to=F32), node("Conv", ["f", "w"], ["y"])]


@pytest.mark.parametrize(
    ("model", "what", "why"),
    [
        (one(CONV, F16, w=WEIGHT.astype(np.float16)), "float16", "'w'"),
        (
            make(CAST, {"x": Typed("uint8", (1, 3, 8, 8))}, {"y": None}, {"w": WEIGHT}),
            "no float32 input",
            "x uint8[1, 3",
        ),
        (one(node("Relu", ["x"], ["y"])), "nothing to quantize", "no Conv"),
    ],
)
def test_a_model_without_float32_in_or_weights_is_refused(model: Model, what: str, why: str) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        prepare(model)
    assert why in caught.value.why and "float" in caught.value.fix


def test_bodies_and_foreign_nodes_stay_in_float_and_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("ReduceMax", ["a"], ["m"], keepdims=0),
        node("Cast", ["m"], ["t"], to=TensorProto.BOOL),
        choice("t", "i", node("Neg", ["a"], ["b"]), name="choice"),
        node("Gelu", ["i"], ["y"], name="foreign", domain="com.microsoft"),
    ]
    model = make(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, {"w": WEIGHT})
    with caplog.at_level(logging.INFO, "edgert.quantize"):
        graph = read(prepare(model))
    assert "inside node 'choice' (If) stays in float" in caplog.text
    assert "node 'foreign' (com.microsoft.Gelu) stays in float" in caplog.text
    assert "a" in tensors_to_calibrate(graph)
    assert "b" not in tensors_to_calibrate(graph)


def test_what_is_worth_a_range() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Shape", ["ids"], ["s"]),
        node("Cast", ["s"], ["size"], to=F32),  # float, but the same for every image
        node("Mul", ["k", "k"], ["kk"]),
        node("Mul", ["size", "kk"], ["sized"]),
        node("ReduceMax", ["sized"], ["one"], keepdims=0),
        node("Add", ["a", "one"], ["y"]),
        node("ArgMax", ["y"], ["n"]),
        node("Cast", ["ids"], ["idf"], to=F32),
    ]
    fed = {"x": (1, 3, 8, 8), "ids": Typed("int64", (None, 2))}
    made = {"y": None, "n": Typed("int64", None), "idf": None}
    graph = read(make(nodes, fed, made, {"w": WEIGHT, "k": np.float32(2)}))
    assert tensors_to_calibrate(graph) == ("x", "a", "y", "idf")


def test_without_a_target_every_tensor_is_measured(config: ModelConfig) -> None:
    found = calibrate_section(config, images=random_images(IMAGES, 5))
    assert tuple(found.table.histograms) == tensors_to_calibrate(read(found.model))


@pytest.mark.parametrize("target", ["ort", "gpu", "dla"])
def test_for_one_target_only_what_it_rounds_is_measured_to_the_same_model(config: ModelConfig, target: Target) -> None:
    everything, few = (calibrate_section(config, target=one, images=random_images(IMAGES, 5)) for one in (None, target))
    needed = set(scheme(read(few.model), target).needed)
    assert set(few.table.histograms) == needed
    assert needed < set(everything.table.histograms) or target == "dla"
    first, second = (int8(one, config, target) for one in (everything, few))
    assert first == second


def int8(found: CalibratedModel, config: ModelConfig, target: Target) -> bytes:
    made = Quantizer(found.model, found.table, section_recipe(config, target), found.feeds(16)).finish()
    if target == "ort":
        feeds = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
        assert np.isfinite(Function(made.model)(feeds)["y"]).all()
    return to_bytes(made.model)
