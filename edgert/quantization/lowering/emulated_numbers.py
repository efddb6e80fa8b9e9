"""Numbers as a DLA stores them, written with float32 operators: halves away from zero, int8 and float16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.graph import Graph, Node
from edgert.graph.draft import Builder
from edgert.graph.operators import about
from edgert.quantization.lowering.weights import (
    Scales,
    bias_factor,
    quantize_weight,
    scale_axis,
    weight_scales,
    with_plain_bias,
)

LOW, HIGH = -128, 127
"""Activations are clipped to these, weights to ±127 (TensorRT's guide to quantized types)."""

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
"""floor(|v| + 0.5) would round 0.49999997 up, because the sum is rounded first. With this, for every float32 v, the sum
reaches the next integer exactly when |v| is a half or more above the last."""

_FLOAT, _FLOAT16 = 1, 10  # TensorProto.DataType, which the ONNX standard fixes


def away(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The nearest integers, halves away from zero."""
    whole = np.trunc(values)
    rounded: npt.NDArray[np.float64] = np.where(np.abs(values - whole) >= 0.5, whole + np.sign(values), whole)
    return rounded


def add_steps(builder: Builder, tensor: str, scale: np.float32, wanted: str, *, positive: bool = False) -> str:
    """Adds what turns a tensor into the integers, in float32, that stand for it; NaN stays NaN.

    Args:
        scale: of one step; 1 for a tensor that is in steps already.
        positive: the tensor is never negative, which saves half the work.

    Returns:
        The name of the result, like ``wanted``.
    """
    steps = tensor if scale == 1 else _binary(builder, "Div", tensor, scale, f"{wanted}_steps")
    if positive:
        rounded = _floor(builder, steps, wanted)
    else:
        size = builder.add("Abs", [steps], builder.name(f"{wanted}_size"))
        sign = builder.add("Sign", [steps], builder.name(f"{wanted}_sign"))
        rounded = builder.add("Mul", [_floor(builder, size, wanted), sign], builder.name(f"{wanted}_rounded"))
    bounds = [builder.store(np.asarray(bound, np.float32), f"int8_{bound}") for bound in (LOW, HIGH)]
    return builder.add("Clip", [rounded, *bounds], builder.name(wanted))


def add_values(builder: Builder, steps: str, scale: np.float32 | npt.NDArray[np.float32], output: str) -> str:
    """Adds the product of steps and their scale, as ``output``."""
    factor = builder.store(np.asarray(scale, np.float32), f"{output}_scale")
    return builder.add("Mul", [steps, factor], output)


def add_fp16(builder: Builder, tensor: str, output: str) -> str:
    """Adds the rounding of a tensor to float16, halves to even, as ``output``; what is too large becomes infinite."""
    short = builder.add("Cast", [tensor], builder.name(f"{output}_fp16"), {"to": _FLOAT16})
    return builder.add("Cast", [short], output, {"to": _FLOAT})


def _floor(builder: Builder, tensor: str, wanted: str) -> str:
    return builder.add("Floor", [_binary(builder, "Add", tensor, _BELOW_HALF, f"{wanted}_up")],
                       builder.name(f"{wanted}_floor"))  # fmt: skip


def _binary(builder: Builder, op: str, tensor: str, value: np.float32, wanted: str) -> str:
    number = builder.store(np.asarray(value, np.float32), f"{wanted}_by")
    return builder.add(op, [tensor, number], builder.name(wanted))


# A weighted node on integers: what it multiplies by, what it adds, and what one step of its sums is worth.


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
    axis = scale_axis(node, weight) if per_channel else None
    scales = weight_scales(weight, axis)
    values = rounded.get(label)
    if values is None:
        values = quantize_weight(weight, scales, axis).values
    steps = np.asarray(input_scale * scales, np.float32)
    bias, attributes = _bias(graph, node, steps)
    return WeightedForm(values.astype(np.float32), bias, _along_output(node, steps, weight.ndim), attributes)


def _bias(graph: Graph, node: Node, steps: Scales) -> tuple[npt.NDArray[np.float32] | None, Mapping[str, Any]]:
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if not name:
        return None, node.attributes
    bias = graph.constants[name].astype(np.float64)
    steps64 = steps.astype(np.float64)
    return away(bias * bias_factor(node) / steps64).astype(np.float32), with_plain_bias(node)


def _along_output(node: Node, steps: Scales, rank: int) -> npt.NDArray[np.float32]:
    """One value per channel of a convolution's output stands before its spatial dimensions."""
    if steps.ndim and about(node.op).kind == "conv":
        return steps.reshape([-1, *[1] * (rank - 2)])
    return steps
