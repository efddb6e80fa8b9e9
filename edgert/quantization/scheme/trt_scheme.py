"""Positions of Q/DQ nodes for TensorRT: explicit quantization, strongly typed.

After NVIDIA's guide "Q/DQ layer-placement recommendations" (TensorRT documentation, Working with quantized types):

- The inputs of weighted layers get Q/DQ.
- There is none between a layer and the activation it fuses with.
- A layer's own output has none unless another INT8 layer reads it.
- The residual input of an Add that a convolution fuses with gets Q/DQ.

A Q moves back over layers that commute with it, so that their inputs get the same scale and their producers write INT8.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from dla import Target as Dla, Verdict, int8_verdicts
from edgert.errors import CalibrationError
from edgert.graph import Graph, Node, dla_node, fusion, operators
from edgert.quantization.scheme import units

_RESERVED = (",", "'", "*")
"""Characters with a meaning in trtexec's lists: separator, quote, and wildcard."""


def fp16_exceptions(graph: Graph, scheme: units.Scheme) -> tuple[str, ...]:
    """Return the names of all nodes in units kept in higher precision, in order of execution.

    TensorRT's ONNX parser names a layer after its node, and appends a number to further layers of a node and to
    duplicate names. So names must be unique, as those of a prepared model are.
    """
    kept = {name for unit in scheme.kept for name in unit.nodes}
    return tuple(node.name for node in graph.nodes if node.name in kept)


def can_be_named(name: str) -> bool:
    """Return whether a node or tensor can be named on trtexec's command line."""
    return bool(name) and not any(mark in name for mark in _RESERVED)


def layer_precisions(nodes: Iterable[str], precision: str = "fp16") -> str:
    """Return the value of trtexec's ``--layerPrecisions``, ``"a:fp16,b:fp16"``.

    Use it with ``--precisionConstraints=obey`` and ``--int8 --fp16``. Names may have colons, since trtexec splits at
    the last one. Raises CalibrationError: a name has a comma, a quote or a star, which trtexec would interpret.
    """
    pairs = []
    for name in nodes:
        if not can_be_named(name):
            raise CalibrationError(
                f"node {name!r} cannot be named on trtexec's command line",
                why="commas, single quotes and stars have a meaning there",
                fix="rename it, or set layer.precision from Python",
            )
        pairs.append(f"{name}:{precision}")
    return ",".join(pairs)


def plan_gpu(graph: Graph, keep: frozenset[str]) -> units.Scheme:
    """Plan for TensorRT on a GPU; see :func:`edgert.quantization.scheme.scheme.scheme`."""
    found = units.fuse(graph, fusion.INT8_TENSORRT)
    kept = tuple(unit for unit in found if unit.name in keep)
    readers, passing = _readers(graph, found, kept)
    integer = tuple(unit for unit in found if unit not in kept and (unit.weight or unit.name in passing))
    points = {
        name: units.Point(name, tuple(readers[name])) for name in units.tensors_in_order(graph) if name in readers
    }
    groups = units.point_groups(graph, points, lambda node: node.name in passing and commutes(graph, node))
    skipped = _skipped(graph, found, (*integer, *kept), _gpu_float_reason)
    return units.Scheme("gpu", integer, points, groups, frozenset(), kept, skipped)


def _gpu_float_reason(node: Node) -> str:
    if node.domain:
        return f"operator {node.domain}.{node.op} is unknown"
    if node.captured:
        return "it has a body"
    return "it has no weight, and no INT8 layer that it could join reads it"


def plan_dla(graph: Graph, keep: frozenset[str], dla: Dla = units.USUAL_DLA) -> units.Scheme:
    """Plan for a DLA: a scale on every float32 tensor that an operator with an INT8 form reads.

    A region in which a scale is missing runs in FP16, or not on the DLA. Outputs of a region are not rounded, since it
    writes them in FP16.
    """
    found = units.fuse(graph, fusion.INT8_TENSORRT)
    kept = tuple(unit for unit in found if unit.name in keep)
    barred = {name for unit in kept for name in unit.nodes}
    nodes = dla_node.dla_nodes(graph)
    verdicts = {node.name: verdict for node, verdict in zip(nodes, int8_verdicts(nodes, dla), strict=True)}
    able = _int8_nodes(graph, verdicts, barred)
    points = {}
    for name in units.tensors_in_order(graph):
        readers = tuple(node.name for node in graph.consumers.get(name, ()) if node.name in able)
        if units.is_activation(graph, name) and readers:
            clip = units.clip_behind(graph, name)
            points[name] = units.Point(name, readers, is_hidden=clip is not None and clip.name in able)
    integer = tuple(unit for unit in found if unit not in kept and unit.name in able)
    groups = units.point_groups(graph, points, lambda node: node.name in able and keeps_scale(graph, node))

    def why(node: Node) -> str:
        match verdicts[node.name].int8_form:
            case "none":
                return f"a DLA does not run it: {verdicts[node.name].reason}"
            case "fp16":
                return f"a DLA has no INT8 {node.op}"
        return "it moves values that are not INT8"

    skipped = _skipped(graph, found, (*integer, *kept), why)
    forms = {name: verdict.int8_form for name, verdict in verdicts.items()}
    return units.Scheme("dla", integer, points, groups, frozenset(), kept, skipped, forms)


def _int8_nodes(graph: Graph, verdicts: Mapping[str, Verdict], barred: set[str]) -> set[str]:
    """Return the nodes that a DLA may run in INT8, and those that move values between them."""
    able = {n for n, verdict in verdicts.items() if n not in barred and verdict.int8_form in ("int8", "lookup")}
    moving = [node for node in graph.nodes if operators.is_copy(graph, node)]
    for node in moving:
        makers = [graph.producers[name] for name in units.data_inputs(graph, node) if name in graph.producers]
        if any(maker.name not in able for maker in makers):
            able.discard(node.name)
    for node in reversed(moving):
        if able.isdisjoint(reader.name for name in node.outputs for reader in graph.consumers.get(name, ())):
            able.discard(node.name)
    return able


def _readers(
    graph: Graph, found: Collection[units.Unit], kept: Collection[units.Unit]
) -> tuple[Mapping[str, Mapping[str, None]], set[str]]:
    """Return the nodes that read each tensor rounded, in order, and the nodes without weights that become INT8.

    The input of each weighted unit is rounded, and the residual input of its Add. From there Q moves back over nodes
    that commute with it, and to both inputs of an Add between INT8 units.
    """
    nodes = {node.name: node for node in graph.nodes}
    barred = {name for unit in kept for name in unit.nodes}
    ends = {unit.output: unit for unit in found}
    readers: dict[str, dict[str, None]] = {}
    for unit in found:
        if unit.weight and unit not in kept:
            readers.setdefault(nodes[unit.name].inputs[0], {})[unit.name] = None
            own = {name for member in unit.nodes for name in nodes[member].outputs}
            for member in (member for member in unit.nodes[1:] if nodes[member].op == "Add"):
                for name in nodes[member].inputs:
                    if name not in own and units.is_activation(graph, name):
                        readers.setdefault(name, {})[member] = None
    passing: set[str] = set()
    waiting = list(readers)
    while waiting:
        tensor = waiting.pop()
        node = graph.producers.get(tensor)
        if node is None or node.name in barred or node.domain:
            continue
        if not commutes(graph, node):
            if tensor not in ends or ends[tensor].op != "Add":
                continue
            node = nodes[ends[tensor].name]
            inputs = units.data_inputs(graph, node)
            int8 = [name in readers or (name in ends and bool(ends[name].weight)) for name in inputs]
            if len(inputs) != 2 or not all(int8):
                continue
        if node.name not in passing:
            passing.add(node.name)
            for name in units.data_inputs(graph, node):
                readers.setdefault(name, {})[node.name] = None
                waiting.append(name)
    return readers, passing


def commutes(graph: Graph, node: Node) -> bool:
    """Return whether rounding commutes with a node, with one scale on both sides; with averages it nearly does."""
    if operators.about(node.op).kind == "join":
        return all(units.is_activation(graph, name) for name in node.inputs)
    if node.op in ("MaxPool", "AveragePool"):
        return len(node.outputs) == 1
    return operators.is_copy(graph, node)


def keeps_scale(graph: Graph, node: Node) -> bool:
    """Return whether a DLA has one scale on both sides of a node, which moves, pools, joins or bounds integers."""
    return commutes(graph, node) or node.op in units.CLIPS


def _skipped(
    graph: Graph, found: Iterable[units.Unit], taken: Iterable[units.Unit], why: Callable[[Node], str]
) -> tuple[units.Skipped, ...]:
    names = {unit.name for unit in found} - {name for unit in taken for name in unit.nodes}
    return tuple(units.Skipped(node.name, why(node)) for node in graph.nodes if node.name in names)
