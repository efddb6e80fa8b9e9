"""Rearrangements as convolutions with weights of 0 and 1, which a DLA can do, and a CPU does in one go.

- channels chosen or shuffled (ShuffleNet): a 1x1 Conv;
- blocks of pixels laid into channels (the Focus layer of YOLO, SpaceToDepth): a Conv whose stride is its kernel;
- channels laid into blocks of pixels (DepthToSpace, pixel shuffle): a ConvTranspose whose stride is its kernel;
- pixels left out: a MaxPool over one pixel.
Each output is one input times 1, plus zeros: the result is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgert.graph.draft import Chain, Draft
from edgert.graph.fit.movement import MOVERS, Move, Tracer
from edgert.graph.fit.pattern import Gathered, Scattered, gathered, scattered
from edgert.graph.fit.split import cut
from edgert.graph.node import Graph, Node
from edgert.graph.rewrite import Result

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
