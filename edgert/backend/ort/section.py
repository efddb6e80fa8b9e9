"""A model with operators of the user's own in sections: what ONNX Runtime runs, and what Python runs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgert.backend.base import Array, Tensor
from edgert.errors import BuildError
from edgert.graph.model import Model
from edgert.graph.node import Graph, extract, read, write
from edgert.graph.part import Part, parts
from edgert.graph.spec import TensorSpec
from edgert.operator import Operator

PYTHON, ORT = "python", "ort"


@dataclass(frozen=True, slots=True)
class Call:
    """One node that Python runs.

    Attributes:
        name: of the node.
        operator: what it computes.
        inputs, outputs: tensor names.
        settings: its attributes, defaults filled in.
        constants: inputs that are stored in the model.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Mapping[str, Any]
    constants: Mapping[str, Array]

    def __call__(self, tensors: Mapping[str, Array]) -> list[Array]:
        """The outputs, arrays of the operator's own."""
        given = [self.constants[name] if name in self.constants else tensors[name] for name in self.inputs]
        return self.operator(given, self.settings)

    def checked(self, made: Sequence[Array], wanted: Sequence[Tensor]) -> None:
        """Holds a result to the operator's rules. Raises BuildError."""
        found = [Tensor(tensor.name, one.shape, one.dtype.name) for tensor, one in zip(wanted, made, strict=False)]
        if len(made) != len(wanted) or found != list(wanted):
            told = ", ".join(f"{one.dtype} {list(one.shape)}" for one in found)
            rules = ", ".join(f"{one.dtype} {list(one.shape)}" for one in wanted)
            raise BuildError(
                f"node {self.name!r}: {self.operator} does not keep to its own rules",
                why=f"it returned {told}; its shape and dtype rules say {rules}",
                where=str(self.operator.file),
                fix="correct the function, or the rules that edgert.op was given",
            )


@dataclass(frozen=True, slots=True)
class Section:
    """One part: a model for ONNX Runtime, or calls for Python."""

    part: Part
    model: Model | None
    calls: tuple[Call, ...]


def sections(graph: Graph, like: Model) -> list[Section]:
    """A model's parts in the order in which they run.

    Args:
        graph: ``like``, read.

    Raises:
        ModelError: the type of a tensor between them is not known, or an attribute is not the operator's.
    """
    own = graph.own_operators
    places = {node.name: PYTHON if node.name in own else ORT for node in graph.nodes}
    found = []
    for part in parts(graph, places):
        if part.accelerator == PYTHON:
            found.append(Section(part, None, tuple(_call(graph, node, own[node]) for node in part.nodes)))
        else:
            found.append(Section(part, write(extract(graph, part.outputs, part.inputs), like), ()))
    return found


def _call(graph: Graph, name: str, one: Operator) -> Call:
    node = next(node for node in graph.nodes if node.name == name)
    constants = {item: graph.constants[item] for item in node.inputs if item in graph.constants}
    return Call(name, one, node.inputs, node.outputs, one.settings(node.attributes, name), constants)


class OwnFunction:
    """Runs the parts on arrays of any size, allocating as it goes: what ONNX Runtime's session is to a
    :class:`~edgert.backend.ort.Function`.

    Args:
        open_part: opens a session for a part.
    """

    def __init__(self, model: Model, open_part: Callable[[Model], Any]) -> None:
        self._graph = read(model)
        found = sections(self._graph, model)
        self._sections = [(one, open_part(one.model) if one.model is not None else None) for one in found]

    def get_inputs(self) -> Sequence[TensorSpec]:
        """As ONNX Runtime's sessions tell them."""
        return self._graph.inputs

    def get_outputs(self) -> Sequence[TensorSpec]:
        """As ONNX Runtime's sessions tell them."""
        return self._graph.outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names."""
        values = dict(feeds)
        for section, session in self._sections:
            part = section.part
            if session is not None:
                made = session.run(list(part.outputs), {name: values[name] for name in part.inputs})
                values.update(zip(part.outputs, made, strict=True))
            for call in section.calls:
                values.update(zip(call.outputs, call(values), strict=True))
        return [values[name] for name in names or [spec.name for spec in self._graph.outputs]]
