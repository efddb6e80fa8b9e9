"""Which inputs and outputs of a node become float16 when the node does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgert.graph.node import Graph, Node
from edgert.graph.signature import Signature, signature

_POSITIONS = frozenset({("Resize", 1)})  # regions of interest are coordinates


@dataclass(frozen=True, slots=True)
class Ports:
    """Positions of a node's inputs and outputs that are float32 and have a float16 form.

    Attributes:
        inputs, outputs: positions that change type with the node.
        carries: whether the node takes or gives float32 tensors at all.
        gives: whether it gives float32 tensors.
    """

    inputs: frozenset[int]
    outputs: frozenset[int]
    carries: bool
    gives: bool

    @property
    def can_be_half(self) -> bool:
        """Whether the node has a float16 form that differs from the float32 one."""
        return bool(self.inputs or self.outputs)


def ports(graph: Graph, node: Node, types: Mapping[str, str]) -> Ports:
    """The ports of a node, by the ONNX schema of its operator in the graph's opset.

    Args:
        types: tensor → element type, :func:`edgert.graph.dtype.dtypes`.
    """
    found = signature(node.op, graph.opset, node.domain)
    takes = [at for at, name in enumerate(node.inputs) if types.get(name) == "float32"]
    gives = [at for at, name in enumerate(node.outputs) if types.get(name) == "float32"]
    carries = bool(takes or gives or any(types.get(name) == "float32" for name in node.captured))
    if found is None or node.captured or not carries:
        return Ports(frozenset(), frozenset(), carries, bool(gives))
    free = _free(found, node, types)
    return Ports(
        frozenset(at for at in takes if _variable(found, at) in free and (node.op, at) not in _POSITIONS),
        frozenset(at for at in gives if _follows(found, node, at) in free),
        carries,
        bool(gives),
    )


def _free(found: Signature, node: Node, types: Mapping[str, str]) -> frozenset[str]:
    """Type variables that may be float16 and stand for float32 in this node."""
    named = [(found.input(at), name) for at, name in enumerate(node.inputs) if name]
    able = {port.variable for port, _ in named if port and "float16" in port.dtypes}
    bound = {port.variable for port, name in named if port and types.get(name) != "float32"}
    return frozenset(able - bound)


def _variable(found: Signature, position: int) -> str:
    port = found.input(position)
    return port.variable if port else ""


def _follows(found: Signature, node: Node, position: int) -> str:
    """The type variable of an input that decides the type of an output; empty where an attribute does."""
    port = found.output(position)
    if port is None or "float16" not in port.dtypes:
        return ""
    if node.op == "DequantizeLinear":  # from opset 23 its output has a variable of its own, with the scale as default
        return "" if node.attributes.get("output_dtype") else _variable(found, 1)
    return port.variable if found.is_given(port.variable) else ""
