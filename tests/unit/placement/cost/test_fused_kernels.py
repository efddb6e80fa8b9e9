"""Fusing: what joins a unit, what stands alone, and that units are convex and in order."""

import random
import time

import numpy as np
import pytest

from edgert.errors import ModelError
from edgert.graph import Graph, Node, TensorSpec
from edgert.placement.cost.work import PRODUCT, Work, units
from tools.networks.builder import Builder
from tools.networks.table import build


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


@pytest.mark.parametrize("seed", range(40))
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
