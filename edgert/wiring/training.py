"""Training statistics that a model file stores, as evidence for the scale of its input.

* BatchNormalization layers store mean and variance of their input during training. Where they are not folded into
  weights, the first layers are run on the input of a setting, and the statistics are compared.
* A quantized model begins with the range of its input during calibration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgert.backend import EngineOptions, Session, Shapes, backend
from edgert.config import InputConfig
from edgert.graph import Graph, Model, extract, read, write
from edgert.graph.clean import STORE_CONSTANTS
from edgert.wiring.photos import View
from edgert.wiring.trial import Trial

F64 = npt.NDArray[np.float64]
_LAYERS = 4  # deeper layers depend on the content of the photos
_MAP_RANK = 4  # a BatchNormalization behind a Gemm normalizes vectors, not images
_WEAK_VARIANCE = 1e-3  # fraction of the median variance below which a channel was hardly used in training


class Memory(Protocol):
    """Training statistics in the model, which fit one scale of the input better than another."""

    @property
    def source(self) -> str:
        """Kind of the statistics in words."""

    def look(self, config: InputConfig, view: View) -> F64:
        """Return the features of one photo with an input section; their mean over photos is compared."""

    def fit(self, looks: Sequence[F64]) -> float:
        """Return the fit of several photos' features with the statistics, 0 to 1."""


def memories(model: Model, shapes: Shapes, threads: int) -> tuple[Memory, ...]:
    """Return the training statistics that a model stores; empty where the exporter folded them into weights."""
    graph, _ = STORE_CONSTANTS.apply(read(model))
    found: list[Memory] = []
    if (span := _calibrated_span(graph)) is not None:
        found.append(CalibratedRange(span))
    if layers := _normalized_layers(graph):
        part = write(extract(graph, [layer.tensor for layer in layers]), model)
        session = backend("ort").compile(part, EngineOptions(threads, {"default": shapes})).session()
        found.append(TrainingStatistics(layers, session))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedRange:
    """The range of a quantized model's input."""

    span: tuple[float, float]
    source: str = "the input range of the quantized model"

    def look(self, config: InputConfig, view: View) -> F64:
        """Return the lowest and highest value that an input section can produce; it is the same for every photo."""
        mean, std = np.asarray(config.mean), np.asarray(config.std)
        ends = np.concatenate([(0 - mean) / std, (255 - mean) / std])
        return np.array([ends.min(), ends.max()])

    def fit(self, looks: Sequence[F64]) -> float:
        """Return the intersection over union of the two ranges."""
        low, high = np.mean(looks, axis=0)
        shared = min(high, self.span[1]) - max(low, self.span[0])
        return float(max(shared, 0.0) / (max(high, self.span[1]) - min(low, self.span[0])))


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A BatchNormalization layer: the tensor that it normalizes, and (C,) mean and variance of its training."""

    tensor: str
    mean: F64
    variance: F64


class TrainingStatistics:
    """The statistics of the first BatchNormalization layers."""

    source = "the batch statistics stored in the model"

    def __init__(self, layers: Sequence[Layer], session: Session) -> None:
        self._trial = Trial(session, [True] * len(layers), self.source, lambda: None)
        self._mean, self._variance = (
            np.concatenate([getattr(layer, key) for layer in layers]) for key in ("mean", "variance")
        )
        fired = [layer.variance > _WEAK_VARIANCE * np.median(layer.variance) for layer in layers]
        self._weights = np.concatenate([one / (one.sum() * len(layers)) for one in fired])  # each layer counts the same

    def look(self, config: InputConfig, view: View) -> F64:
        """Return (2, all channels) mean and mean square of every channel before its normalization."""
        answers, _ = self._trial.answer(config, view)
        outputs = [array.astype(np.float64) for array in answers]
        self._trial.forget()
        moments = [(array.mean(axis=(1, 2)), np.square(array).mean(axis=(1, 2))) for array in outputs]
        return np.concatenate([np.stack(pair) for pair in moments], axis=1)

    def fit(self, looks: Sequence[F64]) -> float:
        """Return exp(-d), where d is the mean of half the symmetric Kullback-Leibler divergence of two Gaussians."""
        mean, square = sum(looks, np.zeros(())) / len(looks)
        own, apart = np.maximum(square - mean * mean, 1e-9), (mean - self._mean) ** 2
        both = ((own + apart) / self._variance + (self._variance + apart) / own) / 2 - 1
        return float(np.exp(-(self._weights @ np.minimum(both / 2, 50))))


def _calibrated_span(graph: Graph) -> tuple[float, float] | None:
    images = {spec.name for spec in graph.inputs}
    for node in graph.nodes:
        if node.op == "QuantizeLinear" and node.inputs[0] in images and len(node.inputs) == 3:
            scale, zero = (graph.constants.get(name) for name in node.inputs[1:])
            if scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
                return None
            bounds = np.iinfo(zero.dtype)
            step, middle = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
            return (bounds.min - middle) * step, (bounds.max - middle) * step
    return None


def _normalized_layers(graph: Graph) -> list[Layer]:
    """Return the first layers that normalize an image of known type, which can be an output of a part of the model."""
    layers: list[Layer] = []
    for node in graph.nodes:
        spec = graph.specs.get(node.inputs[0])
        if node.op != "BatchNormalization" or len(node.outputs) > 1 or spec is None or spec.dtype == "unknown":
            continue
        if len(spec.shape) != _MAP_RANK:
            continue
        mean, variance = (graph.constants.get(name) for name in node.inputs[3:5])
        if mean is not None and variance is not None and float(np.min(variance)) >= 0 and float(np.max(variance)) > 0:
            layers.append(Layer(node.inputs[0], mean.astype(np.float64), variance.astype(np.float64) + 1e-9))
    return layers[:_LAYERS]
