"""Q/DQ models in the forms of a DLA: their own scales, no images; and what cannot be taken apart."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from edgert.backend.ort import Function
from edgert.cli import app
from edgert.errors import ModelError
from edgert.graph import Model, Node, clean, infer, load, read, to_bytes, write
from edgert.quantization import calibrated, from_qdq, run
from edgert.quantization.from_qdq import QdqModel, split_qdq
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import dla_scales, parse_cache, write_cache
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target
from edgert.quantization.strip_qdq import strip_qdq
from tests.helpers.models import make, node
from tests.unit.quantization.nets import (
    Array,
    after_conv,
    amax_of,
    branches,
    conv,
    feeds_of,
    graph_of,
    residual,
    shuffled,
    stored,
)

F32 = np.float32
INT8 = np.int8(0)


def taken_apart(model: Model) -> QdqModel:
    return split_qdq(clean(model)[0])


def quantized(model: Model, target: Target) -> Model:
    graph = graph_of(model)
    return write(lower(graph, scheme(graph, target), amax_of(model, feeds_of(model))), model)


def pair(source: str, output: str, scale: float = 0.05, zero: Any = INT8) -> tuple[list[Any], dict[str, Array]]:
    """Q and DQ nodes named after their output, and their parameters."""
    names = [f"{output}.scale", f"{output}.zero"]
    nodes = [
        node("QuantizeLinear", [source, *names], [f"{output}.q"], name=f"{output}.Q"),
        node("DequantizeLinear", [f"{output}.q", *names], [output], name=f"{output}.DQ"),
    ]
    return nodes, {names[0]: np.asarray(scale, F32), names[1]: np.asarray(zero)}


def trained(*, weight: Array | None = None, scale: Array | None = None) -> Model:
    """x → Q/DQ → convolution with Q/DQ on its float weight, per channel → Relu → y, as QAT tools export it."""
    if weight is None:
        weight = stored(c=(4, 4, 1, 1))["c.w"]
    if scale is None:
        scale = np.abs(weight).max(axis=(1, 2, 3)) / F32(127)
    nodes, tensors = pair("x", "xd")
    parameters = ["w.scale", "w.zero"]
    nodes += [
        node("QuantizeLinear", ["w", *parameters], ["wq"], name="w.Q", axis=0),
        node("DequantizeLinear", ["wq", *parameters], ["wd"], name="w.DQ", axis=0),
        node("Conv", ["xd", "wd"], ["t"], name="c"),
        node("Relu", ["t"], ["r"], name="relu"),
    ]
    last, more = pair("r", "y", 0.02)
    tensors |= more | {"w": weight, "w.scale": scale.astype(F32), "w.zero": np.zeros(scale.shape, np.int8)}
    return make([*nodes, *last], {"x": (1, 4, 6, 6)}, {"y": (1, 4, 6, 6)}, tensors)


def plain(nodes: list[Any], tensors: dict[str, Array], outputs: dict[str, Any] | None = None) -> Model:
    return make(nodes, {"x": (1, 4, 6, 6)}, outputs or {"y": None}, tensors)


class TestGraph:
    @pytest.mark.parametrize("target", ["gpu", "dla"])
    @pytest.mark.parametrize("model", [residual(), branches()], ids=["residual", "branches"])
    def test_has_no_rounding_left_and_computes_nearly_the_same(self, model: Model, target: Target) -> None:
        found = taken_apart(quantized(model, target))
        ops = [one.op for one in found.graph.nodes]
        assert "QuantizeLinear" not in ops
        assert "DequantizeLinear" not in ops
        back = write(found.graph, model)
        onnx.checker.check_model(infer(back).proto, full_check=True)
        feeds = feeds_of(model)
        exact, computed = Function(model)(feeds), Function(back)(feeds)
        for name, expected in exact.items():
            assert np.abs(computed[name] - expected).max() < 0.02 * np.abs(expected).max()

    def test_weights_are_what_their_integers_stood_for(self) -> None:
        model = trained()
        found = taken_apart(model)
        weight, scale = read(model).constants["w"], read(model).constants["w.scale"][:, None, None, None]
        np.testing.assert_array_equal(found.graph.constants["wd"], np.rint(weight / scale).astype(F32) * scale)
        assert found.problems == ()
        assert found.float_nodes == ()

    def test_keeps_the_names_of_inputs_and_outputs(self) -> None:
        found = taken_apart(trained())
        assert [spec.name for spec in found.graph.inputs] == ["x"]
        assert [spec.name for spec in found.graph.outputs] == ["y"]
        assert [one.op for one in found.graph.nodes] == ["Conv", "Relu"]
        assert found.graph.producers["y"].op == "Relu"
        assert "y" in found.scales

    def test_an_output_that_is_an_input_or_two_is_copied(self) -> None:
        first, tensors = pair("x", "y")
        found = taken_apart(plain(first, tensors))
        assert [(one.op, one.inputs, one.outputs) for one in found.graph.nodes] == [("Identity", ("x",), ("y",))]
        second, more = pair("r", "z", 0.05)
        third, last = pair("r", "y", 0.05)
        relu = node("Relu", ["x"], ["r"], name="relu")
        both = taken_apart(plain([relu, *second, *third], more | last, {"y": None, "z": None}))
        feeds = feeds_of(trained())
        result = Function(write(both.graph, trained()))(feeds)
        np.testing.assert_array_equal(result["y"], np.maximum(feeds["x"], 0))
        np.testing.assert_array_equal(result["z"], result["y"])


class TestScales:
    def test_are_those_that_it_was_made_with(self) -> None:
        for model in (residual(), branches()):
            graph, amax = graph_of(model), amax_of(model, feeds_of(model))
            expected = dla_scales(graph, scheme(graph, "dla"), amax)
            found = taken_apart(quantized(model, "dla"))
            assert {name: found.scales[name] for name in expected if name != "y"} == {
                name: scale for name, scale in expected.items() if name != "y"
            }
            (gap,) = found.problems
            assert gap.startswith("tensor 'y' (from Conv 'c3') has no scale")
            assert parse_cache(write_cache(found.scales, "10.3.0")) == found.scales

    def test_pass_through_what_moves_pools_and_bounds_values(self) -> None:
        nodes, tensors = pair("x", "xd", 0.1)
        nodes += [
            node("Relu", ["xd"], ["a"], name="relu"),
            node("MaxPool", ["a"], ["b"], name="pool", kernel_shape=[2, 2]),
            node("Transpose", ["b"], ["y"], name="turn"),
        ]
        scales = taken_apart(plain(nodes, tensors)).scales
        assert scales == dict.fromkeys(["x", "a", "b", "y"], float(F32(0.1)))

    def test_go_back_to_what_was_moved(self) -> None:
        nodes = [
            conv("c", "x", "t"),
            node("Relu", ["t"], ["r"], name="relu"),
            node("Transpose", ["r"], ["m"], name="m"),
        ]
        last, tensors = pair("m", "y", 0.25)
        found = taken_apart(plain([*nodes, *last], tensors | stored(c=(4, 4, 1, 1))))
        assert found.scales == {"t": 0.25, "r": 0.25, "y": 0.25}
        assert found.float_nodes == ("c",)
        assert [line for line in found.problems if "input 'x' has no scale" in line]

    def test_of_a_concat_are_the_largest(self) -> None:
        first, one = pair("x", "a", 0.25)
        relu = node("Relu", ["x"], ["r"], name="relu")
        second, two = pair("r", "b", 0.5)
        nodes = [*first, relu, *second, node("Concat", ["a", "b"], ["y"], name="join", axis=1)]
        found = taken_apart(plain(nodes, one | two))
        assert found.scales == {"x": 0.5, "r": 0.5, "y": 0.5}
        assert found.problems == (
            "tensors 'x', 'r' must share a scale on a DLA and have several: the largest, 0.5, is 2 times the least",
        )

    def test_of_bounded_functions_are_known(self) -> None:
        nodes, tensors = pair("x", "xd")
        nodes += [node("Sigmoid", ["xd"], ["s"], name="s"), node("Flatten", ["s"], ["f"], name="f"),
                  node("Softmax", ["f"], ["y"], name="y")]  # fmt: skip
        found = taken_apart(plain(nodes, tensors))
        assert found.scales["s"] == found.scales["f"] == found.scales["y"] == float(F32(1) / F32(127))
        assert found.problems == ()

    def test_inside_a_fused_unit_are_those_of_the_addition(self) -> None:
        nodes, tensors = pair("x", "xd", 0.1)
        nodes += [conv("c", "xd", "t"), node("Add", ["t", "xd"], ["s"], name="add")]
        last, more = pair("s", "y", 0.2)
        found = taken_apart(plain([*nodes, *last], tensors | more | stored(c=(4, 4, 1, 1))))
        assert found.scales == {"x": float(F32(0.1)), "t": float(F32(0.2)), "y": float(F32(0.2))}

    def test_several_on_one_tensor(self) -> None:
        first, one = pair("x", "a", 0.25)
        second, two = pair("x", "b", 0.5)
        add = node("Add", ["a", "b"], ["s"], name="add")
        last, three = pair("s", "y", 0.5)
        found = taken_apart(plain([*first, *second, add, *last], one | two | three))
        assert found.scales["x"] == 0.5
        assert found.problems[0].startswith("tensor 'x' is rounded with different scales by 'a.Q', 'b.Q'")

    def test_a_tensor_without_one_is_reported(self) -> None:
        nodes, tensors = pair("x", "xd")
        nodes += [node("Exp", ["xd"], ["y"], name="exp")]
        assert taken_apart(plain(nodes, tensors)).problems == (
            "tensor 'y' (from Exp 'exp') has no scale: no Q/DQ is on it or on tensors that share one, "
            "and the DLA will not run it in INT8",
        )


class TestWeights:
    def test_a_scale_that_tensorrt_would_not_choose(self) -> None:
        weight = stored(c=(4, 4, 1, 1))["c.w"]
        scale = np.abs(weight).max(axis=(1, 2, 3)) / F32(127)
        scale[1] *= 1.25
        (problem,) = taken_apart(trained(weight=weight, scale=scale)).problems
        assert problem.startswith("node 'c': in 1 of 4 channels the weight's scale is not max|w|/127, by up to 19")

    def test_one_for_all_channels(self) -> None:
        weight = stored(c=(4, 4, 1, 1))["c.w"]
        (problem,) = taken_apart(trained(weight=weight, scale=np.abs(weight).max() / F32(127))).problems
        assert "in 3 of 4 channels" in problem

    def test_clipped_ones_and_channels_of_zeros_are_fine(self) -> None:
        weight = stored(c=(4, 4, 1, 1))["c.w"]
        weight[2] = 0
        scale = np.full(4, np.abs(weight[[0, 1, 3]]).max(axis=(1, 2, 3)).min() / F32(200), F32)
        assert taken_apart(trained(weight=np.abs(weight), scale=scale)).problems == ()
        (problem,) = taken_apart(trained(weight=weight, scale=scale)).problems
        assert "by up to 0.79%" in problem  # -128 is a step further than TensorRT's weights go

    def test_biases_may_be_stored_as_int32(self) -> None:
        nodes, tensors = pair("x", "xd", 0.5)
        nodes += [
            node("DequantizeLinear", ["b32", "bs"], ["b"], name="b.DQ", axis=0),
            node("Conv", ["xd", "w", "b"], ["y"], name="c"),
        ]
        tensors |= {"b32": np.array([70000, -3], np.int32), "bs": np.array([0.25, 2], F32)}
        found = taken_apart(plain(nodes, tensors | {"w": np.ones((2, 4, 1, 1), F32)}))
        assert found.graph.constants["b"].tolist() == [17500, -6]
        assert found.float_nodes == ("c",)


def refusal(model: Model) -> ModelError:
    with pytest.raises(ModelError) as caught:
        taken_apart(model)
    return caught.value


class TestRefusals:
    @pytest.mark.parametrize("op", ["QLinearConv", "QLinearAdd", "ConvInteger", "DynamicQuantizeLinear"])
    def test_models_that_compute_on_integers(self, op: str) -> None:
        graph = replace(graph_of(residual()), nodes=(Node(op, ("x",), ("y",), name="odd"),))
        with pytest.raises(ModelError) as caught:
            strip_qdq(graph)
        error = caught.value
        assert error.what == f"node 'odd' is {op}: the model computes on integers"
        assert "QuantFormat.QDQ" in error.fix

    def test_a_model_that_is_not_quantized(self) -> None:
        assert "no Q/DQ nodes" in refusal(residual()).what

    @pytest.mark.parametrize("zero", [np.int8(3), np.uint8(0), np.uint8(127)])
    def test_a_zero_point_that_is_not_the_middle(self, zero: Any) -> None:
        nodes, tensors = pair("x", "y", 0.1, zero)
        error = refusal(plain(nodes, tensors))
        assert error.what == f"node 'y.Q' has zero point {zero}"
        assert "symmetric" in error.why

    def test_no_zero_point_means_unsigned(self) -> None:
        nodes = [node("QuantizeLinear", ["x", "s"], ["q"], name="Q"), node("DequantizeLinear", ["q", "s"], ["y"])]
        assert "'Q' has zero point 0" in refusal(plain(nodes, {"s": np.array(0.1, F32)})).what

    def test_unsigned_with_128_in_the_middle_is_taken(self) -> None:
        nodes, tensors = pair("x", "y", 0.5, np.uint8(128))
        assert taken_apart(plain(nodes, tensors)).scales == {"x": 0.5, "y": 0.5}

    def test_more_bits(self) -> None:
        nodes, tensors = pair("x", "y", 0.1, np.int16(0))
        model = make(nodes, {"x": (1, 4, 6, 6)}, {"y": (1, 4, 6, 6)}, tensors, opset=21, ir=10)
        assert refusal(model).what == "node 'y.Q' stores int16"

    def test_a_pair_that_does_not_match(self) -> None:
        nodes, tensors = pair("x", "y")
        nodes[1].input[1] = "other"
        error = refusal(plain(nodes, tensors | {"other": np.array(0.1, F32)}))
        assert error.what == "nodes 'y.Q' and 'y.DQ' have different scales or zero points"

    def test_an_activation_with_a_scale_per_channel(self) -> None:
        nodes, tensors = pair("x", "y", np.full(4, 0.1), np.zeros(4, np.int8))  # type: ignore[arg-type]
        assert refusal(plain(nodes, tensors)).what == "node 'y.Q' rounds activation 'x' with 4 scales"

    def test_a_scale_that_is_computed(self) -> None:
        nodes = [node("ReduceMax", ["x"], ["s"], keepdims=0), node("QuantizeLinear", ["x", "s", "z"], ["q"], name="Q"),
                 node("DequantizeLinear", ["q", "s", "z"], ["y"], name="D")]  # fmt: skip
        assert refusal(plain(nodes, {"z": np.array(0, np.int8)})).what == "node 'Q' quantizes at run time"

    @pytest.mark.parametrize("scale", [0.0, -0.1, np.nan, np.inf])
    def test_a_scale_that_is_none(self, scale: float) -> None:
        nodes, tensors = pair("x", "y", scale)
        assert "node 'y.Q' has a scale that is not positive and finite" in refusal(plain(nodes, tensors)).what

    def test_a_node_on_integers(self) -> None:
        nodes, tensors = pair("x", "y")
        nodes.insert(1, node("Transpose", ["y.q"], ["turned"], name="turn"))
        nodes[2].input[0] = "turned"
        assert refusal(plain(nodes, tensors)).what == "node 'turn' (Transpose) computes on integers"

    def test_integers_that_are_fed(self) -> None:
        nodes, tensors = pair("x", "y")
        model = make(nodes[1:], {"y.q": value_of("y.q")}, {"y": None}, tensors)
        assert refusal(model).what == "node 'y.DQ' reads integers 'y.q' that no Q makes"

    def test_integers_that_are_given_out(self) -> None:
        nodes, tensors = pair("x", "y")
        model = make(nodes[:1], {"x": (1, 4)}, {"y.q": value_of("y.q")}, tensors)
        assert refusal(model).what == "output 'y.q' has an integer type"


def value_of(name: str) -> Any:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, (1, 4))


def in_qdq(model: Model, target: Target = "dla") -> Model:
    graph = graph_of(model)
    return write(lower(graph, scheme(graph, target), amax_of(model, feeds_of(model))), model)


def measured(model: Model) -> Mapping[str, float]:
    graph = graph_of(model)
    return dla_scales(graph, scheme(graph, "dla"), amax_of(model, feeds_of(model)))


def scales_in(model: Model) -> dict[str, float]:
    """Tensor that a Q rounds → its scale."""
    graph = read(model)
    pairs = [one for one in graph.nodes if one.op == "QuantizeLinear"]
    return {one.inputs[0]: float(graph.constants[one.inputs[1]]) for one in pairs}


def saved(model: Model, path: Path) -> Path:
    path.write_bytes(to_bytes(model))
    return path


def quantize(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["quantize", *map(str, words)], env={"COLUMNS": "250"})
    return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize("model", [residual(), shuffled()], ids=["residual", "shuffled"])
class TestRoundTrip:
    def test_the_scales_that_went_in_come_out(self, model: Model) -> None:
        found, wanted = from_qdq.qdq_model(in_qdq(model)), measured(model)
        assert len(found.scales) > 5
        for name, scale in found.scales.items():
            assert scale == pytest.approx(wanted[name], rel=1e-6), name
        assert set(wanted) - set(found.scales) <= {"y"}  # what leaves the DLA is not rounded there

    def test_the_typed_form_comes_back(self, model: Model) -> None:
        before = in_qdq(model)
        after = from_qdq.qdq_model(before).dla_form()
        assert scales_in(after) == pytest.approx(scales_in(before), rel=1e-6)
        feeds = feeds_of(model)
        wanted, made = (Function(one, fused=False)(feeds)["y"] for one in (before, after))
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


def test_a_gpu_model_gets_a_scale_wherever_one_follows() -> None:
    model = shuffled()
    found, wanted = from_qdq.qdq_model(in_qdq(model, "gpu")), measured(model)
    assert {name: found.scales[name] for name in ("x", "r0", "j")} == pytest.approx(
        {name: wanted[name] for name in ("x", "r0", "j")}, rel=1e-6
    )
    typed = read(found.dla_form())
    assert {one.op for one in typed.nodes} >= {"Conv", "QuantizeLinear", "DequantizeLinear"}


def test_what_reads_a_tensor_without_a_scale_stays_in_floating_point() -> None:
    model = after_conv(node("LeakyRelu", ["t"], ["u"], name="act", alpha=0.1))
    graph = graph_of(model)
    half = write(lower(graph, scheme(graph, "gpu", ["b"]), amax_of(model, feeds_of(model))), model)
    found = from_qdq.qdq_model(half)
    assert found.float_nodes == ("b",)
    assert any("'u'" in text for text in found.problems)
    typed = read(found.dla_form())
    reader = next(one for one in typed.nodes if one.name == "b")
    assert typed.producers[reader.inputs[0]].op == "LeakyRelu"


class TestCommand:
    def test_a_cache_and_the_float_model_without_images(self, tmp_path: Path) -> None:
        model = residual()
        path = saved(in_qdq(model), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "cache", "--trt", "8.6.2", "-o", tmp_path / "net.cache")
        assert code == 0, output
        text = (tmp_path / "net.cache").read_text()
        assert text.startswith("TRT-8602-")
        scales = parse_cache(text)
        plain = load(tmp_path / "net.float.onnx")
        assert not run.is_quantized(plain)
        assert set(scales) <= read(plain).names
        assert scales == pytest.approx({name: measured(model)[name] for name in scales}, rel=1e-6)
        assert "tensor 'y'" in output  # it has no scale, and is named
        assert not (tmp_path / "net.layer_precisions").exists()

    def test_the_form_for_a_dla(self, tmp_path: Path) -> None:
        path = saved(in_qdq(residual(), "gpu"), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "dla", "-o", tmp_path / "net.dla.onnx")
        assert code == 0, output
        assert set(scales_in(load(tmp_path / "net.dla.onnx"))) >= {"x", "r0", "r1", "r2"}

    def test_layers_that_were_left_in_float_are_exceptions(self, tmp_path: Path) -> None:
        model = residual()
        graph = graph_of(model)
        low = write(lower(graph, scheme(graph, "gpu", ["c1"]), amax_of(model, feeds_of(model))), model)
        code, output = quantize(saved(low, tmp_path / "net.onnx"), "--target", "cache", "-o", tmp_path / "net.cache")
        assert code == 0, output
        assert (tmp_path / "net.layer_precisions").read_text() == "c1:fp16"

    @pytest.mark.parametrize(
        "words", [("--images", "photos"), ("--keep", "c1"), ("--max-drop", "0.01"), ("--method", "mse")]
    )
    def test_what_is_for_float_models_is_refused(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        path = saved(in_qdq(residual()), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "cache", *words)
        assert code != 0
        assert words[0] in output and "quantized already" in output

    def test_a_zero_point_off_the_middle_is_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        proto = onnx.load_from_string(to_bytes(in_qdq(residual())))
        first = next(one for one in proto.graph.node if one.op_type == "QuantizeLinear")
        for tensor in proto.graph.initializer:
            if tensor.name == first.input[2]:
                tensor.CopyFrom(numpy_helper.from_array(np.array(3, np.int8), tensor.name))
        path = tmp_path / "net.onnx"
        path.write_bytes(proto.SerializeToString())
        code, output = quantize(path, "--target", "cache", "-o", tmp_path / "net.cache")
        assert code != 0
        assert "zero point 3" in output and "symmetric" in output
        assert sorted(one.name for one in tmp_path.iterdir()) == ["net.onnx"]

    def test_a_version_without_caches_is_refused_first(self, tmp_path: Path) -> None:
        path = saved(in_qdq(residual()), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "cache", "--trt", "11.4.1")
        assert code != 0 and "reads no calibration cache" in output

    def test_other_forms_name_the_way_to_a_dla(self) -> None:
        with pytest.raises(ModelError, match="--target cache"):
            calibrated.prepare(in_qdq(residual()))


def test_a_model_without_layers_is_refused() -> None:
    tensors = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq"),
        node("Relu", ["d"], ["y"], name="relu"),
    ]
    with pytest.raises(ModelError, match="nothing that could run in INT8"):
        from_qdq.qdq_model(make(nodes, {"x": (1, 4, 6, 6)}, {"y": None}, tensors))
