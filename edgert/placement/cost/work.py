"""How much one unit has to do, independent of board, precision and batch: products, tensor elements, channels."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from edgert.errors import ModelError
from edgert.graph import Graph, Node
from edgert.graph.count import Product
from edgert.graph.operators import of_kind, of_values

CONV, DEPTHWISE, PRODUCT, POOL, MAP, MOVE, VIEW = "conv", "depthwise", "product", "pool", "map", "move", "view"
"""Kinds of unit: dense and grouped convolution; one channel per group; matrix product; window maximum or mean;
element by element; copies; nothing at all."""

NO_KERNEL = of_kind("view", "measure", "constant", "generator", "conversion", "quantize", "dequantize")
"""Operators without a kernel: they rename memory, are computed when the engine is built, or fold into neighbors."""

_KINDS: dict[str, str] = {
    **dict.fromkeys(NO_KERNEL, VIEW),
    **dict.fromkeys(of_kind("conv"), CONV),
    **dict.fromkeys(of_kind("product", "recurrent"), PRODUCT),
    **dict.fromkeys(of_kind("pool"), POOL),
    **dict.fromkeys(of_kind("copy", "join", "selection"), MOVE),
}
_PARTS = of_values("some")


@dataclass(frozen=True, slots=True)
class Work:
    """Nodes that an accelerator runs as one kernel, and what that kernel has to do at the graph's own batch.

    Attributes:
        name: of its first node.
        nodes: names of its nodes, in graph order.
        kind: one of the kinds above.
        product: of its convolution or matrix product; empty for other kinds.
        read, written: elements of activations.
        weights: elements of stored tensors.
        inputs, outputs: names of activations read and of those that are read elsewhere or leave the graph.
        curved: elements that pass a sigmoid or its like at the output, which the DLA does in steps of their own.
        launches: kernels started; 0 where an earlier unit of the same form and input takes this one along.
    """

    name: str
    nodes: tuple[str, ...]
    kind: str
    product: Product
    read: int
    written: int
    weights: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    curved: int = 0
    launches: int = 1

    @property
    def macs(self) -> int:
        """Multiply-adds at the graph's own batch."""
        return self.product.macs


class Shapes:
    """Static shapes of a graph's tensors."""

    def __init__(self, graph: Graph) -> None:
        self._constants = graph.constants
        self._specs = {**graph.specs, **{spec.name: spec for spec in (*graph.inputs, *graph.outputs)}}

    def of(self, tensor: str, node: Node) -> tuple[int, ...]:
        """Shape of a tensor of ``node``. Raises ModelError when it is not static."""
        if tensor in self._constants:
            return tuple(self._constants[tensor].shape)
        spec = self._specs.get(tensor)
        if spec is None or not spec.is_static:
            raise ModelError(
                f"node {node.name!r} cannot be costed: its tensor {tensor!r} has no size",
                why=f"its shape is {spec}" if spec else "no shape can be inferred for it",
                fix="give the model static input shapes (input: size, or profiles)",
            )
        return tuple(dim for dim in spec.shape if isinstance(dim, int))

    def elements(self, tensor: str, node: Node) -> int:
        """Number of values in a tensor of ``node``. Raises ModelError when its shape is not static."""
        return math.prod(self.of(tensor, node))

    def size(self, tensor: str) -> int:
        """Number of values in a tensor between units; 0 where its shape is not known."""
        spec = self._specs.get(tensor)
        return math.prod(dim for dim in spec.shape if isinstance(dim, int)) if spec and spec.is_static else 0


def kind_of(node: Node, product: Product) -> str:
    """Kind of the unit that a node opens."""
    kind = _KINDS.get(node.op, MAP)
    return DEPTHWISE if kind == CONV and product.groups > 1 and product.channels == 1 else kind


def traffic(node: Node, names: Iterable[str], shapes: Shapes) -> int:
    """Elements read of these inputs; an operator that picks a part reads no more than it writes."""
    read = sum(shapes.elements(name, node) for name in names)
    if node.op not in _PARTS:
        return read
    return min(read, sum(shapes.elements(name, node) for name in node.outputs if name))


# Many units of work as columns of numbers, so that one formula costs all of them at once.

Numbers = npt.NDArray[np.float64]
Scalars = float | Numbers
"""One number for all units, or one for each."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a sequence of :class:`Work`, one float64 per unit; names and units as there.

    Attributes:
        rows, channels, columns, taps, groups: of the matrix product; 0 rows for kinds that have none.
        read, written: elements of activations.
        weights: elements of stored tensors.
        curved: elements that pass a sigmoid.
        launches: kernels started.
        is_dense: 1 for convolutions and matrix products but depthwise ones.
        is_depthwise: 1 for those.
        is_busy: 1 for all but views.
    """

    rows: Numbers
    channels: Numbers
    columns: Numbers
    taps: Numbers
    groups: Numbers
    read: Numbers
    written: Numbers
    weights: Numbers
    curved: Numbers
    launches: Numbers
    is_dense: Numbers
    is_depthwise: Numbers
    is_busy: Numbers

    def __len__(self) -> int:
        return len(self.rows)


def table(works: Sequence[Work], scale: float = 1.0) -> Table:
    """The columns of these units; ``scale`` is the batch over the graph's own."""
    rows = []
    for work in works:
        one, kind = work.product, work.kind
        product = (scale * one.rows, one.channels, one.columns, one.taps, one.groups)
        moved = (scale * work.read, scale * work.written, work.weights, scale * work.curved, work.launches)
        rows.append((*product, *moved, kind in (CONV, PRODUCT), kind == DEPTHWISE, kind != VIEW))
    return Table(*np.array(rows, np.float64).reshape(-1, len(fields(Table))).T.copy())
