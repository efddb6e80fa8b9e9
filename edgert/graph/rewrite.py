"""What a pass over a model is, and the few edits that passes share.

A pass is a pure function from a model to a new model and the list of what changed. It is written as an *edit*: a
function that changes a message in place and reports each change; :class:`Pass` gives the edit its own copy and holds
it to the one promise every pass makes: what the model takes and gives stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgert.graph.index import Index, all_names
from edgert.graph.model import Model
from edgert.graph.proto import Array, from_array
from edgert.graph.spec import initializer_names

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Change:
    """One thing a pass did: ``rule`` is the pass's name, ``subject`` a node or tensor, ``detail`` what became of it."""

    rule: str
    subject: str
    detail: str


Edit = Callable[["onnx.ModelProto"], Iterable[tuple[str, str]]]
"""Changes a message in place; gives (subject, detail) of each change, none when there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewrite that keeps a model's meaning.

    Attributes:
        name: what changes are filed under, ``"fold-batchnorm"``.
        changes: in words, the parts of a model it may touch; everything else stays.
        edit: does the work on a message it may change.
    """

    name: str
    changes: str
    edit: Edit

    def __call__(self, model: Model) -> tuple[Model, tuple[Change, ...]]:
        """The rewritten model and what changed; the model itself when nothing did. Raises ModelError on a bad graph."""
        proto = model.copied_proto()
        changes = self.apply(proto)
        return (model.derive(proto) if changes else model), changes

    def apply(self, proto: onnx.ModelProto) -> tuple[Change, ...]:
        """Rewrites a message in place, for callers that run many passes over one copy. Raises ModelError."""
        before = _interface(proto.graph)
        changes = tuple(Change(self.name, subject, detail) for subject, detail in self.edit(proto))
        if _interface(proto.graph) != before:
            raise RuntimeError(f"pass {self.name!r} changed the inputs or outputs of the model")
        return changes


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """A message being edited.

    Attributes:
        proto: the message.
        index: of its graph, as it was before the edit.
        names: of all its tensors, those stored meanwhile too.
    """

    proto: onnx.ModelProto
    index: Index
    names: set[str]

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> Workspace:
        """A workspace on a message. Raises ModelError when two nodes compute one tensor."""
        return cls(proto, Index.of(proto.graph), all_names(proto.graph))

    def store(self, array: Array, wanted: str) -> str:
        """Stores a copy of an array under a name like the wanted one; returns the name."""
        name = free_name(wanted, self.names)
        self.names.add(name)
        add_initializer(self.proto, array, name)
        return name


def add_initializer(proto: onnx.ModelProto, array: Array, name: str) -> None:
    """Stores a copy of an array as a tensor of the graph."""
    proto.graph.initializer.append(from_array(array, name))
    allow_plain_initializers(proto)


def allow_plain_initializers(proto: onnx.ModelProto) -> None:
    """Raises the IR version to 4, the first where a stored tensor need not be a graph input (ONNX docs/IR.md)."""
    proto.ir_version = max(proto.ir_version, 4)


def drop_nodes(graph: onnx.GraphProto, positions: Collection[int]) -> None:
    """Removes nodes by position; the rest keep their order."""
    for position in sorted(positions, reverse=True):
        del graph.node[position]


def free_name(wanted: str, taken: Container[str]) -> str:
    """``wanted``, or with the first free number behind it: the same graph always gives the same name."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _interface(graph: onnx.GraphProto) -> list[tuple[str, bytes]]:
    weights = initializer_names(graph)
    values = [item for item in graph.input if item.name not in weights]
    return [(item.name, item.type.SerializeToString(deterministic=True)) for item in (*values, *graph.output)]
