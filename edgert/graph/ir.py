"""A graph as plain records: what every pass, the planner and quantization work on.

No ONNX message is seen here but in the attributes of a node that was read, where it is decoded when asked for.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgert.custom_op import Operator, operator
from edgert.errors import ModelError
from edgert.graph.model import TensorSpec
from edgert.graph.proto import Array, attributes

if TYPE_CHECKING:
    import onnx


class Attributes(Mapping[str, Any]):
    """Attributes of a node as it was read: decoded when first asked for, and written again as they were."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.message = type(node)()
        self.message.CopyFrom(node)

    def __getitem__(self, name: str) -> Any:
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)

    @cached_property
    def _decoded(self) -> dict[str, Any]:
        return attributes(self.message)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation.

    Attributes:
        op: operator, ``"Conv"``.
        inputs: tensor names, ``""`` for one that is left out.
        outputs: tensor names.
        attributes: int, float, bytes, list, or an opaque message for what has no plain form (bodies of If and Loop).
        name: unique within a graph that was read.
        domain: ``""`` for the standard operators.
        captured: outer tensors that its bodies may read.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    captured: frozenset[str] = frozenset()

    @property
    def reads(self) -> tuple[str, ...]:
        """Every tensor the node depends on, once each, in order."""
        return tuple(dict.fromkeys([*filter(None, self.inputs), *sorted(self.captured)]))


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and stored tensors; every node stands after those it reads.

    Attributes:
        nodes: the operations.
        constants: name → stored tensor, read-only; copy before changing.
        inputs, outputs: what is fed and what comes out, in order.
        specs: every tensor whose type is known. It may hold names that are no longer there.
        opset: version of the standard operators.
        domains: versions of other operators, by domain; 1 of those that are not here.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    specs: Mapping[str, TensorSpec]
    opset: int
    domains: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """Tensor → the node that computes it. Raises ModelError when two nodes compute one tensor."""
        found: dict[str, Node] = {}
        for node in self.nodes:
            for name in filter(None, node.outputs):
                if found.setdefault(name, node) is not node:
                    raise _twice(name, found[name], node)
        return found

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Tensor → the nodes that read it, in order, each once."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(spec.name for spec in self.outputs)

    @cached_property
    def captured(self) -> frozenset[str]:
        """Names that the bodies of If, Loop and Scan nodes may read; whoever makes them keeps them."""
        return frozenset(name for node in self.nodes for name in node.captured)

    @cached_property
    def custom_operators(self) -> Mapping[str, Operator]:
        """Node name → its operator, for those that :func:`edgert.op` registered."""
        found = {node.name: operator(node.domain, node.op) for node in self.nodes if node.domain}
        return {name: one for name, one in found.items() if one is not None}

    def is_private(self, name: str) -> bool:
        """Whether one node reads the tensor, and nobody outside can see it."""
        return len(self.consumers.get(name, ())) == 1 and not self.is_visible(name)

    def is_visible(self, name: str) -> bool:
        """Whether someone beside the nodes' inputs knows the name: a graph output, or a body that captures it."""
        return name in self.output_names or name in self.captured

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor name in use; what a new one must differ from."""
        own = {name for node in self.nodes for name in (*node.reads, *node.outputs)}
        return frozenset(own | set(self.constants) | {spec.name for spec in (*self.inputs, *self.outputs)})


class Names:
    """Hands out names that nothing in a graph has; the same requests give the same names."""

    def __init__(self, graph: Graph) -> None:
        self._taken = set(graph.names)

    def new(self, wanted: str) -> str:
        """``wanted``, or with a number behind it."""
        name = free_name(wanted, self._taken)
        self._taken.add(name)
        return name


def free_name(wanted: str, taken: Container[str]) -> str:
    """``wanted``, or with the first free number behind it: the same graph always gives the same name."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _twice(name: str, first: Node, second: Node) -> ModelError:
    return ModelError(
        f"tensor {name!r} is computed twice",
        why=f"by nodes {first.name!r} and {second.name!r}",
        fix="export the model again",
    )
