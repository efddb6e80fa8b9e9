"""The types an operator takes and gives, as its ONNX schema has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgert.graph.proto import DEFAULT_DOMAINS, dtype_name


@dataclass(frozen=True, slots=True)
class Port:
    """One formal input or output.

    Attributes:
        variable: ports with the same type variable have the same type, ``"T"``; a port of one fixed type has that
            type's ONNX name here, ``"tensor(float)"``.
        dtypes: element types it may have, by NumPy's names.
    """

    variable: str
    dtypes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Signature:
    """The ports of an operator.

    Attributes:
        inputs, outputs: in order.
        repeats_input, repeats_output: whether the last one stands for any number of tensors.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    repeats_input: bool
    repeats_output: bool

    def input(self, position: int) -> Port | None:
        """The port an input is for; None for one that the operator does not have."""
        return _at(self.inputs, position, self.repeats_input)

    def output(self, position: int) -> Port | None:
        """The port an output comes from; None for one that the operator does not have."""
        return _at(self.outputs, position, self.repeats_output)

    def is_given(self, variable: str) -> bool:
        """Whether an input has this type variable, so that an output of it has the input's type."""
        return any(port.variable == variable for port in self.inputs)


@lru_cache(maxsize=512)
def signature(op: str, opset: int, domain: str = "") -> Signature | None:
    """The signature of an operator; None where the onnx package has no schema of it for that version.

    Ports without a common type (the inputs of Loop) are given a type variable each.
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
    """``"tensor(float)"`` → ``"float32"``; what is no tensor keeps its name."""
    from onnx import TensorProto

    inner = name.removeprefix("tensor(").removesuffix(")").upper()
    numbers = dict(TensorProto.DataType.items())
    return dtype_name(numbers[inner]) if inner in numbers else name


def _at(ports: tuple[Port, ...], position: int, repeats: bool) -> Port | None:
    if position < len(ports):
        return ports[position]
    return ports[-1] if repeats and ports else None
