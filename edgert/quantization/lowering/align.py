"""Channels in numbers that integer kernels like: channels of zeros that nothing outside sees, added where they pay.

ONNX Runtime's fast integer convolutions take input channels in fours and depthwise channels in sixteens (MLAS,
convsym.cpp). Between convolutions the number of channels is nobody else's business: a network with 58 of them computes
the same with 64, six of them with weights of zero, and does so faster.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph import Graph, Node
from edgert.graph.operators import ACTIVATIONS, COMBINING, about, of_kind
from edgert.quantization.scheme.units import Sharing, is_weighted

Array = npt.NDArray[Any]

_DEPTHWISE = 16
_DENSE = 4
_MOST = 0.5
"""Channels added per channel there is, at most: beyond that the added work costs more than it saves."""

_CHANNEL_BY_CHANNEL = ACTIVATIONS | COMBINING | of_kind("pool")
"""What makes a finite number of a channel of zeros, without a look at others."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Tensors that must have the same channels, and the nodes around and between them."""

    channels: int
    tensors: tuple[str, ...]
    makers: tuple[Node, ...]
    readers: tuple[Node, ...]


def align(graph: Graph, rounded: Mapping[str, Array]) -> tuple[Graph, Mapping[str, Array]]:
    """The graph with channels of zeros added, and the rounded weights (name → values) widened along; both as they are
    where there is nothing to add.

    What it takes and gives stays; inner tensors and stored weights keep their names and get wider. A tensor is widened
    where only convolutions and operators that treat each channel alike make and read it.
    """
    widened: dict[str, Array] = {}
    nodes = {node.name: node for node in graph.nodes}
    specs = dict(graph.specs)
    for span in _spans(graph):
        added = _added(graph, span)
        if not added or not _is_enclosed(graph, span) or not _is_unshared(graph, span):
            continue
        for name, axis in _stored(graph, span):
            stored = widened.get(name, graph.constants[name])
            widened[name] = np.pad(stored, [(0, added * (dim == axis)) for dim in range(stored.ndim)])
        for node in (*span.makers, *span.readers):
            if _is_depthwise(graph, node):
                nodes[node.name] = replace(node, attributes={**node.attributes, "group": span.channels + added})
        for name in span.tensors:
            shape = specs[name].shape
            specs[name] = replace(specs[name], shape=(shape[0], span.channels + added, *shape[2:]))
    if not widened:
        return graph, rounded
    fitted = {name: _fitted(values, widened.get(name, values)) for name, values in rounded.items()}
    constants = {**graph.constants, **widened}
    return replace(graph, nodes=tuple(nodes[n.name] for n in graph.nodes), constants=constants, specs=specs), fitted


def _spans(graph: Graph) -> Iterator[_Span]:
    sharing = Sharing()
    for node in graph.nodes:
        if _keeps_channels(graph, node):
            sharing.join([*_activations(graph, node), *node.outputs])
    made = [name for node in graph.nodes for name in node.outputs if name]
    for tensors in dict.fromkeys(sharing.groups(made).values()):
        channels = {_channels(graph, name) for name in tensors}
        found = channels.pop()
        if not channels and found is not None:
            makers = [graph.producers[name] for name in tensors]
            readers = [node for name in tensors for node in graph.consumers.get(name, ())]
            yield _Span(found, tensors, _once(makers), _once(readers))


def _added(graph: Graph, span: _Span) -> int:
    """How many channels to add."""
    nodes = (*span.makers, *span.readers)
    added = -span.channels % (_DEPTHWISE if any(_is_depthwise(graph, node) for node in nodes) else _DENSE)
    return added if added <= _MOST * span.channels else 0


def _is_enclosed(graph: Graph, span: _Span) -> bool:
    """Whether nothing but convolutions and what keeps channels apart has to do with the tensors."""
    if graph.output_names.intersection(span.tensors):
        return False
    if any(not _is_dense(graph, node) and not _keeps_channels(graph, node) for node in (*span.makers, *span.readers)):
        return False
    inside = set(span.tensors)
    between = [node for node in (*span.makers, *span.readers) if _keeps_channels(graph, node)]
    return all(name in inside for node in between for name in _activations(graph, node))


def _is_unshared(graph: Graph, span: _Span) -> bool:
    """Whether no other node reads the weights and biases that get wider."""
    return all(len(graph.consumers[name]) == 1 for name, _axis in _stored(graph, span))


def _stored(graph: Graph, span: _Span) -> Iterator[tuple[str, int]]:
    """The stored tensors that get wider, and along which dimension."""
    for node in span.makers:
        if about(node.op).work == "conv":
            yield from ((name, 0) for name in node.inputs[1:] if name)
    for node in span.readers:
        if _is_dense(graph, node):
            yield node.inputs[1], 1


def _keeps_channels(graph: Graph, node: Node) -> bool:
    """Whether a node's output channels are functions of the same channels of its inputs."""
    if _is_depthwise(graph, node):
        return True
    stored = (graph.constants[name] for name in node.inputs if name in graph.constants)
    return not node.domain and node.op in _CHANNEL_BY_CHANNEL and all(value.size == 1 for value in stored)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    if about(node.op).work != "conv" or not _is_stored(graph, node):
        return False
    shape = graph.constants[node.inputs[1]].shape
    groups: int = node.attributes.get("group", 1)
    return bool(shape[1] == 1 and shape[0] == groups > 1)


def _is_dense(graph: Graph, node: Node) -> bool:
    return about(node.op).work == "conv" and _is_stored(graph, node) and node.attributes.get("group", 1) == 1


def _is_stored(graph: Graph, node: Node) -> bool:
    """Whether weight and bias are stored."""
    return is_weighted(graph, node) and all(name in graph.constants for name in node.inputs[1:] if name)


def _activations(graph: Graph, node: Node) -> list[str]:
    return [name for name in node.inputs if name and name not in graph.constants]


def _channels(graph: Graph, tensor: str) -> int | None:
    spec = graph.specs.get(tensor)
    size = spec.shape[1] if spec is not None and len(spec.shape) > 2 else None
    return size if isinstance(size, int) else None


def _once(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({node.name: node for node in nodes}.values())


def _fitted(values: Array, like: Array) -> Array:
    return np.pad(values, [(0, new - old) for old, new in zip(values.shape, like.shape, strict=True)])
