from __future__ import annotations

from edgert.graph.operator_types import signature


def test_ports_of_one_variable_have_one_type() -> None:
    found = signature("Conv", 17)
    assert found is not None
    assert [port.variable for port in (*found.inputs, *found.outputs)] == ["T"] * 4
    assert "float16" in found.inputs[0].dtypes
    assert "int8" not in found.inputs[0].dtypes
    assert found.is_given("T")
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
    assert not found.is_given(found.outputs[-1].variable)


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
