"""The strongly typed form for a DLA, looked at as TensorRT from 11.4.1 on would have to accept it."""

from collections.abc import Iterator

import numpy as np
import pytest

from edgert.graph import Graph, Model, Node
from edgert.quantization.lowering.emulate import emulate_dla
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import cache_text, parse_cache
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import is_activation
from tests.helpers.models import make, node
from tests.unit.quantization.nets import after_conv, amax_of, conv, feeds_of, graph_of, residual, shuffled, stored

INT8 = {"Conv", "Relu", "Clip", "Add", "Mul", "Sigmoid", "MaxPool", "AveragePool", "Concat", "Reshape", "Transpose"}
SHARING = {"MaxPool", "AveragePool", "Concat", "Reshape", "Transpose", "Relu", "Clip"}


def swish() -> Model:
    """A convolution with x·sigmoid(x), an average pool, a residual product, and a convolution."""
    nodes = [
        conv("a", "x", "t"),
        node("Sigmoid", ["t"], ["s"], name="sig"),
        node("Mul", ["t", "s"], ["u"], name="mul"),
        node("AveragePool", ["u"], ["p"], name="pool", kernel_shape=[2, 2]),
        conv("b", "p", "v"),
        node("Clip", ["v", "zero", "six"], ["w"], name="clip"),
        conv("c", "w", "y"),
    ]
    ends = {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    shape = (4, 4, 1, 1)
    return make(nodes, {"x": (1, 4, 6, 6)}, {"y": None}, stored(a=shape, b=shape, c=shape) | ends)


def forms(model: Model) -> tuple[Graph, Graph]:
    graph = graph_of(model)
    return graph, lower(graph, scheme(graph, "dla"), amax_of(model, feeds_of(model)))


def pairs(low: Graph) -> Iterator[tuple[Node, Node]]:
    """Each Q with the one DQ that reads it."""
    for one in low.nodes:
        if one.op == "QuantizeLinear":
            (reader,) = low.consumers[one.outputs[0]]
            yield one, reader


@pytest.mark.parametrize("model", [residual(), shuffled(), swish()], ids=["residual", "shuffled", "swish"])
class TestForm:
    def test_every_tensor_that_a_layer_reads_has_a_scale(self, model: Model) -> None:
        graph, low = forms(model)
        layers = {one.name: one for one in low.nodes}
        read = [(layers[one.name], slot) for one in graph.nodes for slot, name in enumerate(one.inputs)
                if one.op in INT8 and is_activation(graph, name)]  # fmt: skip
        assert len(read) > 5
        for layer, slot in read:
            assert low.producers[layer.inputs[slot]].op == "DequantizeLinear", (layer.name, slot)

    def test_what_a_dla_pools_and_joins_has_one_scale(self, model: Model) -> None:
        graph, low = forms(model)
        scales = {one.inputs[0]: float(low.constants[one.inputs[1]]) for one, _ in pairs(low)}
        shared = [one for one in graph.nodes if one.op in SHARING]
        assert shared
        for one in shared:
            names = [name for name in (*one.inputs, *one.outputs) if is_activation(graph, name)]
            assert len({scales[name] for name in names}) == 1, one.name

    def test_cache_typed_form_and_emulation_have_the_same_numbers(self, model: Model) -> None:
        graph, low = forms(model)
        plan, amax = scheme(graph, "dla"), amax_of(model, feeds_of(model))
        cached = parse_cache(cache_text(graph, plan, amax, "10.3.0"))
        emulated = emulate_dla(graph, plan, amax)
        assert "x_int8_steps_by" in emulated.constants
        for first, _ in pairs(low):
            name = first.inputs[0]
            assert cached[name] == float(low.constants[first.inputs[1]]), name
            divisor = emulated.constants.get(f"{name}_int8_steps_by")
            assert divisor is None or float(divisor) == cached[name], name


def test_a_network_that_ends_in_a_relu_has_a_range_for_it() -> None:
    graph, low = forms(after_conv(node("Relu", ["t"], ["y"], name="relu")))
    assert all(scheme(graph, "dla").groups.values())
    assert {one.op for one in low.nodes} >= {"Conv", "Relu", "QuantizeLinear"}
