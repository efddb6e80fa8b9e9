"""Memory of tensors that are alive at the same time."""

from typing import Any

import numpy as np
import onnx
import pytest

from edgert.errors import ModelError
from edgert.graph import Graph, Node, NodeCost, count, read, to_bytes
from edgert.graph.count import Product, peak_bytes, product_of
from tests.helpers.errors import raises
from tests.helpers.models import make, node, value, weights


def cost(
    item: onnx.NodeProto, feeds: dict[str, Any], stored: dict[str, Any] | None = None, *, opset: int = 17
) -> NodeCost:
    (only,) = count(make([item], feeds, {"y": onnx.ValueInfoProto(name="y")}, stored, opset=opset))
    return only


def test_conv() -> None:
    item = node("Conv", ["x", "w", "k"], ["y"], "c", strides=[2, 2], pads=[1, 1, 1, 1])
    found = cost(item, {"x": [1, 3, 8, 8]}, {"w": weights(16, 3, 3, 3), "k": weights(16)})
    assert found == NodeCost(
        name="c",
        op="Conv",
        macs=16 * 4 * 4 * 3 * 3 * 3,
        params=16 * 27 + 16,
        weight_bytes=4 * (16 * 27 + 16),
        activation_bytes=4 * (3 * 64 + 16 * 16),
        output_shape=(1, 16, 4, 4),
    )


@pytest.mark.parametrize(
    ("item", "feeds", "stored", "macs"),
    [
        (node("Conv", ["x", "w"], ["y"], group=8), [2, 8, 6, 6], (8, 1, 3, 3), 2 * 8 * 16 * 9),
        (node("Conv", ["x", "w"], ["y"]), [1, 4, 10], (6, 4, 3), 6 * 8 * 12),
        (node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]), [1, 4, 5, 5], (4, 6, 2, 2), 4 * 25 * 6 * 4),
        (node("ConvTranspose", ["x", "w"], ["y"], group=2), [1, 4, 5, 5], (4, 3, 2, 2), 4 * 25 * 3 * 4),
        (node("Gemm", ["x", "w"], ["y"]), [3, 7], (7, 5), 3 * 7 * 5),
        (node("Gemm", ["x", "w"], ["y"], transA=1, transB=1), [7, 3], (5, 7), 3 * 7 * 5),
        (node("MatMul", ["x", "w"], ["y"]), [2, 8, 3, 7], (7, 5), 2 * 8 * 3 * 7 * 5),
        (node("MatMul", ["x", "w"], ["y"]), [7], (7,), 7),
        (node("Einsum", ["x", "w"], ["y"], equation="bij, bjk -> bik"), [2, 3, 4], (2, 4, 5), 2 * 3 * 4 * 5),
        (node("Add", ["x", "w"], ["y"]), [3, 7], (3, 7), 0),
        (node("PRelu", ["x", "w"], ["y"]), [3, 7], (7,), 0),
    ],
    ids=lambda item: getattr(item, "op_type", ""),
)
def test_macs(item: onnx.NodeProto, feeds: list[int], stored: tuple[int, ...], macs: int) -> None:
    assert cost(item, {"x": feeds}, {"w": weights(*stored)}).macs == macs


def test_recurrent_layers() -> None:
    item = node("LSTM", ["x", "w", "r"], ["y"], hidden_size=5)
    found = cost(item, {"x": [7, 2, 3]}, {"w": weights(1, 20, 3), "r": weights(1, 20, 5)})
    assert found.macs == 7 * 2 * (20 * 3 + 20 * 5)


def test_quantized_layers() -> None:
    one, zero = np.float32(1), np.uint8(0)
    scales = {"xs": one, "xz": zero, "ws": one, "wz": zero, "ys": one, "yz": zero}
    byte = {"x": value("x", [1, 3, 8, 8], "uint8")}
    conv = node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])
    found = cost(conv, byte, {"w": np.ones((4, 3, 3, 3), np.uint8), **scales})
    assert found.macs == 4 * 36 * 27
    assert found.activation_bytes == 3 * 64 + 4 * 36
    product = node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])
    found = cost(product, {"x": value("x", [2, 7], "uint8")}, {"w": np.ones((7, 5), np.uint8), **scales})
    assert found.macs == 2 * 7 * 5
    integer = node("ConvInteger", ["x", "w"], ["y"])
    found = cost(integer, byte, {"w": np.ones((4, 3, 3, 3), np.uint8)})
    assert (found.macs, found.activation_bytes) == (4 * 36 * 27, 3 * 64 + 4 * 4 * 36)


def test_contrib_and_experimental_operators_have_shapes() -> None:
    one, zero = np.float32(1), np.uint8(0)
    add = node("QLinearAdd", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], domain="com.microsoft")
    stored = {"w": np.ones((1, 3, 1, 1), np.uint8), "s": one, "z": zero}
    found = cost(add, {"x": value("x", [1, 3, 8, 8], "uint8")}, stored)
    assert (found.op, found.output_shape, found.activation_bytes) == ("com.microsoft.QLinearAdd", (1, 3, 8, 8), 2 * 192)
    pool = node("QLinearGlobalAveragePool", ["x", "s", "z", "s", "z"], ["y"], domain="com.microsoft", channels_last=0)
    assert cost(pool, {"x": value("x", [1, 3, 8, 8], "uint8")}, stored).output_shape == (1, 3, 1, 1)
    crop = node("Crop", ["x"], ["y"], border=[1, 2, 3, 4])
    assert cost(crop, {"x": [1, 3, 20, 30]}, opset=7).output_shape == (1, 3, 14, 26)


def test_views_move_nothing_and_constants_are_no_activations() -> None:
    nodes = [
        node("Constant", [], ["to"], value_ints=[1, -1]),
        node("Reshape", ["x", "to"], ["a"]),
        node("Mul", ["a", "k"], ["b"]),
        node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]),
        node("Flatten", ["p"], ["y"]),
    ]
    found = count(make(nodes, {"x": [1, 3, 4, 4]}, {"y": None, "b": None}, {"k": np.float32(2)}))
    assert [item.activation_bytes for item in found] == [0, 0, 4 * 96, 4 * (48 + 27), 0]
    assert [item.weight_bytes for item in found] == [0, 16, 4, 0, 0]
    assert [item.params for item in found] == [0, 0, 1, 0, 0]
    assert sum(item.macs for item in found) == 0


def test_shared_weights_are_parameters_once_and_traffic_twice() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Conv", ["a", "w"], ["y"])]
    first, second = count(make(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weights(3, 3, 3, 3)}))
    assert (first.params, second.params) == (81, 0)
    assert first.weight_bytes == second.weight_bytes == 324


def test_names_shape_chains_and_the_model_itself() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Expand", ["k", "s"], ["e"]), node("Add", ["x", "e"], ["y"])]
    model = make(nodes, {"x": [2, 3]}, {"y": value("y", None)}, {"k": weights(1)})
    before = to_bytes(model)
    found = count(model)
    assert [item.name for item in found] == ["Shape_0", "Expand_1", "Add_2"]
    assert [item.output_shape for item in found] == [(2,), (2, 3), (2, 3)]
    assert to_bytes(model) == before


def test_dynamic_inputs_are_named() -> None:
    model = make([node("Relu", ["x"], ["y"], "r")], {"x": ["batch", 3, None]}, {"y": None})
    with raises(ModelError, "node 'r'", why="'x' has dynamic dimensions 0 (batch), 2 (?)", fix="with_shapes"):
        count(model)


def test_shapes_that_depend_on_data_or_unknown_operators() -> None:
    data = make([node("NonZero", ["x"], ["y"])], {"x": [4]}, {"y": value("y", None, "int64")})
    with raises(ModelError, "node 'NonZero_0'", what="'y'"):
        count(data)
    foreign = make([node("Mystery", ["x"], ["a"], domain="acme"), node("Relu", ["a"], ["y"])], {"x": [4]}, {"y": None})
    with pytest.raises(ModelError, match="tensor 'a' has no size"):
        count(foreign)


def test_an_einsum_is_a_product_of_rows_and_columns() -> None:
    cases = {
        "bij,bjk->bik": (3, 4, 5, 2),
        "bij,bjk": (3, 8, 5, 1),
        "ij,kj->ik": (3, 4, 5, 1),
        "ij,ij->ij": (1, 1, 1, 12),
    }
    sizes = {"b": 2, "i": 3, "j": 4, "k": 5}
    for equation, (rows, channels, columns, groups) in cases.items():
        first, second = equation.split("->")[0].split(",")
        shapes = {name: tuple(sizes[label] for label in term) for name, term in (("x", first), ("w", second))}
        one = Node("Einsum", ("x", "w"), ("y",), {"equation": equation.encode()})
        assert product_of(one, shapes.__getitem__) == Product(rows, channels, columns, 1, groups), equation


KIB = 256 * 4  # a float32 tensor of shape (256,)


def graph(*nodes: tuple[str, list[str], list[str]], outputs: tuple[str, ...] = ("y",)) -> Graph:
    made = [node(op, reads, writes) for op, reads, writes in nodes]
    kinds = dict.fromkeys(("x", *outputs), (256,))
    return read(make(made, {"x": kinds["x"]}, {name: kinds[name] for name in outputs}))


def test_a_chain_needs_input_output_and_two_tensors() -> None:
    chain = graph(*(("Neg", [before], [after]) for before, after in [("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")]))
    assert peak_bytes(chain) == 4 * KIB


def test_a_tensor_read_late_stays() -> None:
    skip = graph(("Neg", ["x"], ["a"]), ("Neg", ["a"], ["b"]), ("Neg", ["b"], ["c"]), ("Add", ["a", "c"], ["y"]))
    assert peak_bytes(skip) == 5 * KIB


def test_renaming_and_working_in_place_are_free() -> None:
    plain = graph(("Neg", ["x"], ["a"]), ("Neg", ["a"], ["y"]))
    more = graph(("Neg", ["x"], ["a"]), ("Relu", ["a"], ["b"]), ("Identity", ["b"], ["c"]), ("Neg", ["c"], ["y"]))
    assert peak_bytes(plain) == peak_bytes(more) == 3 * KIB


def test_an_activation_of_a_tensor_that_is_read_again_needs_room() -> None:
    branch = graph(("Neg", ["x"], ["a"]), ("Relu", ["a"], ["b"]), ("Add", ["a", "b"], ["y"]))
    assert peak_bytes(branch) == 4 * KIB
