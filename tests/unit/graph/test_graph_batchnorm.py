"""Normalizations and constants per channel go into the weights and biases of layers."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from edgert.graph import Model, from_proto, to_bytes
from edgert.graph.batchnorm import FOLD_BATCHNORM, FOLD_BIAS
from tests.helpers.models import applied, assert_same, becomes, choice, make, make_proto, node, ops, value, weights

Weights = dict[str, Any]


def norm(channels: int, name: str = "", dtype: str = "float32") -> Weights:
    """Parameters with names that end in ``name``."""
    values = {"g": weights(channels, seed=2), "b": weights(channels, seed=3), "m": weights(channels, seed=4)}
    values["v"] = np.abs(weights(channels, seed=5)) + 0.1
    return {key + name: array.astype(dtype) for key, array in values.items()}


def bn(source: str, target: str, name: str = "", **given: Any) -> Any:
    return node("BatchNormalization", [source, *(key + name for key in "gbmv")], [target], f"bn{name}", **given)


def test_after_a_conv_without_bias() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]), bn("c", "y", epsilon=1e-3)]
    model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, {"w": weights(4, 3, 3, 3), **norm(4)})
    before = to_bytes(model)
    folded, changes = becomes(FOLD_BATCHNORM, model, ["Conv"])
    assert [(item.rule, item.subject, item.detail) for item in changes] == [
        ("fold-batchnorm", "bn", "folded into 'conv' before it")
    ]
    assert folded.proto.graph.node[0].output[0] == "y"
    assert to_bytes(model) == before


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_after_a_grouped_conv_with_bias(groups: int) -> None:
    nodes = [node("Conv", ["x", "w", "k"], ["c"], group=groups), bn("c", "y")]
    stored = {"w": weights(8, 4 // groups, 3, 3), "k": weights(8, seed=9), **norm(8)}
    model = make(nodes, {"x": [2, 4, 6, 6]}, {"y": None}, stored)
    folded, _ = becomes(FOLD_BATCHNORM, model, ["Conv"])
    assert_same(model, folded)


def test_after_a_transposed_conv() -> None:  # in groups: among the integration tests, the reference cannot
    nodes = [node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]), bn("c", "y")]
    model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, {"w": weights(4, 6, 3, 3), **norm(6)})
    folded, _ = becomes(FOLD_BATCHNORM, model, ["ConvTranspose"])
    assert_same(model, folded)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (1,), (1, 1)])
def test_after_a_gemm(transposed: int, bias: tuple[int, ...] | None) -> None:
    kernel = weights(5, 7) if transposed else weights(7, 5)
    stored = {"w": kernel, **norm(5), **({} if bias is None else {"k": weights(*bias, seed=9)})}
    operands = ["x", "w"] if bias is None else ["x", "w", "k"]
    nodes = [node("Gemm", operands, ["c"], transB=transposed, alpha=0.5, beta=3.0), bn("c", "y")]
    model = make(nodes, {"x": [3, 7]}, {"y": None}, stored)
    folded, _ = becomes(FOLD_BATCHNORM, model, ["Gemm"])
    assert_same(model, folded)


def test_gemm_with_a_bias_per_row_stays() -> None:
    for shape in [(3, 1), (3, 5)]:
        stored = {"w": weights(7, 5), "k": weights(*shape), **norm(5)}
        model = make([node("Gemm", ["x", "w", "k"], ["c"]), bn("c", "y")], {"x": [3, 7]}, {"y": None}, stored)
        assert applied(FOLD_BATCHNORM, model)[0] is model


@pytest.mark.parametrize("groups", [1, 2])
def test_before_an_unpadded_conv(groups: int) -> None:
    nodes = [node("Relu", ["x"], ["r"]), bn("r", "n"), node("Conv", ["n", "w"], ["y"], group=groups)]
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, {"w": weights(6, 4 // groups, 3, 3), **norm(4)})
    _, changes = becomes(FOLD_BATCHNORM, model, ["Relu", "Conv"])
    assert "behind it" in changes[0].detail


@pytest.mark.parametrize("transposed", [0, 1])
def test_before_a_gemm(transposed: int) -> None:
    kernel = weights(5, 7) if transposed else weights(7, 5)
    nodes = [bn("x", "n"), node("Gemm", ["n", "w", "k"], ["y"], transB=transposed, alpha=2.0, beta=0.5)]
    model = make(nodes, {"x": [3, 7]}, {"y": None}, {"w": kernel, "k": weights(5, seed=9), **norm(7)})
    folded, _ = becomes(FOLD_BATCHNORM, model, ["Gemm"])
    assert_same(model, folded)


@pytest.mark.parametrize("padding", [{"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"}])
def test_before_a_padded_conv_it_stays_because_of_the_border(padding: dict[str, Any]) -> None:
    nodes = [bn("x", "n"), node("Conv", ["n", "w"], ["y"], **padding)]
    stored = {"w": weights(6, 4, 3, 3), **norm(4)}
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, stored)
    assert applied(FOLD_BATCHNORM, model)[0] is model
    unshifted = {**stored, "b": np.zeros(4, np.float32), "m": np.zeros(4, np.float32)}
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, unshifted)  # only scales: zeros stay zeros
    folded, _ = becomes(FOLD_BATCHNORM, model, ["Conv"])
    assert_same(model, folded)


def test_before_a_transposed_conv_it_stays() -> None:
    nodes = [bn("x", "n"), node("ConvTranspose", ["n", "w"], ["y"])]
    model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, {"w": weights(4, 6, 3, 3), **norm(4)})
    assert applied(FOLD_BATCHNORM, model)[0] is model


def conv_bn(*more: Any, results: dict[str, Any] | None = None, **options: Any) -> Model:
    nodes = [node("Conv", ["x", "w"], ["c"]), bn("c", "y"), *more]
    return make(nodes, {"x": [1, 3, 6, 6]}, results or {"y": None}, {"w": weights(4, 3, 3, 3), **norm(4)}, **options)


def test_a_conv_whose_output_others_see_stays() -> None:
    seen = [
        conv_bn(results={"y": None, "c": None}),
        conv_bn(node("Relu", ["c"], ["z"]), results={"y": None, "z": None}),
    ]
    for model in seen:
        assert applied(FOLD_BATCHNORM, model)[0] is model


def test_a_conv_whose_output_a_body_captures_stays() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), bn("c", "y"), choice("t", "z", node("Relu", ["c"], ["r"]))]
    stored = {"w": weights(4, 3, 3, 3), "t": np.array(True), **norm(4)}
    model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None, "z": None}, stored)
    assert applied(FOLD_BATCHNORM, model)[0] is model


def test_a_shared_weight_is_copied_not_changed() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        bn("c", "y"),
        node("Conv", ["x", "w"], ["d"]),
        bn("d", "z", "2"),
        node("Conv", ["x", "w"], ["plain"]),
    ]
    stored = {"w": weights(4, 3, 3, 3), **norm(4), **norm(4, "2")}
    model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None, "z": None, "plain": None}, stored)
    folded, changes = becomes(FOLD_BATCHNORM, model, ["Conv", "Conv", "Conv"])
    assert len(changes) == 2
    assert folded.proto.graph.node[2].input[1] == "w"


def test_shared_parameters_and_two_norms_in_a_row() -> None:
    shared = [node("Conv", ["x", "w", "b"], ["c"]), bn("c", "d"), node("Conv", ["d", "u"], ["e"]), bn("e", "y")]
    in_a_row = [node("Conv", ["x", "w", "b"], ["c"]), bn("c", "d"), bn("d", "y", "2")]
    stored = {"w": weights(4, 3, 1, 1), "u": weights(4, 4, 1, 1, seed=7), **norm(4), **norm(4, "2")}
    for nodes, left in ((shared, ["Conv", "Conv"]), (in_a_row, ["Conv"])):
        model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, stored)
        folded, _ = becomes(FOLD_BATCHNORM, model, left)
        assert_same(model, folded)


def test_norms_on_both_sides() -> None:
    nodes = [bn("x", "n"), node("Conv", ["n", "w"], ["c"]), bn("c", "y", "2")]
    model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, {"w": weights(4, 3, 3, 3), **norm(3), **norm(4, "2")})
    once, _ = applied(FOLD_BATCHNORM, model)
    twice, _ = applied(FOLD_BATCHNORM, once)
    assert ops(twice) == ["Conv"]
    assert_same(model, twice)


def test_parameters_that_are_computed_stay() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Abs", ["g0"], ["g"]), bn("c", "y")]
    stored = {"w": weights(4, 3, 3, 3), **norm(4)}
    stored["g0"] = stored.pop("g")
    computed = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, stored)
    assert applied(FOLD_BATCHNORM, computed)[0] is computed


def test_training_mode_and_per_element_statistics_stay() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), bn("c", "y", training_mode=1)]
    nodes[1].output.extend(["rm", "rv"])
    stored = {"w": weights(4, 3, 3, 3), **norm(4)}
    training = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, stored)
    spatial = make([nodes[0], bn("c", "y", spatial=0)], {"x": [1, 3, 6, 6]}, {"y": None}, stored, opset=7)
    old = make([nodes[0], bn("c", "y")], {"x": [1, 3, 6, 6]}, {"y": None}, stored, opset=6)
    for model in (training, spatial, old):
        assert applied(FOLD_BATCHNORM, model)[0] is model


def test_a_broken_variance_is_left_to_the_backend() -> None:
    proto = make_proto(
        [node("Conv", ["x", "w"], ["c"]), bn("c", "y")],
        {"x": [1, 3, 6, 6]},
        {"y": None},
        {"w": weights(4, 3, 3, 3), **norm(4)},
    )
    variance = next(item for item in proto.graph.initializer if item.name == "v")
    variance.CopyFrom(numpy_helper.from_array(np.full(4, -1, np.float32), "v"))
    model = from_proto(proto)
    assert applied(FOLD_BATCHNORM, model)[0] is model


def test_half_precision_keeps_its_type_and_overflow_is_refused() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), bn("c", "y")]
    halves = {"w": weights(4, 3, 3, 3, dtype="float16"), **norm(4, dtype="float16")}
    feeds, results = {"x": value("x", [1, 3, 6, 6], "float16")}, {"y": value("y", None, "float16")}
    model = make(nodes, feeds, results, halves)
    folded, _ = applied(FOLD_BATCHNORM, model)
    assert {item.data_type for item in folded.proto.graph.initializer} == {10}
    assert_same(model, folded, rtol=5e-3)
    large = make(nodes, feeds, results, {**halves, "g": np.full(4, 60000, np.float16)})
    assert applied(FOLD_BATCHNORM, large)[0] is large


def test_norms_without_a_layer_of_their_own_stay() -> None:
    alone = make([node("Relu", ["x"], ["r"]), bn("r", "y")], {"x": [1, 4, 6, 6]}, {"y": None}, norm(4))
    read_twice = [bn("x", "n"), node("Conv", ["n", "w"], ["y"]), node("Relu", ["n"], ["z"])]
    shared = make(read_twice, {"x": [1, 4, 5, 5]}, {"y": None, "z": None}, {"w": weights(6, 4, 1, 1), **norm(4)})
    as_weights = [bn("x", "n"), node("Conv", ["image", "n"], ["y"])]
    weighing = make(as_weights, {"x": [2, 4, 3, 3], "image": [1, 4, 5, 5]}, {"y": None}, norm(4))
    for model in (alone, shared, weighing):
        assert applied(FOLD_BATCHNORM, model)[0] is model


def added(shape: tuple[int, ...], *, swapped: bool = False, results: tuple[str, ...] = ("y",)) -> Model:
    operands = ["k", "c"] if swapped else ["c", "k"]
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Add", operands, ["y"])]
    stored = {"w": weights(4, 3, 3, 3), "k": weights(*shape, seed=3)}
    return make(nodes, {"x": [1, 3, 6, 6]}, dict.fromkeys(results), stored)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1,), (), (1, 1, 1)])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_constant_per_channel_joins_the_bias(shape: tuple[int, ...], swapped: bool) -> None:
    model = added(shape, swapped=swapped)
    _, changes = becomes(FOLD_BIAS, model, ["Conv"])
    assert len(changes) == 1


@pytest.mark.parametrize("shape", [(4,), (4, 4), (4, 1, 4), (1, 1, 4, 4), (2, 4, 1, 1), (1, 1, 4, 1, 1)])
def test_other_constants_stay(shape: tuple[int, ...]) -> None:
    model = added(shape)
    assert applied(FOLD_BIAS, model)[0] is model


def test_other_sums_stay() -> None:
    image, sum_ = {"x": [1, 3, 6, 6]}, node("Add", ["c", "k"], ["y"])
    conv, gemm = node("Conv", ["x", "w"], ["c"]), node("Gemm", ["x", "w"], ["c"])
    seen = added((4, 1, 1), results=("y", "c"))
    widened = make([conv, sum_], image, {"y": None}, {"w": weights(1, 3, 3, 3), "k": weights(4, 1, 1)})
    residual = make([conv, node("Add", ["c", "x"], ["y"])], image, {"y": None}, {"w": weights(3, 3, 1, 1)})
    stored = {"w": np.ones((3, 4), np.int32), "k": np.ones(4, np.int32)}
    for model in (seen, widened, residual, make([gemm, sum_], {"x": [2, 3]}, {"y": None}, stored)):
        assert applied(FOLD_BIAS, model)[0] is model


def test_an_existing_bias_of_transposed_conv_and_gemm() -> None:
    nodes = [
        node("ConvTranspose", ["x", "w", "k"], ["c"]),
        node("Add", ["c", "p"], ["d"]),
        node("Flatten", ["d"], ["f"]),
        node("Gemm", ["f", "u", "q"], ["e"], beta=2.0),
        node("Add", ["r", "e"], ["y"]),
    ]
    stored = {"w": weights(4, 6, 3, 3), "k": weights(6), "p": weights(6, 1, 1), "u": weights(384, 5)}
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, {**stored, "q": weights(5), "r": weights(1, 5, seed=8)})
    _, changes = becomes(FOLD_BIAS, model, ["ConvTranspose", "Flatten", "Gemm"])
    assert len(changes) == 2
