"""Statistics of the training images that a model file still holds, as evidence for how its input is scaled.

Two things in an ONNX file show how its input was scaled, whatever the photos show:

* BatchNormalization stores the mean and variance of what came in during training. Where it has not been folded away,
  the first few layers are run on a candidate's input and the statistics compared.
* A quantized model starts with the range of values its input had during calibration.
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
_LAYERS = 4  # deeper ones depend on what the photos show
_MAP_RANK = 4  # a BatchNormalization behind a Gemm normalizes vectors: there is no image any more to look at
_WEAK = 1e-3  # of the median variance: channels that hardly ever fired in training show nothing


class Memory(Protocol):
    """Something in the model that fits one scaling better than another."""

    @property
    def source(self) -> str:
        """What it is, in words."""
        ...

    def look(self, config: InputConfig, view: View) -> F64:
        """Return one photo's features under a configuration; an array whose mean over photos counts."""
        ...

    def fit(self, looks: Sequence[F64]) -> float:
        """Return how well several photos fit, 0 to 1."""
        ...


def memories(model: Model, shapes: Shapes, threads: int) -> tuple[Memory, ...]:
    """Return what this model stores about its training; empty when the exporter folded it into weights.

    Args:
        model: to read.
        shapes: of the input, where the model's own is dynamic.
        threads: for running it.
    """
    graph, _ = STORE_CONSTANTS.apply(read(model))
    found: list[Memory] = []
    if (span := _calibrated_span(graph)) is not None:
        found.append(CalibratedRange(span))
    if layers := _normalized(graph):
        part = write(extract(graph, [layer.tensor for layer in layers]), model)
        session = backend("ort").compile(part, EngineOptions(threads, {"default": shapes})).session()
        found.append(TrainingStatistics(layers, session))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedRange:
    """The range that a quantized model's input can hold."""

    span: tuple[float, float]
    source: str = "the input range of the quantized model"

    def look(self, config: InputConfig, view: View) -> F64:
        """Return lowest and highest value that the configuration makes; the same for every photo."""
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
    """One BatchNormalization: the tensor that it normalizes, (C,) mean and variance of its training."""

    tensor: str
    mean: F64
    variance: F64


class TrainingStatistics:
    """The running mean and variance of the first BatchNormalization layers."""

    source = "the batch statistics stored in the model"

    def __init__(self, layers: Sequence[Layer], session: Session) -> None:
        self._trial = Trial(session, [True] * len(layers), self.source, lambda: None)
        self._mean, self._variance = (
            np.concatenate([getattr(layer, key) for layer in layers]) for key in ("mean", "variance")
        )
        fired = [layer.variance > _WEAK * np.median(layer.variance) for layer in layers]
        self._weights = np.concatenate([one / (one.sum() * len(layers)) for one in fired])  # every layer's mean counts

    def look(self, config: InputConfig, view: View) -> F64:
        """Return (2, all channels) mean and mean square of every channel before its normalization."""
        answers, _ = self._trial.answer(config, view)
        outputs = [array.astype(np.float64) for array in answers]
        self._trial.forget()
        moments = [(array.mean(axis=(1, 2)), np.square(array).mean(axis=(1, 2))) for array in outputs]
        return np.concatenate([np.stack(pair) for pair in moments], axis=1)

    def fit(self, looks: Sequence[F64]) -> float:
        """Return exp of minus the mean divergence: half the symmetric Kullback-Leibler divergence of two Gaussians."""
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


def _normalized(graph: Graph) -> list[Layer]:
    """Return the first layers over an image whose input has a known type, so that it can be a model output."""
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
