"""Units of work: nodes fused as TensorRT's builder fuses them, and how much work each unit has.

A unit is a kernel that an accelerator would run. Its work is counted in multiply-adds and tensor elements, independent
of board, precision and batch.

A convolution or matrix product includes the elementwise nodes that follow it: batch norm, bias, activation or the two
nodes of a SiLU. It also includes one addition of a shortcut and the activation behind it. Chains of elementwise nodes
become one unit. Pools, copies and similar nodes are separate units. Nodes that only rename memory belong to the unit
they read from.
Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html (layer fusion).
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from edgert.errors import ModelError
from edgert.graph import Graph, Node
from edgert.graph.count import Product, product_of
from edgert.graph.fusion import GENERATED, activation_inputs, is_index, kernel
from edgert.graph.operators import VIEWS, about, of_kind, of_values
from edgert.placement.cost import patterns

CONV, DEPTHWISE, PRODUCT, POOL, MAP, MOVE, VIEW = "conv", "depthwise", "product", "pool", "map", "move", "view"
ATTENTION = "attention"
"""Kinds of unit: dense and grouped convolution; one channel per group; matrix product; window maximum or mean;
elementwise operations; copies; no work; both products of an attention."""

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
    """Nodes that an accelerator runs as one kernel, and that kernel's work at the graph's own batch.

    Attributes:
        name: name of its first node that computes.
        nodes: names of its nodes, in graph order.
        kind: one of the kinds above.
        product: dimensions of its convolution or matrix product; empty for other kinds.
        read, written: number of activation elements read and written.
        weights: number of elements of stored tensors.
        inputs: names of activations read.
        outputs: names of activations that are read elsewhere or leave the graph.
        curved: number of elements that pass a sigmoid or similar at the output, which the DLA does in separate steps.
        launches: kernels started; 0 where an earlier unit of the same form and input includes this one.
        is_sparse: whether its weights have two zeros in every four input channels and sparse kernels are enabled.
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
    is_sparse: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds at the graph's own batch."""
        return self.product.macs


def shape_of(graph: Graph, tensor: str, node: Node) -> tuple[int, ...]:
    """Return the shape of a tensor of ``node``; raise ModelError when it is not static."""
    shape = graph.shape(tensor)
    if shape is None:
        raise _unknown_size_error(graph, tensor, node)
    return shape


def _unknown_size_error(graph: Graph, tensor: str, node: Node) -> ModelError:
    """Return the error for a tensor of unknown size, naming the first node whose result has no known size."""
    spec, first = graph.spec(tensor), graph.producers.get(tensor)
    why = f"its shape is {spec}" if spec else "no shape can be inferred for it"
    fix = "give the model static input shapes (input: size, or profiles)"
    passed = set[str]()  # a branch of an If may read a tensor that depends on it
    while first is not None and (
        behind := [one for one in first.reads if graph.shape(one) is None and one not in passed]
    ):
        passed.add(behind[0])
        first = graph.producers.get(behind[0])
    if first is not None and first.domain:
        why = f"onnx does not know {first.domain}.{first.op} of node {first.name!r}, nor the size of its result"
        fix = "write the size of that node's results into the file (value_info), or export without the operator"
    elif first is not None:
        why = f"the size of the result of {first.op} (node {first.name!r}) is known only after it has run"
        fix = "export the model without it; a detector without non-maximum suppression, which task: does"
    what = f"the cost of node {node.name!r} cannot be computed: its tensor {tensor!r} has no known size"
    return ModelError(what, why=why, fix=fix)


def elements(graph: Graph, tensor: str, node: Node) -> int:
    """Return the number of values in a tensor of ``node``; raise ModelError when its shape is not static."""
    return math.prod(shape_of(graph, tensor, node))


def kind_of(node: Node, product: Product) -> str:
    """Return the kind of the unit that a node opens."""
    kind = _KINDS.get(node.op, MAP)
    return DEPTHWISE if kind == CONV and product.groups > 1 and product.channels == 1 else kind


def traffic(graph: Graph, node: Node, names: Iterable[str]) -> int:
    """Return the number of elements read of these inputs; an operator that selects reads no more than it writes."""
    read = sum(elements(graph, name, node) for name in names)
    if node.op not in _PARTS:
        return read
    return min(read, sum(elements(graph, name, node) for name in node.outputs if name))


# Nodes fused into units.

_ALONE = of_kind("normalization", "reduction", "recurrent")
_CURVED = of_kind("curve") - {"Erf", "Gelu"} | {"LeakyRelu", "PRelu"}
"""Activations that a product's kernel does not include, unlike rectifiers and GELU (best practices, as above)."""
_PLACED = VIEWS | of_kind("join") | {"Split", "Slice"}  # their results already have a place in memory


def units(graph: Graph, allowed: Collection[str] | None = None, *, sparse: bool = False) -> tuple[Work, ...]:
    """Return the graph as units of work, each after those it reads; every node is in exactly one unit.

    A unit is convex: no path leaves it and comes back.

    Args:
        graph: graph with static shapes.
        allowed: names of nodes that a DLA can run; None for all. Other nodes do not join a unit that could run on the
            DLA without them.
        sparse: whether to mark products whose weights have two zeros in four.

    Raises:
        ModelError: a tensor's shape is not static.
    """
    works = _Fuser(graph, allowed).run()
    if not sparse:
        return works
    nodes = {node.name: node for node in graph.nodes}
    return tuple(
        replace(work, is_sparse=work.kind in (CONV, PRODUCT) and _has_two_in_four(graph, nodes[work.name]))
        for work in works
    )


def _has_two_in_four(graph: Graph, node: Node) -> bool:
    """Return whether two of every four weights along the input channels are zero.

    TensorRT requires this of weights for its sparse kernels:
    https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html (sparsity).
    """
    name = node.inputs[1] if len(node.inputs) > 1 else ""
    source = graph.producers.get(name)
    name = source.inputs[0] if source is not None and about(source.op).kind == "dequantize" else name
    array = graph.constants.get(name)
    if array is None or array.ndim < 2:
        return False
    axis = 1 if about(node.op).work == "conv" or node.attributes.get("transB", 0) else array.ndim - 2
    values = np.moveaxis(array, axis, -1)
    if values.shape[-1] % _SPARSE:
        return False
    filled = np.count_nonzero(values.reshape(-1, _SPARSE), axis=1)
    return int(filled.max(initial=0)) <= _SPARSE // 2


_SPARSE = 4  # weights in a group, of which half may be other than zero


class _Fuser:
    """Fusion of a graph's nodes into units; ``owner`` maps a node to the unit it has joined."""

    def __init__(self, graph: Graph, allowed: Collection[str] | None) -> None:
        self.graph, self.allowed = graph, allowed
        self.position = {id(node): index for index, node in enumerate(graph.nodes)}
        self.owner: dict[int, list[Node]] = {}
        self.keys: dict[int, int] = {}  # unit → position of its last node that computes; units run in this order

    def run(self) -> tuple[Work, ...]:
        for group in [*patterns.attentions(self.graph), *patterns.normalizations(self.graph)]:
            if self._is_one(group):
                self._add(group)
        for node in self.graph.nodes:
            if id(node) not in self.owner and not self._is_view(node):
                alone = kind_of(node, self._product(node)) in (POOL, MOVE) or node.op in _ALONE
                self._add([node] if alone else kernel(self.graph, node, GENERATED, self._is_free))
        for node in [node for node in self.graph.nodes if id(node) not in self.owner]:
            self._attach(node)
        groups = {id(group): group for group in self.owner.values()}
        order = sorted(groups.values(), key=lambda item: self.keys[id(item)])
        return tuple(_with_siblings([self._work(group) for group in order]))

    def _product(self, node: Node) -> Product:
        return product_of(node, lambda tensor: shape_of(self.graph, tensor, node))

    def _add(self, group: list[Node]) -> None:
        group.sort(key=lambda item: self.position[id(item)])
        self.keys[id(group)] = max(self.position[id(node)] for node in group)
        self.owner.update((id(node), group) for node in group)

    def _is_one(self, group: Sequence[Node]) -> bool:
        """Return whether a group can be a unit: its nodes are free, and a DLA can run all of them or none."""
        can_run = {node.name in self.allowed for node in group} if self.allowed is not None else {True}
        return len(can_run) == 1 and not any(id(node) in self.owner for node in group)

    def _is_view(self, node: Node) -> bool:
        return node.op in NO_KERNEL or all(is_index(self.graph, name) for name in node.outputs if name)

    def _may_join(self, node: Node, group: Sequence[Node]) -> bool:
        if self.allowed is None or node.name in self.allowed:
            return True
        return any(item.name not in self.allowed for item in group)

    def _is_free(self, node: Node, group: Sequence[Node]) -> bool:
        return id(node) not in self.owner and self._may_join(node, group)

    def _attach(self, node: Node) -> None:
        """Add a node without kernel to the latest unit it reads, else to its only reader's unit, else to a new unit."""
        sources = filter(None, map(self.graph.producers.get, node.reads))
        found = [self.owner[id(source)] for source in sources if id(source) in self.owner]
        readers = [reader for name in node.outputs for reader in self.graph.consumers.get(name, ())]
        group = max(found, key=lambda item: self.keys[id(item)]) if found else []
        if not found and len(readers) == 1:
            group = self.owner.get(id(readers[0]), [])
        if not group or not self._may_join(node, group):
            self._add([node])
            return
        group.append(node)
        group.sort(key=lambda item: self.position[id(item)])
        self.owner[id(node)] = group

    def _work(self, group: Sequence[Node]) -> Work:
        inside = {name for node in group for name in node.outputs}
        leaving = self._leaving(group)
        main = next((node for node in group if node.op not in NO_KERNEL and not self._is_view(node)), group[0])
        product = self._product(main)
        kind = VIEW if self._is_view(main) else kind_of(main, product)
        products = [node for node in group if about(node.op).work]
        if len(products) == 2:
            kind, product = ATTENTION, _combined_product(*map(self._product, products))
        busy = [] if kind == VIEW else [node for node in group if not self._is_view(node)]
        copied = None if kind in (VIEW, ATTENTION) else self._copied(main)
        stored = {name: node for node in busy for name in node.reads if self._is_stored(name)}
        return Work(
            name=main.name,
            nodes=tuple(node.name for node in group),
            kind=kind,
            product=product,
            read=self._read(busy) if copied is None else copied,
            written=self._written(busy) if copied is None else copied,
            weights=sum(elements(self.graph, name, node) for name, node in stored.items()),
            inputs=tuple(
                dict.fromkeys(n for node in group for n in activation_inputs(self.graph, node) if n not in inside)
            ),
            outputs=tuple(name for node in group for name in node.outputs if name in leaving),
            launches=0 if kind == VIEW or copied == 0 else 1,
            curved=sum(elements(self.graph, node.outputs[0], node) for node in busy if node.op in _CURVED),
        )

    def _copied(self, node: Node) -> int | None:
        """Return the number of elements that a join of channels moves; None for other operators.

        The kernel that computes an input writes it directly into the joined tensor, unless it is part of another one
        (https://developer.nvidia.com/blog/production-deep-learning-nvidia-gpu-inference-engine/).
        """
        if about(node.op).kind != "join" or node.attributes.get("axis") not in (1, -3):
            return None
        moved = 0
        for name in node.reads:
            producer = self.graph.producers.get(name)
            joins = [reader for reader in self.graph.consumers.get(name, ()) if about(reader.op).kind == "join"]
            if producer is None or producer.op in _PLACED or joins[0] is not node:
                moved += elements(self.graph, name, node)
        return moved

    def _leaving(self, group: Sequence[Node]) -> set[str]:
        members = {id(node) for node in group}
        return {
            name
            for node in group
            for name in filter(None, node.outputs)
            if name in self.graph.output_names
            or any(id(reader) not in members for reader in self.graph.consumers.get(name, ()))
        }

    def _read(self, busy: Sequence[Node]) -> int:
        seen = {name for node in busy for name in node.outputs}  # the unit does not read its own results from memory
        total = 0
        for node in busy:
            fresh = [name for name in activation_inputs(self.graph, node) if name not in seen]
            seen.update(fresh)
            total += traffic(self.graph, node, fresh)
        return total

    def _written(self, busy: Sequence[Node]) -> int:
        leaving = self._leaving(busy)
        return sum(
            elements(self.graph, name, node)
            for node in busy
            for name in filter(None, node.outputs)
            if name in leaving or not self.graph.consumers.get(name)
        )

    def _is_stored(self, name: str) -> bool:
        """Return whether a tensor is stored, or computed only from stored ones (a weight behind DequantizeLinear)."""
        if name in self.graph.constants:
            return self.graph.constants[name].dtype.kind not in "iub" or self.graph.constants[name].itemsize == 1
        source = self.graph.producers.get(name)
        return source is not None and source.op in NO_KERNEL and bool(source.reads) and all(
            map(self._is_stored, source.reads)
        )  # fmt: skip


def _combined_product(first: Product, second: Product) -> Product:
    """Return the first product with more channels, so that it has the multiply-adds of both."""
    results = first.rows * first.columns * first.groups
    return replace(first, channels=first.channels + round(second.macs / max(results * first.taps, 1)))


def _with_siblings(works: Sequence[Work]) -> Iterable[Work]:
    """Yield the units; of 1x1 convolutions and matrix products that read one tensor, only the first has a launch.

    TensorRT runs them as one kernel (horizontal fusion).
    """
    seen: set[tuple[str, int]] = set()
    for work in works:
        key = (work.inputs[0] if work.inputs else "", work.product.rows)
        is_narrow = work.kind in (CONV, PRODUCT) and work.product.taps == work.product.groups == len(work.inputs) == 1
        yield replace(work, launches=0) if is_narrow and key in seen else work
        if is_narrow:
            seen.add(key)


# Units of work as columns of numbers, so that one formula computes the costs of all units at once.

Numbers = npt.NDArray[np.float64]
Scalars = float | Numbers
"""One number for all units, or one for each."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a sequence of :class:`Work`, one float64 per unit.

    Attributes:
        rows, channels, columns, taps, groups: dimensions of the matrix product; 0 for units without one.
        read, written: activation elements read and written.
        weights: elements of stored tensors.
        curved: elements that pass a sigmoid or similar.
        launches: kernels started.
        is_dense: 1 for convolutions and matrix products except depthwise ones and attention.
        is_attention: 1 for attention.
        is_depthwise: 1 for depthwise convolutions.
        is_busy: 1 for all but views.
        is_sparse: 1 for products whose weights have two zeros in four.
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
    is_attention: Numbers
    is_depthwise: Numbers
    is_busy: Numbers
    is_sparse: Numbers

    def __len__(self) -> int:
        return len(self.rows)


def table(works: Sequence[Work], scale: float = 1.0) -> Table:
    """Return the columns of these units; ``scale`` is the batch divided by the graph's own."""
    rows = []
    for work in works:
        one, kind = work.product, work.kind
        product = (scale * one.rows, one.channels, one.columns, one.taps, one.groups)
        moved = (scale * work.read, scale * work.written, work.weights, scale * work.curved, work.launches)
        kinds = kind in (CONV, PRODUCT), kind == ATTENTION, kind == DEPTHWISE, kind != VIEW, work.is_sparse
        rows.append((*product, *moved, *kinds))
    return Table(*np.array(rows, np.float64).reshape(-1, len(fields(Table))).T.copy())
