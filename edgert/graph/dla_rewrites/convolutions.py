"""Rewrites around convolutions: padding before them, matrix products as convolutions, and slices behind them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from dla import Window
from edgert.graph.dla_rewrites.layout_moves import Tracer
from edgert.graph.dla_rewrites.pooling import MAX_KERNEL, window_of
from edgert.graph.dla_rewrites.rearrange import as_space_to_depth
from edgert.graph.draft import Chain, Draft, rewrite
from edgert.graph.ir import Graph, Node, Pass, Result
from edgert.graph.model import Array
from edgert.graph.operators import POINTWISE, RESHAPES, non_negative

# Padding before a convolution or pooling becomes part of it.
#
# This is exact where both pad with the same value: zero for a Conv, and for an AveragePool that counts its padding;
# minus infinity for a MaxPool, or zero where no value is below zero.

_LOWEST = -3e38  # the most negative float32 is -3.4e38


def _fold_pad(draft: Draft, node: Node) -> None:
    pad = draft.producer(node.inputs[0])
    if pad is None or pad.op != "Pad":
        return
    window = window_of(draft, node)
    around = _image_pads(draft, pad)
    if window is None or around is None or not _pads_alike(draft, node, pad, window):
        return
    pads = [own + added for own, added in zip(window.padding, around, strict=True)]
    if any(pad_px >= size for pad_px, size in zip(pads, window.reach * 2, strict=True)):
        return
    given: dict[str, Any] = {key: value for key, value in node.attributes.items() if key != "auto_pad"}
    given["pads"] = pads
    if node.op == "AveragePool":
        given["count_include_pad"] = 1
    inputs = (pad.inputs[0], *node.inputs[1:])
    padded = replace(node, inputs=inputs, attributes=given)
    draft.replace(node, [padded], f"takes in the padding {around} of {pad.name!r}")


def _image_pads(draft: Draft, pad: Node) -> list[int] | None:
    """Return top, left, bottom and right in pixels; None for a Pad that does anything else."""
    pads = draft.integers(pad, "pads", 1)
    shape = draft.image(pad.inputs[0])
    if pads is None or shape is None or pad.attributes.get("mode", b"constant") != b"constant":
        return None
    axes = draft.integers(pad, "axes", 3)
    if axes is not None:
        given, count = pads, len(axes)
        pads = [0] * 8
        for position, axis in enumerate(axes):
            pads[axis % 4], pads[axis % 4 + 4] = given[position], given[position + count]
    inner = [pads[2], pads[3], pads[6], pads[7]]
    return inner if min(inner) >= 0 and not any((*pads[:2], *pads[4:6])) else None


def _pads_alike(draft: Draft, node: Node, pad: Node, window: Window) -> bool:
    value = _pad_value(draft, pad)
    if value is None:
        return False
    if node.op == "MaxPool":
        return value <= _LOWEST or (value == 0 and pad.inputs[0] in non_negative(draft.graph))
    if node.op == "Conv":
        return value == 0
    counts = not any(window.padding) or bool(node.attributes.get("count_include_pad", 0))
    return value == 0 and counts and not node.attributes.get("ceil_mode", 0)


def _pad_value(draft: Draft, pad: Node) -> float | None:
    """Return the value with which a Pad fills; None where it is computed."""
    if len(pad.inputs) < 3 or not pad.inputs[2]:
        return 0.0
    stored = draft.value(pad.inputs[2])
    return None if stored is None else float(stored.reshape(-1)[0]) if np.size(stored) else 0.0


PAD = rewrite(
    "pad",
    "Pad becomes the padding of the Conv, AveragePool or MaxPool behind it",
    {"Conv": _fold_pad, "AveragePool": _fold_pad, "MaxPool": _fold_pad},
    grows=False,
)


# Matrix products with stored weights become convolutions, so that layers between them stay in four dimensions.
#
# A product with a (K, M) matrix is a convolution of a (N, K, 1, 1) tensor with M filters of one pixel. Where the (N, K)
# operand is a flattened (N, C, H, W) tensor, it is a convolution of the image with filters of H x W pixels.

_TO_NHWC = [0, 2, 3, 1]


def _gemm(draft: Draft, node: Node) -> None:
    matrix = draft.value(node.inputs[1])
    if matrix is None or matrix.ndim != 2 or node.attributes.get("transA", 0) or matrix.dtype.kind != "f":
        return
    matrix = matrix.T if node.attributes.get("transB", 0) else matrix
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        stored = draft.value(node.inputs[2])
        if stored is None or stored.size not in (1, matrix.shape[1]) or stored.shape[-1:] not in ((), (stored.size,)):
            return
        bias = np.broadcast_to(stored.reshape(-1) * node.attributes.get("beta", 1.0), matrix.shape[1:])
    _replace_by_conv(draft, node, matrix * node.attributes.get("alpha", 1.0), bias)


def _matmul(draft: Draft, node: Node) -> None:
    matrix = draft.value(node.inputs[1])
    if matrix is None or matrix.ndim != 2 or matrix.dtype.kind != "f":
        return
    shape = draft.shape(node.inputs[0])
    if shape is not None and len(shape) == 4:
        _replace_by_pointwise_conv(draft, node, matrix)
    else:
        _replace_by_conv(draft, node, matrix, None)


def _replace_by_conv(draft: Draft, node: Node, matrix: Array, bias: Array | None) -> None:
    """Replace a product of a (N, K) tensor with a (K, M) ``matrix``, plus (M,) ``bias``, by a convolution.

    The caller has multiplied both by the node's factors alpha and beta.
    """
    shape = draft.shape(node.inputs[0])
    depth, filters = matrix.shape
    if shape is None or len(shape) != 2 or shape[1] != depth or draft.value(node.inputs[0]) is not None:
        return
    source, size = _image_behind(draft, node.inputs[0], shape)
    chain = Chain(draft, node, source)
    if size is None:
        chain.reshape((shape[0], depth, 1, 1))
        size = (depth, 1, 1)
    chain.conv((shape[0], filters, 1, 1), matrix.T.reshape(filters, *size), bias).reshape((shape[0], filters))
    chain.end(f"{node.op} {depth} → {filters} as Conv {size[1]}x{size[2]}")


def _image_behind(draft: Draft, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, int, int] | None]:
    """Return the image of which a (N, K) tensor is a flat view, and its (C, H, W); else the tensor and None."""
    view = draft.graph.producers.get(name)
    if view is None or view.op not in RESHAPES or view.domain:
        return name, None
    image = draft.image(view.inputs[0])
    if image is None or image[0] != shape[0] or max(image[2:]) > MAX_KERNEL:
        return name, None
    return view.inputs[0], image[1:]


def _replace_by_pointwise_conv(draft: Draft, node: Node, matrix: Array) -> None:
    """Replace a product over the channels of an image transposed to (N, H, W, C) by a 1x1 Conv."""
    turn = draft.producer(node.inputs[0])
    if turn is None or turn.op != "Transpose" or list(turn.attributes.get("perm", [])) != _TO_NHWC:
        return
    image = draft.image(turn.inputs[0])
    if image is None:
        return
    chain = Chain(draft, node, turn.inputs[0])
    filters, size = matrix.shape[1], (image[2], image[3])
    chain.conv((image[0], filters, *size), matrix.T.reshape(*matrix.T.shape, 1, 1))
    chain.then("Transpose", (image[0], *size, filters), perm=_TO_NHWC)
    chain.end(f"MatMul {matrix.shape[0]} → {filters} over channels as 1x1 Conv")


DENSE = rewrite(
    "dense",
    "Gemm and MatMul with stored weights become Conv",
    {"Gemm": _gemm, "MatMul": _matmul},
)


# A convolution whose channels are sliced becomes one convolution per slice.
#
# Each part gets its own filters, so the work stays the same. Elementwise nodes in between (the Sigmoid and Mul of SiLU
# in the C2f and C3k2 blocks of YOLO) are applied to each part.

_ELEMENTWISE = POINTWISE - {"PRelu"}  # its slopes have a shape
_PAIRED = ("Add", "Div", "Max", "Min", "Mul", "Sub")


def _split_convolutions(graph: Graph) -> Result:
    """Replace each Conv whose channels are only sliced or split by one Conv per slice."""
    draft = Draft(graph, "conv-parts")
    tracer = Tracer(draft)
    for node in graph.nodes:
        if node.op == "Conv" and not node.domain and node.attributes.get("group", 1) == 1:
            _split_conv(draft, tracer, node)
    return draft.finish()


def _split_conv(draft: Draft, tracer: Tracer, conv: Node) -> None:
    between, readers = _nodes_until_slices(draft, conv)
    names = [name for reader in readers for name in reader.outputs if name]
    ranges = {name: found for name in names if (found := _channel_range(tracer, name)) is not None}
    in_order = sorted(ranges.values(), key=lambda item: item.start)
    overlap = any(one.stop > two.start for one, two in pairwise(in_order))  # shared channels would be computed twice
    if len(ranges) < len(names) or overlap or any(draft.value(name) is None for name in conv.inputs[1:] if name):
        return
    for reader in readers:
        parts = [
            node
            for name in reader.outputs
            if name
            for node in _partial_chain(draft, (conv, *between), reader.inputs[0], name, ranges[name])
        ]
        draft.replace(reader, parts, f"its {len(ranges)} part(s) computed by filters of {conv.name!r} of their own")


def _nodes_until_slices(draft: Draft, conv: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the elementwise nodes behind a Conv, in order, and the Slices and Splits of their result.

    Both are empty where anything else reads one of these tensors.
    """
    graph, computed, between, cuts = draft.graph, [conv.outputs[0]], list[Node](), dict[int, Node]()
    for name in computed:  # grows in the loop
        readers = graph.consumers.get(name, ())
        if name in graph.output_names or name in graph.captured or not readers:
            return (), ()
        for reader in readers:
            if reader.op in ("Slice", "Split") and reader.inputs[0] == name:
                cuts[id(reader)] = reader
            elif not _is_by_element(draft, reader):
                return (), ()
            elif reader not in between:
                between.append(reader)
                computed.append(reader.outputs[0])
    known = {*computed, *graph.constants}
    if len({cut.inputs[0] for cut in cuts.values()}) > 1 or any(not known.issuperset(node.reads) for node in between):
        return (), ()
    order = {id(node): place for place, node in enumerate(graph.nodes)}
    return tuple(sorted(between, key=lambda node: order[id(node)])), tuple(cuts.values())


def _is_by_element(draft: Draft, node: Node) -> bool:
    """Return whether a node is elementwise, with stored operands of one number only."""
    shared = all(stored.size == 1 for name in node.inputs if name and (stored := draft.value(name)) is not None)
    return not node.domain and draft.is_free(node) and shared and node.op in (*_ELEMENTWISE, *_PAIRED)


def _channel_range(tracer: Tracer, name: str) -> range | None:
    """Return the channels that a slice selects; None where it selects anything else."""
    move = tracer.move(name)
    found = None if move is None else as_space_to_depth(move)
    if found is None or found.rows * found.columns > 1:
        return None
    first, last = int(found.channel[0]), int(found.channel[-1])
    return range(first, last + 1) if len(found.channel) == last - first + 1 else None


def _partial_chain(draft: Draft, nodes: Sequence[Node], last: str, target: str, chosen: range) -> Iterator[Node]:
    """Yield copies of a Conv, with the chosen filters, and of the nodes behind it; the last writes ``target``."""
    shape, renamed = draft.shape(target) or (), {last: target}
    for node in nodes:
        name = node.outputs[0]
        if name not in renamed:
            renamed[name] = draft.tensor(f"{target}_{node.op.lower()}", shape, draft.dtype(target))
        made = _conv_with_filters(draft, node, chosen) if node.op == "Conv" else node
        label = draft.label(f"{node.name}/{node.op}")
        inputs = tuple(renamed.get(read, read) for read in made.inputs)
        yield replace(made, inputs=inputs, outputs=(renamed[name],), name=label)


def _conv_with_filters(draft: Draft, conv: Node, chosen: range) -> Node:
    stored = []
    for given, what in zip(conv.inputs[1:], ("weight", "bias"), strict=False):
        array = draft.value(given) if given else None
        if array is not None:
            stored.append(draft.add_constant(array[chosen.start : chosen.stop], f"{conv.name}/Conv_{what}"))
    return replace(conv, inputs=(conv.inputs[0], *stored))


CONV_PARTS = Pass(
    "conv-parts",
    "a Conv whose channels are sliced apart, at once or behind its activation, becomes one Conv for each part",
    _split_convolutions,
    grows=True,
)
