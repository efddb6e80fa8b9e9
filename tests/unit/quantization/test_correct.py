from typing import Any

import numpy as np
import pytest

from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, infer, read
from edgert.quantization.calibration.walk import walk
from edgert.quantization.lowering import lower as form
from edgert.quantization.lowering.lower import roundings, with_biases
from edgert.quantization.lowering.weights import channel_means
from edgert.quantization.quantization_error import can_shift, correct_biases, mean_shifts, shift_biases
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target
from tests.helpers.models import make, node, weights, with_constants
from tests.unit.quantization.fake import lower, peaks


def net(*, biased: bool = True) -> Model:
    bias = ["b"] if biased else []
    nodes = [
        node("Conv", ["x", "w", *bias], ["a"], "first"), node("Relu", ["a"], ["ar"]),
        node("Conv", ["ar", "d"], ["c"], "deep", group=8), node("Relu", ["c"], ["cr"]),
        node("Conv", ["cr", "v"], ["e"], "third"), node("GlobalAveragePool", ["e"], ["g"]),
        node("Flatten", ["g"], ["f"]), node("Gemm", ["f", "u", "t"], ["y"], "fc", beta=0.5),
    ]  # fmt: skip
    stored = {"w": weights(8, 3, 3, 3), "b": weights(8, seed=1), "d": weights(8, 1, 3, 3, seed=2),
              "v": weights(6, 8, 1, 1, seed=3), "u": weights(6, 4, seed=4), "t": weights(1, 4, seed=5)}  # fmt: skip
    return infer(make(nodes, {"x": [1, 3, 12, 12]}, {"y": None}, stored))


def feeds(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": np.abs(rng.standard_normal((1, 3, 12, 12))).astype(np.float32)} for _ in range(count)]


def coarse(graph: Graph, amax: dict[str, float]) -> Graph:
    """A quantizer whose weights are all a little too small: every mean is off."""
    return lower(with_constants(graph, {n: graph.constants[n] * np.float32(0.9) for n in ("w", "d", "v", "u")}), amax)


@pytest.mark.parametrize("biased", [True, False])
def test_means_of_every_layer_meet(biased: bool) -> None:
    model, images = net(biased=biased), feeds(4)
    graph = read(model)
    amax = {name: 2 * peak for name, peak in peaks(graph, images, model).items()}
    done = coarse(correct_biases(graph, coarse(graph, amax), images, model), amax)
    names = ["a", "c", "e"]
    for wanted, plain, found in zip(
        *(walk(one, names, images, model) for one in (graph, coarse(graph, amax), done)), strict=True
    ):
        mean, before, after = (np.mean([channel_means(x, 1) for x in one], axis=0) for one in (wanted, plain, found))
        off, left = np.abs(before - mean), np.abs(after - mean)
        assert off.max() > 0.05
        assert left.sum() < 0.2 * off.sum() and left.max() < 0.5 * off.max()  # what is left was too little to correct


def test_upstream_corrections_are_in_force() -> None:
    """A layer behind one that is already right needs no more than its own error taken off."""
    model, images = net(), feeds(3)
    graph = read(model)
    biased = shift_biases(graph, {"a": np.full(8, 0.5)})
    shifts = mean_shifts(graph, biased, images, model)
    np.testing.assert_allclose(shifts["a"], -0.5, atol=1e-6)
    for name in ("c", "e", "y"):
        np.testing.assert_allclose(shifts[name], 0, atol=1e-6)


def test_a_gemm_keeps_its_meaning() -> None:
    graph = read(net())
    done = shift_biases(graph, {"y": np.arange(4.0)})
    gemm = done.producers["y"]
    assert gemm.attributes["beta"] == 1.0
    np.testing.assert_allclose(done.constants[gemm.inputs[2]], graph.constants["t"][0] / 2 + np.arange(4), atol=1e-6)


def test_a_missing_bias_is_added_and_a_shared_one_is_parted() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "bare"), node("Conv", ["x", "w", "b"], ["c"], "one"),
             node("Conv", ["x", "w", "b"], ["d"], "two")]  # fmt: skip
    model = make(
        nodes, {"x": [1, 2, 3, 3]}, {"a": None, "c": None, "d": None}, {"w": weights(2, 2, 1, 1), "b": weights(2)}
    )
    graph = read(infer(model))
    done = shift_biases(graph, {"a": np.array([1.0, 2]), "c": np.array([3.0, 4])})
    bare, one, two = done.nodes
    np.testing.assert_array_equal(done.constants[bare.inputs[2]], np.float32([1, 2]))
    np.testing.assert_allclose(done.constants[one.inputs[2]], weights(2) + np.array([3, 4]), rtol=1e-6)
    assert two.inputs[2] == "b"
    np.testing.assert_array_equal(done.constants["b"], weights(2))


def test_a_matmul_is_corrected_through_the_add_behind_it() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"], "product"), node("Add", ["b", "a"], ["c"], "sum"),
             node("MatMul", ["c", "v"], ["y"], "bare")]  # fmt: skip
    model = infer(make(nodes, {"x": [1, 5, 3]}, {"y": None}, {"w": weights(3, 4), "b": weights(4), "v": weights(4, 2)}))
    graph = read(model)
    assert [can_shift(graph, one) for one in graph.nodes] == [True, False, False]
    images = [{"x": np.abs(weights(1, 5, 3, seed=seed))} for seed in range(3)]
    lowered = with_constants(graph, {"w": graph.constants["w"] + np.float32(0.1)})
    shifts = mean_shifts(graph, lowered, images, model)
    assert list(shifts) == ["a"] and shifts["a"].shape == (4,)
    done = shift_biases(lowered, shifts)
    wanted, found = (next(walk(one, ["c"], images, model)) for one in (graph, done))
    np.testing.assert_allclose(np.mean(found, axis=(0, 1, 2)), np.mean(wanted, axis=(0, 1, 2)), atol=1e-5)


def test_what_cannot_be_shifted_is_refused_by_name() -> None:
    graph = read(
        infer(make([node("MatMul", ["x", "w"], ["y"], "bare")], {"x": [1, 3]}, {"y": None}, {"w": weights(3, 4)}))
    )
    with pytest.raises(CalibrationError, match="'bare'"):
        shift_biases(graph, {"y": np.zeros(4)})


def test_no_images_are_refused() -> None:
    with pytest.raises(CalibrationError, match="without images"):
        correct_biases(read(net()), read(net()), [], net())


def test_what_may_be_luck_is_left_alone() -> None:
    """The same weights but for noise that has no mean: a few images show one all the same."""
    graph = read(net())
    noise = np.random.default_rng(3).standard_normal(graph.constants["w"].shape) / 20
    off = noise - noise.mean(axis=(1, 2, 3), keepdims=True)
    images = [{"x": weights(1, 3, 12, 12, seed=seed)} for seed in range(6)]
    lowered = with_constants(graph, {"w": (graph.constants["w"] + off).astype(np.float32)})
    shifts = mean_shifts(graph, lowered, images, net())
    assert (shifts["a"] == 0).all()


@pytest.mark.parametrize("target", ["ort", "gpu", "dla"])
@pytest.mark.parametrize("biased", [True, False])
def test_biases_are_put_into_a_lowered_graph_as_if_it_was_lowered_anew(target: Target, biased: bool) -> None:
    model, images = net(biased=biased), feeds(2)
    graph = read(model)
    plan = scheme(graph, target)
    size = {"a": 8, "c": 8, "e": 6, "y": 4}
    shifts = {
        name: np.linspace(-1.0, 1e9 if name == "c" else 1.0, count) for name, count in size.items()
    }  # grows scales
    shifted = shift_biases(graph, shifts)
    stored = roundings(graph, plan, lambda _: 3.0, "int8", "symmetric") if target == "ort" else {}
    patched = with_biases(form.lower(graph, plan, lambda _: 3.0), graph, shifted, plan, stored, {})
    anew = form.lower(shifted, plan, lambda _: 3.0)
    assert len(patched.nodes) == len(anew.nodes)
    for name, wanted, found in zip(
        size, walk(anew, [*size], images, model), walk(patched, [*size], images, model), strict=True
    ):
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
