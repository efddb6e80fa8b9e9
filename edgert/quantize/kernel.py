"""Weights of the layers that multiply, in one layout whatever the operator: (groups, outputs, inputs, taps)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.graph.node import Graph, Node
from edgert.graph.operators import WEIGHTED, about

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The weight of one node.

    Attributes:
        values: (groups, outputs per group, inputs per group, taps), float64; output channel o is row o % outputs of
            group o // outputs, and input channels are counted likewise. A Gemm or MatMul is one group of one tap.
        node: whose it is.
        stored: shape of the stored tensor.
    """

    values: F64
    node: Node
    stored: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Output channels of all groups."""
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def inputs(self) -> int:
        """Input channels of all groups."""
        return int(self.values.shape[0] * self.values.shape[2])

    def with_values(self, values: F64) -> Kernel:
        """The same node with other values of the same shape."""
        return replace(self, values=values)

    def to_stored(self) -> F64:
        """The values in the layout of the node's weight input."""
        return arranged(self.values, self.node, self.stored)


def kernel_of(graph: Graph, node: Node) -> Kernel | None:
    """The weight of a node; None when the node is no weighted one, or its weight is not a stored float tensor."""
    if node.op not in WEIGHTED or node.domain or len(node.inputs) < 2:
        return None
    stored, work = graph.constants.get(node.inputs[1]), about(node.op).work
    if stored is None or stored.dtype.kind != "f" or stored.ndim < 2 or (work == "matmul" and stored.ndim != 2):
        return None
    if work == "gemm" and node.attributes.get("transA", 0):
        return None
    return Kernel(canonical(stored.astype(np.float64), node), node, stored.shape)


def canonical(stored: Array, node: Node) -> Array:
    """A tensor in the layout of the node's weight as (groups, outputs, inputs, taps)."""
    groups = int(node.attributes.get("group", 1))
    if about(node.op).work == "conv":
        return stored.reshape(groups, stored.shape[0] // groups, stored.shape[1], -1)
    if about(node.op).work == "transposed":
        flipped: Array = stored.reshape(groups, stored.shape[0] // groups, stored.shape[1], -1).swapaxes(1, 2)
        return flipped
    rows: Array = stored if node.attributes.get("transB", 0) else stored.T
    return rows[None, :, :, None]


def arranged(values: Array, node: Node, shape: tuple[int, ...]) -> Array:
    """The inverse of :func:`canonical`; ``shape`` is that of the stored tensor."""
    if about(node.op).work == "conv":
        return values.reshape(shape)
    if about(node.op).work == "transposed":
        return np.ascontiguousarray(values.swapaxes(1, 2)).reshape(shape)
    rows: Array = values[0, :, :, 0]
    return np.ascontiguousarray(rows if node.attributes.get("transB", 0) else rows.T)


def bias_factor(node: Node) -> float:
    """What a node multiplies its bias by: the beta of a Gemm."""
    return float(node.attributes.get("beta", 1.0)) if about(node.op).work == "gemm" else 1.0


def with_plain_bias(node: Node) -> Mapping[str, Any]:
    """The node's attributes for a bias that has the factor in it."""
    return {**node.attributes, "beta": 1.0} if about(node.op).work == "gemm" else node.attributes


def weighted(graph: Graph) -> tuple[Node, ...]:
    """Nodes with a stored weight, in order."""
    return tuple(node for node in graph.nodes if kernel_of(graph, node) is not None)


def channel_axis(node: Node, rank: int) -> int:
    """The axis of the node's output that holds its output channels."""
    return rank - 1 if about(node.op).work == "matmul" else 1


def channel_means(array: Array, axis: int) -> F64:
    """Mean over all other axes, (channels,), summed in float64."""
    means: F64 = array.mean(axis=tuple(i for i in range(array.ndim) if i != axis), dtype=np.float64)
    return means
