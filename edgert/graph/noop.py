"""The pass that removes nodes which hand their input on unchanged, and transposes that undo each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from edgert.graph.index import Index
from edgert.graph.infer import infer_specs
from edgert.graph.proto import attributes, default_opset, dtype_name, is_standard, label, set_attribute, to_array
from edgert.graph.rewrite import Pass, drop_nodes
from edgert.graph.spec import TensorSpec

if TYPE_CHECKING:
    import onnx

_CANDIDATES = ("Cast", "Concat", "Dropout", "Identity", "Transpose")


class _Walk:
    """One walk over a graph in order. ``alias`` maps the output of a removed node to what replaces it."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.graph = proto.graph
        self.index = Index.of(proto.graph)
        self.opset = default_opset(proto)
        self.proto = proto
        self.producers = dict(self.index.producers)
        self.alias: dict[str, str] = {}

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Types of tensors; inferred when first asked for, since most graphs hold nothing that asks."""
        return infer_specs(self.proto)

    def follow(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def rewire(self, node: onnx.NodeProto) -> None:
        for position, name in enumerate(node.input):
            if name in self.alias:
                node.input[position] = self.follow(name)

    def is_noop(self, node: onnx.NodeProto) -> bool:
        if not is_standard(node):
            return False
        match node.op_type:
            case "Identity":
                return True
            case "Concat":
                return len(node.input) == 1
            case "Cast":
                return self._is_same_type(node)
            case "Dropout":
                return self._is_idle_dropout(node)
            case "Transpose":
                perm = self.perm(node)
                return perm is not None and perm == sorted(perm)
        return False

    def _is_same_type(self, node: onnx.NodeProto) -> bool:
        spec = self.specs.get(node.input[0])
        return spec is not None and spec.dtype == dtype_name(attributes(node)["to"])

    def _is_idle_dropout(self, node: onnx.NodeProto) -> bool:
        mask = node.output[1] if len(node.output) > 1 else ""
        if mask and (mask in self.index.consumers or self.index.is_visible(mask)):
            return False
        if self.opset < 7:
            return bool(attributes(node).get("is_test", 0))
        training = node.input[2] if len(node.input) > 2 else ""
        switch = self.index.constant(training)
        return not training or (switch is not None and not to_array(switch).any())

    def perm(self, node: onnx.NodeProto) -> list[int] | None:
        """The order a Transpose puts axes in; None when it is the default and the rank is not known."""
        given = attributes(node).get("perm")
        if given is not None:
            return list(given)
        spec = self.specs.get(node.input[0])
        return list(reversed(range(len(spec.shape)))) if spec is not None and spec.ranked else None

    def bypass(self, source: str, target: str) -> bool:
        """Lets readers of ``target`` read ``source``; False when someone outside knows the name ``target``."""
        if not self.index.is_visible(target):
            self.alias[target] = source
            return True
        if target in self.index.captured or self.index.is_visible(source) or source not in self.producers:
            return False
        self._rename(source, target)
        return True

    def _rename(self, source: str, target: str) -> None:
        """Gives a node's output the name of the graph output that it now is."""
        for node in self.graph.node:
            for names in (node.input, node.output):
                for position, name in enumerate(names):
                    if name == source:
                        names[position] = target
        self.producers[target] = self.producers.pop(source)
        self.alias[source] = target

    def pair(self, node: onnx.NodeProto) -> tuple[onnx.NodeProto, list[int]] | None:
        """For a Transpose of a Transpose: the first one, and the order the two together put axes in."""
        first = self._transpose_before(node)
        inner, outer = (None, None) if first is None else (self.perm(first), self.perm(node))
        if first is None or inner is None or outer is None or sorted(inner) != sorted(outer):
            return None
        return first, [inner[axis] for axis in outer]

    def _transpose_before(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        position = self.producers.get(node.input[0]) if node.op_type == "Transpose" and is_standard(node) else None
        before = None if position is None else self.graph.node[position]
        return before if before is not None and before.op_type == "Transpose" and is_standard(before) else None


def _remove_noops(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    if not any(node.op_type in _CANDIDATES for node in proto.graph.node):
        return
    walk = _Walk(proto)
    removed = set()
    for position, node in enumerate(proto.graph.node):
        walk.rewire(node)
        source, detail = _replacement(walk, node)
        if source and walk.bypass(source, node.output[0]):
            removed.add(position)
            yield label(node, position), detail
        elif not source and detail:
            yield label(node, position), detail
    drop_nodes(proto.graph, removed)


def _replacement(walk: _Walk, node: onnx.NodeProto) -> tuple[str, str]:
    """The tensor that a node's readers could read instead, and why; no tensor where the node itself was changed."""
    if walk.is_noop(node):
        return node.input[0], f"{node.op_type} removed, it hands its input on"
    pair = walk.pair(node)
    if pair is None:
        return "", ""
    first, perm = pair
    if perm == sorted(perm):
        return first.input[0], "Transpose removed, it undoes the one before it"
    node.input[0] = first.input[0]
    set_attribute(node, "perm", perm)
    return "", f"Transpose now does the work of two, perm {perm}"


REMOVE_NOOPS = Pass(
    "remove-noops",
    "Identity, idle Dropout, Cast to the same type, Concat of one and Transposes that undo each other go; their "
    "readers read what they read; two Transposes in a row become one",
    _remove_noops,
)
