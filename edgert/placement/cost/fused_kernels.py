"""Fuses nodes into the kernels an accelerator would run, the way TensorRT's builder does.

A convolution or matrix product takes along what follows it element by element: batch norm, bias, activation, the two
nodes of a SiLU, one addition of a shortcut and the activation behind it. Chains of element-wise nodes become one unit.
Pools, copies and the like stand alone. What only renames memory belongs to the unit it reads from.
Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html (layer fusion).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from edgert.graph import Graph, Node
from edgert.graph.count import Product, product_of
from edgert.graph.fusion import GENERATED, flowing, is_index, kernel
from edgert.graph.operators import VIEWS, about, of_kind
from edgert.placement.cost.work import CONV, MOVE, NO_KERNEL, POOL, VIEW, Shapes, Work, kind_of, traffic

_ALONE = of_kind("normalization", "reduction", "recurrent")
_CURVED = of_kind("curve")
_PLACED = VIEWS | of_kind("join") | {"Split", "Slice"}  # their results lie somewhere already


def units(graph: Graph, allowed: Collection[str] | None = None) -> tuple[Work, ...]:
    """The graph as units of work; every unit follows those it reads, and every node is in exactly one.

    A unit is convex: no path leaves it and comes back.

    Args:
        allowed: names of nodes that a DLA can run; None: all of them. A node that is not among them does not join a
            unit that could run there without it.

    Raises:
        ModelError: a tensor's shape is not static.
    """
    return _Fuser(graph, allowed).run()


class _Fuser:
    """One walk over the nodes in order; ``owner`` maps a node to the unit it has joined."""

    def __init__(self, graph: Graph, allowed: Collection[str] | None) -> None:
        self.graph, self.shapes, self.allowed = graph, Shapes(graph), allowed
        self.position = {id(node): index for index, node in enumerate(graph.nodes)}
        self.owner: dict[int, list[Node]] = {}
        self.keys: dict[int, int] = {}  # of a unit → position of its last node that computes; units run in this order

    def run(self) -> tuple[Work, ...]:
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
        """The matrix product inside a node; empty for one that multiplies nothing."""
        return product_of(node, lambda tensor: self.shapes.of(tensor, node))

    def _add(self, group: list[Node]) -> None:
        group.sort(key=lambda item: self.position[id(item)])
        self.keys[id(group)] = max(self.position[id(node)] for node in group)
        self.owner.update((id(node), group) for node in group)

    def _is_view(self, node: Node) -> bool:
        return node.op in NO_KERNEL or all(is_index(self.graph, name) for name in node.outputs if name)

    def _may_join(self, node: Node, group: Sequence[Node]) -> bool:
        """Whether a node leaves a unit as free to run on a DLA as it was."""
        if self.allowed is None or node.name in self.allowed:
            return True
        return any(item.name not in self.allowed for item in group)

    def _is_free(self, node: Node, group: Sequence[Node]) -> bool:
        return id(node) not in self.owner and self._may_join(node, group)

    def _attach(self, node: Node) -> None:
        """What has no kernel goes to the latest unit it reads, else to its only reader with a unit, else alone."""
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
        """What a finished unit has to do."""
        inside = {name for node in group for name in node.outputs}
        main = next((node for node in group if node.op not in NO_KERNEL and not self._is_view(node)), group[0])
        product = self._product(main)
        kind = VIEW if self._is_view(main) else kind_of(main, product)
        busy = [] if kind == VIEW else [node for node in group if not self._is_view(node)]
        copied = None if kind == VIEW else self._copied(main)
        stored = {name: node for node in busy for name in node.reads if self._is_stored(name)}
        return Work(
            name=main.name,
            nodes=tuple(node.name for node in group),
            kind=kind,
            product=product,
            read=self._read(busy) if copied is None else copied,
            written=self._written(busy) if copied is None else copied,
            weights=sum(self.shapes.elements(name, node) for name, node in stored.items()),
            inputs=tuple(dict.fromkeys(n for node in group for n in flowing(self.graph, node) if n not in inside)),
            outputs=tuple(name for node in group for name in node.outputs if name and self._leaves(name, group)),
            launches=0 if kind == VIEW or copied == 0 else 1,
            curved=sum(self.shapes.elements(node.outputs[0], node) for node in busy if node.op in _CURVED),
        )

    def _copied(self, node: Node) -> int | None:
        """Elements that joining channels really moves; None for other operators.

        Whoever computes an input writes it into the joined tensor at once, unless it lies in another one already
        (https://developer.nvidia.com/blog/production-deep-learning-nvidia-gpu-inference-engine/).
        """
        if about(node.op).kind != "join" or node.attributes.get("axis") not in (1, -3):
            return None
        moved = 0
        for name in node.reads:
            producer = self.graph.producers.get(name)
            joins = [reader for reader in self.graph.consumers.get(name, ()) if about(reader.op).kind == "join"]
            if producer is None or producer.op in _PLACED or joins[0] is not node:
                moved += self.shapes.elements(name, node)
        return moved

    def _leaves(self, name: str, group: Sequence[Node]) -> bool:
        """Whether a tensor is read outside a unit, or leaves the graph."""
        members = {id(node) for node in group}
        readers = self.graph.consumers.get(name, ())
        return name in self.graph.output_names or any(id(node) not in members for node in readers)

    def _read(self, busy: Sequence[Node]) -> int:
        inside = {name for node in busy for name in node.outputs}
        seen: set[str] = set()
        total = 0
        for node in busy:
            fresh = [name for name in flowing(self.graph, node) if name not in inside | seen]
            seen.update(fresh)
            total += traffic(node, fresh, self.shapes)
        return total

    def _written(self, busy: Sequence[Node]) -> int:
        return sum(
            self.shapes.elements(name, node)
            for node in busy
            for name in filter(None, node.outputs)
            if self._leaves(name, busy) or not self.graph.consumers.get(name)
        )

    def _is_stored(self, name: str) -> bool:
        """Stored, or computed from stored tensors alone (a weight behind its DequantizeLinear)."""
        if name in self.graph.constants:
            return self.graph.constants[name].dtype.kind not in "iub" or self.graph.constants[name].itemsize == 1
        source = self.graph.producers.get(name)
        return source is not None and source.op in NO_KERNEL and bool(source.reads) and all(
            map(self._is_stored, source.reads)
        )  # fmt: skip


def _with_siblings(works: Sequence[Work]) -> Iterable[Work]:
    """1x1 convolutions of one tensor run as one kernel, as wide as all of them (TensorRT's horizontal fusion)."""
    seen: set[tuple[str, int]] = set()
    for work in works:
        key = (work.inputs[0] if work.inputs else "", work.product.rows)
        is_narrow = work.kind == CONV and work.product.taps == 1 and work.product.groups == 1 and len(work.inputs) == 1
        yield replace(work, launches=0) if is_narrow and key in seen else work
        if is_narrow:
            seen.add(key)
