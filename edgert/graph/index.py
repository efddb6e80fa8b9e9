"""Who makes and who reads each tensor of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgert.errors import ModelError
from edgert.graph.proto import label, subgraphs

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """A graph by tensor name, as it was when the index was made. Nodes are named by position in ``graph.node``.

    Attributes:
        producers: tensor → the node that computes it.
        consumers: tensor → the nodes that read it, ascending; a node that reads it twice stands there twice.
        initializers: name → stored tensor; where a name is stored twice the last one counts, as in ONNX Runtime.
        inputs: graph inputs, with the stored tensors old models list among them.
        outputs: graph outputs.
        captured: names that the bodies of If, Loop and Scan nodes may read from this graph.
    """

    producers: Mapping[str, int]
    consumers: Mapping[str, tuple[int, ...]]
    initializers: Mapping[str, onnx.TensorProto]
    inputs: frozenset[str]
    outputs: frozenset[str]
    captured: frozenset[str]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> Index:
        """The index of a graph. Raises ModelError when two nodes compute one tensor."""
        consumers: dict[str, list[int]] = {}
        for position, node in enumerate(graph.node):
            for name in filter(None, node.input):
                consumers.setdefault(name, []).append(position)
        return cls(
            producers=_producers(graph),
            consumers={name: tuple(found) for name, found in consumers.items()},
            initializers={item.name: item for item in graph.initializer},
            inputs=frozenset(item.name for item in graph.input),
            outputs=frozenset(item.name for item in graph.output),
            captured=frozenset(name for node in graph.node for name in captured_names(node)),
        )

    def constant(self, name: str) -> onnx.TensorProto | None:
        """The stored tensor of that name, unless a caller may override it as a graph input."""
        return None if name in self.inputs else self.initializers.get(name)

    def is_private(self, name: str) -> bool:
        """Whether exactly one node of this graph reads the tensor, and nobody else can see it."""
        return len(self.consumers.get(name, ())) == 1 and not self.is_visible(name)

    def is_visible(self, name: str) -> bool:
        """Whether someone outside the graph's own nodes knows the name: a graph output, or a body that captures it."""
        return name in self.outputs or name in self.captured


def captured_names(node: onnx.NodeProto) -> frozenset[str]:
    """Names that the bodies of a node read, their own among them: a body may hide an outer name, never free one."""
    names: set[str] = set()
    for graph in subgraphs(node):
        names.update(item.name for item in graph.output)
        for inner in graph.node:
            names.update(filter(None, inner.input))
            names |= captured_names(inner)
    return frozenset(names)


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Every tensor name in a graph and its subgraphs: what a new name must differ from."""
    names = {item.name for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)}
    names |= {item.values.name for item in graph.sparse_initializer}
    for node in graph.node:
        names.update((*node.input, *node.output))
        for inner in subgraphs(node):
            names |= all_names(inner)
    return names


def _producers(graph: onnx.GraphProto) -> dict[str, int]:
    producers: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in producers:
                first = label(graph.node[producers[name]], producers[name])
                raise ModelError(
                    f"tensor {name!r} is computed twice",
                    why=f"by nodes {first!r} and {label(node, position)!r}",
                    fix="export the model again",
                )
            producers[name] = position
    return producers
