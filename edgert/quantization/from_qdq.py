"""Scales for tensors that have none: a DLA needs one on every tensor, and Q/DQ models have them on few."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dla import Target as Dla
from edgert.config import ModelConfig
from edgert.errors import CalibrationError, ModelError
from edgert.graph import Graph, Model, clean, load, read, with_shapes, write
from edgert.graph.operators import about
from edgert.quantization.calibrated import one_size
from edgert.quantization.lowering.emulate import modes, unrounded
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import dla_groups, write_cache
from edgert.quantization.lowering.weights import LIMIT, scale_axis, weight_scales
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import layer_precisions
from edgert.quantization.scheme.units import USUAL_DLA, Scheme, calibrated, clip_behind, data_inputs, is_weighted
from edgert.quantization.strip_qdq import Step, strip

# Weights of a model that came quantized: whether TensorRT, which computes their scales itself, comes to the same.

_TOLERANCE = 1e-3
"""Of NVIDIA's qdq-translator."""


def _weight_problems(graph: Graph, steps: Mapping[str, Step]) -> Iterator[str]:
    """Yield a sentence for each weighted node whose scales are not max|w| / 127 per output channel."""
    for node in graph.nodes:
        if not is_weighted(graph, node) or node.inputs[1] not in steps:
            continue
        weight, step = graph.constants[node.inputs[1]], steps[node.inputs[1]]
        axis = scale_axis(node, weight)
        computed = weight_scales(weight, axis)
        others = None if axis is None else tuple(dim for dim in range(weight.ndim) if dim != axis)
        alive = np.abs(weight).max(axis=others, initial=0.0) > 0
        if not step.is_per_tensor and step.scale.size != computed.size:
            yield f"node {node.name!r} has {step.scale.size} weight scales; TensorRT will use {computed.size}"
            continue
        given = np.broadcast_to(step.scale.reshape(-1) if computed.ndim else step.scale.reshape(()), computed.shape)
        away = np.where(alive, np.abs(computed / given - 1), 0.0)
        if np.any(away > _TOLERANCE):
            count = int(np.sum(away > _TOLERANCE))
            yield (
                f"node {node.name!r}: in {count} of {computed.size} channels the weight's scale is not max|w|/127, "
                f"by up to {away.max():.2%}; TensorRT rounds it again with its own"
            )


_UNIT = float(np.float32(1) / np.float32(LIMIT))
"""Of what lies within ±1 whatever goes in and has no range of its own."""
_SAME = 1e-6
"""Relative difference that a scale stored twice may show."""


def propagate_scales(graph: Graph, given: Mapping[str, float]) -> tuple[Mapping[str, float], tuple[str, ...]]:
    """Return scales of all tensors that have one or take a neighbor's, and a sentence for each that has none.

    A scale holds for everything that moves, pools, concatenates or bounds values, both ways, as a DLA needs it
    (:func:`~edgert.quantization.lowering.trt_form.dla_groups`). Of several the largest holds. The tensor between a
    fused convolution and the addition behind it is never rounded, and gets the addition's scale.

    Args:
        graph: the float graph.
        given: tensor → scale.
    """
    found, problems, silent = dict[str, float](), list[str](), {n for n in graph.producers if clip_behind(graph, n)}
    for members in dict.fromkeys(dla_groups(graph).values()):
        scale, problem = _common(graph, members, silent, given)
        problems += [problem] if problem else []
        found.update(dict.fromkeys(members, scale) if scale else {})
    _hand_back(graph, found)
    names = calibrated(graph)
    for name in (name for name in names if name not in found):
        maker = graph.producers.get(name)
        what = f"input {name!r}" if maker is None else f"tensor {name!r} (from {maker.op} {maker.name!r})"
        problems.append(
            f"{what} has no scale: no Q/DQ is on it or on what shares one with it, and the DLA will not run it in INT8"
        )
    return {name: found[name] for name in names if name in found}, tuple(problems)


def _common(
    graph: Graph, members: Collection[str], silent: Collection[str], given: Mapping[str, float]
) -> tuple[float, str]:
    """Return the scale of a set, 0 where nothing determines it, and a sentence on what is lost by it."""
    scales = {name: given[name] for name in members if name in given and name not in silent}
    scales = scales or {name: given[name] for name in members if name in given}
    if not scales:
        return (_UNIT if _is_bounded(graph, members) else 0.0), ""
    largest, least = max(scales.values()), min(scales.values())
    if largest <= least * (1 + _SAME):
        return largest, ""
    return largest, (
        f"tensors {', '.join(map(repr, scales))} must share a scale on a DLA and have several: "
        f"the largest, {largest:.6g}, is {largest / least:.3g} times the least"
    )


def _is_bounded(graph: Graph, members: Collection[str]) -> bool:
    """Return whether every tensor of the set comes from a bounded function, directly or from another one of the set."""
    makers = [graph.producers.get(name) for name in members]
    return all(
        maker is not None
        and not maker.domain
        and (about(maker.op).is_bounded or set(data_inputs(graph, maker)) <= set(members))
        for maker in makers
    )


def _hand_back(graph: Graph, found: dict[str, float]) -> None:
    """Give tensors inside a fused unit the scale of what reads them, last ones first."""
    whole = scheme(graph, "dla")
    inside = unrounded(graph, whole, modes(graph, whole))
    for node in reversed(graph.nodes):
        for name in node.outputs:
            if name in inside and name not in found:
                (reader,) = graph.consumers[name]
                if reader.outputs[0] in found:
                    found[name] = found[reader.outputs[0]]


# Models that come quantized, with QuantizeLinear and DequantizeLinear nodes: their float form and their scales.
#
# TensorRT <= 10 takes no such nodes on a DLA. It takes the float model and the scales beside it, one for every
# tensor, and computes the weights' scales itself. What this does to get there, and the precondition on weights, is
# what NVIDIA's qdq-translator does (github.com/NVIDIA/Deep-Learning-Accelerator-SW, tools/qdq-translator).


@dataclass(frozen=True, eq=False)
class Unquantized:
    """A quantized model taken apart.

    Attributes:
        graph: without Q/DQ; weights have their real values, tensors keep the names they had in front of their Q.
        scales: tensor → scale of one step, for every float32 tensor that has one by its own Q/DQ or a neighbor's that
            it must share. See :func:`~edgert.quantization.lowering.trt_form.write_cache`.
        float_nodes: weighted nodes that were not quantized. They must be FP16 exceptions: with a scale on both sides
            TensorRT would run them in INT8.
        problems: differences from the model, a sentence each, naming the node or tensor.
    """

    graph: Graph
    scales: Mapping[str, float]
    float_nodes: tuple[str, ...]
    problems: tuple[str, ...]


def ranges_of_qdq(graph: Graph) -> Unquantized:
    """Remove the Q/DQ nodes of a graph.

    Args:
        graph: cleaned, with types of tensors known.

    Raises:
        ModelError: the graph has no Q/DQ, is in QOperator form, quantizes at run time, or computes on integers. A zero
            point is not in the middle, a pair's Q and DQ differ, or an activation has several scales. The node is
            named.
    """
    stripped = strip(graph)
    scales, gaps = propagate_scales(stripped.graph, stripped.scales)
    problems = (*stripped.problems, *_weight_problems(stripped.graph, stripped.weights), *gaps)
    weighted = [node for node in stripped.graph.nodes if is_weighted(stripped.graph, node)]
    floats = tuple(node.name for node in weighted if node.inputs[1] not in stripped.weights)
    return Unquantized(stripped.graph, scales, floats, problems)


# A model that came with Q/DQ nodes in the forms of a DLA: its own scales instead of ranges measured on images.


@dataclass(frozen=True, eq=False)
class QdqModel(Unquantized):
    """A Q/DQ model split into float graph and scales, with ``model``, the float graph as a model."""

    model: Model

    def cache(self, tensorrt: str) -> str:
        """Return the calibration cache of ``model`` for TensorRT <= 10.

        Raises:
            CalibrationError: see :func:`~edgert.quantization.lowering.trt_form.write_cache`.
        """
        return write_cache(self.scales, tensorrt)

    def layer_precisions(self) -> str:
        """Return the layers that trtexec should leave in FP16, in the form of its option; empty for none.

        Raises:
            CalibrationError: a layer cannot be named there.
        """
        return layer_precisions(self.float_nodes) if self.float_nodes else ""

    def typed(self, dla: Dla = USUAL_DLA) -> Model:
        """Return the Q/DQ form for a DLA with TensorRT >= 11: a pair on every tensor that the DLA reads in INT8.

        Nodes that read a tensor without a scale stay in floating point.

        Args:
            dla: whose rules hold.

        Raises:
            CalibrationError: a tensor has no scale, and what reads it cannot be left in floating point.
        """
        graph = read(self.model)
        kept = set(_units_of(self.float_nodes, scheme(graph, "dla", dla=dla)))
        plan = scheme(graph, "dla", kept, dla)
        gaps = [name for name, group in plan.groups.items() if self.scales.keys().isdisjoint(group)]
        kept.update(_units_of({reader for name in gaps for reader in plan.points[name].readers}, plan))
        return write(lower(graph, scheme(graph, "dla", kept, dla), self._amax), self.model)

    def _amax(self, names: tuple[str, ...]) -> float:
        known = [self.scales[name] for name in names if name in self.scales]
        if not known:
            raise CalibrationError(
                f"tensor {names[0]!r} has no scale",
                why="no Q/DQ is on it or on what shares one with it",
                where=str(self.model.path),
                fix="export the model with Q/DQ there, or give the float32 model and images",
            )
        return max(known) * LIMIT


def qdq_model(model: Model) -> QdqModel:
    """Split a Q/DQ model into its float model and its scales.

    Args:
        model: with static shapes.

    Raises:
        ModelError: see :func:`~edgert.quantization.from_qdq.ranges_of_qdq`; or no layer in it has stored weights.
    """
    cleaned, _ = clean(model)
    try:
        found = ranges_of_qdq(read(cleaned))
    except ModelError as error:
        raise error.at(str(model.path))  # noqa: B904 - the same error, with its place
    if not any(is_weighted(found.graph, node) for node in found.graph.nodes):
        raise ModelError(
            f"model {str(model.path)!r} has nothing that could run in INT8",
            why="no layer in it has stored weights",
            fix="run it as it is",
        )
    return QdqModel(found.graph, found.scales, found.float_nodes, found.problems, write(found.graph, cleaned))


def qdq_section(config: ModelConfig) -> QdqModel:
    """Split the Q/DQ model of a section likewise, at one size.

    Raises:
        ModelError: as :func:`qdq_model` does, or what reading the file raises.
    """
    model = load(config.onnx)
    return qdq_model(with_shapes(model, one_size(model, config)))


def _units_of(nodes: Collection[str], plan: Scheme) -> Iterator[str]:
    return (unit.name for unit in plan.units if not set(nodes).isdisjoint(unit.nodes))
