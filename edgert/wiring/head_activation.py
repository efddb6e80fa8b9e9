"""Whether a detection head's numbers are past their sigmoid: what the graph says, so that no frame is asked.

Without it a decoder looks at all numbers of every frame (``activation: auto``), which a GPU then has to bring to the
host.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from edgert.config import TaskConfig
from edgert.config.model_section import DetectTask
from edgert.graph import Model
from edgert.graph.operators import about, data_inputs, of_values
from edgert.stages.decode.decoder import Shapes, boxes_and_scores

_MOVES = of_values("same", "some", "picked")
"""Operators that make no new numbers."""
_DENIED = {
    "normalization": frozenset({"classify: multilabel"}),
    "curve": frozenset({"classify: auto", "classify: softmax", "classify: logits"}),
}
"""Kind of the last operator → decoders that it contradicts."""


_ASKING = ("yolo-raw", "detr", "detr-seg")


def asks_numbers(task: TaskConfig) -> TypeGuard[DetectTask]:
    """Return whether the task's decoder would test a frame's numbers for their activation, without a graph."""
    return isinstance(task, DetectTask) and task.detect in _ASKING and "activation" not in task.options


def with_activation(
    task: TaskConfig, model: Model, shapes: Shapes, label_count: int, *, as_auto: bool = False
) -> TaskConfig:
    """Return the task with the activation that the graph shows, where its decoder would else test the numbers.

    For ``detr``, numbers without an activation may come from a softmax with a column for no object. Only as many labels
    as columns show that they do not.

    Args:
        task: with the decoder.
        model: with the graph.
        shapes: of the model's outputs, without the batch dimension.
        label_count: number of known class names; 0 for none.
        as_auto: where labels do not show it, choose as ``auto`` does: a softmax if columns are one more than labels.
    """
    if not asks_numbers(task):
        return task
    names = [one.name for one in model.proto.graph.output]
    if task.detect == "yolo-raw":
        found = _activation(model, names)
    else:
        tables = [(name, shape) for name, shape in zip(names, shapes, strict=False) if len(shape) < 3]  # no masks
        found = _of_queries(model, [name for name, _ in tables], [shape for _, shape in tables], label_count, as_auto)
    return task.model_copy(update={"options": {**task.options, "activation": found}}) if found else task


def _of_queries(model: Model, names: Sequence[str], shapes: Shapes, label_count: int, as_auto: bool) -> str:
    """Return the activation as :func:`with_activation`; one table with boxes is past its sigmoid as a unit."""
    if len(shapes) == 1:
        return "none" if _activation(model, names) == "none" else ""
    roles = boxes_and_scores(shapes)
    found = _activation(model, [names[roles[1]]]) if roles else ""
    columns = shapes[roles[1]][1] if roles else 0
    if found != "sigmoid" or columns == label_count:
        return found
    return ("softmax" if columns == label_count + 1 > 1 else "sigmoid") if as_auto else ""


def denied(model: Model) -> frozenset[str]:
    """Return decoders of classes, as a task writes them, that the end of the graph contradicts.

    Fractions that add up to 1 mean one class; independent numbers between 0 and 1 mean several.
    """
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    ends = [node for one in model.proto.graph.output for node in _sources(makers, one.name)]
    if len(ends) != 1 or ends[0] is None:
        return frozenset()
    end = about(ends[0].op_type)
    return _DENIED.get(end.kind, frozenset()) if (end.low, end.high) == (0, 1) else frozenset()


def _activation(model: Model, outputs: Sequence[str]) -> str:
    """Return ``none`` where a sigmoid makes all numbers, ``sigmoid`` where sums of products do, else empty."""
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    constants = {one.name for one in model.proto.graph.initializer}
    constants |= {name for name, node in makers.items() if about(node.op_type).kind == "constant"}
    found = {_missing(makers, constants, node) for name in outputs for node in _sources(makers, name)}
    return found.pop() if len(found) == 1 else ""


def _sources(makers: Mapping[str, Any], output: str) -> Iterator[Any]:
    """Yield the nodes that compute an output's numbers, behind nodes that only move them; None without a node."""
    waiting, seen = [output], set[str]()
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if name in seen:
            continue
        seen.add(name)
        if node is not None and node.op_type in _MOVES and about(node.op_type).kind != "rectifier":
            waiting += data_inputs(node.op_type, node.input)
        else:
            yield node


def _missing(makers: Mapping[str, Any], constants: set[str], node: Any) -> str:
    """Return the activation that is missing after a node, ``none`` or ``sigmoid``; empty where it is neither."""
    if node is None:
        return ""
    about_it = about(node.op_type)
    if about_it.kind == "curve" and about_it.low == 0 and about_it.high == 1:
        return "none"
    is_sum = about_it.kind == "arithmetic" and about_it.is_homogeneous and about_it.values == "new"
    if is_sum and not constants.isdisjoint(node.input):  # a bias
        summed = [makers.get(name) for name in node.input if name not in constants]
        is_product = len(summed) == 1 and summed[0] is not None and about(summed[0].op_type).kind == "product"
        return "sigmoid" if is_product else ""
    return "sigmoid" if about_it.kind in ("conv", "product") else ""
