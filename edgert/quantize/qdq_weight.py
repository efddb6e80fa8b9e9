"""Weights of a model that came quantised: whether TensorRT, which computes their scales itself, comes to the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from edgert.graph.node import Graph
from edgert.quantize.operator import is_weighted
from edgert.quantize.qdq_strip import Step
from edgert.quantize.weight import channel_axis, weight_scales

_TOLERANCE = 1e-3
"""Of NVIDIA's qdq-translator."""


def weight_problems(graph: Graph, steps: Mapping[str, Step]) -> Iterator[str]:
    """A sentence for each weighted node whose scales are not max|w| / 127 per output channel."""
    for node in graph.nodes:
        if not is_weighted(graph, node) or node.inputs[1] not in steps:
            continue
        weight, step = graph.constants[node.inputs[1]], steps[node.inputs[1]]
        axis = channel_axis(node, weight)
        computed = weight_scales(weight, axis)
        others = None if axis is None else tuple(dim for dim in range(weight.ndim) if dim != axis)
        alive = np.abs(weight).max(axis=others, initial=0.0) > 0
        if not step.is_per_tensor and step.scale.size != computed.size:
            yield f"node {node.name!r} has {step.scale.size} weight scales; TensorRT will use {computed.size}"
            continue
        given = np.broadcast_to(step.scale.reshape(-1) if computed.ndim else step.scale.reshape(()), computed.shape)
        off = alive & (np.abs(computed / given - 1) > _TOLERANCE)
        if np.any(off):
            worst = float(np.max(np.abs(computed / given - 1), where=off, initial=0.0))
            yield (
                f"node {node.name!r}: in {int(np.sum(off))} of {computed.size} channels the weight's scale is not "
                f"max|w|/127, by up to {worst:.2%}; TensorRT rounds it again with its own"
            )


def float_nodes(graph: Graph, steps: Mapping[str, Step]) -> tuple[str, ...]:
    """Names of the weighted nodes whose weight was not quantised."""
    return tuple(node.name for node in graph.nodes if is_weighted(graph, node) and node.inputs[1] not in steps)
