"""Rules for nodes that must not run in float16, since their values, weights or sums do not fit.

A float16 number has 11 significant bits, at most 65504, and fewer bits below 2^-14 (IEEE 754-2019, binary16).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph import Graph, Node, operators, type_inference
from edgert.quantization.scheme.units import CLIPS

Array = npt.NDArray[Any]

_OPEN = 1e30
"""Magnitude from which a bound of a Clip counts as open; exporters write the largest float32."""


def magnitudes(graph: Graph) -> dict[str, float]:
    """Return the largest possible magnitude by tensor; unbounded ones are left out.

    Stored tensors have the magnitude of their values. An operator's bound holds for every image: 1 for a Sigmoid.
    """
    found = {name: largest(array) for name, array in graph.constants.items() if array.dtype.kind in "fiu"}
    for node in graph.nodes:
        bound = None if node.domain else _output_bound(graph, node, found)
        if bound is not None:
            found.update(dict.fromkeys(node.outputs if node.op == "Split" else node.outputs[:1], bound))
    return found


def largest(array: Array) -> float:
    """Return the largest finite magnitude in an array; 0 where there is none."""
    if array.dtype.kind != "f":
        return max(abs(int(array.max(initial=0))), abs(int(array.min(initial=0))))
    finite = array if np.isfinite(array).all() else array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0))


def _output_bound(graph: Graph, node: Node, known: Mapping[str, float]) -> float | None:
    """Return a bound of the magnitude of a node's first output; None where there is none."""
    first = known.get(node.inputs[0]) if node.inputs else None
    info = operators.about(node.op)
    if math.isfinite(info.largest):
        return info.largest
    if node.op == "LeakyRelu" and first is not None:
        return first * max(1.0, abs(float(node.attributes.get("alpha", 0.01))))
    if node.op in CLIPS:
        outer = max(map(abs, operators.clip_bounds(graph, node) or (math.inf,)))
        least = min(math.inf if outer >= _OPEN else outer, math.inf if first is None else first)
        return least if math.isfinite(least) else None
    if node.op == "Pad" and first is not None and "".join(node.inputs[2:3]):
        value = known.get(node.inputs[2])
        return None if value is None else max(first, value)
    if node.op == "Pad" or operators.is_copy(graph, node) or operators.is_interpolation(node):
        return first
    if info.values != "new":
        values = [known.get(name) for name in operators.data_inputs(node.op, node.inputs)]
        return None if None in values else max(value for value in values if value is not None)
    return _computed_bound(graph, node, known, first)


def _computed_bound(graph: Graph, node: Node, known: Mapping[str, float], first: float | None) -> float | None:
    second = known.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op == "Exp" and first is not None:
        return math.exp(min(first, 700.0))  # float64 ends beyond
    if first is None or second is None:
        return None
    if node.op in operators.SUMS:
        return first + second
    return first * second if node.op == "Mul" else None


_POSITIONS = frozenset({("Resize", 1)})  # regions of interest are coordinates


@dataclass(frozen=True, slots=True)
class Ports:
    """Positions of a node's float32 inputs and outputs that have a float16 form.

    ``carries``: the node reads or computes any float32 tensor; ``gives``: it computes one.
    """

    inputs: frozenset[int]
    outputs: frozenset[int]
    carries: bool
    gives: bool

    @property
    def has_fp16_form(self) -> bool:
        """Whether the node has a float16 form that differs from the float32 one."""
        return bool(self.inputs or self.outputs)


def ports(graph: Graph, node: Node, types: Mapping[str, str]) -> Ports:
    """Return the ports of a node, by the ONNX schema of its operator in the graph's opset."""
    found = type_inference.signature(node.op, graph.opset, node.domain)
    takes = [at for at, name in enumerate(node.inputs) if types.get(name) == "float32"]
    gives = [at for at, name in enumerate(node.outputs) if types.get(name) == "float32"]
    carries = bool(takes or gives or any(types.get(name) == "float32" for name in node.captured))
    if found is None or node.captured or not carries:
        return Ports(frozenset(), frozenset(), carries, bool(gives))
    # type variables that may be float16 and stand for float32 in this node
    named = [(found.input(at), name) for at, name in enumerate(node.inputs) if name]
    able = {port.variable for port, _ in named if port and "float16" in port.dtypes}
    free = able - {port.variable for port, name in named if port and types.get(name) != "float32"}
    return Ports(
        frozenset(at for at in takes if _variable(found, at) in free and (node.op, at) not in _POSITIONS),
        frozenset(at for at in gives if _deciding_variable(found, node, at) in free),
        carries,
        bool(gives),
    )


def _variable(found: type_inference.Signature, position: int) -> str:
    port = found.input(position)
    return port.variable if port else ""


def _deciding_variable(found: type_inference.Signature, node: Node, position: int) -> str:
    """Return the type variable of the input that decides an output's type; empty where an attribute decides."""
    port = found.output(position)
    if port is None or "float16" not in port.dtypes:
        return ""
    return port.variable if found.is_input_type(port.variable) else ""


LARGEST = 65504.0
SMALLEST_NORMAL = 2.0**-14
EXACT_INTEGERS = 2048
"""Largest number up to which float16 holds every integer."""
LOST_SHARE = 0.01
"""Largest part of a stored tensor's magnitude that float16 may lose; rounding normal numbers loses up to 0.0005."""
ASSUMED = 64.0
"""Magnitude in sums that is assumed for values without a bound."""

_GROWING = frozenset(
    {
        *("Exp", "Pow", "Sinh", "Cosh", "Tan", "ReduceProd", "ReduceSumSquare", "ReduceL2", "ReduceLogSumExp"),
        *("CumProd", "Softplus", "Mish"),
    }
)
_EXPONENTIAL = frozenset({"Softplus", "Mish", "ReduceLogSumExp"})
"""Operators with small results whose formula has e to the power of their inputs."""
_SPATIAL = frozenset({"GlobalAveragePool", "GlobalLpPool", "InstanceNormalization"})
_WIDE = frozenset({"int16", "uint16", "int32", "uint32", "int64", "uint64"})


@dataclass(frozen=True)
class Facts:
    """Facts that the rules use."""

    graph: Graph
    types: Mapping[str, str]
    reach: Mapping[str, float]

    @cached_property
    def wide(self) -> frozenset[str]:
        """Float32 tensors that were converted from integers of more than eight bits."""
        casts = [node for node in self.graph.nodes if operators.about(node.op).kind == "conversion"]
        return frozenset(node.outputs[0] for node in casts if self.types.get(node.inputs[0]) in _WIDE)

    @cached_property
    def positive(self) -> frozenset[str]:
        """Tensors without negative values."""
        return operators.non_negative(self.graph)

    def counts(self, tensor: str) -> bool:
        """Return whether a float32 tensor holds integers that float16 cannot represent."""
        return tensor in self.wide and self.reach.get(tensor, math.inf) > EXACT_INTEGERS

    def shape(self, tensor: str) -> tuple[int | None, ...] | None:
        """Return the dimensions of a tensor, None for an unknown one; None where even the rank is unknown."""
        if tensor in self.graph.constants:
            return self.graph.constants[tensor].shape
        spec = self.graph.specs.get(tensor)
        if spec is None or not spec.ranked:
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in spec.shape)


def reason(facts: Facts, node: Node, ports: Ports) -> str:
    """Return why a node stays float32, as part of a sentence; empty where it need not, positions aside."""
    if node.captured:
        return "the graphs inside it are not converted"
    if not ports.has_fp16_form:
        return _no_form(facts, node)
    for rule in _RULES:
        found = next(rule(facts, node, ports), "")
        if found:
            return found
    counting = [node.inputs[at] for at in sorted(ports.inputs) if facts.counts(node.inputs[at])]
    if counting and operators.about(node.op).kind != "conversion":
        return f"{counting[0]!r} holds integers; float16 holds them up to {EXACT_INTEGERS}"
    return ""


def as_fp16(array: Array) -> Array:
    """Return an array in float16; finite values beyond its range, as open bounds of a Clip, are clipped to it."""
    narrow: Array = np.where(np.isfinite(array), np.clip(array, -LARGEST, LARGEST), array).astype(np.float16)
    return narrow


def _no_form(facts: Facts, node: Node) -> str:
    if type_inference.signature(node.op, facts.graph.opset, node.domain) is None:
        return f"ONNX has no schema of {node.domain or 'the standard'} {node.op} in opset {facts.graph.opset}"
    unknown = next((name for name in (*node.inputs, *node.outputs) if name and name not in facts.types), "")
    if unknown:
        return f"the type of {unknown!r} is not known"
    return f"{node.op} has no float16 form in opset {facts.graph.opset}"


def _value_reasons(facts: Facts, node: Node, ports: Ports) -> Iterator[str]:
    names = (*(node.inputs[at] for at in sorted(ports.inputs)), *(node.outputs[at] for at in sorted(ports.outputs)))
    for name in names:
        reach = facts.reach.get(name)
        if reach is None or name in facts.graph.constants:
            continue
        if reach > LARGEST:
            yield f"{name!r} may reach {reach:.3g}; float16 ends at {LARGEST:.0f}"
        elif 0 < reach < SMALLEST_NORMAL:
            yield f"{name!r} stays below {reach:.1g}, where float16 loses bits"


def _constant_reasons(facts: Facts, node: Node, ports: Ports) -> Iterator[str]:
    for at in sorted(ports.inputs):
        array = facts.graph.constants.get(node.inputs[at])
        if array is not None:
            yield from _constant_reason(node, at, array)


def _constant_reason(node: Node, at: int, array: Array) -> Iterator[str]:
    if node.op == "Clip" and at > 0 and largest(array) > LARGEST:
        return  # an open bound
    if largest(array) > LARGEST:
        yield f"stored tensor {node.inputs[at]!r} holds {largest(array):.3g}; float16 ends at {LARGEST:.0f}"
        return
    if node.op in operators.WEIGHTED and at == 2:
        return  # a bias too small for float16 does not matter in its sum
    finite = array[np.isfinite(array)].astype(np.float64)
    total, lost = np.abs(finite).sum(), np.abs(finite - as_fp16(finite)).sum()
    if lost > LOST_SHARE * total:
        yield f"float16 would lose {lost / total:.0%} of stored tensor {node.inputs[at]!r}"


def _growth_reasons(facts: Facts, node: Node, ports: Ports) -> Iterator[str]:
    """Yield a reason for operators that can make large values from small ones, unless a bound is known."""
    exponent = facts.graph.constants.get(node.inputs[1]) if node.op == "Pow" else None
    is_root = exponent is not None and bool(np.all((exponent >= 0) & (exponent <= 1)))
    if (node.op in _GROWING or operators.is_square(node)) and node.outputs[0] not in facts.reach and not is_root:
        yield f"no bound is known for the values of {'a square' if operators.is_square(node) else node.op}"
    reach = facts.reach.get(node.inputs[0]) if node.inputs else None
    if node.op in _EXPONENTIAL and reach is not None and reach > math.log(LARGEST):
        yield f"e to the power of {node.inputs[0]!r} leaves float16"


def _sum_reasons(facts: Facts, node: Node, ports: Ports) -> Iterator[str]:
    """Yield a reason for sums with too many or too large terms, if they are computed in float16."""
    power, graph = operators.about(node.op).summed_power, facts.graph
    if power is None:
        return
    has_stash = node.op == "LayerNormalization" or (node.op == "GroupNormalization" and graph.opset >= 21)
    if has_stash and node.attributes.get("stash_type", 1) == 1:
        return  # the ONNX standard computes it in float32 whatever its type
    terms = _terms(facts, node)
    if terms is None or terms > EXACT_INTEGERS:
        yield f"it sums {terms or 'an unknown number of'} values"
        return
    maker = graph.producers.get(node.inputs[0])
    assumed = ASSUMED**2 if maker is not None and (maker.op == "Pow" or operators.is_square(maker)) else ASSUMED
    value = facts.reach.get(node.inputs[0], assumed)
    most = terms * value**power
    if node.op in operators.MEANS | {"ReduceSum", "ReduceL1"} and node.inputs[0] in facts.positive:
        # without negative values no partial sum exceeds the final sum
        most = min(most, facts.reach.get(node.outputs[0], math.inf) * (terms if node.op in operators.MEANS else 1))
    if power and most > LARGEST:
        what = "values" if power == 1 else "squares of values"
        yield f"the sum of {terms} {what} up to {value:.3g} may leave float16"


def _terms(facts: Facts, node: Node) -> int | None:
    if node.op == "LRN":
        return int(node.attributes["size"])
    if node.op == "AveragePool":
        return int(math.prod(node.attributes["kernel_shape"]))
    shape = facts.shape(node.inputs[0])
    if shape is None:
        return None
    if node.op in _SPATIAL:
        return _product(shape[2:])
    if node.op == "GroupNormalization":
        values = _product(shape[1:])
        return None if values is None else values // int(node.attributes["num_groups"])
    axes = _axes(facts, node, len(shape))
    return _product([shape[axis] for axis in axes] if axes else shape)


def _product(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _axes(facts: Facts, node: Node, rank: int) -> list[int]:
    """Return the axes that are summed; empty for all, and where they are not stored."""
    if node.op == "LayerNormalization":
        return list(range(int(node.attributes.get("axis", -1)) % rank, rank))
    if node.op in ("Softmax", "LogSoftmax") and facts.graph.opset < 13:
        return list(range(int(node.attributes.get("axis", 1)) % rank, rank))
    if node.op in ("Softmax", "LogSoftmax", "LpNormalization"):
        return [int(node.attributes.get("axis", -1)) % rank]
    stored = facts.graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    listed = node.attributes.get("axes", [0, 2, 3] if node.op == "MeanVarianceNormalization" else [])
    return [int(axis) % rank for axis in (listed if stored is None else stored.reshape(-1))]


_Rule = Callable[[Facts, Node, Ports], Iterator[str]]
_RULES: tuple[_Rule, ...] = (_value_reasons, _constant_reasons, _growth_reasons, _sum_reasons)
