"""The drawn networks of tools/networks as models that run: random weights, and what the drawings leave out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.graph import Graph, Model, Node, from_proto, write
from tests.helpers.models import make_proto, node
from tools.networks.yolo import yolo11, yolov8


def model(name: str, size_px: int = 640) -> Model:
    """``yolov8n``, ``yolov8s``, ``yolo11n`` ...: boxes and scores of 80 classes, none of it trained."""
    drawn = (yolov8 if name.startswith("yolov8") else yolo11)(name[-1], size_px)
    ends = [{one.name: one.shape for one in some} for some in (drawn.inputs, drawn.outputs)]
    empty = make_proto([node("Identity", ["input"], ["y"])], ends[0], ends[1], opset=drawn.opset)
    return write(runnable(drawn), from_proto(empty, f"{name}.onnx"))


def runnable(drawn: Graph) -> Graph:
    """Weights that keep the spread of what they read; scales, shapes and ranges stored."""
    rng = np.random.default_rng(8)
    stored: dict[str, Any] = {"twice": np.array([1, 1, 2, 2], np.float32)}
    for name, array in drawn.constants.items():
        spread = math.sqrt(2 / math.prod(array.shape[1:])) if array.ndim > 1 else 0.1
        stored[name] = (spread * rng.standard_normal(array.shape)).astype(np.float32)
    taken: dict[str, int] = {}
    nodes = tuple(_whole(drawn, node, stored, taken) for node in drawn.nodes)
    return replace(drawn, nodes=nodes, constants=stored)


def _whole(drawn: Graph, node: Node, stored: dict[str, Any], taken: dict[str, int]) -> Node:
    after = _shape(drawn, node.outputs[0])
    if node.op == "Resize":
        form = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return replace(node, inputs=(*node.inputs, "", "twice"), attributes=form)
    if node.op == "Reshape":
        stored[f"{node.name}_shape"] = np.array(after, np.int64)
        return replace(node, inputs=(*node.inputs, f"{node.name}_shape"))
    if node.op == "Slice":  # several of one tensor follow each other along the axis that they shorten
        before = _shape(drawn, node.inputs[0])
        axis = next(place for place, (one, two) in enumerate(zip(before, after, strict=True)) if one != two)
        start = taken.get(node.inputs[0], 0)
        taken[node.inputs[0]] = start + after[axis]
        numbers = {"start": start, "end": start + after[axis], "axis": axis}
        stored.update({f"{node.name}_{what}": np.array([number]) for what, number in numbers.items()})
        return replace(node, inputs=(*node.inputs, *(f"{node.name}_{what}" for what in numbers)))
    return node


def _shape(drawn: Graph, name: str) -> tuple[int, ...]:
    spec = drawn.spec(name)
    assert spec is not None and spec.sizes is not None
    return spec.sizes
