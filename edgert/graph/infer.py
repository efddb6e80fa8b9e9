"""Types and shapes of the tensors inside a graph, as far as onnx can tell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgert.errors import ModelError
from edgert.graph.message import LIGHT_ELEMENTS, lightened, message
from edgert.graph.own import type_own_nodes
from edgert.graph.proto import default_opset
from edgert.graph.record import Graph
from edgert.graph.spec import TensorSpec, value_spec
from edgert.graph.standin import stand_in

if TYPE_CHECKING:
    import onnx


def infer_values(proto: onnx.ModelProto, *, strict: bool = False) -> dict[str, onnx.ValueInfoProto]:
    """Tensor name → its type, for graph inputs, outputs and everything between that could be inferred.

    Args:
        proto: not changed; should be topologically sorted.
        strict: raise when two shapes contradict each other or an operator is unknown, instead of knowing less.

    Raises:
        ModelError: the graph is broken, or ``strict`` and something is wrong; ``why`` has onnx's own words.
    """
    return _inferred(lighten(proto), strict=strict)


def infer_graph(graph: Graph) -> dict[str, onnx.ValueInfoProto]:
    """As :func:`infer_values`, for a graph in records; stored tensors that are large are among the results."""
    return _inferred(message(lightened(graph), typed=True), strict=False)


def infer_specs(graph: Graph) -> dict[str, TensorSpec]:
    """Tensor name → spec, as far as it can be inferred. Raises ModelError."""
    found = {name: value_spec(value) for name, value in infer_graph(graph).items()}
    return {name: spec for name, spec in found.items() if spec is not None}


def _inferred(light: onnx.ModelProto, *, strict: bool) -> dict[str, onnx.ValueInfoProto]:
    from onnx import shape_inference

    try:
        for node in light.graph.node:
            stand_in(node, default_opset(light))
        type_own_nodes(light)
        inferred = shape_inference.infer_shapes(light, strict_mode=strict, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        fix = "export the model again, or check it with onnx.checker"
        raise ModelError("the shapes inside the model do not fit together", why=_brief(error), fix=fix) from error
    graph = inferred.graph
    return {item.name: item for item in (*graph.value_info, *graph.input, *graph.output)}


def lighten(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the bytes of large stored tensors, which become typed graph inputs: cheap at any model size."""
    light = type(proto)()
    light.ir_version = max(proto.ir_version, 4)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph, source = light.graph, proto.graph
    graph.name = source.name
    graph.node.extend(source.node)
    for field in ("input", "output", "value_info", "sparse_initializer"):
        getattr(graph, field).extend(getattr(source, field))
    _lighten_initializers(graph, source)
    return light


def _lighten_initializers(graph: onnx.GraphProto, source: onnx.GraphProto) -> None:
    from onnx import helper

    listed = {item.name for item in source.input}
    for tensor in source.initializer:
        if math.prod(tensor.dims) <= LIGHT_ELEMENTS:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
