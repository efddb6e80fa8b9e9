"""Element types of a graph's tensors, also of those that shape inference has not seen."""

from __future__ import annotations

from collections.abc import Mapping

from edgert.graph.node import Graph, Node
from edgert.graph.proto import dtype_name
from edgert.graph.signature import signature


def dtypes(graph: Graph) -> dict[str, str]:
    """Tensor → element type by NumPy's name, as recorded or as it follows from the operators; unknown ones left out."""
    found = {name: spec.dtype for name, spec in graph.specs.items()}
    found |= {spec.name: spec.dtype for spec in (*graph.inputs, *graph.outputs)}
    found |= {name: array.dtype.name for name, array in graph.constants.items()}
    found = {name: dtype for name, dtype in found.items() if dtype != "unknown"}
    for node in graph.nodes:
        for position, name in enumerate(node.outputs):
            if name and name not in found:
                dtype = _output_dtype(graph, node, position, found)
                if dtype:
                    found[name] = dtype
    return found


def cast_node(source: str, target: str, dtype: str, name: str) -> Node:
    """A node that converts a tensor to ``"float16"``, ``"int64"``, …"""
    return Node("Cast", (source,), (target,), {"to": element_type(dtype)}, name)


def element_type(dtype: str) -> int:
    """ONNX's number of a type (``TensorProto.DataType``). Raises KeyError for what ONNX has not."""
    from onnx import TensorProto

    numbers: dict[str, int] = {dtype_name(number): number for number in TensorProto.DataType.values()}
    return numbers[dtype]


def _output_dtype(graph: Graph, node: Node, position: int, known: Mapping[str, str]) -> str:
    """Empty when it does not follow from what is known."""
    own = _own_dtype(node, known)
    if own:
        return own
    found = signature(node.op, graph.opset, node.domain)
    port = found.output(position) if found else None
    if found is None or port is None:
        return ""
    if len(port.dtypes) == 1:
        return next(iter(port.dtypes))
    ports = ((found.input(at), name) for at, name in enumerate(node.inputs) if name in known)
    return next((known[name] for taken, name in ports if taken and taken.variable == port.variable), "")


def _own_dtype(node: Node, known: Mapping[str, str]) -> str:
    """The type of an operator's output where an attribute or a default has it."""
    for attribute in ("to", "dtype", "output_dtype"):
        if node.attributes.get(attribute):
            return dtype_name(node.attributes[attribute])
    if node.op == "QuantizeLinear" and len(node.inputs) < 3:
        return "uint8"
    if node.op == "DequantizeLinear":
        return known.get(node.inputs[1], "")
    if node.op in ("Constant", "ConstantOfShape") and "value" in node.attributes:
        return dtype_name(node.attributes["value"].data_type)
    return "float32" if node.op == "ConstantOfShape" else ""
