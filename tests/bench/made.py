"""Networks that are built from what their authors publish, of weights that nobody trained, so that they can be run."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import numpy as np

from edgert.graph import Graph, Model, Node, clean, from_proto
from edgert.graph.model import Array
from edgert.graph.onnx_convert import to_proto
from scripts.networks import table
from tests.helpers.resnet import resnet50

SIDES = {"mobilenet_v2": 224, "shufflenet_v2_x2_0": 224, "yolov8n": 320}
"""Network of :mod:`scripts.networks.table` → side of its images."""
NAMES = ("resnet50", *SIDES)


def made(name: str) -> Model:
    """One of :data:`NAMES`, cleaned."""
    if name == "resnet50":
        return clean(resnet50(size_px=128))[0]
    return clean(from_proto(to_proto(runnable(table.build(name, SIDES[name]))), f"{name}.onnx"))[0]


def runnable(graph: Graph) -> Graph:
    """A built graph, which has shapes only, with the constants that give them: as far as its boxes are decoded."""
    nodes = tuple(takewhile(lambda node: node.op != "Slice", graph.nodes))
    stored, filled = dict(graph.constants), list[Node]()
    for node in nodes:
        shape = np.array(graph.specs[node.outputs[0]].shape)
        given = np.array(graph.specs[node.inputs[0]].shape)
        added: dict[str, Array] = {}
        if node.op == "Reshape":
            added = {f"{node.name}_shape": shape.astype(np.int64)}
        elif node.op == "Resize":
            added = {"": np.zeros(0, np.float32), f"{node.name}_scales": (shape / given).astype(np.float32)}
        stored.update((name, value) for name, value in added.items() if name)
        filled.append(replace(node, inputs=(*node.inputs, *added)))
    read = {name for node in nodes for name in node.inputs}
    ends = tuple(graph.specs[name] for node in nodes for name in node.outputs if name not in read)
    return replace(graph, nodes=tuple(filled), constants=stored, outputs=ends)
