from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgert.graph import Graph, read
from edgert.graph.model import element_type
from edgert.graph.operator_types import cast_node, dtypes
from tests.unit.graph.graphs import make, node, value


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
