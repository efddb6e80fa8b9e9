"""Quantization noise: how far a quantized graph is from the one it was made of, by tensors and by outputs."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model
from edgert.quantization.calibration.walk import Feeds, check_stop, walk
from edgert.quantization.lowering.weights import F64, weighted
from edgert.quantization.quantizer import Quantizer

_CHUNK = 8  # images on their way at once; more only cost memory, fewer rebuild the pieces more often


def sqnr(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    tensors: Iterable[str] | None,
    like: Model,
) -> Mapping[str, float]:
    """Signal to quantization noise in dB, tensor by tensor: 10 log10(Σ x² / Σ (x - y)²) over all elements and images, x
    in the float graph and y in the other; inf where they are equal, -inf for noise without signal.

    Args:
        graph: the float graph.
        lowered: the same graph quantized, each node computed as the standard defines it.
        feeds: images.
        tensors: names that both graphs compute; None: outputs of weighted nodes and of the graph, as far as both have
            them.
        like: the model that the graph was read from.

    Raises:
        CalibrationError: there are no images.
        ModelError: a tensor that one of the graphs does not compute.
        BuildError: ONNX Runtime cannot run one of them.
    """
    if not feeds:
        raise CalibrationError("graphs cannot be compared without images", why="0 given", fix="give at least one")
    names = _shared(graph, lowered) if tensors is None else _ordered(graph, tensors)
    totals = {name: np.zeros(2) for name in names}
    for start in range(0, len(feeds), _CHUNK):
        chunk = feeds[start : start + _CHUNK]
        pairs = zip(names, walk(graph, names, chunk, like), walk(lowered, names, chunk, like), strict=True)
        for name, first, second in pairs:
            totals[name] += sum(map(_powers, first, second))
    return {name: decibels(*total) for name, total in totals.items()}


def decibels(signal: float, noise: float) -> float:
    """Signal to noise of two powers, in dB."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _shared(graph: Graph, lowered: Graph) -> list[str]:
    """Tensors to compare by default, in the order they are computed."""
    names = {node.outputs[0] for node in weighted(graph)} | graph.output_names
    return [name for name in _ordered(graph, names) if name in lowered.producers]


def _ordered(graph: Graph, tensors: Iterable[str]) -> list[str]:
    """Names in the order they are computed; what the graph does not compute comes last."""
    position = {name: number for number, name in enumerate(graph.producers)}
    return sorted(dict.fromkeys(tensors), key=lambda name: position.get(name, len(position)))


def _powers(first: Array, second: Array) -> F64:
    """Σ x² and Σ (x - y)² of one image. Summed in float64: a sum of millions in float32 loses digits."""
    x, difference = first.reshape(-1).astype(np.float64), np.subtract(first, second, dtype=np.float64).reshape(-1)
    return np.array([x @ x, difference @ difference])


# How much of a reduced model's outputs is noise: a measure that needs no labels, nor what the outputs mean.


class OutputNoise:
    """The noise of versions of one model.

    Args:
        model: the float model.
        feeds: images, at least one.
        stop: ends it when set, before the next image.

    Raises:
        BuildError: ONNX Runtime cannot run the model.
        CalibrationError: stopped.
    """

    def __init__(self, model: Model, feeds: Sequence[Feeds], stop: threading.Event | None = None) -> None:
        self._feeds, self._stop = feeds, stop
        self._wanted = self._outputs(Function(model))

    def of(self, found: Function) -> float:
        """Of one version, as :func:`noise_share` has it. Raises BuildError where it cannot be run, CalibrationError
        when it is stopped."""
        return noise_share(self._wanted, self._outputs(found))

    def _outputs(self, function: Function) -> list[Mapping[str, Array]]:
        found: list[Mapping[str, Array]] = []
        for one in self._feeds:
            check_stop(self._stop)
            found.append(function(one))
        return found


def rounding_noise(quantizer: Quantizer, feeds: Sequence[Feeds]) -> Callable[[frozenset[str]], float]:
    """Units kept in higher precision → the noise of the outputs when the others are rounded, nothing corrected.

    Raises:
        BuildError: ONNX Runtime cannot run the model.
    """
    noise, fused = OutputNoise(quantizer.model, feeds, quantizer.stop), quantizer.recipe.target == "ort"

    def measure(kept: frozenset[str]) -> float:
        if not quantizer.scheme(kept).units:
            return 0.0
        return noise.of(Function(quantizer.quick(kept).model, fused=fused))

    return measure


def noise_share(wanted: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]) -> float:
    """Noise over noise and signal: 0 for equal outputs, 1/2 where one is as large as the other, 1 for noise alone.

    The mean over outputs, and of outputs with channels over these: large numbers (a detector's boxes) would hide what
    becomes of small ones (its scores). Signal is what varies over images and places; what stays a constant is none.

    Args:
        wanted, found: name → array with a batch dimension, one mapping per image.
    """
    return float(np.mean([_share(name, wanted, found) for name in wanted[0]]))


def _share(name: str, wanted: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]) -> float:
    true = _stacked([one[name] for one in wanted])
    noise = np.square(true - _stacked([one[name] for one in found]))
    axis = _channel_axis(true.shape)
    rest = tuple(one for one in range(true.ndim) if one != axis)
    signal: F64 = np.asarray(true.var(axis=rest))
    lost: F64 = np.asarray(noise.mean(axis=rest))
    whole = signal + lost
    return float(np.divide(lost, whole, where=whole > 0, out=np.zeros_like(whole)).mean())


def _stacked(arrays: Sequence[Array]) -> F64:
    """(images, …), without dimensions of one."""
    shape = [size for size in arrays[0].shape if size > 1]
    return np.stack([one.reshape(shape) for one in arrays]).astype(np.float64)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Of stacked outputs: channels come first of an image's dimensions, and are fewer than a detector's anchors. A
    vector has none: one of its numbers over a few images is no measure."""
    if len(shape) == 3:
        return 1 if shape[1] <= shape[2] else 2
    return 1 if len(shape) > 3 else None
