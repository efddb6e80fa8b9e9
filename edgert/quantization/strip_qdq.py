"""Removal of Q/DQ nodes from a graph: scales are recorded, and stored integers become the values they represent."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edgert.backend.base import Array
from edgert.errors import ModelError
from edgert.graph import Graph, Node, operators

_OUTPUT_TYPES = {2: np.uint8, 3: np.int8}  # by TensorProto.DataType, the value of output_dtype
_MIDDLE = {"int8": 0, "uint8": 128}
"""Zero points of symmetric quantization, by stored type."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Scale and zero point of a Q or DQ node."""

    scale: Array
    zero: Array
    axis: int

    @property
    def is_per_tensor(self) -> bool:
        return bool(self.scale.size == 1)

    def along_axis(self, values: Array, rank: int) -> Array:
        """Return values per channel, shaped to broadcast over a tensor of this rank."""
        if values.size == 1:
            return values.reshape(())
        axis = self.axis % rank if rank else 0
        return values.reshape([-1 if dim == axis else 1 for dim in range(rank)])

    def integers(self, stored: Array) -> Array:
        """Return the result of QuantizeLinear for a stored tensor, halves to even."""
        bounds = np.iinfo(self.zero.dtype)
        zero = self.along_axis(self.zero, stored.ndim).astype(np.float64)
        found = np.rint(stored / self.along_axis(self.scale, stored.ndim)) + zero
        return np.asarray(np.clip(found, bounds.min, bounds.max)).astype(self.zero.dtype)

    def values(self, stored: Array) -> Array:
        """Return the result of DequantizeLinear for stored integers."""
        zero = self.along_axis(self.zero, stored.ndim).astype(np.int64)
        centered = (stored.astype(np.int64) - zero).astype(np.float32)
        return np.asarray(centered * self.along_axis(self.scale, stored.ndim), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Stripped:
    """A graph without Q/DQ nodes, and their scales.

    An activation that was rounded by several scales has the largest; weights are stored tensors that were made from
    integers.
    """

    graph: Graph
    scales: Mapping[str, float]
    weights: Mapping[str, Step]
    problems: tuple[str, ...]


def strip_qdq(graph: Graph) -> Stripped:
    """Return the graph without Q/DQ nodes, and their scales; see :func:`edgert.quantization.from_qdq.split_qdq`.

    Raises ModelError: Q/DQ nodes cannot be removed; the error names the node.
    """
    for node in graph.nodes:
        if operators.is_integer(node.op):
            raise ModelError(
                f"node {node.name!r} is {node.op}: the model computes on integers",
                why="TensorRT takes Q/DQ nodes around float operators, not integer operators",
                fix="give the float32 model, or export it with Q/DQ nodes (onnxruntime: QuantFormat.QDQ)",
            )
    if not any(node.op in operators.QDQ for node in graph.nodes):
        raise ModelError("the model has no Q/DQ nodes", why="it is not quantized", fix="calibrate it")
    walk = _Stripper(graph)
    for node in graph.nodes:
        walk.add(node)
    return walk.finish()


@dataclass
class _Stripper:
    """One walk over the nodes, in order."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    integers: dict[str, tuple[Array, str]] = field(default_factory=dict)
    """Integers and name of each stored tensor that a Q rounds, by the Q's output."""
    rounded: dict[str, tuple[str, Node]] = field(default_factory=dict)
    """Float tensor and Q, by the Q's output."""
    floats: dict[str, str] = field(default_factory=dict)
    """Float tensor that replaces the output of each DQ."""
    scales: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scales by Q node, for each tensor that is rounded."""
    weights: dict[str, Step] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        if operators.about(node.op).kind == "quantize" and not node.domain:
            self._quantize(node)
        elif operators.about(node.op).kind == "dequantize" and not node.domain:
            self._dequantize(node)
        else:
            for name in node.reads:
                self._refuse_integers(name, node)
            for name in sorted(node.captured & set(self.floats)):
                raise ModelError(
                    f"the body of node {node.name!r} ({node.op}) reads {name!r}, which a DQ makes",
                    why="bodies are not rewritten",
                    fix="export the model without Q/DQ there",
                )
            self.nodes.append(replace(node, inputs=tuple(self.floats.get(name, name) for name in node.inputs)))

    def finish(self) -> Stripped:
        for name in self.graph.output_names & (set(self.rounded) | set(self.integers)):
            raise ModelError(
                f"output {name!r} has an integer type", why="a Q without a DQ makes it", fix="add a DQ behind it"
            )
        nodes, renamed = self._with_outputs()
        problems = [
            f"tensor {name!r} is rounded with different scales by {', '.join(map(repr, found))}: TensorRT has one, "
            f"the largest is taken"
            for name, found in self.scales.items()
            if len(set(found.values())) > 1
        ]
        kept = {name: array for name, array in self.graph.constants.items() if name not in self.constants}
        graph = replace(self.graph, nodes=nodes, constants={**kept, **self.constants})
        scales = {renamed.get(name, name): max(found.values()) for name, found in self.scales.items()}
        return Stripped(graph, scales, self.weights, tuple(problems))

    def _quantize(self, node: Node) -> None:
        step, source = self._step(node), self.floats.get(node.inputs[0], node.inputs[0])
        self._refuse_integers(source, node)
        self._check_middle(node, step)
        stored = self.constants.get(source, self.graph.constants.get(source))
        if stored is not None:
            self.integers[node.outputs[0]] = step.integers(stored), source
            return
        if not step.is_per_tensor:
            raise ModelError(
                f"node {node.name!r} rounds activation {source!r} with {step.scale.size} scales",
                why="TensorRT has one scale per activation",
                fix="quantize activations per tensor",
            )
        self.rounded[node.outputs[0]] = source, node
        self.scales.setdefault(source, {})[node.name] = float(step.scale.reshape(()))

    def _dequantize(self, node: Node) -> None:
        name, output = node.inputs[0], node.outputs[0]
        if name in self.rounded:
            source, partner = self.rounded[name]
            first, second = self._step(partner), self._step(node)
            scales = first.scale.reshape(-1), second.scale.reshape(-1)
            if not np.array_equal(*scales) or np.any(first.zero != second.zero):
                raise ModelError(
                    f"nodes {partner.name!r} and {node.name!r} have different scales or zero points",
                    why=f"{scales[0][0]} and {scales[1][0]}: together they change the tensor",
                    fix="export them as a pair that only rounds",
                )
            self.floats[output] = source
            return
        stored = self.graph.constants.get(name) if name not in self.integers else self.integers[name][0]
        if stored is None:
            raise ModelError(
                f"node {node.name!r} reads integers {name!r} that no Q makes",
                why="they are fed, or another node computes them; TensorRT takes Q/DQ in pairs",
                fix="feed float32, and keep Q and DQ next to each other",
            )
        step = self._step(node)
        if stored.dtype != np.int32:
            self._check_middle(node, step, stored)
        self.constants[output] = step.values(stored)
        self.weights[output] = step

    def _step(self, node: Node) -> Step:
        scale = self.graph.constants.get(node.inputs[1])
        zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
        zero = self.graph.constants.get(zero_name)
        if not zero_name:  # 0, of the type that the ONNX standard gives a Q without a zero point
            zero = np.zeros((), _OUTPUT_TYPES.get(int(node.attributes.get("output_dtype", 0)), np.uint8))
        if scale is None or zero is None:
            why = "its scale is computed at run time"
            raise ModelError(f"node {node.name!r} quantizes at run time", why=why, fix="export it with fixed scales")
        if node.attributes.get("block_size", 0) or scale.ndim > 1:
            raise ModelError(
                f"node {node.name!r} has a scale per block", why="INT8 layers have one per channel at most"
            )
        if not bool(np.all(np.isfinite(scale) & (scale > 0))):
            raise ModelError(f"node {node.name!r} has a scale that is not positive and finite", fix="export it again")
        return Step(scale.astype(np.float32), zero, int(node.attributes.get("axis", 1)))

    def _check_middle(self, node: Node, step: Step, stored: Array | None = None) -> None:
        """Raise ModelError for a zero point that is not the middle of the stored type's range."""
        dtype = str(step.zero.dtype if stored is None else stored.dtype)
        if dtype not in _MIDDLE:
            raise ModelError(f"node {node.name!r} stores {dtype}", why="a DLA has int8", fix="quantize to int8")
        if np.any(step.zero.astype(np.int64) != _MIDDLE[dtype]):
            raise ModelError(
                f"node {node.name!r} has zero point {step.zero.reshape(-1)[0]}",
                why=f"TensorRT's INT8 is symmetric: {dtype} with zero point {_MIDDLE[dtype]}",
                fix="quantize symmetrically (onnxruntime: ActivationSymmetric and WeightSymmetric)",
            )

    def _refuse_integers(self, name: str, node: Node) -> None:
        if name in self.rounded or name in self.integers:
            raise ModelError(
                f"node {node.name!r} ({node.op}) computes on integers",
                why=f"it reads {name!r} of a Q without a DQ in between",
                fix="add the DQ",
            )

    def _with_outputs(self) -> tuple[tuple[Node, ...], Mapping[str, str]]:
        """Return the nodes with the graph's outputs under their names, and the new names of renamed tensors."""
        made = {name for node in self.nodes for name in node.outputs}
        made -= {name for node in self.nodes for name in node.captured}  # bodies read them by name
        renamed: dict[str, str] = {}
        copies = []
        for name in (spec.name for spec in self.graph.outputs if spec.name in self.floats):
            source = self.floats[name]
            if source in made and source not in self.graph.output_names and source not in renamed:
                renamed[source] = name
            else:
                copies.append(Node("Identity", (renamed.get(source, source),), (name,), name=f"{name}_copy"))
        nodes = [
            replace(
                node,
                inputs=tuple(renamed.get(name, name) for name in node.inputs),
                outputs=tuple(renamed.get(name, name) for name in node.outputs),
            )
            for node in self.nodes
        ]
        return (*nodes, *copies), renamed
