"""Door to the onnx package: load a model, fix its shapes, clean it, read it as a graph, count and describe it.

Importing these modules does not import onnx; the first call that needs it does. A :class:`Model` holds an ONNX
message; a :class:`Graph` holds the same as plain records. Neither is changed in place: every step returns a new one.

- load(file) → Model; with_shapes, clean and raise_opset each make a new Model of a Model
- read(Model) → Graph of Nodes; passes and rewrites each make a new Graph of a Graph
- write(Graph, like=Model) → Model
- inspect(Model) → ModelSummary; count(Model) → NodeCost of every node
"""

from edgert.graph.clean import PASSES, clean
from edgert.graph.count import NodeCost, count
from edgert.graph.inspection import ModelSummary, inspect
from edgert.graph.ir import Change, Graph, Names, Node, Pass
from edgert.graph.load import load
from edgert.graph.model import Model, TensorSpec, from_bytes, from_proto, inputs, outputs, to_bytes
from edgert.graph.onnx_convert import write
from edgert.graph.opset import raise_opset
from edgert.graph.partition import extract
from edgert.graph.static_shape import Shapes, infer, read, with_shapes

__all__ = [
    "PASSES",
    "Change",
    "Graph",
    "Model",
    "ModelSummary",
    "Names",
    "Node",
    "NodeCost",
    "Pass",
    "Shapes",
    "TensorSpec",
    "clean",
    "count",
    "extract",
    "from_bytes",
    "from_proto",
    "infer",
    "inputs",
    "inspect",
    "load",
    "outputs",
    "raise_opset",
    "read",
    "to_bytes",
    "with_shapes",
    "write",
]
