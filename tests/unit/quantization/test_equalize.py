from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.graph import Graph, Model, infer, read, write
from edgert.quantization.equalization import balancing_scales, equalize
from edgert.quantization.lowering.weights import kernel_of
from edgert.quantization.quantizer import equalize_model
from edgert.quantization.scheme.channels import FIXED, channels
from tests.helpers.models import make, node, weights

UNEVEN = np.array([0.01, 1, 30, 1], np.float32)


def rows(*shape: int, seed: int = 0) -> Any:
    """A weight whose first axis is uneven."""
    return weights(*shape, seed=seed) * np.resize(UNEVEN, shape[0]).reshape(-1, *[1] * (len(shape) - 1))


def chain(*between: Any, last: Any = None, end: str = "m", stored: dict[str, Any] | None = None) -> Model:
    """x → Conv (4 channels) → ``between``, from "a" to ``end`` → Conv → y."""
    nodes = [node("Conv", ["x", "w", "b"], ["a"], "first"), *between, last or node("Conv", [end, "v"], ["y"], "last")]
    tensors = {"w": rows(4, 2, 1, 1), "b": weights(4, seed=5) / 50, "v": weights(3, 4, 1, 1, seed=2), **(stored or {})}
    return infer(make(nodes, {"x": [1, 2, 6, 6]}, {"y": None}, tensors))


def ranges(graph: Graph, name: str, axis: int) -> Any:
    kernel = kernel_of(graph, next(one for one in graph.nodes if one.name == name))
    assert kernel is not None
    return np.abs(kernel.values).max(axis=(axis, 3)).reshape(-1)


def scalings(graph: Graph) -> dict[str, tuple[Any, Any]]:
    """Divisors of output channels and factors of input channels by node, of the nodes that are scaled."""
    classes = channels(graph)
    scale = balancing_scales(graph, classes)
    found = {layer.kernel.node.name: (scale[layer.makes], scale[layer.reads]) for layer in classes.layers}
    return {name: pair for name, pair in found.items() if any((one != 1).any() for one in pair)}


def assert_same_function(model: Model, graph: Graph) -> None:
    feeds = {item.name: weights(*item.shape, seed=9) for item in graph.inputs}  # type: ignore[arg-type]
    old, new = Function(model)(feeds), Function(write(graph, model))(feeds)
    for before, after in zip(old.values(), new.values(), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5 * np.abs(before).max())


PASSING = {
    "relu": [node("Relu", ["a"], ["m"])],
    "leaky": [node("LeakyRelu", ["a"], ["m"], alpha=0.3)],
    "prelu": [node("PRelu", ["a", "slope"], ["m"])],
    "open_clip": [node("Clip", ["a", "zero"], ["m"])],
    "max_pool": [node("Relu", ["a"], ["r"]), node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], pads=[1, 1, 0, 0])],
    "mean_pool": [node("AveragePool", ["a"], ["m"], kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)],
    "resize": [node("Resize", ["a", "", "twice"], ["m"], mode="nearest")],
    "zero_pad": [node("Pad", ["a", "around"], ["m"])],
    "times_constant": [node("Mul", ["a", "gain"], ["m"])],
    "depthwise": [node("Conv", ["a", "d"], ["m"], group=4)],
    "residual": [node("Conv", ["a", "s"], ["s_out"]), node("Add", ["a", "s_out"], ["m"])],
    "concat": [
        node("Conv", ["a", "s"], ["s_out"]), node("Concat", ["s_out", "a"], ["both"], axis=1),
        node("Split", ["both", "halves"], ["other", "m"], axis=1),
    ],
    "gate": [node("GlobalAveragePool", ["a"], ["g"]), node("Conv", ["g", "s"], ["t"]), node("Sigmoid", ["t"], ["u"]),
             node("Mul", ["a", "wide"], ["z"]), node("Mul", ["z", "big"], ["m"])],
}  # fmt: skip
STORED = {
    "slope": np.abs(weights(4, 1, 1, seed=3)),
    "zero": np.float32(0),
    "twice": np.array([1, 1, 2, 2], np.float32),
    "around": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "gain": np.abs(weights(4, 1, 1, seed=4)) + 0.5,
    "d": weights(4, 1, 3, 3, seed=6),
    "s": weights(4, 4, 1, 1, seed=7),
    "halves": np.array([4, 4]),
    "wide": np.full((1, 4, 1, 1), 2, np.float32),
    "big": np.full((1, 1, 6, 6), 3, np.float32),
}


@pytest.mark.parametrize("name", PASSING)
def test_the_function_stays_and_the_ranges_meet(name: str) -> None:
    model = chain(*PASSING[name], stored=STORED)
    graph = read(model)
    done = equalize(graph)
    assert_same_function(model, done)
    assert scalings(graph).keys() >= {"first", "last"}
    makes = ranges(done, "first", 2)
    assert makes.max() / makes.min() < ranges(graph, "first", 2).max() / ranges(graph, "first", 2).min() / 4


def test_a_pair_gets_the_scales_of_the_paper() -> None:
    graph = read(chain(node("Relu", ["a"], ["m"]), stored={"b": np.zeros(4, np.float32)}))
    r1, r2 = ranges(graph, "first", 2), ranges(graph, "last", 1)
    first, last = scalings(graph).values()
    np.testing.assert_allclose(first[0], np.sqrt(r1 * r2) / r2, rtol=0.02)
    np.testing.assert_allclose(last[1], first[0])
    done = equalize(graph)
    np.testing.assert_allclose(ranges(done, "first", 2), ranges(done, "last", 1), rtol=0.03)


def test_a_depthwise_triple_meets_in_the_middle() -> None:
    model = chain(node("Relu", ["a"], ["r"]), node("Conv", ["r", "d"], ["p"], "deep", group=4),
                  node("Relu", ["p"], ["m"]), stored={**STORED, "b": np.zeros(4, np.float32)})  # fmt: skip
    done = equalize(read(model))
    deep = ranges(done, "deep", 2)
    np.testing.assert_allclose(ranges(done, "first", 2), deep, rtol=0.06)
    np.testing.assert_allclose(ranges(done, "last", 1), deep, rtol=0.06)
    assert_same_function(model, done)


@pytest.mark.parametrize(
    ("attributes", "stored"),
    [({"group": 2}, {"v": weights(6, 2, 3, 3)}), ({"group": 4}, {"v": weights(8, 1, 3, 3)})],
)
def test_grouped_convolutions(attributes: dict[str, int], stored: dict[str, Any]) -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["a"], "first"), node("Relu", ["a"], ["m"]),
             node("Conv", ["m", "v"], ["y"], "last", **attributes)]  # fmt: skip
    model = infer(
        make(nodes, {"x": [1, 2, 6, 6]}, {"y": None}, {"w": rows(4, 2, 1, 1), "b": weights(4) / 50, **stored})
    )
    assert len(scalings(read(model))) == 2
    assert_same_function(model, equalize(read(model)))


def test_transposed_convolutions_and_fully_connected_layers() -> None:
    nodes = [
        node("ConvTranspose", ["x", "w"], ["a"], "up", group=2), node("Relu", ["a"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]), node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "v", "c"], ["h"], "fc", transB=1, beta=0.5), node("Relu", ["h"], ["i"]),
        node("Gemm", ["i", "u"], ["y"], "end"),
    ]  # fmt: skip
    stored = {"w": rows(4, 2, 2, 2), "v": rows(5, 4), "c": weights(1, 5, seed=3), "u": weights(5, 3, seed=4)}
    model = infer(make(nodes, {"x": [1, 4, 3, 3]}, {"y": None}, stored))
    assert list(scalings(read(model))) == ["up", "fc", "end"]
    assert_same_function(model, equalize(read(model)))


def test_a_flattened_image_is_a_run_of_columns_per_channel() -> None:
    model = chain(node("Relu", ["a"], ["r"]), node("Flatten", ["r"], ["m"]),
                  last=node("Gemm", ["m", "v"], ["y"], "last"), stored={"v": weights(144, 3)})  # fmt: skip
    _, last = scalings(read(model)).values()
    assert last[1].shape == (144,) and len(set(last[1][:36])) == 1
    assert_same_function(model, equalize(read(model)))


STOPPING = {
    "sigmoid": [node("Sigmoid", ["a"], ["m"])],
    "silu": [node("Sigmoid", ["a"], ["s0"]), node("Mul", ["a", "s0"], ["m"])],
    "relu6": [node("Clip", ["a", "zero", "six"], ["m"])],
    "shift": [node("Add", ["a", "gain"], ["m"])],
    "fed": [node("Conv", ["x", "n"], ["e"]), node("Sigmoid", ["e"], ["e2"]), node("Add", ["a", "e2"], ["m"])],
    "product": [node("Conv", ["x", "n"], ["e"]), node("Mul", ["a", "e"], ["m"])],
    "shuffle": [node("Transpose", ["a"], ["t0"], perm=[0, 1, 3, 2]), node("Relu", ["t0"], ["m"])],
    "bordered": [node("Pad", ["a", "around", "one"], ["m"])],
    "widened": [node("Mul", ["a", "gain"], ["t0"]), node("Softmax", ["t0"], ["m"], axis=1)],
}


@pytest.mark.parametrize("name", STOPPING)
def test_what_is_not_homogeneous_keeps_its_scale(name: str) -> None:
    more = {"six": np.float32(6), "one": np.float32(1), "n": weights(4, 2, 1, 1, seed=8)}
    assert scalings(read(chain(*STOPPING[name], stored={**STORED, **more}))) == {}


def test_a_model_without_layers_to_equalize_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    for name, warns in (("silu", True), ("none", False)):
        caplog.clear()
        nodes = STOPPING.get(name, [node("Relu", ["a"], ["m"])])
        equalize_model(chain(*nodes, stored=STORED))
        assert ("equalize: true changes nothing" in caplog.text) is warns


def test_what_others_see_keeps_its_scale() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "first"), node("Relu", ["a"], ["m"]), node("Conv", ["m", "v"], ["y"])]
    stored = {"w": rows(4, 2, 1, 1), "v": weights(3, 4, 1, 1)}
    seen = infer(make(nodes, {"x": [1, 2, 6, 6]}, {"y": None, "m": None}, stored))
    assert scalings(read(seen)) == {}
    assert len(scalings(read(infer(make(nodes, {"x": [1, 2, 6, 6]}, {"y": None}, stored))))) == 2


def test_a_weight_that_two_nodes_share_is_not_changed_for_the_other() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "first"), node("Relu", ["a"], ["m"]),
             node("Conv", ["m", "v"], ["y"], "last"), node("Conv", ["x", "w"], ["z"], "twin")]  # fmt: skip
    model = infer(
        make(nodes, {"x": [1, 2, 6, 6]}, {"y": None, "z": None}, {"w": rows(4, 2, 1, 1), "v": weights(3, 4, 1, 1)})
    )
    done = equalize(read(model))
    assert done.nodes[-1].inputs[1] == "w" != done.nodes[0].inputs[1]
    assert_same_function(model, done)


def test_dead_channels_are_skipped() -> None:
    w, v = rows(4, 2, 1, 1), weights(3, 4, 1, 1, seed=2)
    w[0] = 0
    v[:, 1] = 0
    model = chain(node("Relu", ["a"], ["m"]), stored={"w": w, "v": v})
    first, _ = scalings(read(model)).values()
    assert list(first[0][:2]) == [1, 1] and (first[0][2:] != 1).all()
    assert np.isfinite(first[0]).all()
    assert_same_function(model, equalize(read(model)))


def test_a_channel_of_bias_alone_does_not_blow_up() -> None:
    w = weights(4, 2, 1, 1)
    w[0] *= np.float32(1e-6)
    bias = np.array([0.9, 1, -0.5, 0], np.float32)
    done = equalize(read(chain(node("Relu", ["a"], ["m"]), stored={"w": w, "b": bias})))
    stored = done.constants[done.nodes[0].inputs[2]]
    assert np.abs(stored).max() <= max(1, np.abs(w).max()) + 1e-6


def test_classes_follow_the_data() -> None:
    graph = read(chain(*PASSING["concat"], stored=STORED))
    first, side, last = channels(graph).layers
    np.testing.assert_array_equal(first.makes, last.reads)
    np.testing.assert_array_equal(first.makes, side.reads)
    assert (side.makes == FIXED).sum() == 0  # nobody reads the other half, so it is nobody's business
    assert (first.reads == FIXED).all() and (last.makes == FIXED).all()
