"""Models that come quantised, with QuantizeLinear and DequantizeLinear nodes: their float form and their scales.

TensorRT up to 10 takes no such nodes on a DLA. It takes the float model and the scales beside it, one for every tensor,
and computes the weights' scales itself. What this does to get there, and the precondition on weights, is what NVIDIA's
qdq-translator does (github.com/NVIDIA/Deep-Learning-Accelerator-SW, tools/qdq-translator).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgert.graph.node import Graph
from edgert.quantize.qdq_scale import spread_scales
from edgert.quantize.qdq_strip import strip
from edgert.quantize.qdq_weight import float_nodes, weight_problems


@dataclass(frozen=True, eq=False)
class Unquantized:
    """A quantised model taken apart.

    Attributes:
        graph: without Q/DQ; weights are what their integers stood for, tensors keep the names they had in front of
            their Q.
        scales: tensor → scale of one step, for every float32 tensor that has one by its own Q/DQ or by those of a
            neighbour it must share one with; what :func:`~edgert.quantize.cache.write_cache` takes.
        float_nodes: weighted nodes that were not quantised; to be named as FP16 exceptions, for with a scale on either
            side TensorRT would run them in INT8.
        problems: what will not be as it was in the model, a sentence each, naming the node or tensor.
    """

    graph: Graph
    scales: Mapping[str, float]
    float_nodes: tuple[str, ...]
    problems: tuple[str, ...]


def ranges_of_qdq(graph: Graph) -> Unquantized:
    """Takes the Q/DQ nodes out of a graph.

    Args:
        graph: cleaned, with types of tensors known.

    Raises:
        ModelError: the graph has no Q/DQ; it is in QOperator form or quantises at run time; a zero point is not in the
            middle; a pair's Q and DQ differ; an activation has several scales; something computes on integers, or
            integers are fed or given out. The node is named.
    """
    stripped = strip(graph)
    scales, gaps = spread_scales(stripped.graph, stripped.scales)
    problems = (*stripped.problems, *weight_problems(stripped.graph, stripped.weights), *gaps)
    return Unquantized(stripped.graph, scales, float_nodes(stripped.graph, stripped.weights), problems)
