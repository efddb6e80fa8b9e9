"""What the quantiser knows of operators: which have weights, which move data, which act on one value at a time."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from edgert.graph.node import Graph, Node

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators whose second input can be a stored weight."""

MOVEMENT = frozenset(
    {
        *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity"),
        *("Slice", "Split", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"),
    }
)
"""Operators whose outputs hold values of their first input and nothing else. So do some Pad and Resize."""

POOLS = frozenset({"MaxPool", "AveragePool"})
AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})

CLIPS = frozenset({"Relu", "Clip"})
"""Activations that bound a value and change nothing else: on integers of the same scale they do the same."""

_CURVES = frozenset(
    {
        *("Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Celu"),
        *("Softplus", "Softsign", "Mish", "Gelu", "Erf", "ThresholdedRelu", "Swish"),
    }
)
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max"})


def is_float(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is known to be float32."""
    spec = graph.specs.get(tensor)
    return spec is not None and spec.dtype == "float32"


def is_activation(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is a float32 one that is fed or computed."""
    return bool(tensor) and tensor not in graph.constants and is_float(graph, tensor)


def data_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """The float32 activations a node works on, once each; for one that moves data only what it moves."""
    names = node.inputs[:1] if is_movement(graph, node) else node.inputs
    return tuple(dict.fromkeys(name for name in names if is_activation(graph, name)))


def data_outputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """The float32 tensors a node computes."""
    return tuple(name for name in node.outputs if name and is_float(graph, name))


def is_weighted(graph: Graph, node: Node) -> bool:
    """Whether a node applies a stored float32 weight (its second input) to an activation (its first)."""
    if node.op not in WEIGHTED or node.domain or len(node.inputs) < 2:
        return False
    weight = graph.constants.get(node.inputs[1])
    return weight is not None and weight.dtype == np.float32 and is_activation(graph, node.inputs[0])


def is_movement(graph: Graph, node: Node) -> bool:
    """Whether every output value of a node is one of its first input's values, or 0."""
    if node.domain:
        return False
    if node.op == "Resize":
        return attribute_text(node, "mode", "nearest") == "nearest" and _scales_are_plain(node)
    if node.op == "Pad":
        return _pads_with_zero(graph, node)
    return node.op in MOVEMENT


def _scales_are_plain(node: Node) -> bool:
    """A region of interest brings in an extrapolated value."""
    return attribute_text(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"


def _pads_with_zero(graph: Graph, node: Node) -> bool:
    if attribute_text(node, "mode", "constant") != "constant":
        return True
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    value = graph.constants.get(node.inputs[2])
    return value is not None and not np.any(value)


def attribute_text(node: Node, name: str, default: str) -> str:
    """A string attribute."""
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def is_curve(node: Node) -> bool:
    """Whether a node is an activation function."""
    return not node.domain and node.op in _CURVES


def is_pointwise(graph: Graph, node: Node, inside: Collection[str]) -> bool:
    """Whether a node's output is a function, value by value, of the tensors ``inside`` and stored numbers."""
    if node.domain or len(node.outputs) != 1 or node.op not in _CURVES | _ARITHMETIC:
        return False
    return all(name in inside or _is_parameter(graph, node, name) for name in node.inputs if name)


def _is_parameter(graph: Graph, node: Node, name: str) -> bool:
    value = graph.constants.get(name)
    return value is not None and (value.size == 1 or node.op == "PRelu")


def clip_bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """What a Relu or Clip keeps values between; None when that is computed at run time, or the node is neither."""
    if node.op == "Relu":
        return 0.0, np.inf
    if node.op != "Clip":
        return None
    bounds = []
    for position, default in ((1, -np.inf), (2, np.inf)):
        name = node.inputs[position] if position < len(node.inputs) else ""
        value = graph.constants.get(name) if name else np.float32(default)
        if value is None or np.size(value) != 1:
            return None
        bounds.append(float(np.reshape(value, ())))
    return bounds[0], bounds[1]
