"""Work that becomes part of convolutions: padding in front of them, matrix products, and slices behind them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from edgert.graph.dla_rewrites.layout_moves import Tracer
from edgert.graph.dla_rewrites.pooling import MAX_KERNEL, Window, window_of
from edgert.graph.dla_rewrites.rearrange import gathered
from edgert.graph.draft import Chain, Draft, each
from edgert.graph.ir import Graph, Node, Result
from edgert.graph.model import Array
from edgert.graph.operators import RESHAPES, non_negative

# Padding in front of a convolution or pooling, made part of it.
#
# Exact where both write the same value around the image: zero for a Conv, and for an AveragePool that counts its
# padding; minus infinity for a MaxPool, or zero where no value can be below zero.

_LOWEST = -3e38  # the most negative float32 is -3.4e38


def _fold(draft: Draft, node: Node) -> None:
    pad = draft.before(node.inputs[0])
    if pad is None or pad.op != "Pad":
        return
    window = window_of(draft, node, _kernel(draft, node))
    around = _pads(draft, pad)
    if window is None or around is None or not _is_same_value(draft, node, pad, window):
        return
    pads = [own + added for own, added in zip(window.pads, around, strict=True)]
    reach = [(size - 1) * step + 1 for size, step in zip(window.kernel, window.dilations, strict=True)]
    if any(pad_px >= size for pad_px, size in zip(pads, reach * 2, strict=True)):
        return
    given: dict[str, Any] = {key: value for key, value in node.attributes.items() if key != "auto_pad"}
    given["pads"] = pads
    if node.op == "AveragePool":
        given["count_include_pad"] = 1
    inputs = (pad.inputs[0], *node.inputs[1:])
    draft.put(node, [replace(node, inputs=inputs, attributes=given)], f"takes in the padding {around} of {pad.name!r}")


def _kernel(draft: Draft, node: Node) -> tuple[int, int] | None:
    shape = draft.shape(node.inputs[1]) if node.op == "Conv" else None
    return (shape[2], shape[3]) if shape is not None and len(shape) == 4 else None


def _pads(draft: Draft, pad: Node) -> list[int] | None:
    """Top, left, bottom, right; None for a Pad that does anything else."""
    pads = draft.integers(pad, "pads", 1)
    shape = draft.image(pad.inputs[0])
    if pads is None or shape is None or pad.attributes.get("mode", b"constant") != b"constant":
        return None
    axes = draft.integers(pad, "axes", 3)
    if axes is not None:
        pads = _on_all_axes(pads, axes)
    inner = [pads[2], pads[3], pads[6], pads[7]]
    return inner if min(inner) >= 0 and not any((*pads[:2], *pads[4:6])) else None


def _on_all_axes(pads: list[int], axes: list[int]) -> list[int]:
    full, count = [0] * 8, len(axes)
    for position, axis in enumerate(axes):
        full[axis % 4], full[axis % 4 + 4] = pads[position], pads[position + count]
    return full


def _is_same_value(draft: Draft, node: Node, pad: Node, window: Window) -> bool:
    value = _value(draft, pad)
    if value is None:
        return False
    if node.op == "MaxPool":
        return value <= _LOWEST or (value == 0 and pad.inputs[0] in non_negative(draft.graph))
    if node.op == "Conv":
        return value == 0
    counts = not window.is_padded or bool(node.attributes.get("count_include_pad", 0))
    return value == 0 and counts and not window.ceil


def _value(draft: Draft, pad: Node) -> float | None:
    """What is written around the image; None where that is computed."""
    if len(pad.inputs) < 3 or not pad.inputs[2]:
        return float(pad.attributes.get("value", 0.0))
    stored = draft.value(pad.inputs[2])
    return None if stored is None else float(stored.reshape(-1)[0]) if np.size(stored) else 0.0


fold_pad = each("pad", {"Conv": _fold, "AveragePool": _fold, "MaxPool": _fold})


# Matrix products with stored weights as convolutions, and the layers between them kept in four dimensions.
#
# A product with a (K, M) matrix is a convolution of a (N, K, 1, 1) tensor with M filters of one pixel. Where the (N, K)
# operand is a (N, C, H, W) tensor laid flat, it is one of the image itself with filters of H x W pixels.

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
    _convolve(draft, node, matrix * node.attributes.get("alpha", 1.0), bias)


def _matmul(draft: Draft, node: Node) -> None:
    matrix = draft.value(node.inputs[1])
    if matrix is None or matrix.ndim != 2 or matrix.dtype.kind != "f":
        return
    shape = draft.shape(node.inputs[0])
    if shape is not None and len(shape) == 4:
        _convolve_last(draft, node, matrix)
    else:
        _convolve(draft, node, matrix, None)


def _convolve(draft: Draft, node: Node, matrix: Array, bias: Array | None) -> None:
    """A product of a (N, K) tensor with a (K, M) ``matrix``, plus (M,) ``bias``; both scaled by the node's factors."""
    shape = draft.shape(node.inputs[0])
    depth, filters = matrix.shape
    if shape is None or len(shape) != 2 or shape[1] != depth or draft.value(node.inputs[0]) is not None:
        return
    source, size = _image_behind(draft, node.inputs[0], shape)
    chain = Chain(draft, node, source)
    if size is None:
        chain.reshape((shape[0], depth, 1, 1))
        size = (depth, 1, 1)
    weight = chain.store(matrix.T.reshape(filters, *size), "weight")
    stored = () if bias is None else (chain.store(bias, "bias"),)
    chain.then("Conv", (shape[0], filters, 1, 1), weight, *stored, kernel_shape=list(size[1:]))
    chain.reshape((shape[0], filters))
    chain.end(f"{node.op} {depth} → {filters} as Conv {size[1]}x{size[2]}")


def _image_behind(draft: Draft, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, int, int] | None]:
    """The (N, C, H, W) tensor that a (N, K) tensor is a flat view of, and C, H, W; the tensor itself if of none."""
    view = draft.graph.producers.get(name)
    if view is None or view.op not in RESHAPES or view.domain:
        return name, None
    image = draft.image(view.inputs[0])
    if image is None or image[0] != shape[0] or max(image[2:]) > MAX_KERNEL:
        return name, None
    return view.inputs[0], image[1:]


def _convolve_last(draft: Draft, node: Node, matrix: Array) -> None:
    """A product over the channels of a (N, H, W, C) tensor that was (N, C, H, W) before."""
    turn = draft.before(node.inputs[0])
    if turn is None or turn.op != "Transpose" or list(turn.attributes.get("perm", [])) != _TO_NHWC:
        return
    image = draft.image(turn.inputs[0])
    if image is None:
        return
    chain = Chain(draft, node, turn.inputs[0])
    filters, size = matrix.shape[1], (image[2], image[3])
    weight = chain.store(matrix.T.reshape(*matrix.T.shape, 1, 1), "weight")
    chain.then("Conv", (image[0], filters, *size), weight, kernel_shape=[1, 1])
    chain.then("Transpose", (image[0], *size, filters), perm=_TO_NHWC)
    chain.end(f"MatMul {matrix.shape[0]} → {filters} over channels as 1x1 Conv")


convolve_products = each("dense", {"Gemm": _gemm, "MatMul": _matmul})


# A convolution whose channels are taken apart afterwards, as one convolution for each part.
#
# The filters are shared out, so there is as much to multiply as before, and nothing left to slice.

_CUTTERS = ("Slice", "Split")


def part_convolutions(graph: Graph) -> Result:
    """Convs that only Slice and Split along the channels read become one Conv for each of their outputs."""
    draft = Draft(graph, "conv-parts")
    tracer = Tracer(draft)
    for node in graph.nodes:
        if node.op == "Conv" and not node.domain and node.outputs[0] not in graph.output_names:
            _part(draft, tracer, node)
    return draft.done()


def _part(draft: Draft, tracer: Tracer, conv: Node) -> None:
    readers = draft.graph.consumers.get(conv.outputs[0], ())
    if conv.attributes.get("group", 1) != 1 or not readers or any(item.op not in _CUTTERS for item in readers):
        return
    stored = [draft.value(name) for name in conv.inputs[1:] if name]
    names = [name for reader in readers for name in reader.outputs if name]
    ranges = {name: found for name in names if (found := _range(tracer, name)) is not None}
    if len(ranges) < len(names) or any(array is None for array in stored) or _overlaps([*ranges.values()]):
        return
    for reader in readers:
        parts = [_conv(draft, conv, name, ranges[name]) for name in reader.outputs if name]
        draft.put(reader, parts, f"its {len(parts)} part(s) computed by filters of {conv.name!r} of their own")


def _overlaps(ranges: list[range]) -> bool:
    """Whether any channel would be computed twice."""
    found = sorted(ranges, key=lambda item: item.start)
    return any(one.stop > two.start for one, two in pairwise(found))


def _range(tracer: Tracer, name: str) -> range | None:
    """The channels that a slice takes; None where it takes anything else."""
    move = tracer.move(name)
    found = None if move is None else gathered(move)
    if found is None or found.rows * found.columns > 1:
        return None
    first, last = int(found.channel[0]), int(found.channel[-1])
    return range(first, last + 1) if len(found.channel) == last - first + 1 else None


def _conv(draft: Draft, conv: Node, name: str, chosen: range) -> Node:
    """The filters of a Conv for some of its channels."""
    label = draft.label(f"{conv.name}/Conv")
    stored = []
    for given, what in zip(conv.inputs[1:], ("weight", "bias"), strict=False):
        array = draft.value(given) if given else None
        if array is not None:
            stored.append(draft.constant(array[chosen.start : chosen.stop], f"{label}_{what}"))
    return replace(conv, inputs=(conv.inputs[0], *stored), outputs=(name,), name=label)
