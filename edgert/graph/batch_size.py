"""Open batch dimension for a model that was exported for one image."""

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
"""Name of the open dimension."""

_SHAPE, _SCALES, _SIZES = 1, 2, 3
"""Inputs of Reshape and of Resize (https://onnx.ai/onnx/operators/onnx__Resize.html)."""
_FLOAT_EXACT = 2**24
"""Largest number up to which float32 holds every integer."""


def has_open_batch(model: Model) -> bool:
    """Return whether the first dimension of any input is open."""
    return any(spec.shape and not isinstance(spec.shape[0], int) for spec in inputs(model))


def with_open_batch(model: Model) -> Model:
    """Return the model with an open first dimension wherever inputs and outputs have 1 there.

    Exporters and constant folding fix a batch of 1 in three places. A Reshape to stored sizes now takes the batch size
    from the data. A Resize to stored sizes becomes one by scales. A stored row that a Concat joins to images is
    repeated. All else stays, so a node may still require one image, or mix images: test the result by running it.

    Args:
        model: clean model with known inner shapes.

    Raises:
        ModelError: the graph is broken.
    """
    graph = read(model)
    axes, draft = batch_axes(graph), _BatchBuilder(graph)
    for node in graph.nodes:
        changed = _stored_sizes_for_any_batch(graph, node, axes)
        if changed is not None:
            port, array = changed
            node = replace(node, inputs=(*node.inputs[:port], draft.add_constant(array, f"{node.name}_sizes")))
        if node.op == "Concat" and node.outputs[0] in axes:
            node = _with_repeated_rows(graph, node, axes, draft)
        draft.nodes.append(node)
    fed, given = tuple(map(_with_open_batch, graph.inputs)), tuple(map(_with_open_batch, graph.outputs))
    return write(replace(draft.finish(), inputs=fed, outputs=given, specs={}), model)


class _BatchBuilder(Builder):
    """Builder of a graph that can compute its batch size at run time."""

    _batch_size = ""

    def batch_size(self) -> str:
        """Return the name of the tensor that holds the batch size, int64 [1]; add its nodes on the first call."""
        if not self._batch_size:
            first, second = (self.add_constant(np.array([edge], np.int64), f"{BATCH}_{edge}") for edge in (0, 1))
            whole = self.add("Shape", [self.graph.inputs[0].name], self.name(f"{BATCH}_sizes"))
            self._batch_size = self.add("Slice", [whole, first, second], self.name(f"{BATCH}_size"))
        return self._batch_size


def _with_repeated_rows(graph: Graph, node: Node, axes: Mapping[str, int], draft: _BatchBuilder) -> Node:
    """Return a Concat with operands of one row repeated to the batch size; the node itself if it has none."""
    axis, rank = axes[node.outputs[0]], len(graph.specs[node.outputs[0]].shape)
    shapes = {name: graph.shape(name) for name in node.inputs if name not in axes}
    alike = [name for name, shape in shapes.items() if shape is not None and shape[axis] == 1]
    if node.attributes["axis"] % rank == axis or not alike:
        return node
    lengths = (count for count in (axis, rank - axis - 1) if count)
    ones = [draft.add_constant(np.ones(count, np.int64), f"{BATCH}_beside") for count in lengths]
    around = [*ones[: bool(axis)], draft.batch_size(), *ones[bool(axis) :]]
    sizes = draft.add("Concat", around, draft.name(f"{BATCH}_{node.name}"), {"axis": 0})
    grown = {name: draft.add("Expand", [name, sizes], draft.name(f"{name}_{BATCH}")) for name in alike}
    return replace(node, inputs=tuple(grown.get(name, name) for name in node.inputs))


def batch_axes(graph: Graph) -> dict[str, int]:
    """Return the dimension that holds the batch, alone or merged with others, of each tensor where it is known."""
    axes = {spec.name: 0 for spec in graph.inputs if spec.shape[:1] == (1,)}
    for node in graph.nodes:
        found = [name for name in node.inputs if name in axes and graph.shape(name) is not None]
        for output in node.outputs if found else ():
            data = max(found, key=lambda name: len(graph.specs[name].shape))
            axis = _output_batch_axis(graph, node, data, output, axes)
            if axis is not None:
                axes[output] = axis
    return axes


def _output_batch_axis(graph: Graph, node: Node, data: str, output: str, axes: Mapping[str, int]) -> int | None:
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
    outer = math.prod(before[:axis])  # element order is unchanged, so the product of the outer dimensions is, too
    places = [place for place in range(len(after)) if math.prod(after[:place]) == outer]
    return next((place for place in places if after[place] == 1), places[0] if places else None)


def _with_open_batch(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(BATCH, *spec.shape[1:])) if spec.shape[:1] == (1,) else spec


def _stored_sizes_for_any_batch(graph: Graph, node: Node, axes: Mapping[str, int]) -> tuple[int, Array] | None:
    """Return (input index, new value) for a node with stored sizes of one image, else None.

    The caller drops the node's inputs after that index.
    """
    if node.domain or not node.inputs or node.outputs[0] not in axes:
        return None
    if node.op == "Resize":
        return _resize_scales(graph, node)
    made, axis = graph.shape(node.outputs[0]), axes[node.outputs[0]]
    if node.op != "Reshape" or node.inputs[_SHAPE] not in graph.constants or made is None or 0 in made:
        return None
    return _SHAPE, np.array([*made[:axis], -1, *made[axis + 1 :]], np.int64)  # -1: Reshape infers the batch


def _resize_scales(graph: Graph, node: Node) -> tuple[int, Array] | None:
    """Return (input index, scales) for a Resize to stored sizes where scales give exactly these sizes, else None."""
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    if len(node.inputs) <= _SIZES or node.inputs[_SIZES] not in graph.constants or "axes" in node.attributes:
        return None
    if before is None or after is None or max(*before, *after) > _FLOAT_EXACT or 0 in before:
        return None
    scales = np.array(after, np.float32) / np.array(before, np.float32)
    given = np.floor(np.array(before, np.float32) * scales)
    return (_SCALES, scales) if given.tolist() == list(after) else None
