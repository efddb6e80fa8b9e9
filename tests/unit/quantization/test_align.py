from typing import Any

import numpy as np
import pytest

from edgert.graph import Graph, Model
from edgert.quantization.lowering.lower import align_channels, lower
from edgert.quantization.scheme.scheme import scheme
from tests.helpers.models import make, node
from tests.unit.quantization.nets import amax_of, conv, feeds_of, graph_of, run, stored


def bottleneck(channels: int, *, output: str = "y", group: int = 1) -> Model:
    """1 x 1 → Relu → depthwise 3 x 3 → SiLU → 1 x 1."""
    nodes = [
        conv("a", "x", "t"),
        node("Relu", ["t"], ["r"], name="relu"),
        conv("d", "r", "u", group=channels, pads=[1, 1, 1, 1]),
        node("Sigmoid", ["u"], ["s"], name="sigmoid"),
        node("Mul", ["u", "s"], ["v"], name="mul"),
        conv("b", "v", "y"),
    ]
    tensors = stored(a=(channels, 4, 1, 1), d=(channels, 1, 3, 3), b=(4, channels, 1, 1))
    return make(nodes, {"x": [1, 4, 6, 6]}, dict.fromkeys(dict.fromkeys(["y", output])), tensors)


def shapes(graph: Graph, *names: str) -> list[tuple[int, ...]]:
    return [graph.constants[name].shape for name in names]


def assert_same(model: Model, graph: Graph) -> None:
    feeds = feeds_of(model)
    np.testing.assert_allclose(run(graph, model, feeds)["y"], run(graph_of(model), model, feeds)["y"], atol=1e-5)


def test_depthwise_channels_come_in_sixteens() -> None:
    model = bottleneck(58)
    wide, _ = align_channels(graph_of(model), {})
    assert shapes(wide, "a.w", "a.b", "d.w", "d.b", "b.w", "b.b") == [
        (64, 4, 1, 1), (64,), (64, 1, 3, 3), (64,), (4, 64, 1, 1), (4,)]  # fmt: skip
    assert [one.attributes.get("group") for one in wide.nodes if one.name == "d"] == [64]
    assert wide.specs["v"].shape == (1, 64, 6, 6)
    assert_same(model, wide)


def test_dense_channels_come_in_fours() -> None:
    nodes = [conv("a", "x", "t"), node("MaxPool", ["t"], ["p"], name="pool", kernel_shape=[2, 2]), conv("b", "p", "y")]
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, stored(a=(10, 4, 1, 1), b=(4, 10, 1, 1)))
    wide, _ = align_channels(graph_of(model), {})
    assert shapes(wide, "a.w", "b.w") == [(12, 4, 1, 1), (4, 12, 1, 1)]
    assert_same(model, wide)


def test_a_gate_widens_with_what_it_gates() -> None:
    nodes = [
        conv("a", "x", "t"),
        node("GlobalAveragePool", ["t"], ["g"], name="gap"),
        conv("e", "g", "f"),
        node("Sigmoid", ["f"], ["s"], name="sigmoid"),
        node("Mul", ["t", "s"], ["u"], name="mul"),
        conv("b", "u", "y"),
    ]
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, stored(a=(10, 4, 1, 1), e=(10, 10, 1, 1), b=(4, 10, 1, 1)))
    wide, _ = align_channels(graph_of(model), {})
    assert shapes(wide, "e.w", "e.b") == [(12, 12, 1, 1), (12,)]
    assert_same(model, wide)


@pytest.mark.parametrize(
    "model",
    [
        bottleneck(64),
        bottleneck(8),  # would double the work
        bottleneck(58, output="v"),
    ],
    ids=["fits", "few", "seen from outside"],
)
def test_what_stays(model: Model) -> None:
    graph = graph_of(model)
    wide, _ = align_channels(graph, {})
    assert {name: value.shape for name, value in wide.constants.items()} == {
        name: value.shape for name, value in graph.constants.items()
    }


@pytest.mark.parametrize(
    ("between", "extra"),
    [
        ([node("Concat", ["t", "t"], ["u"], name="n", axis=1)], {"b": (4, 20, 1, 1)}),
        ([node("Transpose", ["t"], ["u"], name="n", perm=[0, 1, 3, 2])], {}),
        ([node("Mul", ["t", "k"], ["u"], name="n")], {}),
        ([node("Softmax", ["t"], ["u"], name="n", axis=1)], {}),
        ([node("Mul", ["t", "one"], ["u"], name="n"), node("ReduceMean", ["t"], ["one"], name="m", axes=[1])], {}),
    ],
    ids=["concat", "movement", "stored channels", "across channels", "broadcast"],
)
def test_what_looks_at_channels_keeps_them(between: list[Any], extra: dict[str, tuple[int, ...]]) -> None:
    nodes = [conv("a", "x", "t"), *reversed(between), conv("b", "u", "y")]
    tensors = stored(**{"a": (10, 4, 1, 1), "b": (4, 10, 1, 1), **extra}) | {"k": np.ones((1, 10, 1, 1), np.float32)}
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, tensors)
    wide, _ = align_channels(graph_of(model), {})
    assert wide.constants["a.w"].shape == (10, 4, 1, 1)
    assert_same(model, wide)


def test_shared_weights_stay() -> None:
    nodes = [node("Conv", ["x", "w"], ["t"], name="a"), node("Conv", ["t", "w"], ["y"], name="b")]
    model = make(nodes, {"x": [1, 10, 5, 5]}, {"y": None}, {"w": stored(c=(10, 10, 1, 1))["c.w"]})
    wide, _ = align_channels(graph_of(model), {})
    assert wide.constants["w"].shape == (10, 10, 1, 1)


def test_the_lowered_graph_computes_the_same() -> None:
    model = bottleneck(58)
    graph, feeds = graph_of(model), feeds_of(model)
    plan, amax = scheme(graph, "ort"), amax_of(model, feeds)
    rounded = {"d.w": np.rint(graph.constants["d.w"] * 9).astype(np.int8)}
    plain = lower(graph, plan, amax, storage="uint8", rounded=rounded)
    wide = lower(graph, plan, amax, storage="uint8", rounded=rounded, aligned=True)
    assert wide.constants["d.w_quantized"].shape == (64, 1, 3, 3)
    np.testing.assert_allclose(run(wide, model, feeds)["y"], run(plain, model, feeds)["y"], atol=1e-5)
