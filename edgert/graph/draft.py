"""Tools for editing graphs: a draft collects the edits of one walk over a graph, a builder writes a new graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.graph.ir import Change, Graph, Names, Node, Pass, Result, free_name
from edgert.graph.model import Array, TensorSpec

FLOATS = ("float16", "float32", "float64")


class Additions:
    """Unused names for tensors and nodes, and new stored tensors, to add to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._names = Names(graph)
        self._labels = {node.name for node in graph.nodes}
        self._constants: dict[str, Array] = {}
        self._stored: dict[tuple[str, str, bytes], str] = {}

    def name(self, wanted: str) -> str:
        """Return an unused name for a new tensor."""
        return self._names.new(wanted)

    def label(self, wanted: str) -> str:
        """Return an unused name for a new node."""
        name = free_name(wanted, self._labels)
        self._labels.add(name)
        return name

    def add_constant(self, array: Array, wanted: str) -> str:
        """Store a tensor under an unused name like the wanted one; return the name."""
        name = self.name(wanted)
        self.store_values({name: array})
        return name

    def share_constant(self, array: Array, wanted: str) -> str:
        """Store a tensor, or find an equal one stored for the same wanted name; return its name."""
        key = (wanted, f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._stored:
            self._stored[key] = self.add_constant(array, wanted)
        return self._stored[key]

    def store_values(self, values: Mapping[str, Array]) -> None:
        """Store tensors under the given names, for tensors that nodes computed until now."""
        for name, array in values.items():
            self._constants[name] = np.array(array, order="C")
            self._constants[name].flags.writeable = False


class Builder(Additions):
    """Builder of a new graph, node after node, with the inputs, outputs and stored tensors of a given one.

    Attributes:
        nodes: nodes added so far, in order.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.nodes: list[Node] = []

    def add(self, op: str, inputs: Sequence[str], output: str, attributes: Mapping[str, Any] | None = None) -> str:
        """Add a node named after its output; return the output."""
        label = self.label(f"{output}_{op}")
        self.nodes.append(Node(op, tuple(inputs), (output,), attributes or {}, label))
        return output

    def finish(self) -> Graph:
        """Return the new graph."""
        constants = {**self.graph.constants, **self._constants}
        return replace(self.graph, nodes=tuple(self.nodes), constants=constants)


class Draft(Additions):
    """Edits collected during one walk over a graph; the graph itself does not change.

    Rules look at the graph as it was before the walk. They must not touch a node that this walk has already changed:
    see :meth:`is_free`. Such a node is left for the next walk.
    """

    def __init__(self, graph: Graph, rule: str) -> None:
        super().__init__(graph)
        self._rule = rule
        self._specs: dict[str, TensorSpec] = {}
        self._replacements: dict[int, tuple[Node, ...]] = {}
        self._aliases: dict[str, str] = {}
        self._changes: list[Change] = []

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape; None unless all of it is known."""
        spec = self._specs.get(name) or self.graph.spec(name)
        return None if spec is None else spec.sizes

    def image(self, name: str) -> tuple[int, int, int, int] | None:
        """Return the shape of a computed float tensor (N, C, H, W); None for any other, or one without elements."""
        shape = self.shape(name)
        if (
            shape is None
            or len(shape) != 4
            or 0 in shape
            or name in self.graph.constants
            or self.dtype(name) not in FLOATS
        ):
            return None
        return shape[0], shape[1], shape[2], shape[3]

    def dtype(self, name: str) -> str:
        """Return a tensor's element type by NumPy's name; ``"unknown"`` where it is not known."""
        spec = self._specs.get(name) or self.graph.spec(name)
        return "unknown" if spec is None else spec.dtype

    def value(self, name: str) -> Array | None:
        """Return the values of a stored tensor, read-only; None for computed ones."""
        return self.graph.constants.get(name)

    def integers(self, node: Node, name: str, position: int) -> list[int] | None:
        """Return integers that are an attribute in old opsets and an input in new ones; None if missing or computed."""
        if position < len(node.inputs) and node.inputs[position]:
            stored = self.value(node.inputs[position])
            return None if stored is None else [int(item) for item in stored.reshape(-1)]
        return list(node.attributes[name]) if name in node.attributes else None

    def is_given(self, node: Node, name: str, position: int) -> bool:
        """Return whether the node has this attribute or input, stored or computed."""
        return name in node.attributes or (position < len(node.inputs) and bool(node.inputs[position]))

    def producer(self, name: str) -> Node | None:
        """Return the node that computes a tensor; None for a custom one, or one that this walk has changed."""
        node = self.graph.producers.get(name)
        return node if node is not None and not node.domain and self.is_free(node) else None

    def is_free(self, node: Node) -> bool:
        """Return whether this walk has not changed the node so far."""
        return id(node) not in self._replacements

    def replace_constant(self, node: Node, name: str, array: Array, wanted: str) -> str:
        """Store a tensor in place of one that a node reads; return its name, the old one if nothing else reads it."""
        if name and self.graph.is_private(name) and node.inputs.count(name) == 1:
            self.store_values({name: array})
            return name
        return self.add_constant(array, wanted)

    def tensor(self, wanted: str, shape: Sequence[int], dtype: str) -> str:
        """Return the name of a tensor that a new node will compute, and note its shape and type."""
        name = self._names.new(wanted)
        self._specs[name] = TensorSpec(name, tuple(shape), dtype)
        return name

    def replace(self, node: Node, others: Sequence[Node], detail: str) -> None:
        """Replace one node by others, which compute every tensor of it that is read, and report the change."""
        self._replacements[id(node)] = tuple(others)
        self._changes.append(Change(self._rule, node.name, detail))

    def update(self, node: Node, changed: Node) -> None:
        """Replace one node by a changed copy, as part of a change reported for another node."""
        self._replacements[id(node)] = (changed,)

    def drop(self, node: Node) -> None:
        """Remove a node whose output nothing reads any more, as part of a change reported for another node."""
        self._replacements[id(node)] = ()

    def bypass(self, node: Node, source: str, detail: str) -> bool:
        """Make the readers of a node's output read ``source`` instead, and remove the node.

        Where the output is one of the graph's, the node that computes ``source`` writes it instead.

        Returns:
            Whether the node was removed; if not, nothing has changed.
        """
        target = node.outputs[0]
        if target in self.graph.captured:
            return False
        if target not in self.graph.output_names:
            self._aliases[target] = source
        else:
            producer = self.graph.producers.get(source)
            if producer is None or not self.is_free(producer) or self.graph.is_visible(source):
                return False
            outputs = tuple(target if name == source else name for name in producer.outputs)
            self._replacements[id(producer)] = (replace(producer, outputs=outputs),)
            self._aliases[source] = target
        self.replace(node, (), detail)
        return True

    def finish(self) -> Result:
        """Return the new graph without nodes that nothing needs, and the changes; the given graph if there are none."""
        if not self._changes:
            return self.graph, ()
        nodes = [new for node in self.graph.nodes for new in self._replacements.get(id(node), (node,))]
        nodes = [self._with_new_inputs(node) for node in nodes] if self._aliases else nodes
        kept = needed(nodes, self.graph.output_names)
        used = {name for node in kept for name in node.reads} | self.graph.output_names
        constants = {**self.graph.constants, **self._constants}
        constants = {name: array for name, array in constants.items() if name in used}
        graph = replace(self.graph, nodes=kept, constants=constants, specs={**self.graph.specs, **self._specs})
        return graph, tuple(self._changes)

    def _with_new_inputs(self, node: Node) -> Node:
        inputs = node.inputs
        while not self._aliases.keys().isdisjoint(inputs):
            inputs = tuple(self._aliases.get(name, name) for name in inputs)
        return node if inputs is node.inputs else replace(node, inputs=inputs)


def needed(nodes: Sequence[Node], wanted: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes that the wanted tensors depend on, in order."""
    alive, kept = set(wanted), []
    for node in reversed(nodes):
        if not alive.isdisjoint(node.outputs):
            alive.update(node.reads)
            kept.append(node)
    return tuple(reversed(kept))


class Chain:
    """Sequence of nodes that replaces one node; each reads the result of the one before.

    Args:
        draft: draft of the new graph.
        node: node to replace; the last node of the chain computes its first output.
        source: tensor that the first node of the chain reads; the replaced node's first input by default.
    """

    def __init__(self, draft: Draft, node: Node, source: str = "") -> None:
        self._draft, self._node = draft, node
        self._nodes: list[Node] = []
        self.current = source or node.inputs[0]
        self._dtype = draft.dtype(self.current)

    def then(self, op: str, shape: Sequence[int], *others: str, **given: Any) -> Chain:
        """Append a node that reads the current tensor and ``others``, and computes a tensor of this shape."""
        target = self._draft.tensor(f"{self._node.outputs[0]}_{op.lower()}", shape, self._dtype)
        label = self._draft.label(f"{self._node.name}/{op}")
        self._nodes.append(Node(op, (self.current, *others), (target,), given, label))
        self.current = target
        return self

    def store(self, array: Array, what: str) -> str:
        """Store a tensor in the element type of the chain; return its name."""
        return self.store_exact(array.astype(self._dtype), what)

    def store_exact(self, array: Array, what: str) -> str:
        """Store a tensor in its own element type; return its name."""
        return self._draft.add_constant(array, f"{self._node.name}_{what}")

    def scalar(self, op: str, value: float) -> Chain:
        """Append an Add or Mul with one number."""
        shape = self._draft.shape(self.current) or ()
        return self.then(op, shape, self.store(np.array(value), op.lower()))

    def clip(self, low: float, high: float) -> Chain:
        """Append a Clip between two numbers."""
        shape = self._draft.shape(self.current) or ()
        return self.then("Clip", shape, self.store(np.array(low), "min"), self.store(np.array(high), "max"))

    def conv(
        self, shape: Sequence[int], weight: Array, bias: Array | None = None, op: str = "Conv", **given: Any
    ) -> Chain:
        """Append a Conv or ConvTranspose with stored weights and bias that computes a tensor of this shape."""
        stored = [self.store(weight, "weight"), *(() if bias is None else (self.store(bias, "bias"),))]
        return self.then(op, shape, *stored, kernel_shape=list(weight.shape[2:]), **given)

    def pool(
        self,
        op: str,
        shape: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int] = (0, 0, 0, 0),
        **given: Any,
    ) -> Chain:
        """Append a MaxPool or AveragePool that computes a tensor of this shape."""
        return self.then(op, shape, kernel_shape=list(kernel), strides=list(strides), pads=list(pads), **given)

    def reshape(self, shape: Sequence[int]) -> Chain:
        """Append a Reshape, unless the chain already has this shape."""
        if self._nodes and self._draft.shape(self.current) == tuple(shape):
            return self
        return self.then("Reshape", shape, self.store_exact(np.array(shape, np.int64), "shape"))

    def end(self, detail: str) -> None:
        """Replace the node by the chain, whose last node now computes the replaced node's output."""
        *first, last = self._nodes
        self._draft.replace(self._node, [*first, replace(last, outputs=(self._node.outputs[0],))], detail)


Rule = Callable[[Draft, Node], None]
"""Function that replaces a node by others, or does nothing."""


def rewrite(name: str, does: str, rules: Mapping[str, Rule], *, grows: bool = True) -> Pass:
    """Return a pass that calls the rule for every node of certain operators, in order; see :class:`Pass`."""

    def apply(graph: Graph) -> Result:
        if not any(node.op in rules for node in graph.nodes):
            return graph, ()
        draft = Draft(graph, name)
        for node in graph.nodes:
            if node.op in rules and not node.domain and draft.is_free(node):
                rules[node.op](draft, node)
        return draft.finish()

    return Pass(name, does, apply, grows)
