"""Attention and layer normalization become one unit each, however a graph spells them out."""

from collections import Counter

import pytest

from edgert.graph import Graph, Node
from edgert.placement.cost.work import units
from tools.networks.transformer import Transformer, bert, swin, vit


def kinds(graph: Graph) -> Counter[str]:
    return Counter(work.kind for work in units(graph) if work.kind != "view")


@pytest.mark.parametrize(
    ("graph", "attentions"),
    [(vit(32), 12), (vit(14), 12), (bert(128), 24), (swin(), 12)],
    ids=("b32", "b14", "bert", "swin"),
)
def test_every_attention_of_a_transformer_is_one_unit(graph: Graph, attentions: int) -> None:
    works = units(graph)
    assert kinds(graph)["attention"] == attentions
    assert not [work for work in works if work.kind != "attention" and work.product.groups > 1]
    assert sorted(node for work in works for node in work.nodes) == sorted(node.name for node in graph.nodes)


def test_units_stay_in_order_around_an_attention() -> None:
    """Every unit follows those it reads."""
    made: set[str] = {"input"}
    for work in units(vit(32)):
        assert set(work.inputs) <= made
        made.update(work.outputs)


def test_attention_reads_what_the_projections_wrote_and_no_weights() -> None:
    b = Transformer(1, 128, 64)
    (work,) = (one for one in units(b.graph(b.attention("input", 4))) if one.kind == "attention")
    assert (work.read, work.written) == (3 * 128 * 64, 128 * 64)


def test_three_projections_of_one_tensor_start_one_kernel() -> None:
    b = Transformer(1, 128, 64)
    works = units(b.graph(b.attention("input", 4)))
    assert [work.launches for work in works if work.kind == "product"] == [1, 0, 0, 1]


def test_attention_with_a_mask_is_one_unit() -> None:
    b = Transformer(1, 4, 16, 16)
    query, mask = (b.node("Relu", ["input"], b.shape("input")) for _ in range(2))
    weights = b.node("Add", [b.matmul(query, "input"), mask], b.shape(mask))
    weights = b.node("Softmax", [weights], b.shape(weights))
    assert kinds(b.graph(b.matmul(weights, "input")))["attention"] == 1


def test_queries_keys_and_values_of_one_projection_are_taken_in() -> None:
    """As timm exports it: one product, one transpose, three gathers, a scale."""
    b = Transformer(1, 49, 96)
    mixed = b.transpose(b.reshape(b.project("input", 288), 1, 49, 3, 3, 32), 2, 0, 3, 1, 4)
    query, key, value = (b.node("Gather", [mixed, b.stored(1)], (1, 3, 49, 32), axis=0) for _ in range(3))
    scaled = b.node("Mul", [query, b.stored(1)], (1, 3, 49, 32))
    weights = b.matmul(scaled, b.transpose(key, 0, 1, 3, 2))
    weights = b.matmul(b.node("Softmax", [weights], b.shape(weights)), value)
    graph = b.graph(b.project(b.reshape(b.transpose(weights, 0, 2, 1, 3), 1, 49, 96), 96))
    assert kinds(graph) == {"product": 2, "attention": 1}


def test_attention_in_windows_with_a_bias_and_a_mask_is_one_unit() -> None:
    """As Swin's shifted windows: a bias for all windows, a mask for each, between reshapes."""
    b = Transformer(8, 3, 49, 32)
    key, value = (b.node("Relu", ["input"], (8, 3, 49, 32)) for _ in range(2))
    weights = b.matmul("input", b.transpose(key, 0, 1, 3, 2))
    weights = b.node("Add", [weights, b.stored(1, 3, 49, 49)], (8, 3, 49, 49))
    weights = b.node("Add", [b.reshape(weights, 2, 4, 3, 49, 49), b.stored(1, 4, 1, 49, 49)], (2, 4, 3, 49, 49))
    weights = b.node("Softmax", [b.reshape(weights, 8, 3, 49, 49)], (8, 3, 49, 49))
    assert kinds(b.graph(b.matmul(weights, value)))["attention"] == 1


def test_a_quantized_attention_is_one_unit() -> None:
    b = Transformer(1, 4, 16, 32)

    def quantized(x: str) -> str:
        for op in ("QuantizeLinear", "DequantizeLinear"):
            x = b.node(op, [x, b.stored(1)], b.shape(x))
        return x

    query, key, value = (quantized(b.node("Relu", ["input"], b.shape("input"))) for _ in range(3))
    weights = b.matmul(query, b.transpose(key, 0, 1, 3, 2))
    weights = quantized(b.node("Softmax", [quantized(weights)], b.shape(weights)))
    (work,) = (one for one in units(b.graph(b.matmul(weights, value))) if one.kind == "attention")
    assert work.macs == 2 * 4 * 16 * 16 * 32


def test_weights_that_leave_the_graph_are_computed_by_a_kernel_of_their_own() -> None:
    b = Transformer(1, 4, 16, 16)
    query = b.node("Relu", ["input"], b.shape("input"))
    weights = b.node("Softmax", [b.matmul(query, "input")], (1, 4, 16, 16))
    found = kinds(b.graph(b.matmul(weights, "input"), weights))
    assert (found["attention"], found["product"]) == (0, 2)


def spelled_out(*, leak: bool = False) -> Graph:
    """A layer normalization as exporters wrote it before opset 17."""
    b = Transformer(1, 16, 32)
    small = (1, 16, 1)
    mean = b.node("ReduceMean", ["input"], small, axes=[-1])
    away = b.node("Sub", ["input", mean], (1, 16, 32))
    square = b.node("ReduceMean", [b.node("Pow", [away, b.stored(1)], (1, 16, 32))], small, axes=[-1])
    deviation = b.node("Sqrt", [b.node("Add", [square, b.stored(1)], small)], small)
    scaled = b.node("Mul", [b.node("Div", [away, deviation], (1, 16, 32)), b.stored(32)], (1, 16, 32))
    last = b.node("Add", [scaled, b.stored(32)], (1, 16, 32))
    return b.graph(last, deviation) if leak else b.graph(last)


def test_a_layer_normalization_in_nine_nodes_is_one_unit() -> None:
    (work,) = units(spelled_out())
    assert (len(work.nodes), work.kind, work.read, work.written) == (9, "map", 16 * 32, 16 * 32)


@pytest.mark.parametrize("reads_between", ["", "before", "behind"])
def test_transposes_around_a_normalization_are_its_kernel_s(reads_between: str) -> None:
    b = Transformer(1, 32, 4, 4)
    first = b.transpose("input", 0, 2, 3, 1)
    normed = b.norm(first)
    last = b.transpose(normed, 0, 3, 1, 2)
    others = {"": (), "before": (first,), "behind": (normed,)}[reads_between]
    works = units(b.graph(last, *others))
    assert [len(work.nodes) for work in works] == {"": [3], "before": [1, 2], "behind": [2, 1]}[reads_between]
    assert works[0].read == works[-1].written == 32 * 4 * 4


def test_a_normalization_with_a_computed_scale_is_a_unit_too() -> None:
    b = Transformer(1, 16, 32)
    scale = b.transpose("input", 0, 1, 2)
    b.nodes.append(Node("LayerNormalization", ("input", scale), ("y",), {}, "norm"))
    b.shapes["y"] = (1, 16, 32)
    assert [work.nodes for work in units(b.graph("y"))] == [(b.nodes[0].name,), ("norm",)]


def test_one_whose_deviation_is_read_elsewhere_stays_apart() -> None:
    assert len(units(spelled_out(leak=True))) > 1


def test_a_pattern_that_a_dla_could_run_in_part_stays_apart() -> None:
    graph = spelled_out()
    assert len(units(graph, [graph.nodes[0].name])) > 1
    assert len(units(graph, [])) == 1
