"""What the quantizer asks of a node: whether it has a stored weight, and what it works on."""

from __future__ import annotations

import numpy as np

from edgert.graph.operations import Graph, Node
from edgert.graph.operators import WEIGHTED
from edgert.graph.value import is_movement

CLIPS = frozenset({"Relu", "Clip"})
"""Activations that bound a value and change nothing else: on integers of the same scale they do the same."""


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
