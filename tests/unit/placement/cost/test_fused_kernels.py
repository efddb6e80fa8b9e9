"""Fusing: what joins a unit, what stands alone, and that units are convex and in order."""

import random
import time
from collections import Counter

import numpy as np
import pytest

from edgert.errors import ModelError
from edgert.graph import Graph, Node, TensorSpec
from edgert.placement.cost.work import PRODUCT, Work, units
from tests.helpers.each import each
from tools.networks.builder import Builder
from tools.networks.table import build
from tools.networks.transformer import Transformer, bert, swin, vit


def ops(graph: Graph, work: Work) -> list[str]:
    by_name = {node.name: node.op for node in graph.nodes}
    return [by_name[name] for name in work.nodes]


def fused(graph: Graph, allowed: set[str] | None = None) -> list[list[str]]:
    return [ops(graph, work) for work in units(graph, allowed)]


def assert_sound(graph: Graph) -> None:
    """Every node once; every unit after those it reads, so that no path leaves a unit and comes back."""
    found = units(graph)
    assert sorted(name for work in found for name in work.nodes) == sorted(node.name for node in graph.nodes)
    ready = {spec.name for spec in graph.inputs} | set(graph.constants)
    outputs = {node.name: node.outputs for node in graph.nodes}
    for work in found:
        assert set(work.inputs) <= ready
        ready.update(output for name in work.nodes for output in outputs[name])


def test_convolution_takes_norm_and_activation() -> None:
    b = Builder(1, 8, 16, 16)
    x = b.conv("input", 16, 3, act=None)
    x = b.node("BatchNormalization", [x, *(b.stored(16) for _ in range(4))], b.shape(x))
    graph = b.graph(b.activate(x, "relu"))
    assert fused(graph) == [["Conv", "BatchNormalization", "Relu"]]


def test_silu_is_one_unit_with_its_convolution_and_counts_as_curved() -> None:
    b = Builder(1, 8, 16, 16, act="silu")
    (work,) = units(graph := b.graph(b.conv("input", 16, 3)))
    assert ops(graph, work) == ["Conv", "Sigmoid", "Mul"]
    assert work.curved == 16 * 16 * 16
    assert (work.read, work.written) == (8 * 256, 16 * 256)


def test_hard_swish_written_out_is_one_unit() -> None:
    b = Builder(1, 8, 16, 16)
    x = b.conv("input", 16, act=None)
    y = b.node("Clip", [b.node("Add", [x, b.stored(1)], b.shape(x))], b.shape(x))
    graph = b.graph(b.node("Mul", [x, y], b.shape(x)))
    assert fused(graph) == [["Conv", "Add", "Clip", "Mul"]]


def test_shortcut_joins_the_last_convolution_and_is_read() -> None:
    b = Builder(1, 8, 16, 16)
    x = b.conv("input", 8, 3)
    graph = b.graph(b.add(b.conv(x, 8, 3, act=None), x, act="relu"))
    first, second = units(graph)
    assert ops(graph, second) == ["Conv", "Add", "Relu"]
    assert second.inputs == (first.outputs[0],)
    assert second.read == 8 * 256  # the convolution's input is the shortcut, read once


def test_only_one_sum_joins_a_convolution() -> None:
    b = Builder(1, 8, 16, 16)
    x = b.pool("input", 2, 1)
    y = b.add(b.add(b.conv(x, 8, act=None), x), x)
    assert fused(b.graph(y)) == [["MaxPool"], ["Conv", "Add"], ["Add"]]


def test_chain_of_elements_is_one_unit() -> None:
    b = Builder(1, 8, 16, 16)
    x = b.activate(b.add(b.activate(b.pool("input", 2, 2), "relu"), b.pool("input", 2, 2)), "relu")
    assert fused(b.graph(x)) == [["MaxPool"], ["MaxPool"], ["Relu", "Add", "Relu"]]


def test_branch_or_output_ends_a_unit() -> None:
    b = Builder(1, 8, 16, 16)
    x = b.conv("input", 8, act=None)
    graph = b.graph(x, b.activate(x, "relu"))
    assert fused(graph) == [["Conv"], ["Relu"]]


def test_views_cost_nothing_and_belong_to_a_neighbor() -> None:
    b = Builder(1, 8, 4, 4)
    x = b.linear(b.flat(b.reshape(b.conv("input", 8, 3), 1, 8, 16, 1)), 10)
    graph = b.graph(b.reshape(x, 10))
    assert fused(graph) == [["Conv", "Relu", "Reshape", "Flatten"], ["Gemm", "Reshape"]]
    assert units(graph)[1].written == 10


def test_view_of_an_input_belongs_to_who_reads_it() -> None:
    b = Builder(1, 8, 4, 4)
    graph = b.graph(b.conv(b.reshape("input", 1, 8, 2, 8), 8))
    assert fused(graph) == [["Reshape", "Conv", "Relu"]]


def test_lonely_view_is_a_unit_that_takes_no_time() -> None:
    b = Builder(1, 8, 4, 4)
    (work,) = units(b.graph(b.reshape("input", 128)))
    assert (work.kind, work.launches, work.read, work.written) == ("view", 0, 0, 0)


def test_narrow_convolutions_of_one_tensor_start_one_kernel() -> None:
    b = Builder(1, 16, 8, 8)
    graph = b.graph(b.conv("input", 8), b.conv("input", 8), b.conv("input", 8, 3))
    assert [work.launches for work in units(graph)] == [1, 0, 1]


def test_join_moves_only_what_lies_elsewhere() -> None:
    b = Builder(1, 8, 8, 8)
    x, y = b.conv("input", 8, 3), b.conv("input", 16, 3)
    first, second = b.cat(x, y), b.cat(x, b.pool(y, 3, 1, pad=1))
    moves = {work.name: work for work in units(b.graph(first, second))}
    assert (moves[first].read, moves[first].launches) == (0, 0)
    assert (moves[second].read, moves[second].written) == (8 * 64, 8 * 64)  # x lies in the first


def test_node_a_dla_cannot_run_stays_out_of_a_unit_it_can() -> None:
    b = Builder(1, 8, 16, 16)
    graph = b.graph(b.activate(b.conv("input", 8, 3, act=None), "leaky"))
    assert fused(graph, {"Conv_0"}) == [["Conv"], ["LeakyRelu"]]
    assert fused(graph, set()) == [["Conv", "LeakyRelu"]]
    assert fused(graph, {"Conv_0", "LeakyRelu_1"}) == [["Conv", "LeakyRelu"]]


def test_products_of_all_kinds_are_counted() -> None:
    b = Builder(2, 8, 16, 16)
    x = b.conv("input", 8, 3, groups=8, act=None)
    up = b.node("ConvTranspose", [x, b.stored(8, 4, 2, 2)], (2, 4, 32, 32))
    rows = b.reshape(x, 2, 8, 256)
    found = units(b.graph(up, b.matmul(rows, b.transpose(rows, 0, 2, 1)), b.linear(b.flat(x), 10)))
    macs = {work.name.split("_")[0]: work.macs for work in found}
    assert macs["Conv"] == 2 * 256 * 8 * 9
    assert macs["ConvTranspose"] == 2 * 256 * 8 * 4 * 4
    assert macs["MatMul"] == 2 * 8 * 256 * 8
    assert macs["Gemm"] == 2 * 2048 * 10
    assert {work.kind for work in found if work.name == "Conv_0"} == {"depthwise"}


def test_unknown_shape_is_told() -> None:
    b = Builder(1, 8, 16, 16)
    graph = b.graph(b.conv("input", 8, 3))
    open_specs = {name: TensorSpec(name, ("N", 8, 16, 16), "float32") for name in graph.specs}
    dynamic = Graph(graph.nodes, graph.constants, (open_specs["input"],), (), open_specs, graph.opset)
    with pytest.raises(ModelError, match=r"Conv_0.*has no known size"):
        units(dynamic)


@pytest.mark.parametrize("name", ["googlenet", "shufflenet_v2_x0_5", "densenet121", "yolo26n", "yolov10s", "yoloxn"])
def test_units_of_networks_are_sound(name: str) -> None:
    assert_sound(build(name, 640))


@each("seed", range(40))
def test_units_of_random_graphs_are_sound(seed: int) -> None:
    assert_sound(random_graph(random.Random(seed)))


def random_graph(rng: random.Random) -> Graph:
    """Of operators that keep shape, so that any may read any."""
    b = Builder(1, 8, 4, 4)
    made = ["input"]
    for _ in range(30):
        x, y = rng.choice(made), rng.choice(made)
        made.append(random_step(b, rng, x, y))
    return b.graph(*rng.sample(made[1:], 3))


def random_step(b: Builder, rng: random.Random, x: str, y: str) -> str:
    """One layer on one or two tensors."""
    kind = rng.randrange(6)
    if kind == 0:
        return b.conv(x, 8, 3, act=rng.choice((None, "silu", "relu")))
    if kind == 1:
        return b.add(x, y)
    if kind == 2:
        return b.activate(x, rng.choice(("relu", "silu", "leaky")))
    if kind == 3:
        return b.reshape(x, 1, 8, 4, 4)
    return b.pool(x, 3, 1, pad=1) if kind == 4 else b.conv(b.cat(x, y), 8)


@pytest.mark.parametrize(
    ("op", "inputs", "macs"),
    [("FusedGemm", ["x", "w"], 2 * 8 * 4), ("QGemm", ["x", "s", "z", "w", "s", "z"], 2 * 8 * 4)],
)
def test_products_of_onnx_runtime_count_as_products(op: str, inputs: list[str], macs: int) -> None:
    given = {name: TensorSpec(name, shape, "float32") for name, shape in {"x": (2, 8), "y": (2, 4)}.items()}
    stored = {"w": np.zeros((8, 4), np.float32), "s": np.ones((), np.float32), "z": np.zeros((), np.uint8)}
    product = Node(op, tuple(inputs), ("y",), name="product", domain="com.microsoft")
    (work,) = units(Graph((product,), stored, (given["x"],), (given["y"],), given, 17))
    assert (work.kind, work.macs) == (PRODUCT, macs)


@pytest.mark.timing
def test_a_long_chain_takes_as_long_as_its_nodes() -> None:
    def chain(count: int) -> Graph:
        b = Builder(1, 8, 16, 16)
        x = "input"
        for at in range(count):
            x = b.node(("Relu", "Sigmoid")[at % 2], [x], (1, 8, 16, 16))
        return b.graph(x)

    def seconds(graph: Graph) -> float:
        began = time.process_time()
        units(graph)
        return time.process_time() - began

    # By turns, and the shortest of each: what else runs on the machine slows some of them, and hastens none.
    short, long = chain(1000), chain(4000)
    times = [(seconds(short), seconds(long)) for _ in range(5)]
    assert min(t for _, t in times) < 8 * min(t for t, _ in times)  # four times as many; with the square, 16 times


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
