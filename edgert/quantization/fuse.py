"""Units: a node and what an INT8 kernel computes along with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgert.graph.fusion import SHORTCUT, Fusion, kernel
from edgert.graph.operations import Graph, Node
from edgert.quantization.operator import is_activation, is_float, is_weighted


@dataclass(frozen=True, slots=True)
class Unit:
    """What runs as one kernel, and so in one precision.

    Attributes:
        name: of its main node.
        op: operator of its main node.
        nodes: names of its nodes, the main one first, then in the order they run.
        inputs: activations it reads from outside, once each.
        output: the tensor that leaves it, first of several.
        weight: the stored weight, "" for a unit without.
        bias: the stored bias, "" without.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    weight: str = ""
    bias: str = ""


def fuse(graph: Graph, fusion: Fusion) -> tuple[Unit, ...]:
    """One unit per weighted node and per Add, with what their kernels take along; every other node that has float32
    activations is a unit of its own."""
    taken: set[str] = set()
    units = []
    for node in graph.nodes:
        if node.name in taken or not _has_activations(graph, node):
            continue
        members = _members(graph, node, fusion, taken)
        taken.update(member.name for member in members)
        units.append(_unit(graph, members))
    return tuple(units)


def _has_activations(graph: Graph, node: Node) -> bool:
    return any(is_activation(graph, name) for name in node.inputs) and any(is_float(graph, n) for n in node.outputs)


def _members(graph: Graph, node: Node, fusion: Fusion, taken: Collection[str]) -> Sequence[Node]:
    opens = is_weighted(graph, node) or (node.op in SHORTCUT and not node.domain)
    return kernel(graph, node, fusion, lambda other, _: other.name not in taken) if opens else (node,)


def _unit(graph: Graph, members: Sequence[Node]) -> Unit:
    main, made = members[0], {name for node in members for name in node.outputs}
    read = [name for node in members for name in node.inputs if name not in made and is_activation(graph, name)]
    weighted = is_weighted(graph, main)
    bias = main.inputs[2] if weighted and len(main.inputs) > 2 else ""
    return Unit(
        main.name,
        main.op,
        tuple(node.name for node in members),
        tuple(dict.fromkeys(read)),
        members[-1].outputs[0],
        main.inputs[1] if weighted else "",
        bias if bias in graph.constants else "",
    )
