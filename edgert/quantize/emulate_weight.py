"""A weighted node on integers: what it multiplies by, what it adds, and what one step of its sums is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph.node import Graph, Node
from edgert.graph.operators import about
from edgert.quantize.emulate_round import away
from edgert.quantize.kernel import bias_factor, with_plain_bias
from edgert.quantize.weight import Array, Scales, channel_axis, quantize_weight, weight_scales


@dataclass(frozen=True, slots=True, eq=False)
class WeightedForm:
    """The parameters of a weighted node whose input is in steps.

    Attributes:
        values: integers in ±127, in float32, of the weight's shape.
        bias: integers in float32, of a shape that the node takes; None without.
        steps: value of one step of the sum, shaped to multiply the node's output.
        attributes: of the node.
    """

    values: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    steps: npt.NDArray[np.float32]
    attributes: Mapping[str, Any]


def weighted_form(
    graph: Graph, node: Node, input_scale: np.float32, per_channel: bool, rounded: Mapping[str, Array]
) -> WeightedForm:
    """The integer form of a node with a stored weight and a stored bias or none.

    The bias is rounded to multiples of ``input_scale`` times the weight's scale, as int32 would hold it. Where int32
    would overflow, which takes weights next to nothing beside their bias, it does not here.
    """
    label = node.inputs[1]
    weight = graph.constants[label]
    axis = channel_axis(node, weight) if per_channel else None
    scales = weight_scales(weight, axis)
    values = rounded.get(label)
    if values is None:
        values = quantize_weight(weight, scales, axis).values
    steps = np.asarray(input_scale * scales, np.float32)
    bias, attributes = _bias(graph, node, steps)
    return WeightedForm(values.astype(np.float32), bias, _spread(node, steps, weight.ndim), attributes)


def _bias(graph: Graph, node: Node, steps: Scales) -> tuple[npt.NDArray[np.float32] | None, Mapping[str, Any]]:
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if not name:
        return None, node.attributes
    bias = graph.constants[name].astype(np.float64)
    steps64 = steps.astype(np.float64)
    return away(bias * bias_factor(node) / steps64).astype(np.float32), with_plain_bias(node)


def _spread(node: Node, steps: Scales, rank: int) -> npt.NDArray[np.float32]:
    """One value per channel of a convolution's output stands before its spatial dimensions."""
    if steps.ndim and about(node.op).kind == "conv":
        return steps.reshape([-1, *[1] * (rank - 2)])
    return steps
