"""Element types: those of an operator's inputs and outputs by its ONNX schema, and those of all tensors of a graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgert.graph.ir import Graph, Node
from edgert.graph.model import DEFAULT_DOMAINS, dtype_name, element_type


@dataclass(frozen=True, slots=True)
class Port:
    """A formal input or output of an operator.

    Attributes:
        variable: ports with the same type variable have the same type, ``"T"``; a port of one fixed type has that
            type's ONNX name here, ``"tensor(float)"``.
        dtypes: element types it may have, by NumPy's names.
    """

    variable: str
    dtypes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of an operator.

    Attributes:
        inputs: in order.
        outputs: in order.
        repeats_input: whether the last input stands for any number of tensors.
        repeats_output: whether the last output stands for any number of tensors.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    repeats_input: bool
    repeats_output: bool

    def input(self, position: int) -> Port | None:
        """Return the port of an input; None for one that the operator does not have."""
        return _at(self.inputs, position, self.repeats_input)

    def output(self, position: int) -> Port | None:
        """Return the port of an output; None for one that the operator does not have."""
        return _at(self.outputs, position, self.repeats_output)

    def is_given(self, variable: str) -> bool:
        """Return whether an input has this type variable, so that an output of it has the input's type."""
        return any(port.variable == variable for port in self.inputs)


@lru_cache(maxsize=512)
def signature(op: str, opset: int, domain: str = "") -> Signature | None:
    """Return the signature of an operator; None where the onnx package has no schema of it for that version.

    Ports without a common type (the inputs of Loop) get a type variable each.
    """
    from onnx import defs

    try:
        schema = defs.get_schema(op, opset, "" if domain in DEFAULT_DOMAINS else domain)
    except defs.SchemaError:
        return None
    taken, given = schema.inputs, schema.outputs
    return Signature(tuple(_ports(taken)), tuple(_ports(given)), _repeats(taken), _repeats(given))


def _ports(formal: Sequence[Any]) -> Iterator[Port]:
    for position, item in enumerate(formal):
        variable = item.type_str if item.is_homogeneous else f"{item.type_str}@{position}"
        yield Port(variable, frozenset(map(_dtype, item.types)))


def _repeats(formal: Sequence[Any]) -> bool:
    return bool(formal) and str(formal[-1].option.name) == "Variadic"


def _dtype(name: str) -> str:
    """Return ``"float32"`` for ``"tensor(float)"``; other types keep their name."""
    from onnx import TensorProto

    inner = name.removeprefix("tensor(").removesuffix(")").upper()
    numbers = dict(TensorProto.DataType.items())
    return dtype_name(numbers[inner]) if inner in numbers else name


def _at(ports: tuple[Port, ...], position: int, repeats: bool) -> Port | None:
    if position < len(ports):
        return ports[position]
    return ports[-1] if repeats and ports else None


# Element types of a graph's tensors, also of those that shape inference did not reach.


def dtypes(graph: Graph) -> dict[str, str]:
    """Return tensor → element type by NumPy's name, as recorded or as operators imply; unknown ones are left out."""
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
    """Return a node that converts a tensor to ``"float16"``, ``"int64"``, …."""
    return Node("Cast", (source,), (target,), {"to": element_type(dtype)}, name)


def _output_dtype(graph: Graph, node: Node, position: int, known: Mapping[str, str]) -> str:
    """Return the element type of an output; empty when known types do not imply it."""
    given = _attribute_dtype(node, known)
    if given:
        return given
    found = signature(node.op, graph.opset, node.domain)
    port = found.output(position) if found else None
    if found is None or port is None:
        return ""
    if len(port.dtypes) == 1:
        return next(iter(port.dtypes))
    ports = ((found.input(at), name) for at, name in enumerate(node.inputs) if name in known)
    return next((known[name] for taken, name in ports if taken and taken.variable == port.variable), "")


def _attribute_dtype(node: Node, known: Mapping[str, str]) -> str:
    """Return the type of an operator's output where an attribute or a default sets it, else ``""``."""
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
