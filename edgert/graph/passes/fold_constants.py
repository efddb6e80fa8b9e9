"""The pass that computes shape chains, grids and other small constants once, instead of at every frame."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from edgert.graph.draft import Draft
from edgert.graph.ir import Graph, Node
from edgert.graph.model import TensorSpec
from edgert.graph.numpy_eval import MIN_OPSET, Call, TooLargeError, evaluate, knows
from edgert.graph.passes.contract import Pass, Result
from edgert.graph.proto import Array
from edgert.graph.type_inference import infer_specs

TENSOR_CAP_BYTES = 2**20
"""A folded tensor may take this much, or as much as what it was computed from: a model must not swell."""
TOTAL_CAP_BYTES = 2**24
"""All tensors folded in one go together."""

_UNKNOWN = -(2**62)  # stands for a dynamic dimension in the value of a Shape node; no real size is negative
_MOVERS = ("Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")  # carry elements through unchanged


class _Folder:
    """One walk over a graph in order; ``known`` grows as nodes turn out constant."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[str, Array] = {}
        self.partial: dict[str, Array] = {}
        self.left_bytes = TOTAL_CAP_BYTES

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Types of tensors; inferred when first asked for, since many graphs hold nothing that asks."""
        return infer_specs(self.graph)

    def fold(self, node: Node) -> bool:
        """Whether the node's outputs are now among the known."""
        if node.domain or not knows(node.op) or not self.graph.output_names.isdisjoint(node.outputs):
            return False
        made = self._shape(node) if node.op in ("Shape", "Size") else self._compute(node, self._value)
        if made is None and node.op in _MOVERS:
            made = self._compute(node, self._partial_value)
        return made is not None and self._keep(node, made)

    def _keep(self, node: Node, made: list[Array]) -> bool:
        if any(_has_unknown(array) for array in made):
            self.partial.update(zip(node.outputs, made, strict=False))
            return False
        size_bytes = sum(array.nbytes for array in made)
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        self.known.update(zip(node.outputs, made, strict=False))
        return True

    def _shape(self, node: Node) -> list[Array] | None:
        spec = self._spec(node.inputs[0])
        if spec is None or not spec.ranked or (node.op == "Size" and not spec.is_static):
            return None
        dims = [dim if isinstance(dim, int) else _UNKNOWN for dim in spec.shape]
        if node.op == "Size":
            return [np.array(np.prod(dims, dtype=np.int64))]
        cut = node.attributes
        return [np.array(dims[cut.get("start", 0) : cut.get("end")], np.int64)]

    def _spec(self, name: str) -> TensorSpec | None:
        if name in self.graph.constants:
            array = self.graph.constants[name]
            return TensorSpec(name, array.shape, array.dtype.name)
        recorded = self.graph.specs.get(name)
        return recorded if recorded is not None and recorded.is_static else self.specs.get(name)

    def _compute(self, node: Node, value: Callable[[str], Array | None]) -> list[Array] | None:
        operands = [value(name) if name else None for name in node.inputs]
        if not operands or any(name and array is None for name, array in zip(node.inputs, operands, strict=True)):
            return None
        limit_bytes = max(TENSOR_CAP_BYTES, sum(array.nbytes for array in operands if array is not None))
        try:
            return evaluate(node.op, Call(operands, node.attributes, self.graph.opset, limit_bytes))
        except TooLargeError:
            return None

    def _value(self, name: str) -> Array | None:
        return self.known[name] if name in self.known else self.graph.constants.get(name)

    def _partial_value(self, name: str) -> Array | None:
        return self.partial[name] if name in self.partial else self._value(name)


def _folder(graph: Graph) -> tuple[_Folder, list[Node]]:
    """What is known of a graph, and the nodes that compute it."""
    folder = _Folder(graph)
    if graph.opset < MIN_OPSET:
        return folder, []
    return folder, [node for node in graph.nodes if folder.fold(node)]


def _fold(graph: Graph) -> Result:
    folder, folded = _folder(graph)
    if not folded:
        return graph, ()
    draft = Draft(graph, "fold-constants")
    for node in folded:
        draft.known({name: folder.known[name] for name in node.outputs if name})
        draft.put(node, (), f"{node.op} → constant {tensor_summary(folder.known[node.outputs[0]])}")
    return draft.done()


def with_known(graph: Graph) -> Graph:
    """The graph with everything stored that is known beforehand, whether something still reads it or not.

    Repeats, because a folded shape lets more shapes be inferred.
    """
    while True:
        folder, folded = _folder(graph)
        if not folded:
            return graph
        gone = set(map(id, folded))
        left = tuple(node for node in graph.nodes if id(node) not in gone)
        graph = replace(graph, nodes=left, constants={**graph.constants, **folder.known})
        if not any(node.op in ("Shape", "Size") for node in left):
            return graph


def tensor_summary(array: Array) -> str:
    """``int64[4]``."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _has_unknown(array: Array) -> bool:
    return array.dtype == np.int64 and bool(np.any(array == _UNKNOWN))


FOLD_CONSTANTS = Pass(
    "fold-constants",
    "Shape, Gather and other nodes whose result is known beforehand become stored tensors",
    "a DLA computes no shapes, and a node that is left over cuts the graph",
    _fold,
)
