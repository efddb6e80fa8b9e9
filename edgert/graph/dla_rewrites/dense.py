"""Matrix products with stored weights as convolutions, and the layers between them kept in four dimensions.

A product with a (K, M) matrix is a convolution of a (N, K, 1, 1) tensor with M filters of one pixel. Where the (N, K)
operand is a (N, C, H, W) tensor laid flat, it is one of the image itself with filters of H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgert.graph.dla_rewrites.average_pool import MAX_KERNEL
from edgert.graph.draft import Chain, Draft, each
from edgert.graph.ir import Node
from edgert.graph.operators import RESHAPES
from edgert.graph.proto import Array

_TO_NHWC = [0, 2, 3, 1]


@dataclass(frozen=True, slots=True)
class _Product:
    """``matrix`` is (K, M); ``bias`` (M,) or None; both scaled by the node's factors."""

    matrix: Array
    bias: Array | None


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
    _convolve(draft, node, _Product(matrix * node.attributes.get("alpha", 1.0), bias))


def _matmul(draft: Draft, node: Node) -> None:
    matrix = draft.value(node.inputs[1])
    if matrix is None or matrix.ndim != 2 or matrix.dtype.kind != "f":
        return
    shape = draft.shape(node.inputs[0])
    if shape is not None and len(shape) == 4:
        _convolve_last(draft, node, matrix)
    else:
        _convolve(draft, node, _Product(matrix, None))


def _convolve(draft: Draft, node: Node, product: _Product) -> None:
    """A product of a (N, K) tensor."""
    shape = draft.shape(node.inputs[0])
    depth, filters = product.matrix.shape
    if shape is None or len(shape) != 2 or shape[1] != depth or draft.value(node.inputs[0]) is not None:
        return
    source, size = _image_behind(draft, node.inputs[0], shape)
    chain = Chain(draft, node, source)
    if size is None:
        chain.reshape((shape[0], depth, 1, 1))
        size = (depth, 1, 1)
    weight = chain.store(product.matrix.T.reshape(filters, *size), "weight")
    bias = () if product.bias is None else (chain.store(product.bias, "bias"),)
    chain.then("Conv", (shape[0], filters, 1, 1), weight, *bias, kernel_shape=list(size[1:]))
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
