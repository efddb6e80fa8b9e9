"""Rearrangements as convolutions with weights of 0 and 1, which a DLA can do, and a CPU does in one go.

- channels chosen or shuffled (ShuffleNet): a 1x1 Conv;
- blocks of pixels laid into channels (the Focus layer of YOLO, SpaceToDepth): a Conv whose stride is its kernel;
- channels laid into blocks of pixels (DepthToSpace, pixel shuffle): a ConvTranspose whose stride is its kernel;
- pixels left out: a MaxPool over one pixel.
Each output is one input times 1, plus zeros: the result is the same to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph.dla_rewrites.layout_moves import MOVERS, Move, Tracer
from edgert.graph.dla_rewrites.pooling import MAX_KERNEL, Pair, Window, window_of
from edgert.graph.draft import FLOATS, Chain, Draft, each
from edgert.graph.ir import Graph, Node, Result
from edgert.graph.model import Array

# Split as one Slice for each part.

_INPUTS_SINCE = 10
"""Before this opset a Slice has its numbers as attributes: https://onnx.ai/onnx/operators/onnx__Slice.html."""


def _split(draft: Draft, node: Node) -> None:
    shapes = [draft.shape(name) for name in node.outputs]
    shape = draft.shape(node.inputs[0])
    if shape is None or draft.dtype(node.inputs[0]) not in FLOATS:
        return
    axis = node.attributes.get("axis", 0) % len(shape)
    nodes, start = [], 0
    for name, part in zip(node.outputs, shapes, strict=True):
        if part is None:
            return
        nodes.append(cut(draft, node, name, axis, start, start + part[axis]))
        start += part[axis]
    if start == shape[axis]:
        draft.put(node, nodes, f"Split → {len(nodes)} Slice")


def cut(draft: Draft, near: Node, target: str, axis: int, start: int, end: int) -> Node:
    """A Slice of the first input of a node: elements ``start`` up to ``end`` along one axis."""
    label = draft.label(f"{near.name}/Slice")
    if draft.graph.opset < _INPUTS_SINCE:
        given = {"axes": [axis], "starts": [start], "ends": [end]}
        return Node("Slice", (near.inputs[0],), (target,), given, label)
    numbers = ((start, "start"), (end, "end"), (axis, "axis"))
    stored = [draft.constant(np.array([number], np.int64), f"{label}_{what}") for number, what in numbers]
    return Node("Slice", (near.inputs[0], *stored), (target,), {}, label)


split_to_slices = each("split", {"Split": _split})


# Rearrangements that have a meaning: channels chosen, blocks of pixels laid into channels, and back.

_LIST = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Output pixel (y, x) of channel k is input pixel (y rows + row[k], x columns + column[k]) of channel channel[k].

    Attributes:
        rows, columns: size of a block; 1 and 1 where only channels are chosen.
        channel, row, column: one number per output channel.
    """

    rows: int
    columns: int
    channel: _LIST
    row: _LIST
    column: _LIST


@dataclass(frozen=True, slots=True, eq=False)
class Scattered:
    """Input channel k is laid into channel ``channel[k]``, at (row[k], column[k]) of each block; blocks tile it."""

    rows: int
    columns: int
    channel: _LIST
    row: _LIST
    column: _LIST


def gathered(move: Move) -> Gathered | None:
    """The move as a choice of channels and pixels; None where it is none."""
    _, channels, height, width = move.shape
    _, _, tall, wide = move.origin.shape
    if not tall or not wide or height % tall or width % wide or len(move.origin) != move.shape[0]:
        return None
    rows, columns = height // tall, width // wide
    first = move.origin[0, :, 0, 0]
    channel, row, column = first // (height * width), first // width % height, first % width
    if np.any(channel >= channels) or np.any(row >= rows) or np.any(column >= columns):
        return None
    down = (row[:, None] + np.arange(tall) * rows)[:, :, None]
    across = (column[:, None] + np.arange(wide) * columns)[:, None, :]
    expected = channel[:, None, None] * (height * width) + down * width + across
    return Gathered(rows, columns, channel, row, column) if _matches(move, expected) else None


def scattered(move: Move) -> Scattered | None:
    """The move as blocks of pixels made of channels; None where it is none, or the blocks are one pixel."""
    _, channels, height, width = move.shape
    _, planes, tall, wide = move.origin.shape
    if tall % height or wide % width or len(move.origin) != move.shape[0]:
        return None
    rows, columns = tall // height, wide // width
    if rows * columns == 1 or rows * columns * planes != channels:
        return None
    source = (move.origin[0] // (height * width)).reshape(planes, height, rows, width, columns)[:, 0, :, 0, :]
    if not np.array_equal(np.sort(source, axis=None), np.arange(channels)):
        return None
    pixels = np.arange(height * width).reshape(height, width)
    expected = source[:, None, :, None, :] * (height * width) + pixels[None, :, None, :, None]
    if not _matches(move, expected.reshape(planes, tall, wide)):
        return None
    place = np.argsort(source, axis=None)
    return Scattered(rows, columns, place // (rows * columns), place // columns % rows, place % columns)


def _matches(move: Move, expected: _LIST) -> bool:
    """Whether every image of the batch is rearranged in that way, and none takes pixels of another."""
    _, channels, height, width = move.shape
    starts = np.arange(move.shape[0])[:, None, None, None] * (channels * height * width)
    return bool(np.array_equal(move.origin, starts + expected))


MAX_WEIGHTS = 2**22
"""Elements of a kernel; larger rearrangements stay."""
MAX_STRIDE = 8
"""Of a convolution on a DLA: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/dla-layer-restrictions.html."""
_Writer = Callable[[Draft, Node, Move], bool]


def _rearrangement(name: str, write: _Writer) -> Callable[[Graph], Result]:
    """A rewrite that shows every rearranged tensor that something computes with to the writer."""

    def apply(graph: Graph) -> Result:
        if not any(node.op in MOVERS and node.op != "Concat" for node in graph.nodes):
            return graph, ()
        draft = Draft(graph, name)
        tracer = Tracer(draft)
        for node in graph.nodes:
            if tracer.is_moved(node) and _is_used(draft, tracer, node):
                move = tracer.move(node.outputs[0]) if len(node.outputs) == 1 else None
                if move is not None:
                    write(draft, node, move)
        return draft.done()

    return apply


def _is_used(draft: Draft, tracer: Tracer, node: Node) -> bool:
    """Whether anything but a further move reads what the node gives."""
    readers = draft.graph.consumers.get(node.outputs[0], ())
    return node.outputs[0] in draft.graph.output_names or any(not tracer.is_moved(reader) for reader in readers)


def _choose(draft: Draft, node: Node, move: Move) -> bool:
    """Channels, of whole images."""
    found = gathered(move)
    if found is None or found.rows * found.columns > 1:
        return False
    channels, chosen = move.shape[1], found.channel
    if np.array_equal(chosen, np.arange(channels)):
        return draft.bypass(node, move.source, "gives all channels in order")
    if np.array_equal(chosen, np.arange(len(chosen)) + chosen[0]):
        return _slice(draft, node, move, int(chosen[0]))
    return _convolve(draft, node, move, found, f"{len(chosen)} of {channels} channels in a new order")


def _slice(draft: Draft, node: Node, move: Move, start: int) -> bool:
    if node.op == "Slice" and node.inputs[0] == move.source:
        return False
    near = Node(node.op, (move.source,), node.outputs, name=node.name)
    end = start + move.origin.shape[1]
    draft.put(node, [cut(draft, near, node.outputs[0], 1, start, end)], f"channels {start} to {end - 1} → Slice")
    return True


def _fold_space(draft: Draft, node: Node, move: Move) -> bool:
    """Blocks of pixels into channels."""
    found = gathered(move)
    if found is None or found.rows * found.columns == 1 or max(found.rows, found.columns) > MAX_STRIDE:
        return False
    in_order = np.array_equal(found.channel, np.arange(move.shape[1]))
    if in_order and not found.row.any() and not found.column.any():
        chain, side = Chain(draft, node, move.source), [found.rows, found.columns]
        chain.then("MaxPool", move.origin.shape, kernel_shape=[1, 1], strides=side, pads=[0, 0, 0, 0])
        chain.end("pixels left out → MaxPool over one pixel")
        return True
    what = f"blocks of {found.rows}x{found.columns} pixels into {len(found.channel)} channels"
    return _convolve(draft, node, move, found, what)


def _convolve(draft: Draft, node: Node, move: Move, found: Gathered, what: str) -> bool:
    shape = (len(found.channel), move.shape[1], found.rows, found.columns)
    if np.prod(shape) > MAX_WEIGHTS:
        return False
    weight = np.zeros(shape)
    weight[np.arange(len(found.channel)), found.channel, found.row, found.column] = 1
    chain, side = Chain(draft, node, move.source), [found.rows, found.columns]
    chain.then("Conv", move.origin.shape, chain.store(weight, "weight"), kernel_shape=side, strides=side)
    chain.end(f"{what} → Conv {side[0]}x{side[1]}")
    return True


def _unfold_space(draft: Draft, node: Node, move: Move) -> bool:
    """Channels into blocks of pixels."""
    found = scattered(move)
    return found is not None and _spread(draft, node, move, found)


def _spread(draft: Draft, node: Node, move: Move, found: Scattered) -> bool:
    shape = (move.shape[1], move.origin.shape[1], found.rows, found.columns)
    if np.prod(shape) > MAX_WEIGHTS:
        return False
    weight = np.zeros(shape)
    weight[np.arange(move.shape[1]), found.channel, found.row, found.column] = 1
    chain, side = Chain(draft, node, move.source), [found.rows, found.columns]
    chain.then("ConvTranspose", move.origin.shape, chain.store(weight, "weight"), kernel_shape=side, strides=side)
    chain.end(f"{move.shape[1]} channels into blocks of {side[0]}x{side[1]} pixels → ConvTranspose")
    return True


fold_space = _rearrangement("space-to-depth", _fold_space)
unfold_space = _rearrangement("depth-to-space", _unfold_space)
choose_channels = _rearrangement("channel-shuffle", _choose)


# A rearrangement written as a convolution, merged into the convolution behind it.
#
# A Conv of k x k pixels over blocks of s x s laid into channels is one of (s k) x (s k) over the image itself, with
# the same weights in other places and s times the stride and padding: the Focus layer of YOLO and its first Conv
# become one.


@dataclass(frozen=True, slots=True)
class _Choice:
    """A Conv with one 1 in each filter and zeros elsewhere; ``weight`` is (K, C, rows, columns)."""

    source: str
    weight: Array

    @property
    def block(self) -> Pair:
        return self.weight.shape[2], self.weight.shape[3]


def _merge(draft: Draft, node: Node) -> None:
    choice, weight = _choice_before(draft, node), draft.value(node.inputs[1])
    if choice is None or weight is None or weight.ndim != 4 or node.attributes.get("group", 1) != 1:
        return
    window, ends = window_of(draft, node, (weight.shape[2], weight.shape[3])), draft.shape(node.outputs[0])
    given = None if window is None else _attributes(choice.block, window)
    if ends is None or given is None or not _pays(draft, node, choice, weight, ends):
        return
    merged = _merged(choice, weight)
    chain = Chain(draft, node, choice.source)
    chain.then("Conv", ends, chain.store(merged, "weight"), *node.inputs[2:], **given)
    sizes = " → ".join(f"{kernel.shape[2]}x{kernel.shape[3]}" for kernel in (weight, merged))
    chain.end(f"{sizes}, does the rearrangement before it, too")


def _choice_before(draft: Draft, node: Node) -> _Choice | None:
    """The rearrangement that only this node reads."""
    first = draft.before(node.inputs[0])
    weight = None if first is None or first.op != "Conv" else draft.value(first.inputs[1])
    if first is None or weight is None or weight.ndim != 4 or not draft.graph.is_private(node.inputs[0]):
        return None
    window = window_of(draft, first, (weight.shape[2], weight.shape[3]))
    whole = window is not None and window.strides == window.kernel and not window.is_padded and window.is_dense
    plain = len([name for name in first.inputs if name]) == 2 and first.attributes.get("group", 1) == 1
    return _Choice(first.inputs[0], weight) if whole and plain and _is_choice(weight) else None


def _is_choice(weight: Array) -> bool:
    flat = weight.reshape(len(weight), -1)
    return bool(np.all(np.count_nonzero(flat, axis=1) == 1) and np.all(flat.max(axis=1) == 1))


def _attributes(block: Pair, window: Window) -> dict[str, Any] | None:
    """Of the merged Conv; None where a DLA would not take it."""
    rows, columns = block
    kernel = (window.kernel[0] * rows, window.kernel[1] * columns)
    strides = (window.strides[0] * rows, window.strides[1] * columns)
    spread = block != (1, 1) and not window.is_dense
    if spread or max(kernel) > MAX_KERNEL or max(strides) > MAX_STRIDE:
        return None
    pads = [pad * step for pad, step in zip(window.pads, (*block, *block), strict=True)]
    given = {"kernel_shape": list(kernel), "strides": list(strides), "pads": pads}
    return {**given, "dilations": list(window.dilations)}


def _pays(draft: Draft, node: Node, choice: _Choice, weight: Array, ends: tuple[int, ...]) -> bool:
    """Whether the merged Conv takes no more multiply-adds than the two."""
    between = draft.shape(node.inputs[0]) or ()
    inputs_px, outputs_px = np.prod(between[2:]), np.prod(ends[2:])
    merged = weight.size // weight.shape[1] * choice.weight[0].size
    return bool(merged * outputs_px <= choice.weight.size * inputs_px + weight.size * outputs_px)


def _merged(choice: _Choice, weight: Array) -> Array:
    """Weight (m, k, i, j) goes to (m, channel of k, rows i + row of k, columns j + column of k)."""
    filters, _, tall, wide = weight.shape
    rows, columns = choice.block
    placed = np.einsum("mkij,kcyx->mciyjx", weight, choice.weight)  # sums of one number and zeros: exact
    merged: Array = placed.reshape(filters, choice.weight.shape[1], tall * rows, wide * columns)
    return merged


merge_rearrangements = each("merge-rearrangement", {"Conv": _merge})
