"""A plain quantizer to test corrections with: stored weights per channel, inputs of weighted nodes per tensor.

Nothing is shared, fused or left out; the scales of activations are what the caller gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.graph import Graph, Model, Names, Node
from edgert.graph.operators import WEIGHTED
from edgert.quantization.calibration.walk import Feeds, walk
from edgert.quantization.lowering.weights import weighted_nodes

Array = np.ndarray[Any, Any]


def peaks(graph: Graph, feeds: Sequence[Feeds], like: Model) -> dict[str, float]:
    """The largest magnitude of each tensor that a weighted node reads."""
    names = list(dict.fromkeys(node.inputs[0] for node in weighted_nodes(graph)))
    values = walk(graph, names, feeds, like)
    return {name: max(float(np.abs(one).max()) for one in found) for name, found in zip(names, values, strict=True)}


def scales_of(graph: Graph, node: Node) -> Array:
    """Steps of a node's weight, shaped to divide it."""
    stored = graph.constants[node.inputs[1]]
    axis = {"Conv": 0, "ConvTranspose": 1}.get(node.op, 0 if node.attributes.get("transB", 0) else 1)
    others = tuple(i for i in range(stored.ndim) if i != axis)
    return np.maximum(np.abs(stored).max(axis=others, keepdims=True), 1e-6).astype(np.float32) / np.float32(127)


def lower(graph: Graph, amax: Mapping[str, float], rounded: Mapping[str, Array] | None = None) -> Graph:
    """The graph with weights rounded and Q/DQ before each weighted node's input."""
    names, stored, nodes = Names(graph), dict(graph.constants), []
    for node in graph.nodes:
        if node.op not in WEIGHTED or node.inputs[1] not in graph.constants:
            nodes.append(node)
            continue
        scales = scales_of(graph, node)
        steps = (rounded or {}).get(node.inputs[1], np.rint(stored[node.inputs[1]] / scales).clip(-127, 127))
        weight, scale, zero = names.new("weight"), names.new("scale"), names.new("zero")
        stored[weight] = (steps * scales).astype(np.float32)
        stored[scale] = np.array(amax[node.inputs[0]] / 127, np.float32)
        stored[zero] = np.array(0, np.int8)
        whole, back = names.new("q"), names.new("dq")
        nodes.append(Node("QuantizeLinear", (node.inputs[0], scale, zero), (whole,), name=whole))
        nodes.append(Node("DequantizeLinear", (whole, scale, zero), (back,), name=back))
        nodes.append(replace(node, inputs=(back, weight, *node.inputs[2:])))
    return replace(graph, nodes=tuple(nodes), constants=stored)
