"""Channels of a graph that can be scaled together without changing its results.

Between two weighted nodes a channel may be divided by any s > 0 and multiplied back by the reader's weights. All nodes
in between must be positively homogeneous, f(x / s) = f(x) / s. Each output channel of a weighted node gets a label,
which follows the data through pooling, concatenation, splits and residual additions. Channels that must have equal
scales become one class. A class that anything else reads is fixed. Gates, x·g(x), let channels pass where g gets x at
its old scale.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph import Graph, Node, draft, fusion, operators
from edgert.quantization.lowering.weights import Kernel, is_per_channel, kernel_of


@dataclass(frozen=True, slots=True)
class Gate:
    """An activation x·g(x) with elementwise g, as SiLU and hard swish.

    It is not homogeneous. If g gets x at its old scale, though, the product with the scaled x is the scaled result.
    ``readers`` are the nodes of g that read x, which is ``tensor``.
    """

    tensor: str
    readers: frozenset[str]


def gates(graph: Graph) -> tuple[Gate, ...]:
    """Return all gates of a graph whose x nothing else reads, in order; see :func:`expand_hard_swish`, too."""
    found = []
    for tensor in (node.outputs[0] for node in graph.nodes if node.outputs):
        chain = fusion.activation(graph, tensor)
        made = {node.outputs[0] for node in chain}
        readers = [node for node in chain if tensor in node.inputs]
        products = [node for node in readers if node.op not in operators.SUMS and not made.isdisjoint(node.inputs)]
        if len(products) == 1:
            found.append(Gate(tensor, frozenset(node.name for node in readers if node is not products[0])))
    return tuple(found)


def expand_hard_swish(graph: Graph) -> Graph:
    """Return the graph with every HardSwish written as the gate x·HardSigmoid(x) of slope 1/6 and offset 1/2.

    See https://onnx.ai/onnx/operators/onnx__HardSwish.html.
    """
    builder, specs = draft.Builder(graph), dict(graph.specs)
    for node in graph.nodes:
        if node.op == "HardSwish" and not node.domain:
            factor = builder.name(f"{node.outputs[0]}_gate")
            if node.outputs[0] in specs:
                specs[factor] = replace(specs[node.outputs[0]], name=factor)
            builder.add("HardSigmoid", node.inputs, factor, {"alpha": 1 / 6, "beta": 0.5})
            node = replace(node, op="Mul", inputs=(node.inputs[0], factor), attributes={})
        builder.nodes.append(node)
    return replace(builder.finish(), specs=specs)


Labels = npt.NDArray[np.int64]
FIXED = 0
"""Class of the channels that keep their scale."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A weighted node and the classes of its channels. ``reads`` and ``makes`` are (channels,) classes."""

    kernel: Kernel
    reads: Labels
    makes: Labels


@dataclass(frozen=True, slots=True)
class Channels:
    """Classes of a graph's channels, numbered from 0; class 0 is fixed.

    Attributes:
        labels: classes of the channels along axis 1, by tensor, for tensors that have any.
    """

    layers: tuple[Layer, ...]
    count: int
    labels: Mapping[str, Labels]


def channels(graph: Graph, gates: Iterable[Gate] = ()) -> Channels:
    """Return the classes of all channels. The g of each gate gets x at its old scale, however x is scaled."""
    trace = _Trace(graph, frozenset(name for gate in gates for name in gate.readers))
    for node in graph.nodes:
        trace.follow(node)
    for name in graph.output_names:
        trace.fix(name)
    roots, number = np.unique(np.array([trace.root(i) for i in range(len(trace.parents))]), return_inverse=True)
    layers = tuple(Layer(kernel, number[reads], number[makes]) for kernel, reads, makes in trace.layers)
    return Channels(layers, len(roots), {name: number[labels] for name, labels in trace.labels.items()})


@dataclass
class _Trace:
    """Labels of the channels of each tensor along axis 1, and their classes (a union-find)."""

    graph: Graph
    gated: frozenset[str]
    labels: dict[str, Labels] = field(default_factory=dict)
    parents: list[int] = field(default_factory=lambda: [FIXED])
    layers: list[tuple[Kernel, Labels, Labels]] = field(default_factory=list)

    def root(self, label: int) -> int:
        """Return the smallest label of a class; that of the fixed class is ``FIXED``."""
        while self.parents[label] != label:
            self.parents[label] = label = self.parents[self.parents[label]]
        return label

    def join(self, first: Labels, second: Labels) -> None:
        """Join channels into one class, pair by pair."""
        for pair in zip(first.tolist(), second.tolist(), strict=True):
            low, high = sorted(map(self.root, pair))
            self.parents[high] = low

    def fix(self, name: str) -> None:
        """Fix the scale of the tensor's channels."""
        labels = self.labels.get(name)
        if labels is not None:
            self.join(labels, np.zeros_like(labels))

    def is_fixed(self, name: str) -> bool:
        """Return whether all channels of the tensor are fixed so far."""
        labels = self.labels.get(name)
        return labels is None or all(self.root(label) == FIXED for label in labels.tolist())

    def shape(self, name: str) -> tuple[Any, ...]:
        """Return the tensor's shape, () when it is not known."""
        return self.graph.specs[name].shape if name in self.graph.specs else ()

    def new_labels(self, count: int) -> Labels:
        """Return labels for new channels."""
        start = len(self.parents)
        self.parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def follow(self, node: Node) -> None:
        """Set the labels of the node's outputs, and fix the channels that it does not let pass."""
        if node.name in self.gated:
            return
        kernel = kernel_of(self.graph, node)
        if kernel is not None and self._add_layer(node, kernel):
            return
        passed = _RULES[node.op](self, node) if node.op in _RULES and not node.domain else None
        if passed is None:
            for name in node.reads:
                self.fix(name)
        else:
            self.labels.update(passed)

    def _add_layer(self, node: Node, kernel: Kernel) -> bool:
        bias = "".join(node.inputs[2:3])
        plain = not bias or is_per_channel(self.graph.constants.get(bias), kernel.outputs)
        if operators.about(node.op).work == "matmul" or not plain:
            return False
        reads = self.labels.get(node.inputs[0])
        if reads is None:
            reads = np.zeros(kernel.inputs, np.int64)
        if len(reads) != kernel.inputs:
            return False
        makes = self.new_labels(kernel.outputs)
        self.labels[node.outputs[0]] = makes
        self.layers.append((kernel, reads, makes))
        return True


PassedLabels = Mapping[str, Labels] | None


def _pass_first(trace: _Trace, node: Node) -> PassedLabels:
    """Pass the labels of the first input, for a homogeneous operator."""
    labels = trace.labels.get(node.inputs[0])
    return None if labels is None or any(node.outputs[1:]) else {node.outputs[0]: labels}


def _with_constants(trace: _Trace, node: Node) -> PassedLabels:
    """Pass the labels of the first input where all others are stored."""
    stored = all(name in trace.graph.constants for name in node.inputs[1:] if name)
    return _pass_first(trace, node) if stored else None


def _resize(trace: _Trace, node: Node) -> PassedLabels:
    """Pass labels through interpolation within channels; extrapolation would add a constant."""
    cropped = node.attributes.get("coordinate_transformation_mode", b"") == b"tf_crop_and_resize"
    before, after = trace.shape(node.inputs[0])[:2], trace.shape(node.outputs[0])[:2]
    return _with_constants(trace, node) if before and before == after and not cropped else None


def _pad(trace: _Trace, node: Node) -> PassedLabels:
    """Pass labels where zeros or reflections are added around channels, not between them."""
    filled = node.attributes.get("mode", b"constant") == b"constant"
    value = trace.graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    zero = not node.attributes.get("value", 0.0) if value is None else not np.any(value)
    same = trace.shape(node.inputs[0])[:2] == trace.shape(node.outputs[0])[:2] != ()
    return _with_constants(trace, node) if same and (zero or not filled) else None


def _clip(trace: _Trace, node: Node) -> PassedLabels:
    """Pass labels where bounds are 0 or infinite, which is homogeneous."""
    low, high = operators.clip_bounds(trace.graph, node) or (np.nan, np.nan)
    return _pass_first(trace, node) if low in (0.0, -np.inf) and high == np.inf else None


def _join_operands(trace: _Trace, node: Node) -> PassedLabels:
    """Join the labels of operands of one shape, which must have one scale; a stored operand lets none pass."""
    found = [trace.labels.get(name) for name in node.inputs]
    shapes = {trace.shape(name) for name in (*node.inputs, node.outputs[0])}
    first = found[0]
    if first is None or len(shapes) != 1 or shapes == {()}:
        return None
    for labels in found[1:]:
        if labels is None:
            return None
        trace.join(first, labels)
    return {node.outputs[0]: first}


def _product(trace: _Trace, node: Node) -> PassedLabels:
    """Pass the labels of one operand where the other is fixed and does not enlarge it."""
    free = [name for name in node.inputs if not trace.is_fixed(name)]
    if len(free) != 1 or (node.op == "Div" and free[0] != node.inputs[0]):
        return None
    same = trace.shape(free[0]) == trace.shape(node.outputs[0]) != ()
    return {node.outputs[0]: trace.labels[free[0]]} if same else None


def _concat(trace: _Trace, node: Node) -> PassedLabels:
    rank = len(trace.shape(node.outputs[0]))
    axis = int(node.attributes.get("axis", 1)) % max(1, rank)
    sizes = [trace.shape(name)[1:2] for name in node.inputs]
    if rank < 2 or axis != 1 or not all(size and isinstance(size[0], int) for size in sizes):
        return None
    parts = [trace.labels.get(name, np.zeros(size[0], np.int64)) for name, size in zip(node.inputs, sizes, strict=True)]
    return {node.outputs[0]: np.concatenate(parts)}


def _split(trace: _Trace, node: Node) -> PassedLabels:
    labels, rank = trace.labels.get(node.inputs[0]), len(trace.shape(node.inputs[0]))
    sizes = [trace.shape(name)[1:2] for name in node.outputs]
    if labels is None or rank < 2 or not all(size and isinstance(size[0], int) for size in sizes):
        return None
    if int(node.attributes.get("axis", 0)) % rank != 1:
        return dict.fromkeys(node.outputs, labels)
    ends = np.cumsum([size[0] for size in sizes])
    return dict(zip(node.outputs, np.split(labels, ends[:-1]), strict=True)) if ends[-1] == len(labels) else None


def _flatten(trace: _Trace, node: Node) -> PassedLabels:
    """Pass labels from (N, C, …) to (N, C · …), each repeated for the elements of its channel."""
    labels = trace.labels.get(node.inputs[0])
    before, after = trace.shape(node.inputs[0]), trace.shape(node.outputs[0])
    if labels is None or not all(isinstance(dim, int) for dim in (*before, *after)) or len(after) < 2:
        return None
    runs, rest = divmod(after[1], len(labels))
    flat = before[0] == after[0] and rest == 0 and (len(after) == 2 or set(after[2:]) == {1})
    return {node.outputs[0]: np.repeat(labels, runs)} if flat and runs else None


_RULES: dict[str, Callable[[_Trace, Node], PassedLabels]] = {
    **dict.fromkeys(
        (operators.POINTWISE | operators.VIEWS | operators.of_kind("pool")) & operators.HOMOGENEOUS, _with_constants
    ),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(operators.SUMS, _join_operands),
    **dict.fromkeys(("Mul", "Div"), _product),
    **dict.fromkeys(operators.RESHAPES, _flatten),
    "Pad": _pad,
    "Clip": _clip,
    "Concat": _concat,
    "Split": _split,
}
"""Functions that pass labels through an operator (https://onnx.ai/onnx/operators/), or return None to fix them."""
