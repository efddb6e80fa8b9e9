"""What a model remembers of the images it was trained on.

Two things in an ONNX file tell how its input was scaled, whatever the photos show:

* BatchNormalization stores the mean and variance of what came in during training. Where it has not been folded away,
  the first few layers are run on a candidate's input and the statistics compared.
* A quantized model starts with the range of values its input had during calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from edgert.backend import EngineOptions, Session, Shapes, backend
from edgert.config import InputConfig
from edgert.graph import Model
from edgert.graph.passes.noop import constant_value
from edgert.graph.proto import to_array
from edgert.wiring.photos import View
from edgert.wiring.trial import Trial

if TYPE_CHECKING:
    import onnx

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
_LAYERS = 4  # deeper ones depend on what the photos show
_WEAK = 1e-3  # of the median variance: channels that hardly ever fired in training tell nothing


class Memory(Protocol):
    """Something in the model that fits one scaling better than another."""

    @property
    def source(self) -> str:
        """What it is, in words."""
        ...

    def look(self, config: InputConfig, view: View) -> F64:
        """What one photo looks like to it under a configuration; an array whose mean over photos counts."""
        ...

    def fit(self, looks: Sequence[F64]) -> float:
        """How well several photos fit, 0 to 1."""
        ...


def memories(model: Model, shapes: Shapes, threads: int) -> tuple[Memory, ...]:
    """What this model remembers; empty when its statistics were folded into its weights, as exporters often do.

    Args:
        shapes: of the input, where the model's own is dynamic.
    """
    stored = _stored(model.proto.graph)
    found: list[Memory] = []
    if (span := _calibrated_span(model.proto.graph, stored)) is not None:
        found.append(CalibratedRange(span))
    if layers := _normalized(model.proto.graph, stored):
        found.append(TrainingStatistics(layers, _session(model, [layer.tensor for layer in layers], shapes, threads)))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedRange:
    """The range that a quantized model's input can hold."""

    span: tuple[float, float]
    source: str = "the input range of the quantized model"

    def look(self, config: InputConfig, view: View) -> F64:
        """Lowest and highest value that the configuration makes; the same for every photo."""
        mean, std = np.asarray(config.mean), np.asarray(config.std)
        ends = np.concatenate([(0 - mean) / std, (255 - mean) / std])
        return np.array([ends.min(), ends.max()])

    def fit(self, looks: Sequence[F64]) -> float:
        """Intersection over union of the two ranges."""
        low, high = np.mean(looks, axis=0)
        shared = min(high, self.span[1]) - max(low, self.span[0])
        return float(max(shared, 0.0) / (max(high, self.span[1]) - min(low, self.span[0])))


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One BatchNormalization: the tensor that it normalizes, (C,) mean and variance of its training."""

    tensor: str
    mean: F64
    variance: F64


class TrainingStatistics:
    """The running mean and variance of the first BatchNormalization layers."""

    source = "the batch statistics stored in the model"

    def __init__(self, layers: Sequence[Layer], session: Session) -> None:
        self._layers, self._trial = layers, Trial(session, [True] * len(layers), self.source, lambda: None)

    def look(self, config: InputConfig, view: View) -> F64:
        """(2, all channels) mean and mean square of every channel in front of its normalization."""
        answers, _ = self._trial.answer(config, view)
        outputs = [array.astype(np.float64) for array in answers]
        self._trial.forget()
        moments = [(array.mean(axis=(1, 2)), np.square(array).mean(axis=(1, 2))) for array in outputs]
        return np.concatenate([np.stack(pair) for pair in moments], axis=1)

    def fit(self, looks: Sequence[F64]) -> float:
        """exp of minus the mean divergence: half the symmetric Kullback-Leibler divergence of two Gaussians."""
        mean, square = np.mean(looks, axis=0)
        variance = np.maximum(square - mean * mean, 1e-9)
        start, parts = 0, []
        for layer in self._layers:
            end = start + len(layer.mean)
            parts.append(_divergence(layer, mean[start:end], variance[start:end]))
            start = end
        return float(np.exp(-np.mean(parts)))


def _divergence(layer: Layer, mean: F64, variance: F64) -> float:
    apart = (mean - layer.mean) ** 2
    both = ((variance + apart) / layer.variance + (layer.variance + apart) / variance) / 2 - 1
    telling = layer.variance > _WEAK * np.median(layer.variance)
    return float(np.minimum(both[telling] / 2, 50).mean())


def _stored(graph: onnx.GraphProto) -> Mapping[str, Array]:
    """Every small stored tensor by name."""
    found: dict[str, Array] = {item.name: to_array(item) for item in graph.initializer if len(item.dims) <= 1}
    for node in graph.node:
        value = constant_value(node)
        if value is not None and value.ndim <= 1:
            found[node.output[0]] = value
    return found


def _calibrated_span(graph: onnx.GraphProto, stored: Mapping[str, Array]) -> tuple[float, float] | None:
    weights = {item.name for item in graph.initializer}
    images = {item.name for item in graph.input} - weights
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in images and len(node.input) == 3:
            scale, zero = stored.get(node.input[1]), stored.get(node.input[2])
            if scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
                return None
            bounds = np.iinfo(zero.dtype)
            step, middle = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
            return (bounds.min - middle) * step, (bounds.max - middle) * step
    return None


def _normalized(graph: onnx.GraphProto, stored: Mapping[str, Array]) -> list[Layer]:
    layers: list[Layer] = []
    for node in graph.node:
        if node.op_type != "BatchNormalization" or len(layers) == _LAYERS or len(node.output) > 1:
            continue
        mean, variance = stored.get(node.input[3]), stored.get(node.input[4])
        if mean is not None and variance is not None and float(np.min(variance)) >= 0 and float(np.max(variance)) > 0:
            layers.append(Layer(node.input[0], mean.astype(np.float64), variance.astype(np.float64) + 1e-9))
    return layers


def _session(model: Model, tensors: Sequence[str], shapes: Shapes, threads: int) -> Session:
    """The model up to a few tensors, which become its outputs."""
    proto = model.copied_proto()
    graph = proto.graph
    del graph.output[:]
    for name in tensors:
        graph.output.add().name = name
    _keep_needed(graph, set(tensors))
    engine = backend("ort").compile(model.derive(proto), EngineOptions(threads, {"default": shapes}))
    return engine.session()


def _keep_needed(graph: onnx.GraphProto, needed: set[str]) -> None:
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.append(node)
    kept.reverse()
    weights = [item for item in graph.initializer if item.name in needed]
    inputs = [item for item in graph.input if item.name in needed]  # old models list their weights among them
    del graph.node[:], graph.initializer[:], graph.input[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend(weights)
    graph.input.extend(inputs)
