"""Decision which tensors of a graph are rounded to 8 bits for a target, and which share a scale.

A scheme has no numbers: :func:`~edgert.quantization.lowering.lower.lower` writes it into a graph once ranges are known.
"""

from collections.abc import Collection, Iterator, Mapping

from dla import Target as Dla
from edgert.errors import ModelError, nearest
from edgert.graph import Graph, Node
from edgert.graph.fusion import INT8_ONNX_RUNTIME
from edgert.graph.operators import MEANS, about, clip_bounds, is_copy, of_kind
from edgert.quantization.scheme import units
from edgert.quantization.scheme.trt_scheme import plan_dla, plan_gpu


def scheme(
    graph: Graph,
    target: units.Target,
    keep: Collection[str] = (),
    dla: Dla = units.USUAL_DLA,
    whole: units.Scheme | None = None,
) -> units.Scheme:
    """Return the decision what becomes INT8. ``whole`` is the scheme with no units kept, where the caller has it.

    Raises ModelError: ``keep`` names a unit that does not exist.
    """
    whole = whole or _plan(graph, target, frozenset(), dla)
    if not keep:
        return whole
    known = {unit.name for unit in whole.units}
    for name in sorted(set(keep) - known):
        raise ModelError(
            f"no unit {name!r} to keep in higher precision",
            why=_missing_unit_reason(graph, name, whole) + nearest(name, known),
            fix="name a unit by its main node, a Conv rather than the Relu behind it",
        )
    return _plan(graph, target, frozenset(keep), dla)


def _plan(graph: Graph, target: units.Target, keep: frozenset[str], dla: Dla) -> units.Scheme:
    match target:
        case "ort":
            return plan_ort(graph, keep)
        case "gpu":
            return plan_gpu(graph, keep)
        case "dla":
            return plan_dla(graph, keep, dla)


def _missing_unit_reason(graph: Graph, name: str, whole: units.Scheme) -> str:
    owner = next((unit.name for unit in whole.units if name in unit.nodes), "")
    if owner:
        return f"that node belongs to unit {owner!r}"
    if all(node.name != name for node in graph.nodes):
        return "the graph has no node of that name"
    reason = next((f": {item.reason}" for item in whole.skipped if item.node == name), "")
    return f"that node stays in floating point anyway{reason}"


# ONNX Runtime runs regions on integers that are as large as possible, from the first weighted node whose integer kernel
# is faster to the last. Nodes behind compute scores and boxes, for which 8 bits are too few.
#
# Its integer kernels need integers for every input and output: QLinearConv, QGemm, QLinearMatMul, QLinearAdd,
# QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearAveragePool, QLinearGlobalAveragePool (its selectors for Q/DQ:
# onnxruntime/core/optimizer/qdq_transformer/selectors_actions). Nodes that move, pick or bound values work on the
# stored integers: MaxPool, Concat and Clip have kernels for uint8 and int8.

SCALING = frozenset({"Mul"})
BINARY = SCALING | {"Add"}
_AS_THEY_ARE = of_kind("join") | {"MaxPool"}
_UNARY = frozenset({"Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool"})
_NO_INTEGER_KERNEL = frozenset({"DepthToSpace", "SpaceToDepth"})


def is_direct(graph: Graph, node: Node) -> bool:
    """Return whether a node does the same to stored integers of one scale as to their values."""
    return is_copy(graph, node) or node.op in units.CLIPS or node.op in _AS_THEY_ARE


def float_reason(graph: Graph, node: Node) -> str:
    """Return why ONNX Runtime has no integer form of a node; empty when it has one."""
    if node.domain:
        return f"operator {node.domain}.{node.op} is unknown"
    if node.captured:
        return "it has a body"
    if not units.data_inputs(graph, node) or not units.data_outputs(graph, node):
        return "it has no float32 activations"
    if any(name and not units.is_float(graph, name) for name in node.outputs):
        return "one of its outputs is not float32"
    return _weighted_float_reason(graph, node) if units.is_weighted(graph, node) else _other_float_reason(graph, node)


def slow_reason(graph: Graph, node: Node) -> str:
    """Return why the integer form of a weighted node is slower than the float form; empty where it is not.

    ONNX Runtime's fast integer convolutions (MLAS, convsym.cpp) take input channels in fours and depthwise channels in
    sixteens. The others are slower than its blocked float convolutions. So are the depthwise ones of a single block of
    sixteen (measured with AVX512-VNNI). Channels of inner tensors can be padded
    (:func:`edgert.quantization.lowering.lower.align_channels`), those of a graph's inputs cannot.
    """
    if about(node.op).work != "conv":
        return ""
    shape = graph.constants[node.inputs[1]].shape
    if len(shape) < 2:
        return "its weights have no channels"
    channels, per_group = shape[:2]
    groups = node.attributes.get("group", 1)
    if groups == 1 and per_group % 4:
        return "fast integer convolutions take input channels in fours"
    if groups > 1 and per_group == 1 and channels == groups and groups <= 16:
        return "an integer depthwise convolution of 16 channels or fewer takes longer than the float one"
    return ""


def _weighted_float_reason(graph: Graph, node: Node) -> str:
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


def _other_float_reason(graph: Graph, node: Node) -> str:
    if node.op in _NO_INTEGER_KERNEL:
        return f"ONNX Runtime has no integer {node.op}"
    if is_copy(graph, node) or node.op in _UNARY:
        return ""
    if node.op in units.CLIPS:
        bounds = clip_bounds(graph, node)
        if bounds is None:
            return "its bounds are computed at run time"
        return "" if bounds[0] <= 0 <= bounds[1] else "its bounds exclude 0"
    if node.op in BINARY or about(node.op).kind == "join":
        stored = not all(units.is_activation(graph, name) for name in node.inputs)
        return "one of its inputs is a stored tensor" if stored else ""
    if node.op == "MaxPool":
        return "it returns indices" if len(node.outputs) > 1 and node.outputs[1] else ""
    return f"ONNX Runtime has no integer {node.op}"


def plan_ort(graph: Graph, keep: frozenset[str]) -> units.Scheme:
    """Plan for ONNX Runtime; see :func:`edgert.quantization.scheme.scheme.scheme`."""
    found = units.fuse(graph, INT8_ONNX_RUNTIME)
    kept = tuple(unit for unit in found if unit.name in keep)
    barred = {name for unit in kept for name in unit.nodes}
    reasons = {node.name: float_reason(graph, node) for node in graph.nodes}
    reasons.update(_slow_stem(graph, reasons))
    chosen, able = set[str](), {name for name, reason in reasons.items() if not reason} - barred
    while chosen != able:  # drop nodes that would be alone among float ones
        chosen = able
        able = {node.name for node in graph.nodes if node.name in chosen and _belongs_among(graph, node, chosen)}
    integer = tuple(unit for unit in found if unit.name in chosen)
    direct = frozenset(node.name for node in graph.nodes if node.name in chosen and is_direct(graph, node))
    points = {point.tensor: point for point in _points(graph, chosen)}
    groups = units.point_groups(graph, points, lambda node: node.name in direct)
    skipped = tuple(
        units.Skipped(node.name, reasons[node.name] or "it is not between integer nodes")
        for node in graph.nodes
        if node.name not in chosen | barred and any(units.is_activation(graph, name) for name in node.inputs)
    )
    return units.Scheme("ort", integer, points, groups, direct, kept, skipped)


def _slow_stem(graph: Graph, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return reasons by name of weighted nodes behind no integer node whose integer kernel is slower."""
    found: dict[str, str] = {}
    integer: set[str] = set()
    for node in graph.nodes:
        behind = not integer.isdisjoint(node.reads)
        weighted = units.is_weighted(graph, node) and not reasons[node.name]
        reason = slow_reason(graph, node) if weighted and not behind else ""
        if reason:
            found[node.name] = reason
        elif weighted or behind:
            integer.update(node.outputs)
    return found


def _belongs_among(graph: Graph, node: Node, chosen: set[str]) -> bool:
    """Return whether a node belongs among the integer nodes.

    A weighted node does. So does the Relu or Clip that alone reads one, if its result is rounded: rounding before it
    would spend steps on values that it removes. Others do behind an integer node and before another one or an average.
    """
    sources = [graph.producers.get(name) for name in units.data_inputs(graph, node)]
    integer = [source is not None and source.name in chosen for source in sources]
    first = sources[0] if sources else None
    bounds = first is not None and integer[0] and units.is_weighted(graph, first)
    if units.is_weighted(graph, node) or (
        bounds and units.clip_behind(graph, node.inputs[0]) is node and is_useful(graph, node.outputs[0], chosen)
    ):
        return True
    readers = [reader for name in units.data_outputs(graph, node) for reader in graph.consumers.get(name, ())]
    if not any(reader.name in chosen or reader.op in MEANS for reader in readers):
        return False
    if node.op in BINARY:
        return all(integer)
    return any(integer) or ((is_copy(graph, node) or about(node.op).kind == "join") and None in sources)


def _points(graph: Graph, chosen: set[str]) -> Iterator[units.Point]:
    wanted: set[str] = set()
    for node in graph.nodes:
        if node.name in chosen:
            weighted = units.is_weighted(graph, node)
            wanted.update(node.inputs[:1] if weighted else units.data_inputs(graph, node))
            wanted.update(n for n in units.data_outputs(graph, node) if not weighted or is_useful(graph, n, chosen))
    for name in units.tensors_in_order(graph):
        if name in wanted:
            readers, maker, clip = (
                graph.consumers.get(name, ()),
                graph.producers.get(name),
                units.clip_behind(graph, name),
            )
            made = maker is not None and maker.name in chosen and not is_direct(graph, maker)
            hidden = made and clip is not None and clip.name in chosen
            # a sigmoid that scales something gets the range 0 to 1, whatever was measured
            scales = maker is not None and maker.op == "Sigmoid" and graph.is_private(name) and readers[0].op in SCALING
            names = tuple(node.name for node in readers)
            yield units.Point(name, names, name in graph.output_names, hidden, 1.0 if scales else 0.0)


def is_useful(graph: Graph, name: str, chosen: set[str]) -> bool:
    """Return whether integer nodes or averages follow, so that rounding a weighted node's output pays."""
    seen, waiting = set[str](), [name]
    if any(reader.op in MEANS for reader in graph.consumers.get(name, ())):
        return True
    while waiting:
        for reader in graph.consumers.get(waiting.pop(), ()):
            if reader.name in chosen:
                return True
            fresh = set(units.data_outputs(graph, reader)) - seen
            seen |= fresh
            waiting.extend(fresh)
    return False
