"""ONNX Runtime's form: computed node by node as the standard defines it, against integers worked out in NumPy."""

from typing import Any

import numpy as np
import onnx
import pytest

from edgert.errors import ModelError
from edgert.graph import Graph, Model, infer, write
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.lowering.lower import align_channels, lower, roundings
from edgert.quantization.scheme.scheme import scheme
from tests.helpers.models import make, node, with_constants
from tests.unit.quantization.nets import after_conv, amax_of, branches, conv, feeds_of, graph_of, residual, run, stored

Array = np.ndarray[Any, Any]


def lowered(model: Model, *keep: str, **options: Any) -> Graph:
    graph = graph_of(model)
    return lower(graph, scheme(graph, "ort", keep), amax_of(model, feeds_of(model)), **options)


def check(graph: Graph, like: Model) -> None:
    onnx.checker.check_model(infer(write(graph, like)).proto, full_check=True)


def quantized(values: Array, step: Array, low: int = -128) -> Array:
    return np.clip(np.rint(values / step), low, 127).astype(np.int64)


def pointwise(stored_input: Array, input_step: float, weight: Array, bias: Array, output_step: float) -> Array:
    """A 1 x 1 convolution of integers, rounded to integers."""
    matrix = weight[:, :, 0, 0]
    steps = (np.abs(matrix).max(axis=1) / np.float32(127)).astype(np.float32)
    integers = np.clip(np.rint(matrix / steps[:, None]), -127, 127).astype(np.int64)
    both = np.float32(input_step) * steps
    sums = (
        np.einsum("oc,nchw->nohw", integers, stored_input)
        + np.rint(bias.astype(float) / both).astype(np.int64)[:, None, None]
    )
    return quantized(sums * both.astype(float)[:, None, None], np.float64(output_step))


AMAX = {"x": 127 / 32, "r0": 127 / 64, "t1": 127 / 128, "s": 127 / 64}
STEP = {name: value / 127 for name, value in AMAX.items()}


class TestNumbers:
    """A network that has all of it: Conv, Relu, Add, Concat, MaxPool; the steps are powers of two."""

    def network(self) -> Model:
        nodes = [
            conv("c0", "x", "t0"),
            node("Relu", ["t0"], ["r0"], name="relu0"),
            conv("c1", "r0", "t1"),
            node("Add", ["t1", "r0"], ["s"], name="add"),
            node("Concat", ["s", "r0"], ["j"], name="join", axis=1),
            node("MaxPool", ["j"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
            conv("c2", "p", "y"),
        ]
        tensors = stored(c0=(4, 4, 1, 1), c1=(4, 4, 1, 1), c2=(3, 8, 1, 1))
        return make(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 3, 4, 4]}, tensors)

    def expected(self, constants: Any, x: Array) -> tuple[dict[str, Array], Array]:
        step = STEP
        q: dict[str, Array] = {"x": quantized(x, np.float64(step["x"]))}
        q["t0"] = pointwise(q["x"], step["x"], constants["c0.w"], constants["c0.b"], step["r0"])
        q["r0"] = np.maximum(q["t0"], 0)
        q["t1"] = pointwise(q["r0"], step["r0"], constants["c1.w"], constants["c1.b"], step["t1"])
        q["s"] = quantized(q["t1"] * step["t1"] + q["r0"] * step["r0"], np.float64(step["s"]))
        q["j"] = np.concatenate([q["s"], q["r0"]], axis=1)
        q["p"] = q["j"].reshape(1, 8, 4, 2, 4, 2).max(axis=(3, 5))
        weight = constants["c2.w"][:, :, 0, 0]
        steps = (np.abs(weight).max(axis=1) / np.float32(127)).astype(np.float32)
        restored = np.rint(weight / steps[:, None]) * steps[:, None]
        y = np.einsum("oc,nchw->nohw", restored, q["p"] * step["s"]) + constants["c2.b"][:, None, None]
        return q, y

    @pytest.mark.parametrize(("storage", "zero"), [("int8", 0), ("uint8", 128)])
    def test_are_those_of_integers(self, storage: str, zero: int) -> None:
        model = self.network()
        graph = graph_of(model)
        plan = scheme(graph, "ort")
        assert plan.groups["s"] == ("r0", "s", "j", "p")
        low = lower(graph, plan, lambda names: AMAX[names[0]], storage=storage)  # type: ignore[arg-type]
        feeds = feeds_of(model)
        names = ["x", "t0", "r0", "t1", "s", "j", "p"]
        found = run(low, model, feeds, [*(f"{name}_quantized" for name in names), "y"])
        q, y = self.expected(graph.constants, feeds["x"])
        for name in names:
            assert np.array_equal(found[f"{name}_quantized"].astype(np.int64) - zero, q[name]), name
        np.testing.assert_allclose(found["y"], y, atol=1e-5)
        assert {found[f"{name}_quantized"].dtype for name in names} == {np.dtype(storage)}

    def test_are_valid_onnx(self) -> None:
        model = self.network()
        check(lowered(model), model)


class TestForm:
    def test_names(self) -> None:
        model = residual()
        low = lowered(model)
        names = [one.name for one in low.nodes]
        assert len(set(names)) == len(names)
        assert [spec.name for spec in low.inputs] == ["x"]
        assert [spec.name for spec in low.outputs] == ["y"]
        assert {low.producers[name].op for name in ("t0", "t1", "t2", "y")} == {"Conv"}
        assert low.producers["t0_quantized"].inputs[0] == "t0"
        assert low.producers["r0_quantized"].op == "Clip"

    def test_one_scale_is_stored_once(self) -> None:
        low = lowered(branches())
        scales = [name for name in low.constants if name.endswith("_scale") and ".w" not in name and ".b" not in name]
        assert sorted(scales) == ["r0_scale", "t1_scale", "x_scale"]

    def test_one_q_for_many_readers(self) -> None:
        low = lowered(residual())
        assert [one.inputs[0] for one in low.nodes if one.op == "QuantizeLinear"] == ["x", "t0", "t1", "t2", "s"]

    def test_what_moves_values_works_on_the_stored_ones(self) -> None:
        low = lowered(branches(), storage="uint8")
        moved = {
            one.name: one.inputs[0] for one in low.nodes if one.op in ("MaxPool", "Concat", "Reshape", "Transpose")
        }
        assert moved == {
            "pool": "r0_quantized",
            "join": "t1_quantized",
            "apart_": "j_quantized",
            "swap": "k_quantized",
            "together_": "l_quantized",
        }

    def test_padding_is_with_the_stored_zero(self) -> None:
        nodes = [conv("a", "x", "t"), node("Pad", ["t", "pads"], ["p"], name="pad"), conv("b", "p", "y")]
        tensors = stored(a=(4, 4, 1, 1), b=(4, 4, 3, 3)) | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
        model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, tensors)
        low = lowered(model, storage="uint8")
        check(low, model)
        found = run(low, model, feeds_of(model), ["p_quantized"])["p_quantized"]
        assert np.all(found[:, :, 0] == 128)

    def test_clip_bounds_in_steps(self) -> None:
        clip = node("Clip", ["t", "low", "high"], ["u"], name="clip")
        graph = graph_of(after_conv(clip, low=np.float32(-0.25), high=np.float32(0.5)))
        low = lower(graph, scheme(graph, "ort"), lambda names: 1.0, storage="uint8")
        bounds = low.producers["u_quantized"].inputs[1:]
        assert [int(low.constants[name]) for name in bounds] == [128 - 32, 128 + 64]

    def test_a_graph_output_of_an_integer_node_is_given_out_rounded(self) -> None:
        nodes = [conv("a", "x", "t"), node("Relu", ["t"], ["r"], name="relu"), conv("b", "r", "y")]
        model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "r": None}, stored(a=(4, 4, 1, 1), b=(4, 4, 1, 1)))
        low = lowered(model)
        check(low, model)
        assert low.producers["r"].op == "DequantizeLinear"
        assert run(low, model, feeds_of(model))["r"].min() == 0

    def test_the_last_convolution_stores_what_its_integers_stand_for(self) -> None:
        model = residual()
        low = lowered(model)
        weight = low.constants[low.producers["y"].inputs[1]]
        steps = np.abs(graph_of(model).constants["c3.w"]).max(axis=(1, 2, 3), keepdims=True) / np.float32(127)
        np.testing.assert_allclose(weight / steps, np.rint(weight / steps), atol=1e-4)
        assert low.producers[low.producers["y"].inputs[0]].op == "Max"

    def test_old_opsets_are_refused(self) -> None:
        nodes = [conv("a", "x", "t"), conv("b", "t", "y")]
        model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, stored(a=(4, 4, 1, 1), b=(4, 4, 1, 1)), opset=11)
        with pytest.raises(ModelError, match="opset 11"):
            lowered(model)


class TestWeights:
    def test_shared_by_nodes_with_other_input_scales(self) -> None:
        nodes = [
            node("Conv", ["x", "w", "b"], ["t"], name="first"),
            node("Conv", ["t", "w", "b"], ["u"], name="second"),
            node("Conv", ["u", "w", "b"], ["y"], name="third"),
        ]
        tensors = {"w": stored(c=(4, 4, 1, 1))["c.w"], "b": np.ones(4, np.float32)}
        model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, tensors)
        low = lowered(model)
        check(low, model)
        names = [low.producers[low.producers[name].inputs[1]].inputs[0] for name in ("t", "u")]
        assert names[0] == names[1]  # stored once
        biases = [low.producers[low.producers[name].inputs[2]].inputs[0] for name in ("t", "u")]
        assert biases[0] != biases[1]

    def test_decided_elsewhere(self) -> None:
        model = residual()
        values = np.full((4, 4, 1, 1), 7, np.int8)
        low = lowered(model, rounded={"c1.w": values})
        assert np.array_equal(low.constants["c1.w_quantized"], values)

    def test_too_fine_for_the_bias(self) -> None:
        model = residual()
        graph = graph_of(model)
        graph = with_constants(graph, {"c1.w": graph.constants["c1.w"] * np.float32(1e-12)})
        rounded = {"c1.w": np.full((4, 4, 1, 1), 9, np.int8)}
        low = lower(graph, scheme(graph, "ort"), amax_of(model, feeds_of(model)), rounded=rounded)
        bias = low.constants["c1.b_quantized"] * low.constants["c1.b_scale"].astype(float)
        np.testing.assert_allclose(bias, graph.constants["c1.b"], rtol=1e-4)
        assert not low.constants["c1.w_quantized"].any()

    def test_of_a_gemm(self) -> None:
        nodes = [
            conv("c", "x", "t"),
            node("GlobalAveragePool", ["t"], ["g"], name="gap"),
            node("Flatten", ["g"], ["f"], name="flat"),
            node("Gemm", ["f", "w", "b"], ["y"], name="gemm", transB=1),
        ]
        tensors = stored(c=(8, 4, 1, 1)) | {"w": stored(g=(5, 8))["g.w"], "b": np.ones((1, 5), np.float32)}
        model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, tensors)
        low = lowered(model)
        check(low, model)
        feeds = feeds_of(model)
        exact = run(graph_of(model), model, feeds)["y"]
        np.testing.assert_allclose(run(low, model, feeds)["y"], exact, atol=0.05 * np.abs(exact).max())
        assert low.producers[low.producers["y"].inputs[1]].attributes["axis"] == 0

    def test_listed_as_graph_inputs(self) -> None:
        nodes = [conv("a", "x", "t"), conv("b", "t", "y")]
        model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, stored(a=(4, 4, 1, 1), b=(4, 4, 1, 1)), listed=True)
        low = lowered(model)
        check(low, model)
        assert [item.name for item in write(low, model).proto.graph.input] == ["x"]


class TestUnsigned:
    def test_relu_is_left_to_the_kernel_in_front(self) -> None:
        low = lowered(residual(), storage="uint8", activation="unsigned")
        assert low.producers["r0"].op == "Relu"
        assert low.producers["r0_quantized"].op == "QuantizeLinear"
        assert int(low.constants["r0_zero_point"]) == 0
        assert int(low.constants["t2_zero_point"]) == 128

    def test_all_steps_are_used(self) -> None:
        model, feeds = residual(), feeds_of(residual())
        low = lowered(model, storage="uint8", activation="unsigned")
        assert run(low, model, feeds, ["r0_quantized"])["r0_quantized"].max() >= 254

    def test_a_bound_below_what_can_be_stored_is_kept(self) -> None:
        clip = node("Clip", ["t", "low", "high"], ["u"], name="clip")
        model = after_conv(clip, low=np.float32(0), high=np.float32(0.5))
        graph = graph_of(model)
        for amax, op in ((0.5, "QuantizeLinear"), (1.0, "Clip")):
            low = lower(graph, scheme(graph, "ort"), lambda names, to=amax: to, storage="uint8", activation="unsigned")  # type: ignore[misc]
            assert low.producers["u_quantized"].op == op
            assert run(low, model, feeds_of(model), ["u_quantized"])["u_quantized"].max() == int(255 * 0.5 / amax)


def test_the_error_is_that_of_eight_bits() -> None:
    for model in (residual(), branches()):
        feeds = feeds_of(model)
        exact = run(graph_of(model), model, feeds)["y"]
        for options in ({"storage": "int8"}, {"storage": "uint8"}, {"storage": "uint8", "activation": "unsigned"}):
            found = run(lowered(model, **options), model, feeds)["y"]
            assert np.square(found - exact).mean() < 1e-3 * np.square(exact).mean()


def test_kept_units_are_exact_but_for_their_inputs() -> None:
    model = residual()
    every = [unit.name for unit in scheme(graph_of(model), "ort").units]
    low = lowered(model, *every)
    feeds = feeds_of(model)
    assert not [one for one in low.nodes if one.op == "QuantizeLinear"]
    assert np.array_equal(run(low, model, feeds)["y"], run(graph_of(model), model, feeds)["y"])


@pytest.mark.parametrize(
    ("span", "threshold", "low", "high"),
    [
        ((0.0, 5.0), 4.0, 0.0, 4.0),
        ((-1.0, 3.0), 4.0, -1.0, 3.0),
        ((2.0, 3.0), 4.0, 0.0, 3.0),
        ((-9.0, -2.0), 4.0, -4.0, 0.0),
    ],
)
@pytest.mark.parametrize("storage", ["uint8", "int8"])
def test_affine_spends_every_step_on_values_there_are(
    span: tuple[float, float], threshold: float, low: float, high: float, storage: str
) -> None:
    graph = graph_of(residual())
    plan = scheme(graph, "ort")
    found = roundings(graph, plan, lambda _: threshold, storage, "affine", lambda _: span)  # type: ignore[arg-type]
    one = next(rounding for name, rounding in found.items() if not plan.points[name].amax)
    first = int(np.iinfo(one.zero.dtype).min)
    ends = [(first - int(one.zero)) * float(one.scale), (first + 255 - int(one.zero)) * float(one.scale)]
    assert ends == pytest.approx([low, high], abs=float(one.scale))
    assert one.zero.dtype.name == storage


@pytest.mark.parametrize("most", [0.0, 1e-41, 1e-38, 1e-20])
def test_a_tensor_of_zeros_still_has_a_scale(most: float) -> None:
    """Nor does a dead layer's vanish: times a weight's, which biases are stored in, it is a number."""
    graph = graph_of(residual())
    found = roundings(graph, scheme(graph, "ort"), lambda _: 1.0, "uint8", "affine", lambda _: (0.0, most))
    assert all(rounding.scale > 0.001 for rounding in found.values())


def test_affine_needs_the_ends() -> None:
    model = residual()
    graph = graph_of(model)
    with pytest.raises(ValueError, match="span"):
        lower(graph, scheme(graph, "ort"), amax_of(model, feeds_of(model)), activation="affine")


def test_the_table_has_the_ends_of_a_group() -> None:
    first, second = Histogram(), Histogram()
    first.add(np.array([-1, 2], np.float32))
    second.add(np.array([0, 5], np.float32))
    table = RangeTable("m", 1, "mse", {"a": first, "b": second})
    assert table.span("a") == (-1, 2) and table.span(("a", "b")) == (-1, 5)


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
