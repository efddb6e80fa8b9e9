"""What ONNX Runtime can run on integers, on a CPU.

Its integer kernels want every input and the output of a node as integers: QLinearConv, QGemm, QLinearMatMul,
QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearAveragePool, QLinearGlobalAveragePool (its selectors
for Q/DQ: onnxruntime/core/optimizer/qdq_transformer/selectors_actions). What only moves, picks or bounds values is given the
stored integers themselves: MaxPool, Concat and Clip have kernels for uint8 and int8.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgert.graph.node import Graph, Node
from edgert.quantize.fuse import fuse
from edgert.quantize.operator import (
    AVERAGES,
    CLIPS,
    clip_bounds,
    data_inputs,
    data_outputs,
    is_activation,
    is_float,
    is_movement,
    is_weighted,
)
from edgert.quantize.point import Point, Scheme, Skipped
from edgert.quantize.share import Sharing

_BINARY = frozenset({"Add", "Mul"})
_UNARY = frozenset({"Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool"})
_NO_INTEGER_KERNEL = frozenset({"DepthToSpace", "SpaceToDepth"})


def plan_ort(graph: Graph, keep: frozenset[str]) -> Scheme:
    """See :func:`edgert.quantize.scheme.scheme`."""
    found = fuse(graph, residual=False)
    kept = tuple(unit for unit in found if unit.name in keep)
    barred = {name for unit in kept for name in unit.nodes}
    reasons = {node.name: why_float(graph, node) for node in graph.nodes}
    able = {name for name, reason in reasons.items() if not reason} - barred
    chosen = _settle(graph, able)
    units = tuple(unit for unit in found if unit.name in chosen)
    direct = frozenset(node.name for node in graph.nodes if node.name in chosen and is_direct(graph, node))
    points = {point.tensor: point for point in _points(graph, chosen)}
    return Scheme(
        "ort", units, points, _groups(graph, points, direct), direct, kept, _skipped(graph, reasons, chosen, barred)
    )


def is_direct(graph: Graph, node: Node) -> bool:
    """Whether a node does on stored integers of one scale what it does on the values."""
    return is_movement(graph, node) or node.op in CLIPS or node.op in ("MaxPool", "Concat")


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
    if is_weighted(graph, node):
        return _why_weighted(graph, node)
    return _why_other(graph, node)


def _why_weighted(graph: Graph, node: Node) -> str:
    if node.op == "ConvTranspose":
        return "ONNX Runtime has no integer ConvTranspose"
    weight = graph.constants[node.inputs[1]]
    if node.op == "MatMul" and weight.ndim != 2:
        return "its weight is not a matrix"
    if node.op == "Gemm" and (node.attributes.get("alpha", 1.0) != 1.0 or node.attributes.get("transA", 0)):
        return "ONNX Runtime has no integer Gemm of a scaled or transposed input"
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if not bias:
        return ""
    if bias not in graph.constants or node.attributes.get("beta", 1.0) != 1.0:
        return "its bias is computed at run time, or scaled"
    return (
        "" if graph.constants[bias].size == output_channels(node, weight.shape) else "its bias is not one per channel"
    )


def output_channels(node: Node, shape: tuple[int, ...]) -> int:
    """Output channels of a Conv, Gemm or MatMul whose weight has this shape."""
    if node.op == "Conv" or (node.op == "Gemm" and node.attributes.get("transB", 0)):
        return shape[0]
    return shape[-1]


def _why_other(graph: Graph, node: Node) -> str:
    stored = [name for name in node.inputs if name in graph.constants and is_float(graph, name)]
    if node.op in _NO_INTEGER_KERNEL:
        return f"ONNX Runtime has no integer {node.op}"
    if is_movement(graph, node) or node.op == "GlobalAveragePool":
        return ""
    if node.op in CLIPS:
        return _why_clip(graph, node)
    if node.op in _BINARY or node.op == "Concat":
        return "one of its inputs is a stored tensor" if stored else ""
    if node.op == "MaxPool":
        return "it gives out indices" if len(node.outputs) > 1 and node.outputs[1] else ""
    return "" if node.op in _UNARY else f"ONNX Runtime has no integer {node.op}"


def _why_clip(graph: Graph, node: Node) -> str:
    bounds = clip_bounds(graph, node)
    if bounds is None:
        return "its bounds are computed at run time"
    return "" if bounds[0] <= 0 <= bounds[1] else "it keeps 0 out"


def _settle(graph: Graph, able: set[str]) -> set[str]:
    """The nodes that stay when those are dropped, again and again, that would be islands of their own."""
    chosen = set(able)
    while True:
        kept = {node.name for node in graph.nodes if node.name in chosen and _belongs(graph, node, chosen)}
        if kept == chosen:
            return chosen
        chosen = kept


def _belongs(graph: Graph, node: Node, chosen: set[str]) -> bool:
    """A weighted node always does. Others do between integer nodes: what comes after the last weighted one is where
    a network says numbers, which 8 bits are too few for; an average of many may still be taken of rounded values."""
    if is_weighted(graph, node):
        return True
    readers = [reader for name in data_outputs(graph, node) for reader in graph.consumers.get(name, ())]
    if not any(reader.name in chosen or reader.op in AVERAGES for reader in readers):
        return False
    sources = [graph.producers.get(name) for name in data_inputs(graph, node)]
    integer = [source is not None and source.name in chosen for source in sources]
    if node.op in _BINARY:
        return all(integer)
    return any(integer) or ((is_movement(graph, node) or node.op == "Concat") and None in sources)


def _points(graph: Graph, chosen: set[str]) -> Iterator[Point]:
    wanted = {name for node in graph.nodes if node.name in chosen for name in _rounded(graph, node, chosen)}
    for name in _in_order(graph):
        if name in wanted:
            readers = tuple(node.name for node in graph.consumers.get(name, ()))
            yield Point(
                name, readers, name in graph.output_names, _is_hidden(graph, name, chosen), _known_amax(graph, name)
            )


def _rounded(graph: Graph, node: Node, chosen: set[str]) -> Iterator[str]:
    yield from (node.inputs[:1] if is_weighted(graph, node) else data_inputs(graph, node))
    yield from (
        name for name in data_outputs(graph, node) if not is_weighted(graph, node) or is_useful(graph, name, chosen)
    )


def is_useful(graph: Graph, name: str, chosen: set[str]) -> bool:
    """Whether to round a weighted node's output: not where only float nodes lead from it to the graph's outputs."""
    seen, waiting = set[str](), [name]
    for reader in graph.consumers.get(name, ()):
        if reader.op in AVERAGES:
            return True
    while waiting:
        for reader in graph.consumers.get(waiting.pop(), ()):
            if reader.name in chosen:
                return True
            fresh = set(data_outputs(graph, reader)) - seen
            seen |= fresh
            waiting.extend(fresh)
    return False


def _in_order(graph: Graph) -> Iterator[str]:
    yield from (spec.name for spec in graph.inputs)
    yield from (name for node in graph.nodes for name in node.outputs if name)


def _is_hidden(graph: Graph, name: str, chosen: set[str]) -> bool:
    if not graph.is_private(name) or name not in graph.producers:
        return False
    (reader,) = graph.consumers[name]
    maker = graph.producers[name]
    return reader.op in CLIPS and reader.name in chosen and maker.name in chosen and not is_direct(graph, maker)


def _known_amax(graph: Graph, name: str) -> float:
    """A sigmoid that only scales something lies between 0 and 1, whatever was measured."""
    maker = graph.producers.get(name)
    if maker is None or maker.op != "Sigmoid" or not graph.is_private(name):
        return 0.0
    return 1.0 if graph.consumers[name][0].op == "Mul" else 0.0


def _groups(graph: Graph, points: dict[str, Point], direct: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Tensors on both sides of a node that works on stored integers have one scale."""
    sharing = Sharing()
    for node in graph.nodes:
        if node.name in direct:
            sharing.join([*data_inputs(graph, node), *data_outputs(graph, node)])
    groups = sharing.groups(points)
    return {name: tuple(one for one in group if not points[one].is_hidden) for name, group in groups.items()}


def _skipped(graph: Graph, reasons: dict[str, str], chosen: set[str], barred: set[str]) -> tuple[Skipped, ...]:
    found = []
    for node in graph.nodes:
        if node.name in chosen or node.name in barred or not any(is_activation(graph, name) for name in node.inputs):
            continue
        found.append(Skipped(node.name, reasons[node.name] or "no integer node before or behind it"))
    return tuple(found)
