"""Units: a node and what an INT8 kernel computes along with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edgert.graph.node import Graph, Node
from edgert.quantize.operator import is_activation, is_curve, is_float, is_pointwise, is_weighted


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


def fuse(graph: Graph, *, residual: bool) -> tuple[Unit, ...]:
    """One unit per weighted node, with the activation behind it; every other node that has float32 activations is a
    unit of its own, an Add with the activation behind it.

    Args:
        residual: lets a weighted node take in the Add behind it, as TensorRT's convolutions do ("Residual add"
            in its guide to Q/DQ placement); of two that could, the one that runs last does.
    """
    taken: set[str] = set()
    units = []
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.name in taken or not _has_activations(graph, node):
            continue
        members = _members(graph, node, order if residual else None)
        taken.update(member.name for member in members)
        units.append(_unit(graph, members))
    return tuple(units)


def activation_chain(graph: Graph, tensor: str) -> tuple[Node, ...]:
    """The nodes that make up the activation function applied to a tensor and to nothing else's knowledge.

    One node (Relu), or several that together are a function of one value (x·sigmoid(x); clip(x + 3, 0, 6)·x/6). Empty
    when something else reads the tensor too, or what follows is no activation.
    """
    inside, chain = [tensor], list[Node]()
    while len(chain) < _LONGEST_CHAIN:
        readers = (node for name in inside for node in graph.consumers.get(name, ()))
        found = next((node for node in readers if node not in chain and is_pointwise(graph, node, inside)), None)
        if found is None:
            return ()
        chain.append(found)
        inside.append(found.outputs[0])
        if _is_closed(graph, inside, chain):
            return (*chain, *_scaling(graph, chain)) if any(map(is_curve, chain)) else ()
    return ()


_LONGEST_CHAIN = 4
"""Add, Clip, Div, Mul: hard swish as older exporters write it."""


def _is_closed(graph: Graph, inside: Collection[str], chain: list[Node]) -> bool:
    """Whether nothing outside the chain sees its tensors, but for the last."""
    members = {node.name for node in chain}
    *hidden, _last = inside
    readers = (node for name in hidden for node in graph.consumers.get(name, ()))
    return all(node.name in members for node in readers) and not graph.output_names & set(hidden)


def _scaling(graph: Graph, chain: list[Node]) -> tuple[Node, ...]:
    """The multiplication by a stored number that ends a hard swish of several nodes."""
    last = chain[-1].outputs[0]
    if len(chain) < 3 or not graph.is_private(last):
        return ()
    (node,) = graph.consumers[last]
    return (node,) if node.op in ("Mul", "Div") and is_pointwise(graph, node, {last}) else ()


def _has_activations(graph: Graph, node: Node) -> bool:
    return any(is_activation(graph, name) for name in node.inputs) and any(is_float(graph, n) for n in node.outputs)


def _members(graph: Graph, node: Node, order: dict[str, int] | None) -> tuple[Node, ...]:
    if is_weighted(graph, node):
        add = residual_add(graph, node, order) if order is not None else None
        head = (node,) if add is None else (node, add)
        return (*head, *activation_chain(graph, head[-1].outputs[0]))
    return (node, *activation_chain(graph, node.outputs[0])) if node.op == "Add" else (node,)


def residual_add(graph: Graph, node: Node, order: dict[str, int]) -> Node | None:
    """The Add of another activation of the same shape that alone reads a weighted node's output."""
    output = node.outputs[0]
    if not graph.is_private(output):
        return None
    (reader,) = graph.consumers[output]
    if reader.op != "Add" or reader.domain or len(set(reader.inputs)) != 2:
        return None
    other = next(name for name in reader.inputs if name != output)
    if not is_activation(graph, other) or graph.specs[other].shape != graph.specs[output].shape:
        return None
    rival = graph.producers.get(other)
    if rival is not None and is_weighted(graph, rival) and graph.is_private(other) and _later(rival, node, order):
        return None
    return reader


def _later(one: Node, other: Node, order: dict[str, int]) -> bool:
    return order[one.name] > order[other.name]


def _unit(graph: Graph, members: tuple[Node, ...]) -> Unit:
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
