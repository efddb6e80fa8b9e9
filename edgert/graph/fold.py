"""The pass that computes shape chains, grids and other small constants once, instead of at every frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgert.graph.constant import tensor_summary
from edgert.graph.evaluate import MIN_OPSET, Call, TooLargeError, evaluate, knows
from edgert.graph.index import Index
from edgert.graph.infer import infer_specs
from edgert.graph.proto import Array, attributes, default_opset, is_standard, label, to_array
from edgert.graph.rewrite import Pass, add_initializer, drop_nodes
from edgert.graph.spec import TensorSpec

if TYPE_CHECKING:
    import onnx

TENSOR_CAP_BYTES = 2**20
"""A folded tensor may take this much, or as much as what it was computed from: a model must not swell."""
TOTAL_CAP_BYTES = 2**24
"""All tensors folded in one go together."""

_UNKNOWN = -(2**62)  # stands for a dynamic dimension in the value of a Shape node; no real size is negative
_MOVERS = ("Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")  # carry elements through unchanged


class _Folder:
    """One walk over a graph in order; ``known`` grows as nodes turn out constant."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.index = Index.of(proto.graph)
        self.opset = default_opset(proto)
        self.specs: Mapping[str, TensorSpec] = infer_specs(proto) if _has_shapes(proto.graph) else {}
        self.known: dict[str, Array] = {}
        self.partial: dict[str, Array] = {}
        self.left_bytes = TOTAL_CAP_BYTES

    def fold(self, node: onnx.NodeProto) -> bool:
        """Whether the node's outputs are now among the known."""
        if not is_standard(node) or not knows(node.op_type) or any(map(self.index.outputs.__contains__, node.output)):
            return False
        made = self._shape(node) if node.op_type in ("Shape", "Size") else self._compute(node, self._value)
        if made is None and node.op_type in _MOVERS:
            made = self._compute(node, self._partial_value)
        return made is not None and self._keep(node, made)

    def _keep(self, node: onnx.NodeProto, made: list[Array]) -> bool:
        if any(_has_unknown(array) for array in made):
            self.partial.update(zip(node.output, made, strict=False))
            return False
        size_bytes = sum(array.nbytes for array in made)
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        self.known.update(zip(node.output, made, strict=False))
        return True

    def _shape(self, node: onnx.NodeProto) -> list[Array] | None:
        spec = self.specs.get(node.input[0])
        if spec is None or not spec.ranked or (node.op_type == "Size" and not spec.is_static):
            return None
        dims = [dim if isinstance(dim, int) else _UNKNOWN for dim in spec.shape]
        if node.op_type == "Size":
            return [np.array(np.prod(dims, dtype=np.int64))]
        cut = attributes(node)
        return [np.array(dims[cut.get("start", 0) : cut.get("end")], np.int64)]

    def _compute(self, node: onnx.NodeProto, value: Callable[[str], Array | None]) -> list[Array] | None:
        operands = [value(name) if name else None for name in node.input]
        if not operands or any(name and array is None for name, array in zip(node.input, operands, strict=True)):
            return None
        limit_bytes = max(TENSOR_CAP_BYTES, sum(array.nbytes for array in operands if array is not None))
        try:
            return evaluate(node.op_type, Call(operands, attributes(node), self.opset, limit_bytes))
        except TooLargeError:
            return None

    def _value(self, name: str) -> Array | None:
        if name in self.known:
            return self.known[name]
        tensor = self.index.constant(name)
        return None if tensor is None else to_array(tensor)

    def _partial_value(self, name: str) -> Array | None:
        return self.partial[name] if name in self.partial else self._value(name)


def fold_constants(proto: onnx.ModelProto, *, keep: bool = False) -> Iterator[tuple[str, str]]:
    """The edit behind :data:`FOLD_CONSTANTS`. Repeats, because a folded shape lets more shapes be inferred.

    Args:
        proto: changed in place.
        keep: store also the results that nothing left in the graph reads, for callers who want to see all of them.
    """
    while True:
        changes = list(_fold_once(proto, keep))
        yield from changes
        if not changes or not _has_shapes(proto.graph):
            return


def _fold_once(proto: onnx.ModelProto, keep: bool) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    if default_opset(proto) < MIN_OPSET or not any(knows(node.op_type) for node in graph.node):
        return
    folder = _Folder(proto)
    folded = {position for position, node in enumerate(graph.node) if folder.fold(node)}
    for name in folder.known:
        needed = name in folder.index.captured or not folded.issuperset(folder.index.consumers.get(name, ()))
        if name and (keep or needed):
            add_initializer(proto, folder.known[name], name)
    for position in sorted(folded):
        node = graph.node[position]
        yield label(node, position), f"{node.op_type} → constant {tensor_summary(folder.known[node.output[0]])}"
    drop_nodes(graph, folded)


def _has_shapes(graph: onnx.GraphProto) -> bool:
    return any(node.op_type in ("Shape", "Size") for node in graph.node)


def _has_unknown(array: Array) -> bool:
    return array.dtype == np.int64 and bool(np.any(array == _UNKNOWN))


FOLD_CONSTANTS = Pass(
    "fold-constants",
    "small nodes whose result is known beforehand become stored tensors under the names of their outputs",
    fold_constants,
)
