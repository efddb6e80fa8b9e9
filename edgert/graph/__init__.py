"""The only door to the onnx package: load a model, fix its shapes, clean it, count it, describe it.

Importing these modules does not import onnx; the first call that needs it does. Everything passed around is a
:class:`Model`, which is never changed in place: every step returns a new one.
"""

from edgert.graph.count import NodeCost, count
from edgert.graph.inspection import ModelSummary, inspect
from edgert.graph.load import load
from edgert.graph.model import Model, TensorSpec, from_proto, inputs, outputs, to_bytes
from edgert.graph.passes.clean import PASSES, clean
from edgert.graph.passes.contract import Change, Pass
from edgert.graph.static_shape import infer, with_shapes

__all__ = [
    "PASSES",
    "Change",
    "Model",
    "ModelSummary",
    "NodeCost",
    "Pass",
    "TensorSpec",
    "clean",
    "count",
    "from_proto",
    "infer",
    "inputs",
    "inspect",
    "load",
    "outputs",
    "to_bytes",
    "with_shapes",
]
