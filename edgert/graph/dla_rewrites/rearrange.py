"""Rewrites of rearrangements into convolutions with weights of 0 and 1, which a DLA supports.

- Selected or shuffled channels (ShuffleNet) become a 1x1 Conv.
- Blocks of pixels moved into channels (Focus layer of YOLO, SpaceToDepth) become a Conv with stride = kernel.
- Channels moved into blocks of pixels (DepthToSpace, pixel shuffle) become a ConvTranspose with stride = kernel.
- Subsampled pixels become a MaxPool over one pixel.

Each output is one input times 1, plus zeros, so the result is bit-exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dla import LIMITS, Window
from edgert.graph.dla_rewrites.layout_moves import MOVERS, Move, Tracer
from edgert.graph.dla_rewrites.pooling import MAX_KERNEL, Size, window_of
from edgert.graph.draft import FLOATS, Chain, Draft, rewrite
from edgert.graph.ir import Graph, Node, Pass, Result
from edgert.graph.model import Array


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
        nodes.append(slice_node(draft, node, node.inputs[0], name, axis, start, start + part[axis]))
        start += part[axis]
    if start == shape[axis]:
        draft.replace(node, nodes, f"Split → {len(nodes)} Slice")


def slice_node(draft: Draft, node: Node, source: str, target: str, axis: int, start: int, end: int) -> Node:
    """Return a Slice, named after ``node``, of elements ``start`` up to ``end`` along an axis."""
    label = draft.label(f"{node.name}/Slice")
    numbers = ((start, "start"), (end, "end"), (axis, "axis"))
    stored = [draft.add_constant(np.array([number], np.int64), f"{label}_{what}") for number, what in numbers]
    return Node("Slice", (source, *stored), (target,), {}, label)


SPLIT = rewrite("split", "Split becomes one Slice for each part", {"Split": _split})


_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Space-to-depth or depth-to-space rearrangement in blocks that tile the image.

    From space to depth, output pixel (y, x) of channel k is input pixel (y rows + row[k], x columns + column[k]) of
    channel[k]. From depth to space, input channel k goes to channel[k], at (row[k], column[k]) of each block.

    Attributes:
        rows: height of a block in pixels; 1 where channels are only selected.
        columns: width of a block in pixels; 1 where channels are only selected.
        channel: channel on the side with fewer of them, for each channel of the other side.
        row: row within the block, for each of the same channels.
        column: column within the block, for each of the same channels.
    """

    rows: int
    columns: int
    channel: _Indices
    row: _Indices
    column: _Indices


def as_space_to_depth(move: Move) -> Blocks | None:
    """Return the move as a selection of channels and pixels; None where it is not one."""
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
    return Blocks(rows, columns, channel, row, column) if _matches(move, expected) else None


def as_depth_to_space(move: Move) -> Blocks | None:
    """Return the move as blocks of pixels from channels; None where it is not that, or a block has one pixel."""
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
    return Blocks(rows, columns, place // (rows * columns), place // columns % rows, place % columns)


def _matches(move: Move, expected: _Indices) -> bool:
    """Return whether every image of the batch is rearranged as expected, from its own pixels only."""
    _, channels, height, width = move.shape
    starts = np.arange(move.shape[0])[:, None, None, None] * (channels * height * width)
    return bool(np.array_equal(move.origin, starts + expected))


MAX_WEIGHTS = 2**22
"""Largest kernel, in elements; larger rearrangements stay as they are."""
MAX_STRIDE = LIMITS["conv.stride"].high
_Writer = Callable[[Draft, Node, Move], object]


def _rearrangement(name: str, does: str, write: _Writer, *, grows: bool = True) -> Pass:
    """Return a pass that calls ``write`` for each rearranged tensor that is an output, or read by more than moves."""

    def apply(graph: Graph) -> Result:
        if not any(node.op in MOVERS and node.op != "Concat" for node in graph.nodes):
            return graph, ()
        draft = Draft(graph, name)
        tracer = Tracer(draft)
        for node in graph.nodes:
            if not tracer.is_moved(node) or len(node.outputs) > 1:
                continue
            readers = graph.consumers.get(node.outputs[0], ())
            is_used = node.outputs[0] in graph.output_names or any(not tracer.is_moved(reader) for reader in readers)
            move = tracer.move(node.outputs[0]) if is_used else None
            if move is not None:
                write(draft, node, move)
        return draft.finish()

    return Pass(name, does, apply, grows)


def _select_channels(draft: Draft, node: Node, move: Move) -> None:
    found = as_space_to_depth(move)
    if found is None or found.rows * found.columns > 1:
        return
    channels, chosen = move.shape[1], found.channel
    if np.array_equal(chosen, np.arange(channels)):
        draft.bypass(node, move.source, "gives all channels in order")
    elif not np.array_equal(chosen, np.arange(len(chosen)) + chosen[0]):
        what = f"{len(chosen)} of {channels} channels in a new order → Conv 1x1"
        _replace_by_conv(draft, node, move, found, "Conv", what)
    elif node.op != "Slice" or node.inputs[0] != move.source:
        start, end = int(chosen[0]), int(chosen[0]) + move.origin.shape[1]
        part = slice_node(draft, node, move.source, node.outputs[0], 1, start, end)
        draft.replace(node, [part], f"channels {start} to {end - 1} → Slice")


def _fold_space(draft: Draft, node: Node, move: Move) -> None:
    found = as_space_to_depth(move)
    if found is None or found.rows * found.columns == 1 or max(found.rows, found.columns) > MAX_STRIDE:
        return
    side = (found.rows, found.columns)
    if np.array_equal(found.channel, np.arange(move.shape[1])) and not found.row.any() and not found.column.any():
        chain = Chain(draft, node, move.source).pool("MaxPool", move.origin.shape, (1, 1), side)
        chain.end("pixels left out → MaxPool over one pixel")
        return
    what = f"blocks of {side[0]}x{side[1]} pixels into {len(found.channel)} channels → Conv {side[0]}x{side[1]}"
    _replace_by_conv(draft, node, move, found, "Conv", what)


def _unfold_space(draft: Draft, node: Node, move: Move) -> None:
    found = as_depth_to_space(move)
    if found is not None:
        what = f"{move.shape[1]} channels into blocks of {found.rows}x{found.columns} pixels → ConvTranspose"
        _replace_by_conv(draft, node, move, found, "ConvTranspose", what)


def _replace_by_conv(draft: Draft, node: Node, move: Move, found: Blocks, op: str, what: str) -> None:
    fewer = move.shape[1] if op == "Conv" else move.origin.shape[1]
    shape = (len(found.channel), fewer, found.rows, found.columns)
    if np.prod(shape) <= MAX_WEIGHTS:
        weight = np.zeros(shape)
        weight[np.arange(len(found.channel)), found.channel, found.row, found.column] = 1
        chain = Chain(draft, node, move.source)
        chain.conv(move.origin.shape, weight, op=op, strides=[found.rows, found.columns]).end(what)


SPACE_TO_DEPTH = _rearrangement(
    "space-to-depth",
    "blocks of pixels laid into channels (Focus, SpaceToDepth) become a Conv whose stride is its kernel",
    _fold_space,
    grows=False,
)
DEPTH_TO_SPACE = _rearrangement(
    "depth-to-space",
    "channels laid into blocks of pixels become a ConvTranspose whose stride is its kernel",
    _unfold_space,
)
CHANNEL_SHUFFLE = _rearrangement(
    "channel-shuffle",
    "channels put in another order (ShuffleNet) or picked out by Gather become a 1x1 Conv or a Slice",
    _select_channels,
)


# A rearrangement written as a convolution is merged into the convolution behind it.
#
# A Conv of k x k pixels over blocks of s x s moved into channels equals one of (s k) x (s k) over the image. It has the
# same weights in other places, and s times the stride and padding. The Focus layer of YOLO and its first Conv merge.


def _merge(draft: Draft, node: Node) -> None:
    weight = draft.value(node.inputs[1])
    source, choice = _selection_before(draft, node)
    if choice is None or weight is None or weight.ndim != 4 or node.attributes.get("group", 1) != 1:
        return
    window, ends = window_of(draft, node), draft.shape(node.outputs[0])
    given = None if window is None else _merged_attributes((choice.shape[2], choice.shape[3]), window)
    if ends is None or given is None or not _saves_work(draft, node, choice, weight, ends):
        return
    # weight (m, k, i, j) goes to (m, channel of k, rows i + row of k, columns j + column of k)
    placed = np.einsum("mkij,kcyx->mciyjx", weight, choice)  # sums of one number and zeros: exact
    sides = [one * two for one, two in zip(weight.shape[2:], choice.shape[2:], strict=True)]
    merged = placed.reshape(len(weight), choice.shape[1], *sides)
    chain = Chain(draft, node, source)
    chain.then("Conv", ends, chain.store(merged, "weight"), *node.inputs[2:], **given)
    chain.end(f"{weight.shape[2]}x{weight.shape[3]} → {sides[0]}x{sides[1]}, does the rearrangement before it, too")


def _selection_before(draft: Draft, node: Node) -> tuple[str, Array | None]:
    """Return the source of a rearranging Conv that only this node reads, and its weights (K, C, rows, columns).

    The weights have a single 1 per filter. They are None where there is no such Conv.
    """
    first = draft.producer(node.inputs[0])
    weight = None if first is None or first.op != "Conv" else draft.value(first.inputs[1])
    if first is None or weight is None or weight.ndim != 4 or not draft.graph.is_private(node.inputs[0]):
        return "", None
    window, flat = window_of(draft, first), weight.reshape(len(weight), -1)
    tiles = window is not None and window == Window(window.kernel, window.kernel)
    plain = len([name for name in first.inputs if name]) == 2 and first.attributes.get("group", 1) == 1
    is_choice = np.all(np.count_nonzero(flat, axis=1) == 1) and np.all(flat.max(axis=1) == 1)
    return first.inputs[0], weight if tiles and plain and is_choice else None


def _merged_attributes(block: Size, window: Window) -> dict[str, Any] | None:
    """Return the attributes of the merged Conv; None where a DLA does not support it."""
    kernel, strides, pads = (
        [size * step for size, step in zip(sizes, block * 2, strict=False)]
        for sizes in (window.kernel, window.stride, window.padding)
    )
    spread = block != (1, 1) and window.dilation != (1, 1)
    if spread or max(kernel) > MAX_KERNEL or max(strides) > MAX_STRIDE:
        return None
    return {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": list(window.dilation)}


def _saves_work(draft: Draft, node: Node, choice: Array, weight: Array, ends: tuple[int, ...]) -> bool:
    """Return whether the merged Conv takes no more multiply-adds than the two it replaces."""
    between = draft.shape(node.inputs[0]) or ()
    inputs_px, outputs_px = np.prod(between[2:]), np.prod(ends[2:])
    merged = weight.size // weight.shape[1] * choice[0].size
    return bool(merged * outputs_px <= choice.size * inputs_px + weight.size * outputs_px)


MERGE_REARRANGEMENT = rewrite(
    "merge-rearrangement",
    "a Conv that only rearranges is merged into the Conv behind it, where that takes no more multiply-adds",
    {"Conv": _merge},
    grows=False,
)
