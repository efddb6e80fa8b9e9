"""Passes that make a model ready for a backend: the same results from fewer nodes.

They sort nodes, store constants, fold them into weights, and remove nodes without effect or reader.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import numpy as np

from edgert.errors import ModelError, nearest
from edgert.graph.batchnorm import FOLD_BATCHNORM, FOLD_BIAS
from edgert.graph.draft import Draft, needed
from edgert.graph.fold_constants import FOLD_CONSTANTS, tensor_summary
from edgert.graph.ir import Change, Graph, Node, Pass, Result, run
from edgert.graph.model import Array, Model, dtype_name, to_array
from edgert.graph.onnx_convert import to_graph, write
from edgert.graph.type_inference import LazySpecs


def _sort_nodes(graph: Graph) -> Result:
    """Sort nodes so that each comes after those it reads; among ready nodes the first in the file goes first."""
    dependencies = _dependencies(graph)
    if all(earlier < position for position, before in enumerate(dependencies) for earlier in before):
        return graph, ()
    sorter = TopologicalSorter(dict(enumerate(dependencies)))
    try:
        sorter.prepare()
    except CycleError as error:
        name, why = graph.nodes[min(error.args[1])].name, "the graph has a cycle"
        raise ModelError(f"node {name!r} depends on its own result", why=why, fix="export it again") from error
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for position in sorter.get_ready():
            heapq.heappush(ready, position)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    change = Change("sort-nodes", "graph", f"{len(order)} nodes put in the order in which they run")
    return replace(graph, nodes=tuple(graph.nodes[position] for position in order)), (change,)


def _dependencies(graph: Graph) -> list[set[int]]:
    places = {id(node): position for position, node in enumerate(graph.nodes)}
    producers = {name: places[id(node)] for name, node in graph.producers.items()}
    known = {spec.name for spec in graph.inputs} | graph.constants.keys()
    found = []
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            if name not in producers and name not in known:
                raise ModelError(
                    f"node {node.name!r} reads {name!r}, which nothing computes",
                    why=f"no node, input or stored tensor has that name{nearest(name, producers)}",
                    fix="export the model again",
                )
        # an inner tensor of a body may have the name of an output of its node; that is no cycle
        names = {*node.inputs, *(node.captured - set(node.outputs))}
        found.append({producers[name] for name in names if name in producers})
    return found


def _remove_dead(graph: Graph) -> Result:
    kept = needed(graph.nodes, graph.output_names)
    if len(kept) == len(graph.nodes):
        return graph, ()
    alive = set(map(id, kept))
    dead = [node for node in graph.nodes if id(node) not in alive]
    changes = (Change("remove-dead", node.name, f"{node.op} removed, nothing reads its result") for node in dead)
    return replace(graph, nodes=kept), tuple(changes)


def _store_constants(graph: Graph) -> Result:
    draft = Draft(graph, "store-constants")
    for node in graph.nodes:
        array = constant_value(node)
        if array is None or node.outputs[0] in graph.output_names:
            continue  # some backends take no stored tensor as a graph output
        draft.store_values({node.outputs[0]: array})
        draft.replace(node, (), f"Constant → stored tensor {node.outputs[0]!r}")
    return draft.finish()


def constant_value(node: Node) -> Array | None:
    """Return the value of a Constant node; None for other nodes, and for strings and sparse tensors."""
    if node.op != "Constant" or node.domain:
        return None
    (name, value), *_ = [*node.attributes.items(), ("", None)]
    if name == "value":
        return to_array(value)
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return np.array(value, dtypes[name]) if name in dtypes else None


def _remove_unused(graph: Graph) -> Result:
    used = {name for node in graph.nodes for name in node.reads} | graph.output_names
    gone = {name: array for name, array in graph.constants.items() if name not in used}
    if not gone:
        return graph, ()
    kept = {name: array for name, array in graph.constants.items() if name in used}
    changes = (Change("remove-unused", name, f"unused {tensor_summary(array)} removed") for name, array in gone.items())
    return replace(graph, constants=kept), tuple(changes)


class _NoopRemover:
    def __init__(self, graph: Graph) -> None:
        self.draft, self.graph, self.specs = Draft(graph, "remove-noops"), graph, LazySpecs(graph)

    def visit(self, node: Node) -> None:
        """Remove a node without effect, or merge a Transpose with the one before it."""
        if self._is_noop(node):
            self.draft.bypass(node, node.inputs[0], f"{node.op} removed, its output equals its input")
        elif node.op == "Transpose":
            self._merge(node)

    def _is_noop(self, node: Node) -> bool:
        match node.op:
            case "Identity":
                return True
            case "Concat":
                return len(node.inputs) == 1
            case "Cast":
                spec = self.specs.get(node.inputs[0])
                return spec is not None and spec.dtype == dtype_name(node.attributes["to"])
            case "Dropout":
                return self._is_idle_dropout(node)
        perm = self._perm(node)
        return perm is not None and perm == sorted(perm)

    def _is_idle_dropout(self, node: Node) -> bool:
        mask = node.outputs[1] if len(node.outputs) > 1 else ""
        if mask and (mask in self.graph.consumers or self.graph.is_visible(mask)):
            return False
        if self.graph.opset < 7:
            return bool(node.attributes.get("is_test", 0))
        training = node.inputs[2] if len(node.inputs) > 2 else ""
        switch = self.draft.value(training)
        return not training or (switch is not None and not switch.any())

    def _perm(self, node: Node) -> list[int] | None:
        """Return the axis order of a Transpose; None for the default order of an unknown rank."""
        if "perm" in node.attributes:
            return list(node.attributes["perm"])
        spec = self.specs.get(node.inputs[0])
        return list(reversed(range(len(spec.shape)))) if spec is not None and spec.ranked else None

    def _merge(self, node: Node) -> None:
        first = self.draft.producer(node.inputs[0])
        if first is None or first.op != "Transpose":
            return
        inner, outer = self._perm(first), self._perm(node)
        if inner is None or outer is None or sorted(inner) != sorted(outer):
            return
        perm = [inner[axis] for axis in outer]
        if perm != sorted(perm):
            made = replace(node, inputs=first.inputs, attributes={"perm": perm})
            self.draft.replace(node, [made], f"Transpose now does the work of two, perm {perm}")
        else:
            self.draft.bypass(node, first.inputs[0], "Transpose removed, it undoes the one before it")


def _remove_noops(graph: Graph) -> Result:
    walk = _NoopRemover(graph)
    for node in graph.nodes:
        may_go = node.op in ("Cast", "Concat", "Dropout", "Identity", "Transpose") and not node.domain
        if may_go and walk.draft.is_free(node):
            walk.visit(node)
    return walk.draft.finish()


SORT_NODES = Pass(
    "sort-nodes",
    "nodes are reordered, where needed, so that each comes after those it reads",
    _sort_nodes,
)
REMOVE_DEAD = Pass(
    "remove-dead",
    "nodes that no graph output depends on are removed; needs sorted nodes",
    _remove_dead,
)
REMOVE_UNUSED = Pass("remove-unused", "stored tensors that nothing reads are removed", _remove_unused)
STORE_CONSTANTS = Pass(
    "store-constants",
    "Constant nodes become stored tensors of the same name",
    _store_constants,
)
REMOVE_NOOPS = Pass(
    "remove-noops",
    "Identity, idle Dropout, Cast to the same type, Concat of one tensor and Transposes that undo each other are "
    "removed; two Transposes in a row become one",
    _remove_noops,
)
PASSES: tuple[Pass, ...] = (
    SORT_NODES,
    REMOVE_DEAD,
    REMOVE_UNUSED,
    STORE_CONSTANTS,
    REMOVE_NOOPS,
    FOLD_CONSTANTS,
    FOLD_BIAS,
    FOLD_BATCHNORM,
)
"""Passes of :func:`clean`, in order; the later ones rely on the node order that the first one makes."""


def clean(model: Model, passes: Sequence[Pass] = PASSES) -> tuple[Model, tuple[Change, ...]]:
    """Run passes over the model's graph until none finds anything left to do.

    Before the passes, functions of the file are inlined, and every node gets a unique name. Stored tensors that are
    also listed as inputs leave that list, so that runtimes may fold them. Outputs stay the same up to rounding: folded
    weights are computed in float64 and stored in their own type. Bodies of If, Loop and Scan are not changed. Equal
    models give equal bytes. Fix dynamic shapes first (:func:`~edgert.graph.static_shape.with_shapes`) to fold more.

    Args:
        model: model to copy.
        passes: passes to run, in order.

    Returns:
        The new model (the given one when nothing changed) and every change, in order.

    Raises:
        ModelError: the graph is broken: a tensor is computed twice or never, or there is a cycle.
    """
    read, conversions = to_graph(model.proto)
    try:
        graph, found = run(read, passes)
    except ModelError as error:
        raise error.at(str(model.path)) from error.__cause__
    changes = (*conversions, *found)
    return (write(graph, model, typed=True) if changes else model), changes
