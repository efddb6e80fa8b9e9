"""Names, shapes and types of inputs and outputs, of operators and of tensors inside."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from edgert.errors import ModelError
from edgert.graph import Graph, TensorSpec, inputs, outputs, read
from edgert.graph.model import element_type
from edgert.graph.type_inference import cast_node, dtypes, signature
from tests.helpers.models import make, node, value, weights

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
    with pytest.raises(ModelError, match=r"output 's' of model 'test.onnx' is of type sequence, not a tensor"):
        outputs(model)


def test_ports_of_one_variable_have_one_type() -> None:
    found = signature("Conv", 17)
    assert found is not None
    assert [port.variable for port in (*found.inputs, *found.outputs)] == ["T"] * 4
    assert "float16" in found.inputs[0].dtypes
    assert "int8" not in found.inputs[0].dtypes
    assert found.is_input_type("T")
    assert found.input(3) is None


def test_ports_of_a_fixed_type_say_so() -> None:
    found = signature("Resize", 17)
    assert found is not None
    scales = found.input(2)
    assert scales is not None
    assert (scales.variable, scales.dtypes) == ("tensor(float)", frozenset({"float32"}))


def test_the_last_of_a_variadic_operator_stands_for_all() -> None:
    concat, split = signature("Concat", 17), signature("Split", 17)
    assert concat is not None
    assert split is not None
    assert concat.input(7) == concat.input(0)
    assert concat.output(1) is None
    assert split.output(5) == split.output(0)


def test_a_loop_carries_tensors_of_any_types_side_by_side() -> None:
    found = signature("Loop", 17)
    assert found is not None
    assert not found.is_input_type(found.outputs[-1].variable)


def test_types_depend_on_the_opset() -> None:
    old, new = signature("QuantizeLinear", 13), signature("QuantizeLinear", 19)
    assert old is not None
    assert new is not None
    assert "float16" not in old.inputs[0].dtypes
    assert "float16" in new.inputs[0].dtypes
    assert new.inputs[1].variable == new.inputs[0].variable


def test_types_that_numpy_has_not_keep_the_names_of_ml_dtypes() -> None:
    found = signature("QuantizeLinear", 19)
    assert found is not None
    assert {"int8", "uint8", "float8_e4m3fn"} <= found.outputs[0].dtypes


def test_unknown_operators_have_none() -> None:
    assert signature("Own", 17) is None
    assert signature("Conv", 17, "acme") is None
    assert signature("LayerNormalization", 16) is None
    assert signature("Conv", 17, "ai.onnx") == signature("Conv", 17)


def bare(graph: Graph) -> Graph:
    """As after a rewrite: nothing recorded of inner tensors."""
    return replace(graph, specs={})


def test_types_follow_from_operators_where_nothing_is_recorded() -> None:
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("QuantizeLinear", ["d", "s"], ["u"]),
        node("Greater", ["d", "s"], ["g"]),
        node("Where", ["g", "d", "x"], ["w"]),
        node("Shape", ["w"], ["n"]),
        node("Cast", ["n"], ["f"], to=10),
        node("ConstantOfShape", ["n"], ["c"]),
        node("Split", ["w"], ["a", "b"], axis=1),
    ]
    stored = {"s": np.float32(0.1), "z": np.int8(0)}
    found = dtypes(bare(read(make(nodes, {"x": [1, 2]}, {"w": None}, stored, opset=13))))
    assert {name: found[name] for name in "qduwgnfcab"} == {
        **dict.fromkeys("dwcab", "float32"),
        "q": "int8",
        "u": "uint8",
        "g": "bool",
        "n": "int64",
        "f": "float16",
    }


def test_what_cannot_be_known_is_left_out() -> None:
    nodes = [node("Own", ["x"], ["o"], domain="acme"), node("Relu", ["o"], ["r"]), node("Shape", ["r"], ["s"])]
    found = dtypes(bare(read(make(nodes, {"x": [1]}, {"s": value("s", [1], "int64")}))))
    assert found == {"x": "float32", "s": "int64"}


def test_scales_decide_what_a_dequantized_tensor_is() -> None:
    nodes = [node("DequantizeLinear", ["x", "s"], ["d"])]
    stored = {"s": np.float16(0.5)}
    graph = read(make(nodes, {"x": value("x", [2], "int8")}, {"d": value("d", [2], "float16")}, stored, opset=19))
    assert dtypes(replace(bare(graph), outputs=()))["d"] == "float16"


def test_a_cast_node_converts_to_the_type_named() -> None:
    cast = cast_node("a", "b", "int64", "c")
    assert (cast.op, cast.inputs, cast.outputs, cast.attributes) == ("Cast", ("a",), ("b",), {"to": 7})
    assert element_type("float16") == 10
    with pytest.raises(KeyError):
        element_type("float99")
