"""What ONNX Runtime runs on integers: islands as large as can be, from the first convolution worth it to the last.

What comes behind the last weighted node computes scores and boxes, which 8 bits are too few for; what comes before
the first integer kernel that pays stays in floating point too.
"""

from collections.abc import Iterator, Mapping

from edgert.graph import Graph, Node
from edgert.graph.fusion import INT8_ONNX_RUNTIME
from edgert.graph.operators import MEANS, about, clip_bounds, is_copy, of_kind
from edgert.quantization.scheme.units import (
    CLIPS,
    Point,
    Scheme,
    Sharing,
    Skipped,
    data_inputs,
    data_outputs,
    fuse,
    in_order,
    is_activation,
    is_float,
    is_weighted,
)

# Which nodes ONNX Runtime can run on integers, on a CPU, and which of those it runs well.
#
# Its integer kernels want every input and the output of a node as integers: QLinearConv, QGemm, QLinearMatMul,
# QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearAveragePool, QLinearGlobalAveragePool (its
# selectors for Q/DQ: onnxruntime/core/optimizer/qdq_transformer/selectors_actions). What only moves, picks or
# bounds values is given the stored integers themselves: MaxPool, Concat and Clip have kernels for uint8 and int8.

SCALING = frozenset({"Mul"})
BINARY = SCALING | {"Add"}
_AS_THEY_ARE = of_kind("join") | {"MaxPool"}
_UNARY = frozenset({"Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool"})
_NO_INTEGER_KERNEL = frozenset({"DepthToSpace", "SpaceToDepth"})


def is_direct(graph: Graph, node: Node) -> bool:
    """Whether a node does on stored integers of one scale what it does on the values."""
    return is_copy(graph, node) or node.op in CLIPS or node.op in _AS_THEY_ARE


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
    (measured with AVX512-VNNI). Channels of inner tensors can be brought up
    (:mod:`edgert.quantization.lowering.align`), those of
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
    channels = weight.shape[0] if work == "conv" or node.attributes.get("transB", 0) else weight.shape[-1]
    return "" if graph.constants[bias].size == channels else "its bias is not one per channel"


def _why_other(graph: Graph, node: Node) -> str:
    if node.op in _NO_INTEGER_KERNEL:
        return f"ONNX Runtime has no integer {node.op}"
    if is_copy(graph, node) or node.op in _UNARY:
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


def plan_ort(graph: Graph, keep: frozenset[str]) -> Scheme:
    """See :func:`edgert.quantization.scheme.scheme.scheme`."""
    found = fuse(graph, INT8_ONNX_RUNTIME)
    kept = tuple(unit for unit in found if unit.name in keep)
    barred = {name for unit in kept for name in unit.nodes}
    reasons = {node.name: why_float(graph, node) for node in graph.nodes}
    reasons.update(_slow_stem(graph, reasons))
    chosen = _settle(graph, {name for name, reason in reasons.items() if not reason} - barred)
    units = tuple(unit for unit in found if unit.name in chosen)
    direct = frozenset(node.name for node in graph.nodes if node.name in chosen and is_direct(graph, node))
    points = {point.tensor: point for point in _points(graph, chosen)}
    skipped = tuple(_skipped(graph, reasons, chosen | barred))
    return Scheme("ort", units, points, _groups(graph, points, direct), direct, kept, skipped)


def _slow_stem(graph: Graph, reasons: Mapping[str, str]) -> dict[str, str]:
    """Weighted nodes behind no integer node whose integer kernel is the slower one, and why it is."""
    found: dict[str, str] = {}
    integer: set[str] = set()
    for node in graph.nodes:
        behind = not integer.isdisjoint(node.reads)
        weighted = is_weighted(graph, node) and not reasons[node.name]
        reason = why_slow(graph, node) if weighted and not behind else ""
        if reason:
            found[node.name] = reason
        elif weighted or behind:
            integer.update(node.outputs)
    return found


def _settle(graph: Graph, able: set[str]) -> set[str]:
    """The nodes that stay when those are dropped, again and again, that would be islands of their own."""
    chosen = set(able)
    while True:
        kept = {node.name for node in graph.nodes if node.name in chosen and _belongs(graph, node, chosen)}
        if kept == chosen:
            return chosen
        chosen = kept


def _belongs(graph: Graph, node: Node, chosen: set[str]) -> bool:
    """A weighted node always does, and what bounds it as long as its result is rounded at all; others between integer
    nodes. An average of many may be taken of rounded values."""
    if is_weighted(graph, node) or _bounds_integers(graph, node, chosen):
        return True
    readers = [reader for name in data_outputs(graph, node) for reader in graph.consumers.get(name, ())]
    if not any(reader.name in chosen or reader.op in MEANS for reader in readers):
        return False
    sources = [graph.producers.get(name) for name in data_inputs(graph, node)]
    integer = [source is not None and source.name in chosen for source in sources]
    if node.op in BINARY:
        return all(integer)
    return any(integer) or ((is_copy(graph, node) or about(node.op).kind == "join") and None in sources)


def _bounds_integers(graph: Graph, node: Node, chosen: set[str]) -> bool:
    """Whether a Relu or Clip alone reads an integer weighted node: rounding in front of it would spend steps on values
    that it takes away."""
    maker = graph.producers.get(node.inputs[0]) if node.op in CLIPS and node.inputs else None
    if maker is None or maker.name not in chosen or not is_weighted(graph, maker):
        return False
    return graph.is_private(node.inputs[0]) and is_useful(graph, node.outputs[0], chosen)


def _points(graph: Graph, chosen: set[str]) -> Iterator[Point]:
    wanted = {name for node in graph.nodes if node.name in chosen for name in _rounded(graph, node, chosen)}
    for name in in_order(graph):
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
    if any(reader.op in MEANS for reader in graph.consumers.get(name, ())):
        return True
    while waiting:
        for reader in graph.consumers.get(waiting.pop(), ()):
            if reader.name in chosen:
                return True
            fresh = set(data_outputs(graph, reader)) - seen
            seen |= fresh
            waiting.extend(fresh)
    return False


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
    return 1.0 if graph.consumers[name][0].op in SCALING else 0.0


def _groups(graph: Graph, points: dict[str, Point], direct: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Tensors on both sides of a node that works on stored integers have one scale."""
    sharing = Sharing()
    for node in graph.nodes:
        if node.name in direct:
            sharing.join([*data_inputs(graph, node), *data_outputs(graph, node)])
    groups = sharing.groups(points)
    return {name: tuple(one for one in group if not points[one].is_hidden) for name, group in groups.items()}


def _skipped(graph: Graph, reasons: Mapping[str, str], taken: set[str]) -> Iterator[Skipped]:
    for node in graph.nodes:
        if node.name not in taken and any(is_activation(graph, name) for name in node.inputs):
            yield Skipped(node.name, reasons[node.name] or "it does not stand between integer nodes")
