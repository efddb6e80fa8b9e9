"""Origin of the elements of a tensor behind nodes that only move them, and rewrites that move views out of the way.

Reshape, Transpose, Slice, Split, Gather and similar nodes are run on the numbers 0, 1, 2 …. The result is the origin of
each element, whatever nodes the exporter wrote for the move.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Chain, Draft, rewrite
from edgert.graph.fold_constants import evaluate
from edgert.graph.ir import Node
from edgert.graph.model import Array
from edgert.graph.operators import POINTWISE, RESHAPES

MAX_ELEMENTS = 2**23
"""Largest tensor, in elements, that is traced: its indices take 64 MiB."""

MOVERS = ("Concat", "DepthToSpace", "Flatten", "Gather", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze",
          "Transpose", "Unsqueeze")  # fmt: skip
_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A (N, C, H, W) tensor as a rearrangement of another one.

    Attributes:
        source: name of the tensor that all elements come from.
        shape: shape of the source.
        origin: position of each element in the flat source, int64 in the shape of the rearranged tensor.
    """

    source: str
    shape: tuple[int, int, int, int]
    origin: _Indices


class Tracer:
    """Cached analysis that follows tensors back through layout changes."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._roots: dict[str, str] = {}
        self._origins: dict[tuple[str, str], _Indices | None] = {}

    def move(self, name: str) -> Move | None:
        """Return the origin of a tensor's elements; None where they are computed, or a tensor is not (N, C, H, W)."""
        source = self.root(name)
        shape = self._draft.image(source)
        if source == name or shape is None or self._draft.image(name) is None or math.prod(shape) > MAX_ELEMENTS:
            return None
        origin = self._origin(name, source)
        return None if origin is None or origin.ndim != 4 else Move(source, shape, origin)

    def root(self, name: str) -> str:
        """Return the tensor from which a tensor's elements were moved; the tensor itself where they are computed."""
        if name not in self._roots:
            self._roots[name] = self._find_root(name)
        return self._roots[name]

    def is_moved(self, node: Node) -> bool:
        """Return whether the node only moves elements of one tensor."""
        return bool(node.outputs) and self.root(node.outputs[0]) != node.outputs[0]

    def _find_root(self, name: str) -> str:
        node = self._draft.graph.producers.get(name)
        if node is None or node.domain or node.op not in MOVERS or not self._draft.is_free(node):
            return name
        read = node.inputs if node.op == "Concat" else node.inputs[:1]
        roots = {self.root(item) for item in read}
        if len(roots) != 1 or any(self._draft.value(item) is None for item in node.inputs[len(read) :] if item):
            return name
        return roots.pop()

    def _origin(self, name: str, source: str) -> _Indices | None:
        if (name, source) not in self._origins:
            self._origins[name, source] = self._trace_origin(name, source)
        return self._origins[name, source]

    def _trace_origin(self, name: str, source: str) -> _Indices | None:
        shape = self._draft.shape(name)
        if name == source:
            return None if shape is None else np.arange(math.prod(shape)).reshape(shape)
        node = self._draft.graph.producers[name]
        feeds = dict[str, Array]()
        for position, item in enumerate(node.inputs):
            array = self._origin(item, source) if node.op == "Concat" or not position else self._draft.value(item)
            if array is not None:
                feeds[item] = array
            elif item:
                return None
        made = evaluate(node, feeds, self._draft.graph.opset, limit_bytes=8 * MAX_ELEMENTS)
        found = None if made is None else made[node.outputs.index(name)]
        return found if found is not None and found.shape == shape else None


# Reshapes and transposes move behind nodes that work in any shape, so that layers before them stay in four dimensions.
#
# An elementwise operation gives the same numbers in any shape; with an operand per channel it does so where
# (N, C, 1, 1) became (N, C). Two views in a row become one.

_ELEMENTWISE = POINTWISE - {"PRelu"}  # its slopes have a shape
_PAIRED = ("Add", "Div", "Mul", "Sub")
_LAYOUT_CHANGES = RESHAPES | {"Transpose"}


def _swap_elementwise(draft: Draft, node: Node) -> None:
    view = _view_before(draft, node.inputs[0], _LAYOUT_CHANGES)
    if view is not None:
        _swap_view(draft, view, node, (view.inputs[0], *node.inputs[1:]), node.attributes)


def _swap_arithmetic(draft: Draft, node: Node) -> None:
    for position in (0, 1):
        view = _view_before(draft, node.inputs[position], RESHAPES)
        stored = draft.value(node.inputs[1 - position])
        channels = None if view is None or stored is None else _channels_kept(draft, view)
        if view is None or stored is None or channels is None:
            continue
        if stored.size not in (1, channels) or stored.shape[-1:] not in ((), (stored.size,)):
            continue
        other = draft.add_constant(stored.reshape(1, -1, 1, 1), f"{node.name}_per_channel")
        pair = (view.inputs[0], other) if position == 0 else (other, view.inputs[0])
        _swap_view(draft, view, node, pair, node.attributes)
        return


def _swap_softmax(draft: Draft, node: Node) -> None:
    view = _view_before(draft, node.inputs[0], _LAYOUT_CHANGES)
    shape = draft.shape(node.inputs[0])
    if view is None or shape is None:
        return
    axis = node.attributes.get("axis", -1) % len(shape)
    if view.op == "Transpose":
        axis = list(view.attributes["perm"])[axis] if "perm" in view.attributes else len(shape) - 1 - axis
        _swap_view(draft, view, node, (view.inputs[0],), {**node.attributes, "axis": axis})
    elif axis == 1 and len(shape) == 2 and _channels_kept(draft, view) is not None:
        _swap_view(draft, view, node, (view.inputs[0],), {**node.attributes, "axis": 1})


def _view_before(draft: Draft, name: str, ops: Collection[str]) -> Node | None:
    """Return the node before a tensor, if it is a view of a computed image and nothing else reads it; else None."""
    view = draft.producer(name)
    if view is None or view.op not in ops or not draft.graph.is_private(name):
        return None
    computed = view.inputs[0] in draft.graph.producers and draft.image(view.inputs[0]) is not None
    return view if computed and len(view.outputs) == 1 else None


def _channels_kept(draft: Draft, view: Node) -> int | None:
    """Return C where a view turns (N, C, 1, 1) into (N, C), else None."""
    image, flat = draft.image(view.inputs[0]), draft.shape(view.outputs[0])
    if image is None or flat is None or image[2:] != (1, 1) or flat != image[:2]:
        return None
    return image[1]


def _swap_view(draft: Draft, view: Node, node: Node, operands: tuple[str, ...], given: Any) -> None:
    image = draft.image(view.inputs[0]) or ()
    early = draft.tensor(f"{node.outputs[0]}_early", image, draft.dtype(view.inputs[0]))
    late = replace(view, inputs=(early, *view.inputs[1:]), outputs=node.outputs)
    draft.drop(view)
    draft.replace(node, [replace(node, inputs=operands, outputs=(early,), attributes=given), late],
              f"{node.op} before {view.op} {view.name!r}, not behind it")  # fmt: skip


def _merge_views(draft: Draft, node: Node) -> None:
    """Merge a view with the view before it, or remove a view that changes nothing."""
    shape, ends = draft.shape(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None or draft.value(node.inputs[0]) is not None:
        return
    if shape == ends and draft.bypass(node, node.inputs[0], "changes nothing"):
        return
    first = draft.producer(node.inputs[0])
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
    dict.fromkeys(_ELEMENTWISE, _swap_elementwise)
    | dict.fromkeys(_PAIRED, _swap_arithmetic)
    | {"Softmax": _swap_softmax}
    | dict.fromkeys(RESHAPES, _merge_views),
    grows=False,
)
