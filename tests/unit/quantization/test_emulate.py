"""The emulated arithmetic against integers worked out in NumPy, int64 throughout."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st

from edgert.backend.ort import Function
from edgert.graph import Graph, Model, infer, write
from edgert.graph.draft import Builder
from edgert.quantization.lowering.emulate import add_steps, emulate_dla, round_half_away
from edgert.quantization.scheme.scheme import scheme
from tests.helpers.models import choice, make, node
from tests.unit.quantization.nets import (
    Array,
    after_conv,
    amax_of,
    branches,
    conv,
    feeds_of,
    graph_of,
    residual,
    run,
    shuffled,
    stored,
)

F32 = np.float32


def steps_of(values: Any, scale: float, *, positive: bool = False) -> Array:
    """What :func:`add_steps` gives, run on ONNX Runtime."""
    array = np.asarray(values, F32)
    model = make([node("Identity", ["x"], ["y"])], {"x": array.shape}, {"y": array.shape})
    builder = Builder(graph_of(model))
    builder.add("Identity", [add_steps(builder, "x", F32(scale), "s", positive=positive)], "y")
    return Function(write(builder.finish(), model), fused=False)({"x": array})["y"]


def half_away(values: Any) -> Array:
    """Halves away from zero by the textbook, in float64, where it is exact for float32 values."""
    wide = np.asarray(values, np.float64)
    return np.sign(wide) * np.floor(np.abs(wide) + 0.5)


def to_int8(values: Any, scale: float) -> Array:
    return np.clip(half_away(np.asarray(values, F32) / F32(scale)), -128, 127).astype(np.int64)


class Emulated:
    """A model, its ranges, and what the emulation gives for every tensor of it."""

    def __init__(
        self, model: Model, amax: Mapping[str, float] | None = None, *keep: str, seed: int = 5, **options: Any
    ) -> None:
        self.model, self.graph, self.feeds = model, graph_of(model), feeds_of(model, seed)
        given = dict(amax or {})
        peaks = amax_of(model, self.feeds) if not given.get("every") else lambda names: given["every"]
        self.amax = lambda names: max(given[one] if one in given else peaks((one,)) for one in names)
        self.low: Graph = emulate_dla(self.graph, scheme(self.graph, "dla", keep), self.amax, **options)

    def scale(self, *names: str) -> np.float32:
        return F32(F32(self.amax(names)) / F32(127))

    def __getitem__(self, name: str) -> Array:
        return run(self.low, self.model, self.feeds, [name])[name]

    def weight(self, name: str) -> tuple[Array, Array]:
        """Integers and scales of a weight, one per output channel."""
        stored_weight = self.graph.constants[f"{name}.w"]
        scales = np.abs(stored_weight).max(axis=(1, 2, 3)) / F32(127)
        return np.rint(stored_weight / scales[:, None, None, None]).astype(np.int64), scales

    def sums(self, name: str, steps: Array, input_scale: np.float32) -> tuple[Array, Array]:
        """Sums of products with the bias in it, int64, and the value of a step, for a 1×1 convolution."""
        weight, scales = self.weight(name)
        worth = (input_scale * scales).astype(F32)
        bias = half_away(self.graph.constants[f"{name}.b"].astype(np.float64) / worth).astype(np.int64)
        found = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], steps) + bias[:, None, None]
        return found, worth[:, None, None]


class TestRounding:
    @pytest.mark.parametrize(
        ("given_", "expected"),
        [
            (0.5, 1),
            (-0.5, -1),
            (1.5, 2),
            (-2.5, -3),
            (2.5, 3),
            (0.49999997, 0),
            (-0.49999997, 0),
            (1.4999999, 1),
            (126.5, 127),
            (127.5, 127),
            (-127.5, -128),
            (-128.4, -128),
            (-200, -128),
            (3e38, 127),
            (np.inf, 127),
            (-np.inf, -128),
        ],
    )
    def test_halves_go_away_from_zero_and_ends_are_clipped(self, given_: float, expected: int) -> None:
        assert steps_of([given_], 1.0) == [expected]
        if given_ >= 0:
            assert steps_of([given_], 1.0, positive=True) == [expected]

    @given(st.lists(st.floats(-140, 140, width=32), min_size=1, max_size=40), st.sampled_from([1.0, 0.25, 0.7, 3.1]))
    def test_is_exact_for_every_value(self, values: list[float], scale: float) -> None:
        np.testing.assert_array_equal(steps_of(values, scale), to_int8(values, scale))
        np.testing.assert_array_equal(round_half_away(np.array(values)), half_away(values))

    def test_no_number_stays_no_number(self) -> None:
        assert np.isnan(steps_of([np.nan], 0.5)).all()
        assert np.isnan(steps_of([np.nan], 0.5, positive=True)).all()


class TestIntegers:
    def test_a_convolution_and_its_activation_are_rounded_once(self) -> None:
        one = Emulated(residual())
        x = to_int8(one.feeds["x"], one.scale("x"))
        sums, worth = one.sums("c0", x, one.scale("x"))
        np.testing.assert_array_equal(one["x_int8"], x)
        np.testing.assert_array_equal(one["t0_sum"], sums)
        np.testing.assert_array_equal(one["r0_int8"], to_int8(np.maximum(sums * worth, 0), one.scale("r0")))
        assert not any("t0_int8" in item.outputs for item in one.low.nodes)

    def test_a_residual_addition_sees_the_sum_unrounded(self) -> None:
        one = Emulated(residual())
        r0, r1 = one["r0_int8"].astype(np.int64), one["r1_int8"].astype(np.int64)
        sums, worth = one.sums("c2", r1, one.scale("r1"))
        other = (r0.astype(F32) * one.scale("r0")).astype(F32)
        total = np.maximum((sums.astype(F32) * worth).astype(F32) + other, 0)
        np.testing.assert_array_equal(one["r2_int8"], to_int8(total, one.scale("r2")))
        early = to_int8(sums * worth, one.scale("t2")) * one.scale("t2")
        assert np.any(to_int8(np.maximum(early + other, 0), one.scale("r2")) != one["r2_int8"])

    def test_an_addition_works_at_the_coarser_scale(self) -> None:
        nodes = [node("Add", ["a", "b"], ["s"], name="add"), conv("c", "s", "y")]
        model = make(nodes, {"a": (1, 4, 6, 6), "b": (1, 4, 6, 6)}, {"y": None}, stored(c=(4, 4, 1, 1)))
        one = Emulated(model, {"a": 127.0 / 32, "b": 127.0 / 8, "s": 127.0 / 4})
        fine = to_int8(one.feeds["a"], 1 / 32)
        coarse = half_away(fine / 4)  # ties are frequent here
        total = coarse + to_int8(one.feeds["b"], 1 / 8)
        np.testing.assert_array_equal(one["s_int8"], np.clip(half_away(total / 2), -128, 127))
        assert np.any(half_away(total / 2) != np.rint(total / 2))

    def test_pools_and_concat_keep_integers(self) -> None:
        one = Emulated(shuffled())
        r0 = one["r0_int8"].astype(np.int64)
        assert one.low.producers["p_steps"].inputs == ("r0_int8",)
        np.testing.assert_array_equal(one["p_steps"], r0.reshape(1, 4, 3, 2, 3, 2).max(axis=(3, 5)))
        joined = np.concatenate([one["t1_int8"], one["t2_int8"]], axis=1)
        np.testing.assert_array_equal(one["j_steps"], joined)
        apart = one["t3_int8"].reshape(1, 2, 4, 9).swapaxes(1, 2).reshape(1, 8, 3, 3)
        np.testing.assert_array_equal(one["m_steps"], apart)
        sums, worth = one.sums("c4", one["m_steps"].astype(np.int64), one.scale("t3", "k", "l", "m"))
        np.testing.assert_array_equal(one["y_sum"], sums)
        np.testing.assert_array_equal(one["y"], (sums.astype(F32) * worth).astype(np.float16).astype(F32))

    def test_an_average_rounds_exact_halves_away(self) -> None:
        nodes = [
            node("AveragePool", ["x"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
            conv("c", "p", "y"),
        ]
        one = Emulated(make(nodes, {"x": (1, 4, 6, 6)}, {"y": None}, stored(c=(4, 4, 1, 1))))
        scale = one.scale("x", "p")
        total = to_int8(one.feeds["x"], scale).reshape(1, 4, 3, 2, 3, 2).sum(axis=(3, 5))
        np.testing.assert_array_equal(one["p_int8"], half_away(total / 4))
        assert np.any(half_away(total / 4) != np.rint(total / 4))

    def test_weights_that_were_rounded_elsewhere(self) -> None:
        plain = Emulated(residual())
        other = plain.weight("c0")[0] - 1
        one = Emulated(residual(), rounded={"c0.w": other.astype(np.int8)})
        np.testing.assert_array_equal(one.low.constants["c0.w_int8"], other)


def assert_close(model: Model, share: float = 0.03) -> Emulated:
    """The emulation, shown to be within a share of the float model, and valid."""
    one = Emulated(model)
    onnx.checker.check_model(infer(write(one.low, model)).proto, full_check=True)
    exact, found = Function(model)(one.feeds), Function(write(one.low, model), fused=False)(one.feeds)
    for name, expected in exact.items():
        assert found[name].dtype == expected.dtype
        assert np.abs(found[name] - expected).max() <= share * np.abs(expected).max()
    return one


class TestOperators:
    def test_both_nets(self) -> None:
        assert_close(residual())
        assert_close(branches())

    def test_transposed_convolutions_in_groups_are_not_on_a_dla(self) -> None:
        weight = np.random.default_rng(3).standard_normal((4, 3, 2, 2)).astype(F32)
        up = node("ConvTranspose", ["x", "w"], ["y"], name="up", group=2, strides=[2, 2])
        one = Emulated(make([up], {"x": (1, 4, 5, 5)}, {"y": None}, {"w": weight}))
        wanted = Function(one.model)(one.feeds)["y"]
        np.testing.assert_allclose(one["y"], wanted, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}, {"alpha": -1.5}])
    def test_gemm(self, attributes: dict[str, Any]) -> None:
        shape = (5, 6) if "transB" in attributes else (6, 5)
        tensors = {
            "w": np.random.default_rng(1).standard_normal(shape).astype(F32),
            "b": np.linspace(-2, 2, 5, dtype=F32),
        }
        assert_close(
            make([node("Gemm", ["x", "w", "b"], ["y"], name="g", **attributes)], {"x": (3, 6)}, {"y": None}, tensors)
        )

    def test_matmul(self) -> None:
        weight = np.random.default_rng(1).standard_normal((6, 5)).astype(F32)
        assert_close(make([node("MatMul", ["x", "w"], ["y"], name="m")], {"x": (2, 3, 6)}, {"y": None}, {"w": weight}))

    def test_activations_with_parameters_between_convolutions(self) -> None:
        for curve in (
            node("LeakyRelu", ["t"], ["u"], name="curve", alpha=0.1),
            node("PRelu", ["t", "slope"], ["u"], name="curve"),
            node("Clip", ["t", "zero", "six"], ["u"], name="curve"),
        ):
            tensors = {"slope": np.full((4, 1, 1), 0.2, F32), "zero": np.array(0, F32), "six": np.array(0.8, F32)}
            one = assert_close(after_conv(curve, **tensors), 0.06)
            assert "t_int8" not in one.low.producers

    def test_a_sigmoid_is_looked_up_in_fp16(self) -> None:
        one = Emulated(after_conv(node("Sigmoid", ["t"], ["u"], name="s")))
        argument = (one["t_int8"] * one.scale("t")).astype(np.float16)
        result = (1 / (1 + np.exp(-argument.astype(np.float64)))).astype(np.float16).astype(F32)
        assert (
            np.abs(one["u_int8"] - to_int8(result, one.scale("u"))).max() <= 1
        )  # a tie of float16 may fall either way
        assert np.mean(one["u_int8"] == to_int8(result, one.scale("u"))) > 0.98

    def test_swish_is_rounded_at_each_step(self) -> None:
        nodes = [node("Sigmoid", ["t"], ["s"], name="sig"), node("Mul", ["t", "s"], ["u"], name="mul")]
        one = assert_close(after_conv(*nodes), 0.06)
        assert {"t_int8", "s_int8", "u_int8"} <= set(one.low.producers)

    def test_what_no_dla_has_stays_float(self) -> None:
        one = assert_close(after_conv(node("Erf", ["t"], ["u"], name="erf")), 0.06)
        assert one.low.producers["u"].inputs == ("t_fp16",)
        assert one.low.producers["u_int8"].op == "Clip"

    def test_a_softmax_is_in_fp16(self) -> None:
        one = assert_close(after_conv(node("Softmax", ["t"], ["y"], name="soft", axis=1)))
        np.testing.assert_array_equal(one["y"], one["y"].astype(np.float16))
        assert "y_int8" not in one.low.producers

    def test_a_body_reads_tensors_by_their_names(self) -> None:
        nodes = [
            conv("a", "x", "t"),
            node("MaxPool", ["t"], ["p"], name="pool", kernel_shape=[2, 2]),
            choice("yes", "z", node("Abs", ["p"], ["inner"]), name="if"),
            conv("b", "p", "y"),
        ]
        tensors = stored(a=(4, 4, 1, 1), b=(4, 4, 1, 1)) | {"yes": np.array(True)}
        model = make(nodes, {"x": (1, 4, 6, 6)}, {"y": None, "z": None}, tensors)
        one = Emulated(model, {"every": 4.0})
        found = Function(write(one.low, one.model), fused=False)(one.feeds)
        np.testing.assert_array_equal(found["z"], np.abs(one["p"]))
        np.testing.assert_allclose(one["p"], one["p_steps"] * one.scale("t"), rtol=1e-3)


class TestEnds:
    def test_results_leave_in_fp16_under_their_names(self) -> None:
        for last in (
            node("MaxPool", ["t"], ["y"], name="pool", kernel_shape=[2, 2]),
            node("Relu", ["t"], ["y"], name="relu"),
            node("Reshape", ["t", "flat"], ["y"], name="flatten"),
        ):
            one = assert_close(after_conv(last, flat=np.array([1, -1])))
            assert [spec.name for spec in one.low.outputs] == ["y"]
            np.testing.assert_array_equal(one["y"], one["y"].astype(np.float16))

    def test_weighted_nodes_keep_the_name_of_their_output(self) -> None:
        one = Emulated(residual())
        assert {"t0", "t1", "t2", "y"} <= set(one.low.producers)
        exact = Function(one.model)
        assert np.abs(one["y"] - exact(one.feeds)["y"]).max() < 0.1


class TestHalf:
    def test_a_kept_unit_computes_on_float16_values(self) -> None:
        one = Emulated(residual(), None, "c1")
        r0 = one["r0"]  # handed over in FP16 by an INT8 node
        weight = one.graph.constants["c1.w"].astype(np.float16).astype(np.float64)[:, :, 0, 0]
        bias = one.graph.constants["c1.b"].astype(np.float16).astype(np.float64)[:, None, None]
        source = r0.astype(np.float16).astype(np.float64)
        expected = np.maximum(np.einsum("oi,nihw->nohw", weight, source) + bias, 0).astype(np.float16)
        found = one["r1"]
        np.testing.assert_array_equal(found, found.astype(np.float16))
        np.testing.assert_allclose(found, expected, rtol=2**-10, atol=1e-6)
        np.testing.assert_array_equal(one["r1_int8"], to_int8(found, one.scale("r1")))

    def test_all_kept_is_float16_everywhere(self) -> None:
        graph = graph_of(residual())
        one = Emulated(residual(), None, *(unit.name for unit in scheme(graph, "dla").units))
        exact = Function(one.model)(one.feeds)["y"]
        assert not any(item.op == "Floor" for item in one.low.nodes)
        assert np.abs(one["y"] - exact).max() < 0.01
        np.testing.assert_array_equal(one["y"], one["y"].astype(np.float16))
