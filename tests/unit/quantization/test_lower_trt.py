from typing import Any

import numpy as np
import onnx
import pytest

from edgert.graph import Graph, Model, infer, write
from edgert.quantization.lowering.lower import lower
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target
from tests.helpers.models import make, node
from tests.unit.quantization.nets import amax_of, branches, conv, feeds_of, graph_of, residual, run, shuffled, stored

TARGETS: tuple[Target, ...] = ("gpu", "dla")


def lowered(model: Model, target: Target, *keep: str, **options: Any) -> Graph:
    graph = graph_of(model)
    return lower(graph, scheme(graph, target, keep), amax_of(model, feeds_of(model)), **options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", [residual(), branches(), shuffled()], ids=["residual", "branches", "shuffled"])
class TestBothForms:
    def test_are_valid_and_close(self, model: Model, target: Target) -> None:
        low = lowered(model, target)
        onnx.checker.check_model(infer(write(low, model)).proto, full_check=True)
        feeds = feeds_of(model)
        exact = run(graph_of(model), model, feeds)["y"]
        assert np.square(run(low, model, feeds)["y"] - exact).mean() < 1e-3 * np.square(exact).mean()

    def test_weights_are_stored_integers_behind_a_dq(self, model: Model, target: Target) -> None:
        low = lowered(model, target)
        for one in low.nodes:
            if one.op == "Conv":
                restored = low.producers[one.inputs[1]]
                assert restored.op == "DequantizeLinear"
                assert restored.attributes["axis"] == 0
                values, scales, zeros = (low.constants[name] for name in restored.inputs)
                assert values.dtype == zeros.dtype == np.int8
                assert values.min() >= -127 and not zeros.any()
                assert scales.shape == zeros.shape == (values.shape[0],)
                assert low.constants[one.inputs[2]].dtype == np.float32

    def test_activations_have_one_scale_and_no_zero_point(self, model: Model, target: Target) -> None:
        low = lowered(model, target)
        for one in low.nodes:
            if one.op == "QuantizeLinear":
                scale, zero = (low.constants[name] for name in one.inputs[1:])
                assert (scale.shape, scale.dtype, zero.shape, zero.dtype) == ((), np.float32, (), np.int8)
                assert scale > 0 and zero == 0
                (reader,) = low.consumers[one.outputs[0]]
                assert reader.op == "DequantizeLinear" and reader.inputs[1:] == one.inputs[1:]

    def test_outputs_are_not_rounded(self, model: Model, target: Target) -> None:
        assert lowered(model, target).producers["y"].op == "Conv"


def test_one_q_and_dq_for_all_readers() -> None:
    low = lowered(residual(), "gpu")
    readers = {one.name for one in low.nodes if "r0_dequantized" in one.inputs}
    assert readers == {"c1", "add"}
    assert [one.inputs[0] for one in low.nodes if one.op == "QuantizeLinear"] == ["x", "r0", "r1", "r2"]


def test_nothing_comes_between_a_convolution_and_what_it_fuses_with() -> None:
    low = lowered(residual(), "gpu")
    assert low.producers["r0"].inputs == ("t0",)
    assert low.producers["s"].inputs == ("t2", "r0_dequantized")


def test_a_dla_has_a_scale_everywhere_inside() -> None:
    low = lowered(residual(), "dla")
    inner = {name for one in low.nodes if one.op in ("Conv", "Relu", "Add") for name in one.inputs[:1]}
    assert inner == {f"{name}_dequantized" for name in ("x", "t0", "r0", "t1", "r1", "t2", "s", "r2")}


def test_a_shared_weight_is_restored_once() -> None:
    nodes = [node("Conv", ["x", "w"], ["t"], name="a"), node("Conv", ["t", "w"], ["y"], name="b")]
    model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, {"w": stored(c=(4, 4, 1, 1))["c.w"]})
    low = lowered(model, "gpu")
    assert low.producers["t"].inputs[1] == low.producers["y"].inputs[1] == "w_dequantized"


def test_a_transposed_convolution_shares_scales_between_groups() -> None:
    nodes = [conv("a", "x", "t"), node("ConvTranspose", ["t", "w"], ["y"], name="up", group=2, strides=[2, 2])]
    weight = np.arange(-12, 12, dtype=np.float32).reshape(4, 3, 1, 2)
    model = make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, stored(a=(4, 4, 1, 1)) | {"w": weight})
    low = lowered(model, "gpu")
    onnx.checker.check_model(infer(write(low, model)).proto, full_check=True)
    assert low.constants["w_scale"].tolist() == pytest.approx([12 / 127, 10 / 127, 11 / 127])
    assert low.producers["w_dequantized"].attributes["axis"] == 1


def test_kept_units_read_and_store_floats() -> None:
    low = lowered(residual(), "gpu", "c1")
    assert low.producers["t1"].inputs == ("r0", "c1.w", "c1.b")
    assert low.producers["t2"].inputs[0] == "r1_dequantized"


def test_rounding_decided_elsewhere() -> None:
    values = np.full((4, 4, 1, 1), -3, np.int8)
    low = lowered(residual(), "gpu", rounded={"c0.w": values})
    assert np.array_equal(low.constants["c0.w_quantized"], values)
