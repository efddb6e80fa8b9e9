"""Analysis of where the elements of a tensor come from, through nodes that only move them.

Reshape, Transpose, Slice, Split, Gather and similar nodes are run on the numbers 0, 1, 2 …. The result shows the
origin of each element, however the exporter has written the move.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Chain, Draft, rewrite
from edgert.graph.fold_constants import Call, evaluate
from edgert.graph.ir import Node
from edgert.graph.model import Array
from edgert.graph.operators import POINTWISE, RESHAPES

MAX_ELEMENTS = 2**23
"""Largest tensor, in elements, that is traced: its numbers alone take 64 MiB."""

MOVERS = ("Concat", "DepthToSpace", "Flatten", "Gather", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze",
          "Transpose", "Unsqueeze")  # fmt: skip
_LIST = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A (N, C, H, W) tensor as a rearrangement of another one.

    Attributes:
        source: the tensor all elements come from.
        shape: of the source.
        origin: for every element, its position in the flat source; in the shape of the tensor.
    """

    source: str
    shape: tuple[int, int, int, int]
    origin: _LIST


class Tracer:
    """Cached analysis that follows tensors back through layout changes."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._roots: dict[str, str] = {}
        self._origins: dict[tuple[str, str], _LIST | None] = {}

    def move(self, name: str) -> Move | None:
        """Return where a tensor's elements come from; None where they are computed, or a tensor is not (N, C, H, W)."""
        source = self.root(name)
        shape = self._draft.image(source)
        if source == name or shape is None or self._draft.image(name) is None or math.prod(shape) > MAX_ELEMENTS:
            return None
        origin = self._origin(name, source)
        return None if origin is None or origin.ndim != 4 else Move(source, shape, origin)

    def root(self, name: str) -> str:
        """Return the tensor that a tensor's elements were moved from; the tensor itself where a node computes it."""
        if name not in self._roots:
            self._roots[name] = self._find(name)
        return self._roots[name]

    def is_moved(self, node: Node) -> bool:
        """Return whether the node only moves elements of one tensor."""
        return bool(node.outputs) and self.root(node.outputs[0]) != node.outputs[0]

    def _find(self, name: str) -> str:
        node = self._draft.graph.producers.get(name)
        if node is None or node.domain or node.op not in MOVERS or not self._draft.is_free(node):
            return name
        read = node.inputs if node.op == "Concat" else node.inputs[:1]
        roots = {self.root(item) for item in read}
        if len(roots) != 1 or any(self._draft.value(item) is None for item in node.inputs[len(read) :] if item):
            return name
        return roots.pop()

    def _origin(self, name: str, source: str) -> _LIST | None:
        if (name, source) not in self._origins:
            self._origins[name, source] = self._compute(name, source)
        return self._origins[name, source]

    def _compute(self, name: str, source: str) -> _LIST | None:
        shape = self._draft.shape(name)
        if name == source:
            return None if shape is None else np.arange(math.prod(shape)).reshape(shape)
        node = self._draft.graph.producers[name]
        read = [self._origin(item, source) if node.op == "Concat" or not position else self._draft.value(item)
                for position, item in enumerate(node.inputs)]  # fmt: skip
        if any(array is None and item for array, item in zip(read, node.inputs, strict=True)):
            return None
        made = self._run(node, read)
        found = None if made is None else made[node.outputs.index(name)]
        return found if found is not None and found.shape == shape else None

    def _run(self, node: Node, read: list[Array | None]) -> list[Array] | None:
        data = read[0]
        if data is None:
            return None
        if node.op == "SpaceToDepth":
            return [_to_depth(data, node.attributes["blocksize"])]
        if node.op == "DepthToSpace":
            return [_to_space(data, node.attributes["blocksize"], node.attributes.get("mode", b"DCR") == b"CRD")]
        if node.op == "Split" and not self._draft.is_given(node, "split", 1):
            axis = node.attributes.get("axis", 0)
            sizes = [shape[axis] for name in node.outputs if (shape := self._draft.shape(name)) is not None]
            return np.split(data, np.cumsum(sizes)[:-1], axis=axis) if len(sizes) == len(node.outputs) else None
        limit_bytes = 8 * MAX_ELEMENTS
        return evaluate(node.op, Call(read, node.attributes, self._draft.graph.opset, limit_bytes))


def _to_depth(data: Array, block: int) -> Array:
    """Return the result of a SpaceToDepth (https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html)."""
    count, channels, height, width = data.shape
    tiles = data.reshape(count, channels, height // block, block, width // block, block)
    laid: Array = tiles.transpose(0, 3, 5, 1, 2, 4).reshape(count, -1, height // block, width // block)
    return laid


def _to_space(data: Array, block: int, columns_first: bool) -> Array:
    """Return the result of a DepthToSpace; ``columns_first`` selects its mode CRD.

    See https://onnx.ai/onnx/operators/onnx__DepthToSpace.html.
    """
    count, channels, height, width = data.shape
    if columns_first:
        tiles = data.reshape(count, -1, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
    else:
        tiles = data.reshape(count, block, block, -1, height, width).transpose(0, 3, 4, 1, 5, 2)
    laid: Array = tiles.reshape(count, channels // block**2, height * block, width * block)
    return laid


# Reshapes and transposes move behind nodes that work in any shape, so that the layers before stay in four dimensions.
#
# An elementwise operation gives the same numbers in any shape. One with a number per channel does so where a
# (N, C, 1, 1) tensor was made (N, C). Two views in a row become one.

_ALONE = POINTWISE - {"PRelu"}  # whose slopes have a shape of their own
_PAIRS = ("Add", "Div", "Mul", "Sub")
_TURNS = RESHAPES | {"Transpose"}
_SOFTMAX_BY_AXIS = 13
"""First opset whose Softmax is over one axis, not all from one on: https://onnx.ai/onnx/operators/onnx__Softmax.html."""


def _alone(draft: Draft, node: Node) -> None:
    view = _view_before(draft, node.inputs[0], _TURNS)
    if view is not None:
        _swap(draft, view, node, (view.inputs[0], *node.inputs[1:]), node.attributes)


def _pair(draft: Draft, node: Node) -> None:
    for position in (0, 1):
        view = _view_before(draft, node.inputs[position], RESHAPES)
        stored = draft.value(node.inputs[1 - position])
        channels = None if view is None or stored is None else _channels_kept(draft, view)
        if view is None or stored is None or channels is None:
            continue
        if stored.size not in (1, channels) or stored.shape[-1:] not in ((), (stored.size,)):
            continue
        other = draft.constant(stored.reshape(1, -1, 1, 1), f"{node.name}_per_channel")
        pair = (view.inputs[0], other) if position == 0 else (other, view.inputs[0])
        _swap(draft, view, node, pair, node.attributes)
        return


def _softmax(draft: Draft, node: Node) -> None:
    view = _view_before(draft, node.inputs[0], _TURNS)
    shape = draft.shape(node.inputs[0])
    if view is None or shape is None:
        return
    by_axis = draft.graph.opset >= _SOFTMAX_BY_AXIS
    axis = node.attributes.get("axis", -1 if by_axis else 1) % len(shape)
    if view.op == "Transpose":
        if by_axis:
            axis = list(view.attributes["perm"])[axis] if "perm" in view.attributes else len(shape) - 1 - axis
            _swap(draft, view, node, (view.inputs[0],), {**node.attributes, "axis": axis})
    elif axis == 1 and len(shape) == 2 and _channels_kept(draft, view) is not None:
        _swap(draft, view, node, (view.inputs[0],), {**node.attributes, "axis": 1})


def _view_before(draft: Draft, name: str, ops: Collection[str]) -> Node | None:
    """Return the view of a computed (N, C, H, W) tensor that only one node reads, or None."""
    view = draft.before(name)
    if view is None or view.op not in ops or not draft.graph.is_private(name):
        return None
    computed = view.inputs[0] in draft.graph.producers and draft.image(view.inputs[0]) is not None
    return view if computed and len(view.outputs) == 1 else None


def _channels_kept(draft: Draft, view: Node) -> int | None:
    """Return C where the view makes (N, C) of (N, C, 1, 1), else None."""
    image, flat = draft.image(view.inputs[0]), draft.shape(view.outputs[0])
    if image is None or flat is None or image[2:] != (1, 1) or flat != image[:2]:
        return None
    return image[1]


def _swap(draft: Draft, view: Node, node: Node, operands: tuple[str, ...], given: Any) -> None:
    image = draft.image(view.inputs[0]) or ()
    early = draft.tensor(f"{node.outputs[0]}_early", image, draft.dtype(view.inputs[0]))
    late = replace(view, inputs=(early, *view.inputs[1:]), outputs=node.outputs)
    draft.drop(view)
    draft.put(node, [replace(node, inputs=operands, outputs=(early,), attributes=given), late],
              f"{node.op} before {view.op} {view.name!r}, not behind it")  # fmt: skip


def _merge(draft: Draft, node: Node) -> None:
    """Merge a view with the view before it, or remove a view that changes nothing."""
    shape, ends = draft.shape(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None or draft.value(node.inputs[0]) is not None:
        return
    if shape == ends and draft.bypass(node, node.inputs[0], "changes nothing"):
        return
    first = draft.before(node.inputs[0])
    if first is None or first.op not in RESHAPES or first.inputs[0] in draft.graph.constants:
        return
    before = draft.shape(first.inputs[0])
    if before == ends and draft.bypass(node, first.inputs[0], f"undoes {first.name!r}"):
        return
    chain = Chain(draft, node, first.inputs[0])
    chain.reshape(ends).end(f"does the work of {first.name!r}, too")


VIEW = rewrite(
    "view",
    "Reshape, Flatten and Transpose move behind nodes that work in any shape, and merge",
    "a DLA works on four dimensions, and a Reshape between two layers cuts the graph",
    {**dict.fromkeys(_ALONE, _alone), **dict.fromkeys(_PAIRS, _pair), "Softmax": _softmax}
    | dict.fromkeys(RESHAPES, _merge),
    grows=False,
)
