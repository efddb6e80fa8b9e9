"""Shapes for operators that onnx has no rules for: a standard node with the same output shape stands in for each.

Covers what ONNX Runtime's quantiser and optimiser write (domain ``com.microsoft``,
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md) and the experimental operators of models
from before ONNX 1.5 (ImageScaler, Crop, Affine). Stand-ins serve shape inference on a throw-away copy; they compute
something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgert.graph.proto import attributes, is_standard, set_attribute

if TYPE_CHECKING:
    import onnx

_Rule = tuple[str, Callable[[Sequence[str]], Sequence[str]]]


def _first(names: Sequence[str]) -> Sequence[str]:
    return names[:1]


_CONTRIB: dict[str, _Rule] = {
    "QLinearAdd": ("Add", lambda names: [names[0], names[3]]),
    "QLinearMul": ("Mul", lambda names: [names[0], names[3]]),
    "QLinearConcat": ("Concat", lambda names: names[2::3]),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", _first),
    "QLinearAveragePool": ("AveragePool", _first),
    "QLinearLeakyRelu": ("Identity", _first),
    "QLinearSigmoid": ("Identity", _first),
    "QLinearSoftmax": ("Identity", _first),
    "QGemm": ("Gemm", lambda names: [names[0], names[3]]),
    "FusedConv": ("Conv", lambda names: names[:2]),
    "FusedGemm": ("Gemm", lambda names: names[:3]),
    "Gelu": ("Identity", _first),
    "BiasGelu": ("Identity", _first),
    "FastGelu": ("Identity", _first),
    "QuickGelu": ("Identity", _first),
}
_EXPERIMENTAL: dict[str, _Rule] = {
    "Affine": ("Identity", _first),
    "ImageScaler": ("Identity", _first),
    "ParametricSoftplus": ("Identity", _first),
    "ScaledTanh": ("Identity", _first),
    "Crop": ("Pad", _first),
}
_KEPT = {
    "AveragePool": ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    "Concat": ("axis",),
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("transA", "transB"),
}


def stand_in(node: onnx.NodeProto, opset: int) -> None:
    """Turns a node into its stand-in, in place; leaves nodes alone that need or have none."""
    table = _EXPERIMENTAL if is_standard(node) else _CONTRIB if node.domain == "com.microsoft" else {}
    given = attributes(node) if node.op_type in table else {}
    unfit = given.get("channels_last", 0) or (node.op_type == "Crop" and not _crops(given, opset))
    if node.op_type not in table or unfit:
        return
    op, pick = table[node.op_type]
    operands = list(pick(node.input))
    kept = [item for item in node.attribute if item.name in _KEPT.get(op, ())]
    node.op_type, node.domain = op, ""
    del node.input[:], node.attribute[:]
    node.input.extend(operands)
    node.attribute.extend(kept)
    if op == "Pad":
        left, top, right, bottom = given["border"]
        set_attribute(node, "pads", [0, 0, -top, -left, 0, 0, -bottom, -right])


def _crops(given: dict[str, object], opset: int) -> bool:
    """Whether a Crop can be written as a Pad by negative amounts, which are an attribute up to opset 10."""
    border = given.get("border")
    return isinstance(border, list) and len(border) == 4 and "scale" not in given and 2 <= opset <= 10
