"""A model that was made for one image, with its batch size open again."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgert.graph.draft import Builder
from edgert.graph.ir import Graph, Node
from edgert.graph.model import Array, Model, TensorSpec, inputs
from edgert.graph.onnx_convert import write
from edgert.graph.static_shape import read

BATCH = "batch"
"""What the open dimension is called."""

_SHAPE, _SCALES, _SIZES = 1, 2, 3
"""Inputs of Reshape and of Resize (https://onnx.ai/onnx/operators/onnx__Resize.html)."""
_FLOAT_EXACT = 2**24
"""Float32 holds every whole number up to here."""


def has_open_batch(model: Model) -> bool:
    """Whether a first dimension of an input is open."""
    return any(spec.shape and not isinstance(spec.shape[0], int) for spec in inputs(model))


def with_open_batch(model: Model) -> Model:
    """The model with the first dimension open wherever inputs and outputs have 1 there.

    A Reshape to stored sizes takes that of the batch from the data, a Resize to stored sizes becomes one by factors,
    and a stored row beside images in a Concat is repeated: these are what exporters, and folding at a static size,
    leave of a batch of 1. Everything else stays, so that a node may still hold the model to one image, or mix
    images: run it before you trust it.

    Args:
        model: clean, its inner shapes known.

    Raises:
        ModelError: the graph is broken.
    """
    graph = read(model)
    axes, draft = batch_axes(graph), _Batch(graph)
    for node in graph.nodes:
        changed = _freed(graph, node, axes)
        if changed is not None:
            port, array = changed
            node = replace(node, inputs=(*node.inputs[:port], draft.constant(array, f"{node.name}_sizes")))
        if node.op == "Concat" and node.outputs[0] in axes:
            node = _filled(graph, node, axes, draft)
        draft.nodes.append(node)
    fed, given = tuple(map(_open, graph.inputs)), tuple(map(_open, graph.outputs))
    return write(replace(draft.finish(), inputs=fed, outputs=given, specs={}), model)


class _Batch(Builder):
    """Nodes as they come, and the size of the batch."""

    _rows = ""

    def rows(self) -> str:
        """The tensor that holds the batch size, int64 [1]."""
        if not self._rows:
            first, second = (self.constant(np.array([edge], np.int64), f"{BATCH}_{edge}") for edge in (0, 1))
            whole = self.add("Shape", [self.graph.inputs[0].name], self.name(f"{BATCH}_sizes"))
            self._rows = self.add("Slice", [whole, first, second], self.name(f"{BATCH}_size"))
        return self._rows


def _filled(graph: Graph, node: Node, axes: Mapping[str, int], draft: _Batch) -> Node:
    """A Concat beside the batch, with what is the same for every image repeated."""
    axis, rank = axes[node.outputs[0]], len(graph.specs[node.outputs[0]].shape)
    shapes = {name: graph.shape(name) for name in node.inputs if name not in axes}
    alike = [name for name, shape in shapes.items() if shape is not None and shape[axis] == 1]
    if node.attributes["axis"] % rank == axis or not alike:
        return node
    ones = [draft.constant(np.ones(count, np.int64), f"{BATCH}_beside") for count in (axis, rank - axis - 1) if count]
    around = [*ones[: bool(axis)], draft.rows(), *ones[bool(axis) :]]
    sizes = draft.add("Concat", around, draft.name(f"{BATCH}_{node.name}"), {"axis": 0})
    grown = {name: draft.add("Expand", [name, sizes], draft.name(f"{name}_{BATCH}")) for name in alike}
    return replace(node, inputs=tuple(grown.get(name, name) for name in node.inputs))


def batch_axes(graph: Graph) -> dict[str, int]:
    """Tensor → the dimension that holds the batch, alone or merged with others, as far as it can be followed."""
    axes = {spec.name: 0 for spec in graph.inputs if spec.shape[:1] == (1,)}
    for node in graph.nodes:
        found = [name for name in node.inputs if name in axes and graph.shape(name) is not None]
        for output in node.outputs if found else ():
            axis = _moved(graph, node, max(found, key=lambda name: len(graph.specs[name].shape)), output, axes)
            if axis is not None:
                axes[output] = axis
    return axes


def _moved(graph: Graph, node: Node, data: str, output: str, axes: Mapping[str, int]) -> int | None:
    """The batch's dimension behind a node; None where it is not known."""
    before, after, axis = graph.shape(data), graph.shape(output), axes[data]
    if before is None or after is None:
        return None
    if node.op == "Transpose":
        order = list(node.attributes.get("perm", range(len(before))[::-1]))
        return order.index(axis)
    if node.op == "Gather" and data == node.inputs[0]:
        taken = node.attributes.get("axis", 0) % len(before)
        return axis if axis < taken else axis + len(after) - len(before)
    if len(before) == len(after) and node.op != "Reshape":
        return axis
    outer = math.prod(before[:axis])  # the same numbers in the same order: as much lies outside of it
    places = [place for place in range(len(after)) if math.prod(after[:place]) == outer]
    return next((place for place in places if after[place] == 1), places[0] if places else None)


def _open(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(BATCH, *spec.shape[1:])) if spec.shape[:1] == (1,) else spec


def _freed(graph: Graph, node: Node, axes: Mapping[str, int]) -> tuple[int, Array] | None:
    """Port → what a node that keeps sizes of one image is to read there instead; later ports are left out."""
    if node.domain or not node.inputs or node.outputs[0] not in axes:
        return None
    if node.op == "Resize":
        return _factors(graph, node)
    made, axis = graph.shape(node.outputs[0]), axes[node.outputs[0]]
    if node.op != "Reshape" or node.inputs[_SHAPE] not in graph.constants or made is None or 0 in made:
        return None
    return _SHAPE, np.array([*made[:axis], -1, *made[axis + 1 :]], np.int64)  # the batch's is what remains


def _factors(graph: Graph, node: Node) -> tuple[int, Array] | None:
    """The sizes of a Resize as factors, where these give the same sizes."""
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    if len(node.inputs) <= _SIZES or node.inputs[_SIZES] not in graph.constants or "axes" in node.attributes:
        return None
    if before is None or after is None or max(*before, *after) > _FLOAT_EXACT or 0 in before:
        return None
    scales = np.array(after, np.float32) / np.array(before, np.float32)
    given = np.floor(np.array(before, np.float32) * scales)
    return (_SCALES, scales) if given.tolist() == list(after) else None
