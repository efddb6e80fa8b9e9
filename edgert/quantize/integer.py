"""Which nodes ONNX Runtime can run on integers, on a CPU, and which of those it runs well.

Its integer kernels want every input and the output of a node as integers: QLinearConv, QGemm, QLinearMatMul,
QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearAveragePool, QLinearGlobalAveragePool (its selectors
for Q/DQ: onnxruntime/core/optimizer/qdq_transformer/selectors_actions). What only moves, picks or bounds values is
given the stored integers themselves: MaxPool, Concat and Clip have kernels for uint8 and int8.
"""

from __future__ import annotations

from edgert.graph.node import Graph, Node
from edgert.graph.operators import about, of_kind
from edgert.graph.value import clip_bounds, is_movement
from edgert.quantize.operator import (
    CLIPS,
    data_inputs,
    data_outputs,
    is_float,
    is_weighted,
)

SCALING = frozenset({"Mul"})
BINARY = SCALING | {"Add"}
_AS_THEY_ARE = of_kind("join") | {"MaxPool"}
_UNARY = frozenset({"Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool"})
_NO_INTEGER_KERNEL = frozenset({"DepthToSpace", "SpaceToDepth"})


def is_direct(graph: Graph, node: Node) -> bool:
    """Whether a node does on stored integers of one scale what it does on the values."""
    return is_movement(graph, node) or node.op in CLIPS or node.op in _AS_THEY_ARE


def why_float(graph: Graph, node: Node) -> str:
    """Why ONNX Runtime has no integer form of a node; empty when it has one."""
    if node.domain:
        return f"nothing is known of operator {node.domain}.{node.op}"
    if node.captured:
        return "it has a body of its own"
    if not data_inputs(graph, node) or not data_outputs(graph, node):
        return "it has no float32 activations"
    if any(name and not is_float(graph, name) for name in node.outputs):
        return "one of its outputs is not float32"
    return _why_weighted(graph, node) if is_weighted(graph, node) else _why_other(graph, node)


def why_slow(graph: Graph, node: Node) -> str:
    """Why the integer form of a weighted node takes longer than the float one; empty when it need not.

    ONNX Runtime's fast integer convolutions (MLAS, convsym.cpp) take input channels in fours and depthwise channels in
    sixteens; the others lose to its blocked float convolutions. So do the depthwise ones of a single block of sixteen
    (measured with AVX512-VNNI). Channels of inner tensors can be brought up (:mod:`edgert.quantize.align`), those of
    a graph's inputs cannot.
    """
    if about(node.op).work != "conv":
        return ""
    channels, per_group = graph.constants[node.inputs[1]].shape[:2]
    groups = node.attributes.get("group", 1)
    if groups == 1 and per_group % 4:
        return "fast integer convolutions take input channels in fours"
    if groups > 1 and per_group == 1 and channels == groups and groups <= 16:
        return "an integer depthwise convolution of 16 channels or fewer takes longer than the float one"
    return ""


def _why_weighted(graph: Graph, node: Node) -> str:
    work = about(node.op).work
    if work == "transposed":
        return "ONNX Runtime has no integer ConvTranspose"
    weight = graph.constants[node.inputs[1]]
    if work == "matmul" and weight.ndim != 2:
        return "its weight is not a matrix"
    if work == "gemm" and (node.attributes.get("alpha", 1.0) != 1.0 or node.attributes.get("transA", 0)):
        return "ONNX Runtime has no integer Gemm of a scaled or transposed input"
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if not bias:
        return ""
    if bias not in graph.constants or node.attributes.get("beta", 1.0) != 1.0:
        return "its bias is computed at run time, or scaled"
    channels = _output_channels(node, weight.shape)
    return "" if graph.constants[bias].size == channels else "its bias is not one per channel"


def _output_channels(node: Node, shape: tuple[int, ...]) -> int:
    """Output channels of a Conv or Gemm whose weight has this shape."""
    return shape[0] if about(node.op).work == "conv" or node.attributes.get("transB", 0) else shape[-1]


def _why_other(graph: Graph, node: Node) -> str:
    if node.op in _NO_INTEGER_KERNEL:
        return f"ONNX Runtime has no integer {node.op}"
    if is_movement(graph, node) or node.op in _UNARY:
        return ""
    if node.op in CLIPS:
        return _why_clip(graph, node)
    if node.op in BINARY or about(node.op).kind == "join":
        stored = any(name in graph.constants for name in node.inputs)
        return "one of its inputs is a stored tensor" if stored else ""
    if node.op == "MaxPool":
        return "it gives out indices" if len(node.outputs) > 1 and node.outputs[1] else ""
    return f"ONNX Runtime has no integer {node.op}"


def _why_clip(graph: Graph, node: Node) -> str:
    bounds = clip_bounds(graph, node)
    if bounds is None:
        return "its bounds are computed at run time"
    return "" if bounds[0] <= 0 <= bounds[1] else "it keeps 0 out"
