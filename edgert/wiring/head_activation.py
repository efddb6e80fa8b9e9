"""Activation of a detection head's scores, found in the graph instead of in every frame.

Without it a decoder examines all scores of every frame (``activation: auto``), which a GPU must first copy to the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from edgert.config import TaskConfig
from edgert.config.model_section import DetectTask
from edgert.graph import Model
from edgert.graph.operators import about, data_inputs, of_values
from edgert.stages.decode.decoder import Shapes, boxes_and_scores

_MOVING_OPS = of_values("same", "some", "picked")
"""Operators that only move or select numbers."""
_CONTRADICTED = {
    "normalization": frozenset({"classify: multilabel"}),
    "curve": frozenset({"classify: auto", "classify: softmax", "classify: logits"}),
}
"""Kind of the last operator → decoders that it contradicts."""


_AUTO_DECODERS = ("yolo-raw", "yolov8-raw", "detr", "detr-seg")


def has_unknown_activation(task: TaskConfig) -> TypeGuard[DetectTask]:
    """Return whether a task's decoder would examine every frame's scores to find their activation."""
    return isinstance(task, DetectTask) and task.detect in _AUTO_DECODERS and "activation" not in task.options


def with_activation(
    task: TaskConfig, model: Model, shapes: Shapes, label_count: int, *, as_auto: bool = False
) -> TaskConfig:
    """Return a task with the activation that the graph shows, where its decoder would otherwise examine every frame.

    For ``detr``, scores without an activation may need a softmax, with a column for no object. Only as many labels as
    columns show that they need a sigmoid. Where labels do not show it, ``as_auto`` chooses as ``auto`` does: softmax if
    there is one more column than labels.
    """
    if not has_unknown_activation(task):
        return task
    names = [one.name for one in model.proto.graph.output]
    if task.detect in ("yolo-raw", "yolov8-raw"):
        found = _activation(model, names)
    else:
        tables = [(name, shape) for name, shape in zip(names, shapes, strict=False) if len(shape) < 3]  # no masks
        found = _query_activation(
            model, [name for name, _ in tables], [shape for _, shape in tables], label_count, as_auto
        )
    return task.model_copy(update={"options": {**task.options, "activation": found}}) if found else task


def _query_activation(model: Model, names: Sequence[str], shapes: Shapes, label_count: int, as_auto: bool) -> str:
    """Return the missing activation of a head with queries; empty where the graph and the labels do not show it."""
    if len(shapes) == 1:
        return "none" if _activation(model, names) == "none" else ""
    roles = boxes_and_scores(shapes)
    found = _activation(model, [names[roles[1]]]) if roles else ""
    columns = shapes[roles[1]][1] if roles else 0
    if found != "sigmoid" or columns == label_count:
        return found
    return ("softmax" if columns == label_count + 1 > 1 else "sigmoid") if as_auto else ""


def contradicted_decoders(model: Model) -> frozenset[str]:
    """Return the decoders of classes, as ``classify: auto``, that the end of the graph contradicts.

    A softmax at the end means one class; independent numbers between 0 and 1 mean several labels.
    """
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    ends = [node for one in model.proto.graph.output for node in _computing_nodes(makers, one.name)]
    if len(ends) != 1 or ends[0] is None:
        return frozenset()
    end = about(ends[0].op_type)
    return _CONTRADICTED.get(end.kind, frozenset()) if (end.low, end.high) == (0, 1) else frozenset()


def _activation(model: Model, outputs: Sequence[str]) -> str:
    """Return ``none`` where a sigmoid computes all numbers, ``sigmoid`` where sums of products do; else empty."""
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    constants = {one.name for one in model.proto.graph.initializer}
    constants |= {name for name, node in makers.items() if about(node.op_type).kind == "constant"}
    found = {
        _missing_activation(makers, constants, node) for name in outputs for node in _computing_nodes(makers, name)
    }
    return found.pop() if len(found) == 1 else ""


def _computing_nodes(makers: Mapping[str, Any], output: str) -> Iterator[Any]:
    """Yield the nodes that compute an output's numbers, skipping nodes that only move them; None for an input."""
    waiting, seen = [output], set[str]()
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if name in seen:
            continue
        seen.add(name)
        if node is not None and node.op_type in _MOVING_OPS and about(node.op_type).kind != "rectifier":
            waiting += data_inputs(node.op_type, node.input)
        else:
            yield node


def _missing_activation(makers: Mapping[str, Any], constants: set[str], node: Any) -> str:
    """Return the activation that a node's numbers still need, ``none`` or ``sigmoid``; empty where unknown."""
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
