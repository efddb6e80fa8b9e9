"""What the three kinds of kernel take along, and where they differ."""

import numpy as np
import pytest

from edgert.graph import Graph
from edgert.graph.fusion import GENERATED, INT8_ONNX_RUNTIME, INT8_TENSORRT, Fusion, activation, kernel
from tests.helpers.models import make, node
from tests.unit.quantization.nets import conv, graph_of, stored

IMAGE = {"x": [1, 4, 8, 8], "z": [1, 4, 8, 8]}
ALL = (GENERATED, INT8_TENSORRT, INT8_ONNX_RUNTIME)


def graph(*nodes: object, out: str = "y") -> Graph:
    numbers = {"three": np.float32(3), "six": np.float32(6), "zero": np.float32(0)}
    numbers["each"] = np.ones((1, 4, 1, 1), np.float32)  # type: ignore[assignment]
    weights = {**stored(a=(4, 4, 3, 3), b=(4, 4, 3, 3)), **numbers}
    return graph_of(make(list(nodes), IMAGE, {out: None}, weights))  # type: ignore[arg-type]


def fused(made: Graph, fusion: Fusion, first: str = "a") -> list[str]:
    opening = next(one for one in made.nodes if one.name == first)
    return [one.op for one in kernel(made, opening, fusion)]


def padded(name: str, source: str, output: str) -> object:
    return conv(name, source, output, pads=[1, 1, 1, 1])


@pytest.mark.parametrize("fusion", ALL)
def test_an_activation_joins_its_layer(fusion: Fusion) -> None:
    made = graph(padded("a", "x", "t"), node("Relu", ["t"], ["y"]))
    assert fused(made, fusion) == ["Conv", "Relu"]


@pytest.mark.parametrize("fusion", ALL)
def test_a_gate_joins_its_layer(fusion: Fusion) -> None:
    made = graph(padded("a", "x", "t"), node("Sigmoid", ["t"], ["s"]), node("Mul", ["t", "s"], ["y"]))
    assert fused(made, fusion) == ["Conv", "Sigmoid", "Mul"]


@pytest.mark.parametrize("fusion", ALL)
def test_a_hard_swish_written_out_joins_its_layer(fusion: Fusion) -> None:
    made = graph(
        padded("a", "x", "t"),
        node("Add", ["t", "three"], ["r"]),
        node("Clip", ["r", "zero", "six"], ["s"]),
        node("Mul", ["t", "s"], ["u"]),
        node("Div", ["u", "six"], ["y"]),
    )
    assert fused(made, fusion) == ["Conv", "Add", "Clip", "Mul", "Div"]


@pytest.mark.parametrize("fusion", ALL)
def test_a_tensor_joined_with_a_function_of_itself_is_one_activation(fusion: Fusion) -> None:
    made = graph(padded("a", "x", "t"), node("Relu", ["t"], ["r"]), node("Add", ["r", "t"], ["y"]))
    assert fused(made, fusion) == ["Conv", "Relu", "Add"]


@pytest.mark.parametrize("fusion", ALL)
def test_what_others_read_is_not_taken_inside(fusion: Fusion) -> None:
    made = graph(padded("a", "x", "t"), node("Relu", ["t"], ["r"]), node("Concat", ["r", "t"], ["y"], axis=1))
    assert fused(made, fusion) == ["Conv"]


@pytest.mark.parametrize(
    ("fusion", "wanted"),
    [(GENERATED, ["Conv", "Add", "Relu"]), (INT8_TENSORRT, ["Conv", "Add", "Relu"]), (INT8_ONNX_RUNTIME, ["Conv"])],
)
def test_a_shortcut_joins_where_the_kernel_adds(fusion: Fusion, wanted: list[str]) -> None:
    made = graph(padded("a", "x", "t"), node("Add", ["t", "z"], ["s"]), node("Relu", ["s"], ["y"]))
    assert fused(made, fusion) == wanted


@pytest.mark.parametrize(
    ("fusion", "first", "last"),
    [(GENERATED, ["Conv", "Add"], ["Conv", "Add"]), (INT8_TENSORRT, ["Conv"], ["Conv", "Add"])],
)
def test_of_two_layers_the_later_adds_in_int8(fusion: Fusion, first: list[str], last: list[str]) -> None:
    made = graph(padded("a", "x", "t"), padded("b", "z", "u"), node("Add", ["t", "u"], ["y"]))
    assert (fused(made, fusion, "a"), fused(made, fusion, "b")) == (first, last)


@pytest.mark.parametrize("between", [node("Mul", ["t", "each"], ["s"]), node("Sqrt", ["t"], ["s"])])
def test_only_generated_kernels_take_any_run_of_nodes(between: object) -> None:
    made = graph(padded("a", "x", "t"), between, node("Relu", ["s"], ["y"]))
    ops = [one.op for one in made.nodes]
    assert fused(made, GENERATED) == ops
    assert fused(made, INT8_TENSORRT) == ["Conv"]


def test_a_node_that_may_not_join_ends_the_kernel() -> None:
    made = graph(padded("a", "x", "t"), node("Relu", ["t"], ["r"]), node("Sqrt", ["r"], ["y"]))
    found = kernel(made, made.nodes[0], GENERATED, lambda one, group: one.op != "Sqrt")
    assert [one.op for one in found] == ["Conv", "Relu"]


def test_an_activation_is_a_function_of_one_value() -> None:
    scaled = graph(node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["y"]))
    assert [one.op for one in activation(scaled, "x")] == ["Sigmoid", "Mul"]
    other = graph(node("Sigmoid", ["x"], ["s"]), node("Mul", ["s", "each"], ["t"]), node("Mul", ["x", "t"], ["y"]))
    assert activation(other, "x") == (), "each channel has a factor of its own"
