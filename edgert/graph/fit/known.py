"""Passes of :mod:`edgert.graph.clean` as rewrites of plain records, for what a rewrite leaves for them to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from edgert.graph.batchnorm import FOLD_BATCHNORM
from edgert.graph.bias import FOLD_BIAS
from edgert.graph.constant import STORE_CONSTANTS
from edgert.graph.fit.draft import Result
from edgert.graph.fold import FOLD_CONSTANTS
from edgert.graph.model import Model, from_proto
from edgert.graph.node import Graph, read, write
from edgert.graph.noop import REMOVE_NOOPS
from edgert.graph.rewrite import Change, Pass
from edgert.graph.tidy import REMOVE_DEAD

_IR = 8  # of a message that only lives here


def _by(passes: Sequence[Pass], worth: Callable[[Graph], bool]) -> Callable[[Graph], Result]:
    """A rewrite that runs passes over the graph as a message, where it is worth making one."""

    def apply(graph: Graph) -> Result:
        if not worth(graph):
            return graph, ()
        model = _message(graph)
        changes: list[Change] = []
        for step in passes:
            model, found = step(model)
            changes += found
        return (read(REMOVE_DEAD(model)[0]), tuple(changes)) if changes else (graph, ())

    return apply


def _message(graph: Graph) -> Model:
    from onnx import ModelProto, helper

    empty = ModelProto(ir_version=_IR, opset_import=[helper.make_opsetid("", graph.opset)])
    empty.graph.name = "graph"
    return write(graph, from_proto(empty))


def _has(*ops: str) -> Callable[[Graph], bool]:
    return lambda graph: any(node.op in ops and not node.domain for node in graph.nodes)


def _has_stored_operands(graph: Graph) -> bool:
    """Whether a node reads nothing but stored tensors, or a shape."""
    known: Collection[str] = graph.constants.keys()
    return any(
        node.op in ("Constant", "Shape", "Size") or (node.reads and all(name in known for name in node.reads))
        for node in graph.nodes
    )


def _adds_stored(graph: Graph) -> bool:
    layers = ("Conv", "ConvTranspose", "Gemm")
    makers = graph.producers
    return any(
        node.op == "Add"
        and any(name in graph.constants for name in node.inputs)
        and any(name in makers and makers[name].op in layers for name in node.inputs)
        for node in graph.nodes
    )


fold_constants = _by((STORE_CONSTANTS, FOLD_CONSTANTS), _has_stored_operands)
fold_batchnorm = _by((FOLD_BATCHNORM,), _has("BatchNormalization"))
fold_bias = _by((FOLD_BIAS,), _adds_stored)
remove_noops = _by((REMOVE_NOOPS,), _has("Identity", "Dropout", "Cast", "Transpose"))
