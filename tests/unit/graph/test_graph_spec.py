from __future__ import annotations

import onnx
import pytest
from onnx import helper

from edgert.errors import ModelError
from edgert.graph import TensorSpec, inputs, outputs
from tests.unit.graph.graphs import make, node, value, weights

RELU = [node("Relu", ["x"], ["y"])]


def test_names_shapes_and_types() -> None:
    model = make(RELU, {"x": value("x", ["n", 3, None], "float16")}, {"y": value("y", [1, 3, 2], "float16")})
    assert inputs(model) == (TensorSpec("x", ("n", 3, None), "float16"),)
    assert outputs(model) == (TensorSpec("y", (1, 3, 2), "float16"),)
    assert not inputs(model)[0].is_static
    assert outputs(model)[0].is_static
    assert str(inputs(model)[0]) == "x float16[n, 3, ?]"


def test_stored_tensors_listed_as_inputs_are_left_out() -> None:
    conv = [node("Conv", ["x", "w"], ["y"])]
    model = make(conv, {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weights(4, 3, 3, 3)}, listed=True)
    assert [item.name for item in model.proto.graph.input] == ["x", "w"]
    assert [spec.name for spec in inputs(model)] == ["x"]


@pytest.mark.parametrize("text", ["None", "?", "-1"])
def test_meaningless_dimension_names_are_unknown(text: str) -> None:
    assert inputs(make(RELU, {"x": [text, 3]}, {"y": None}))[0].shape == (None, 3)


def test_negative_sizes_are_unknown() -> None:
    assert inputs(make(RELU, {"x": [-1, 3]}, {"y": None}))[0].shape == (None, 3)


def test_scalar_and_unknown_rank_differ() -> None:
    scalar, unknown = inputs(make([node("Add", ["x", "u"], ["y"])], {"x": [], "u": value("u", None)}, {"y": None}))
    assert (scalar.shape, scalar.ranked, scalar.is_static) == ((), True, True)
    assert (unknown.shape, unknown.ranked, unknown.is_static) == ((), False, False)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [("BFLOAT16", "bfloat16"), ("INT4", "int4"), ("FLOAT8E4M3FN", "float8_e4m3fn"), ("STRING", "object")],
)
def test_types_beyond_numpy(code: str, dtype: str) -> None:
    info = helper.make_tensor_value_info("x", onnx.TensorProto.DataType.Value(code), [2])
    assert inputs(make([node("Identity", ["x"], ["y"])], {"x": info}, {"y": None}))[0].dtype == dtype


def test_a_sequence_is_refused() -> None:
    info = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    model = make([node("SequenceConstruct", ["x"], ["s"])], {"x": [2]}, {"s": info})
    with pytest.raises(ModelError, match=r"output 's' of model 'test.onnx' is a sequence, not a tensor"):
        outputs(model)
