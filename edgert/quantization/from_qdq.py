"""Forms for a DLA of models with Q/DQ nodes, whose scales are passed on to all tensors that need one."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dla import Target as Dla
from edgert.config import ModelConfig
from edgert.errors import CalibrationError, ModelError
from edgert.graph import Graph, Model, clean, load, operators, read, with_shapes, write
from edgert.quantization.calibrated import calibration_shapes
from edgert.quantization.lowering import emulate, trt_form, weights
from edgert.quantization.lowering.lower import lower
from edgert.quantization.scheme import units
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import layer_precisions
from edgert.quantization.strip_qdq import Step, strip_qdq

_TOLERANCE = 1e-3
"""Largest relative difference of weight scales, as in NVIDIA's qdq-translator."""


def _weight_problems(graph: Graph, steps: Mapping[str, Step]) -> Iterator[str]:
    """Yield a sentence for each weighted node whose scales differ from those that TensorRT computes, max|w| / 127."""
    for node in graph.nodes:
        if not units.is_weighted(graph, node) or node.inputs[1] not in steps:
            continue
        weight, step = graph.constants[node.inputs[1]], steps[node.inputs[1]]
        axis = weights.scale_axis(node, weight)
        computed = weights.weight_scales(weight, axis)
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


_UNIT = float(np.float32(1) / np.float32(weights.LIMIT))
"""Scale of tensors without a range whose operator bounds them to ±1."""
_SAME = 1e-6
"""Largest relative difference of scales that count as equal."""


def propagate_scales(graph: Graph, given: Mapping[str, float]) -> tuple[Mapping[str, float], tuple[str, ...]]:
    """Return scales of all tensors that have one or get a neighbor's, and a sentence for each that has none.

    A scale is shared with all tensors that a DLA gives the same one
    (:func:`~edgert.quantization.lowering.trt_form.dla_groups`); of several the largest is used. The tensor between a
    fused convolution and its addition is never rounded, and gets the addition's scale.
    """
    found, problems, silent = (
        dict[str, float](),
        list[str](),
        {n for n in graph.producers if units.clip_behind(graph, n)},
    )
    for members in dict.fromkeys(trt_form.dla_groups(graph).values()):
        scale, problem = _common_scale(graph, members, silent, given)
        problems += [problem] if problem else []
        found.update(dict.fromkeys(members, scale) if scale else {})
    _pass_scales_back(graph, found)
    names = units.tensors_to_calibrate(graph)
    for name in (name for name in names if name not in found):
        maker = graph.producers.get(name)
        what = f"input {name!r}" if maker is None else f"tensor {name!r} (from {maker.op} {maker.name!r})"
        problems.append(
            f"{what} has no scale: no Q/DQ is on it or on tensors that share one, and the DLA will not run it in INT8"
        )
    return {name: found[name] for name in names if name in found}, tuple(problems)


def _common_scale(
    graph: Graph, members: Collection[str], silent: Collection[str], given: Mapping[str, float]
) -> tuple[float, str]:
    """Return the scale of a set of tensors, 0 where there is none, and a sentence where scales differ."""
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
    """Return whether every tensor of the set is bounded to ±1 by its operator, or follows from others of the set."""
    makers = [graph.producers.get(name) for name in members]
    return all(
        maker is not None
        and not maker.domain
        and (operators.about(maker.op).is_bounded or set(units.data_inputs(graph, maker)) <= set(members))
        for maker in makers
    )


def _pass_scales_back(graph: Graph, found: dict[str, float]) -> None:
    """Give tensors inside fused units the scale of the result behind them, in reverse order."""
    whole = scheme(graph, "dla")
    inside = emulate.unrounded_tensors(graph, whole, emulate.execution_modes(graph, whole))
    for node in reversed(graph.nodes):
        for name in node.outputs:
            if name in inside and name not in found:
                (reader,) = graph.consumers[name]
                if reader.outputs[0] in found:
                    found[name] = found[reader.outputs[0]]


# With TensorRT <= 10 a DLA takes no Q/DQ nodes, but the float model and a scale for every tensor; TensorRT computes
# those of weights. The conversion follows NVIDIA's qdq-translator, its condition on weights included
# (github.com/NVIDIA/Deep-Learning-Accelerator-SW, tools/qdq-translator).


@dataclass(frozen=True, eq=False)
class QdqModel:
    """A Q/DQ model as float model and scales.

    Attributes:
        model: model without Q/DQ. Weights have real values, and tensors the names they had before their Q.
        graph: graph of this model.
        scales: values of one step by tensor, from the tensor's own Q/DQ or from one that must share its scale.
        float_nodes: weighted nodes that were not quantized, and must stay FP16: with a scale on both sides TensorRT
            would run them in INT8.
        problems: differences from the quantized model, a sentence each.
    """

    model: Model
    graph: Graph
    scales: Mapping[str, float]
    float_nodes: tuple[str, ...]
    problems: tuple[str, ...]

    def cache(self, tensorrt: str) -> str:
        """Return the calibration cache of ``model`` for TensorRT <= 10.

        Raises CalibrationError: see :func:`~edgert.quantization.lowering.trt_form.write_cache`.
        """
        return trt_form.write_cache(self.scales, tensorrt)

    def layer_precisions(self) -> str:
        """Return the value of trtexec's option for layers that stay FP16; empty for none.

        Raises CalibrationError: the option cannot hold the name of a layer.
        """
        return layer_precisions(self.float_nodes) if self.float_nodes else ""

    def dla_form(self, dla: Dla = units.USUAL_DLA) -> Model:
        """Return the Q/DQ form for a DLA with TensorRT >= 11: a pair on every tensor that the DLA reads in INT8.

        Nodes that read a tensor without a scale stay in floating point. Raises CalibrationError: a tensor has no scale,
        and a node that reads it cannot stay in floating point.
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
                why="no Q/DQ is on it or on tensors that share one with it",
                where=str(self.model.path),
                fix="export the model with Q/DQ there, or give the float32 model and images",
            )
        return max(known) * weights.LIMIT


def split_qdq(model: Model) -> QdqModel:
    """Split a clean model with Q/DQ nodes into float model and scales.

    Raises ModelError: the graph has no Q/DQ, is in QOperator form, quantizes at run time, or computes on integers. A
    zero point is not in the middle, a Q differs from its DQ, or an activation has several scales.
    """
    stripped = strip_qdq(read(model))
    graph = stripped.graph
    scales, gaps = propagate_scales(graph, stripped.scales)
    problems = (*stripped.problems, *_weight_problems(graph, stripped.weights), *gaps)
    weighted = [node for node in graph.nodes if units.is_weighted(graph, node)]
    floats = tuple(node.name for node in weighted if node.inputs[1] not in stripped.weights)
    return QdqModel(write(graph, model), graph, scales, floats, problems)


def qdq_model(model: Model) -> QdqModel:
    """Split a Q/DQ model into float model and scales.

    Raises ModelError: no layer has stored weights, or :func:`split_qdq` raised it.
    """
    try:
        found = split_qdq(clean(model)[0])
    except ModelError as error:
        raise error.at(str(model.path))  # noqa: B904 - the same error, with its place
    if not any(units.is_weighted(found.graph, node) for node in found.graph.nodes):
        raise ModelError(
            f"model {str(model.path)!r} has nothing that could run in INT8",
            why="no layer in it has stored weights",
            fix="run it as it is",
        )
    return found


def qdq_section(config: ModelConfig) -> QdqModel:
    """Split the Q/DQ model of a section, at its calibration size, into float model and scales.

    Raises ModelError: the file cannot be read, or :func:`qdq_model` raised it.
    """
    model = load(config.onnx)
    return qdq_model(with_shapes(model, calibration_shapes(model, config)))


def _units_of(nodes: Collection[str], plan: units.Scheme) -> Iterator[str]:
    return (unit.name for unit in plan.units if not set(nodes).isdisjoint(unit.nodes))
