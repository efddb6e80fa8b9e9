"""Multiply-adds of nodes, as the matrix products inside them.

One multiply-add is one MAC, the bias is free, and operators that are no sums of products have none: the convention of
the papers that publish "M MACs" (MobileNet, https://arxiv.org/abs/1704.04861, calls them mult-adds). Which formula an
operator has stands in :mod:`edgert.graph.operators`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from edgert.graph.ir import Graph, Node
from edgert.graph.operators import about

ShapeOf = Callable[[str], tuple[int, ...]]
"""Tensor name → its static shape; may raise for a tensor that has none."""


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of products as a matrix product: ``groups`` times (rows x depth) by (depth x columns).

    Attributes:
        rows: output positions, batch included.
        channels: read per position and group; for a convolution times ``taps`` gives the depth.
        columns: written per position and group.
        taps: positions of the kernel.
        groups: independent products.
    """

    rows: int = 0
    channels: int = 0
    columns: int = 0
    taps: int = 1
    groups: int = 1

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.rows * self.channels * self.columns * self.taps * self.groups


def product_of(node: Node, shape_of: ShapeOf) -> Product:
    """The matrix product inside a node; empty for one that multiplies nothing. Raises what ``shape_of`` raises."""
    info = about(node.op)
    formula = _FORMULAS.get(info.work)
    return formula(node, info.weight, shape_of) if formula else Product()


def multiply_adds(graph: Graph) -> dict[str, int]:
    """Node name → multiply-adds; 0 where a shape is open or not known."""
    known = {spec.name: spec for spec in (*graph.specs.values(), *graph.inputs, *graph.outputs) if spec.is_static}
    shapes = {name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for name, spec in known.items()}
    shapes |= {name: array.shape for name, array in graph.constants.items()}
    return {
        node.name: product_of(node, shapes.__getitem__).macs
        if shapes.keys() >= {*filter(None, node.inputs), *node.outputs[:1]}
        else 0
        for node in graph.nodes
    }


def _conv(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """Weights have shape (M, C/g, k...)."""
    batch, columns, *space = shape_of(node.outputs[0])
    _, channels, *kernel = shape_of(node.inputs[weight])
    groups = node.attributes.get("group", 1)
    return Product(batch * math.prod(space), channels, columns // groups, math.prod(kernel), groups)


def _transposed(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """Every input position meets a whole kernel; weights have shape (C, M/g, k...)."""
    batch, channels, *space = shape_of(node.inputs[0])
    _, columns, *kernel = shape_of(node.inputs[weight])
    groups = node.attributes.get("group", 1)
    return Product(batch * math.prod(space), channels // groups, columns, math.prod(kernel), groups)


def _gemm(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    first, second = shape_of(node.inputs[0]), shape_of(node.inputs[weight])
    rows, depth = reversed(first) if node.attributes.get("transA", 0) else first
    return Product(rows, depth, second[0] if node.attributes.get("transB", 0) else second[-1])


def _matmul(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """A stored right operand serves every matrix of the left one, so that these are rows of one product."""
    left, right, out = (shape_of(name) for name in (node.inputs[0], node.inputs[weight], node.outputs[0]))
    columns = right[-1] if len(right) > 1 else 1
    groups = math.prod(out[:-2]) if len(right) > 2 else 1
    return Product(math.prod(out) // max(columns * groups, 1), left[-1], columns, 1, groups)


def _einsum(node: Node, _weight: int, shape_of: ShapeOf) -> Product:
    """One multiply-add for each combination of labels of two operands; other forms count 0."""
    equation = node.attributes["equation"].decode().replace(" ", "")
    given, arrow, written = equation.partition("->")
    terms = given.split(",")
    if len(terms) != 2 or "." in equation:
        return Product()
    first, second = (
        dict(zip(term, shape_of(name), strict=True)) for term, name in zip(terms, node.inputs, strict=True)
    )
    output = written if arrow else {label for label in given if given.count(label) == 1}
    parts: dict[str, int] = {"rows": 1, "channels": 1, "columns": 1, "groups": 1}
    for label, size in {**first, **second}.items():
        shared = "groups" if label in second else "rows"
        parts["channels" if label not in output else shared if label in first else "columns"] *= size
    return Product(**parts)


def _recurrent(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """W is (directions, gates * hidden, input), R (directions, gates * hidden, hidden); both at every step."""
    steps, batch, depth = shape_of(node.inputs[0])
    directions, gates, hidden = shape_of(node.inputs[weight + 1])
    return Product(steps * batch, depth + hidden, gates, 1, directions)


_FORMULAS: dict[str, Callable[[Node, int, ShapeOf], Product]] = {
    "conv": _conv,
    "transposed": _transposed,
    "gemm": _gemm,
    "matmul": _matmul,
    "einsum": _einsum,
    "recurrent": _recurrent,
}
