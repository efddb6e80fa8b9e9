"""Pass that computes shapes, grids and other small constants once, instead of in every frame.

onnx's reference (https://onnx.ai/onnx/api/reference.html) evaluates the operators from which exporters build shapes and
grids, and those of small networks that compute position biases from a stored grid.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgert.errors import ModelError
from edgert.graph.draft import Draft
from edgert.graph.ir import Graph, Node, Pass, Result
from edgert.graph.model import Array, TensorSpec
from edgert.graph.onnx_convert import to_proto, with_large_constants_fed
from edgert.graph.operators import of_kind
from edgert.graph.type_inference import LazySpecs, infer_specs

MIN_OPSET = 7
"""First opset whose arithmetic broadcasts without an attribute."""
_EVALUATED = of_kind("arithmetic", "conversion", "generator", "join", "logic", "measure", "unary", "view") - {"Dropout"}
_EVALUATED |= {"DepthToSpace", "Expand", "Gather", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose", "NonZero"}
_EVALUATED |= {"MatMul", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Sigmoid"}


def evaluate(node: Node, feeds: Mapping[str, Array], opset: int, limit_bytes: int) -> list[Array] | None:
    """Return a node's outputs; None for other operators, for operands that they do not take, and for larger outputs.

    Results that NumPy warns about, such as a division by zero, are left to the backend.

    Args:
        node: node to evaluate.
        feeds: value of every input, by name.
        opset: version of the standard operator set.
        limit_bytes: largest output; sizes are checked before anything is computed.
    """
    from onnx.reference import ReferenceEvaluator

    if node.op not in _EVALUATED or opset < MIN_OPSET:
        return None
    outputs = tuple(TensorSpec(name, (), "unknown", ranked=False) for name in node.outputs)
    graph = with_large_constants_fed(Graph((node,), feeds, (), outputs, {}, opset))
    try:
        found, most = infer_specs(graph), sum(array.size for array in feeds.values())
        for spec in map(found.__getitem__, node.outputs):  # the open size of a NonZero is at most that of its input
            size = math.prod(dim if isinstance(dim, int) else most for dim in spec.shape)
            if not spec.ranked or replace(spec, shape=(size,)).size_bytes > limit_bytes:
                return None
        with np.errstate(all="raise", under="ignore"):
            large = {spec.name: feeds[spec.name] for spec in graph.inputs}
            made = [np.asarray(array) for array in ReferenceEvaluator(to_proto(graph)).run(None, large)]
    except (ModelError, LookupError, ValueError, TypeError, ArithmeticError, RuntimeError):
        return None  # operands that the specification does not allow: the backend decides
    return made if all(array.dtype.kind in "biuf" for array in made) else None


TENSOR_CAP_BYTES = 2**20
"""Largest folded tensor, unless its operands are larger; keeps models from growing."""
TOTAL_CAP_BYTES = 2**24
"""Largest total of the tensors that one walk folds."""

_UNKNOWN = -(2**62)  # a dynamic dimension in the value of a Shape node; real sizes are never negative
_MOVERS = ("Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")  # copy elements unchanged


class _Folder:
    """Walk over a graph in order that evaluates nodes with known operands.

    Attributes:
        known: values computed so far, by tensor name.
        partial: shapes with some unknown dimensions, by tensor name.
        left_bytes: bytes that may still be folded.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[str, Array] = {}
        self.partial: dict[str, Array] = {}
        self.left_bytes = TOTAL_CAP_BYTES
        self.specs = LazySpecs(graph)

    def fold(self, node: Node) -> bool:
        """Evaluate a node where possible; return whether its outputs are now known."""
        if node.domain or node.op not in _EVALUATED or not self.graph.output_names.isdisjoint(node.outputs):
            return False
        made = self._shape(node) if node.op in ("Shape", "Size") else self._compute(node, self._value)
        if made is None and node.op in _MOVERS:
            made = self._compute(node, lambda name: self.partial[name] if name in self.partial else self._value(name))
        return made is not None and self._store(node, made)

    def _store(self, node: Node, made: list[Array]) -> bool:
        if any(array.dtype == np.int64 and np.any(array == _UNKNOWN) for array in made):
            self.partial.update(zip(node.outputs, made, strict=False))
            return False
        size_bytes = sum(array.nbytes for array in made)
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        self.known.update(zip(node.outputs, made, strict=False))
        return True

    def _shape(self, node: Node) -> list[Array] | None:
        spec = self.specs.get(node.inputs[0], static=True)
        if spec is None or not spec.ranked or (node.op == "Size" and not spec.is_static):
            return None
        dims = [dim if isinstance(dim, int) else _UNKNOWN for dim in spec.shape]
        if node.op == "Size":
            return [np.array(np.prod(dims, dtype=np.int64))]
        cut = node.attributes
        return [np.array(dims[cut.get("start", 0) : cut.get("end")], np.int64)]

    def _compute(self, node: Node, value: Callable[[str], Array | None]) -> list[Array] | None:
        feeds = {name: array for name in filter(None, node.inputs) if (array := value(name)) is not None}
        if not feeds or len(feeds) < len(set(filter(None, node.inputs))):
            return None
        limit_bytes = max(TENSOR_CAP_BYTES, sum(feeds[name].nbytes for name in node.inputs if name))
        return evaluate(node, feeds, self.graph.opset, limit_bytes)

    def _value(self, name: str) -> Array | None:
        return self.known[name] if name in self.known else self.graph.constants.get(name)


def _run_folder(graph: Graph) -> tuple[_Folder, list[Node]]:
    """Return a folder that has walked over the graph, and the nodes it evaluated."""
    folder = _Folder(graph)
    if graph.opset < MIN_OPSET:
        return folder, []
    return folder, [node for node in graph.nodes if folder.fold(node)]


def _fold(graph: Graph) -> Result:
    folder, folded = _run_folder(graph)
    if not folded:
        return graph, ()
    draft = Draft(graph, "fold-constants")
    for node in folded:
        draft.store_values({name: folder.known[name] for name in node.outputs if name})
        draft.replace(node, (), f"{node.op} → constant {tensor_summary(folder.known[node.outputs[0]])}")
    return draft.finish()


def with_folded_constants(graph: Graph) -> Graph:
    """Return the graph with every constant tensor stored, even where nothing reads it any more.

    Folding repeats, since a folded shape lets more shapes be inferred.
    """
    while True:
        folder, folded = _run_folder(graph)
        if not folded:
            return graph
        gone = set(map(id, folded))
        left = tuple(node for node in graph.nodes if id(node) not in gone)
        graph = replace(graph, nodes=left, constants={**graph.constants, **folder.known})
        if not any(node.op in ("Shape", "Size") for node in left):
            return graph


def tensor_summary(array: Array) -> str:
    """Return element type and shape, as ``int64[4]``."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


FOLD_CONSTANTS = Pass(
    "fold-constants",
    "Shape, Gather and other nodes whose result is known beforehand become stored tensors",
    _fold,
)
