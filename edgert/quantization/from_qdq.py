"""A model that came with Q/DQ nodes in the forms of a DLA: its own scales instead of ranges measured on images."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from edgert.config import ModelConfig
from edgert.errors import CalibrationError, ModelError
from edgert.graph.load import load
from edgert.graph.model import Model
from edgert.graph.operations import read, write
from edgert.graph.passes.clean import clean
from edgert.graph.static_shape import with_shapes
from edgert.quantization.calibrated import one_size
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_cache import write_cache
from edgert.quantization.lowering.weights import LIMIT
from edgert.quantization.operator import is_weighted
from edgert.quantization.qdq_ranges import ranges_of_qdq
from edgert.quantization.scheme.scheme import USUAL_DLA, Dla, Scheme, scheme
from edgert.quantization.scheme.trt_scheme import layer_precisions


@dataclass(frozen=True, eq=False)
class QdqModel:
    """A Q/DQ model taken apart.

    Attributes:
        model: the float model; weights are what their integers stood for.
        scales: tensor → scale of one step of int8.
        float_nodes: weighted nodes that the Q/DQ model computes in floating point.
        problems: what will not be as it was, a sentence each.
    """

    model: Model
    scales: Mapping[str, float]
    float_nodes: tuple[str, ...]
    problems: tuple[str, ...]

    def cache(self, tensorrt: str) -> str:
        """The calibration cache for a TensorRT up to 10, which belongs to ``model``.

        Raises:
            CalibrationError: see :func:`~edgert.quantization.lowering.trt_cache.write_cache`.
        """
        return write_cache(self.scales, tensorrt)

    def layer_precisions(self) -> str:
        """What trtexec is to leave in FP16, as its option takes it; empty for nothing. Raises CalibrationError."""
        return layer_precisions(self.float_nodes) if self.float_nodes else ""

    def typed(self, dla: Dla = USUAL_DLA) -> Model:
        """The Q/DQ form for a DLA with TensorRT from 11 on: a pair on every tensor that the DLA reads in INT8. What
        reads a tensor without a scale stays in floating point.

        Raises:
            CalibrationError: a tensor has no scale, and what reads it cannot be left in floating point.
        """
        graph = read(self.model)
        kept = set(_units_of(self.float_nodes, scheme(graph, "dla", dla=dla)))
        plan = scheme(graph, "dla", kept, dla)
        kept.update(_units_of(self._without_scale(plan), plan))
        return write(lower(graph, scheme(graph, "dla", kept, dla), self._amax), self.model)

    def _without_scale(self, plan: Scheme) -> Collection[str]:
        """Nodes that read a tensor for which there is no scale."""
        gaps = [name for name, group in plan.groups.items() if self.scales.keys().isdisjoint(group)]
        return {reader for name in gaps for reader in plan.points[name].readers}

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
    """Takes a Q/DQ model apart.

    Args:
        model: with static shapes.

    Raises:
        ModelError: see :func:`~edgert.quantization.qdq_ranges.ranges_of_qdq`; or no layer in it has stored weights.
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
    return QdqModel(write(found.graph, cleaned), found.scales, found.float_nodes, found.problems)


def qdq_section(config: ModelConfig) -> QdqModel:
    """The same for the model of a section, at one size. Raises ModelError, or what reading the file raises."""
    model = load(config.onnx)
    return qdq_model(with_shapes(model, one_size(model, config)))


def _units_of(nodes: Collection[str], plan: Scheme) -> Iterator[str]:
    return (unit.name for unit in plan.units if not set(nodes).isdisjoint(unit.nodes))
