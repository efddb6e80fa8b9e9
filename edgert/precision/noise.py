"""How much of a reduced model's outputs is noise: what tells without labels, and without knowing what outputs mean."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.graph.model import Model
from edgert.quantize.kernel import F64
from edgert.quantize.recipe import Quantizer
from edgert.quantize.walk import Feeds, check_stop


class OutputNoise:
    """The noise of versions of one model.

    Args:
        model: the float model.
        feeds: pictures, at least one.
        stop: ends it when set, before the next picture.

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
    becomes of small ones (its scores). Signal is what varies over pictures and places; what stays a constant is none.

    Args:
        wanted, found: name → array with a batch dimension, one mapping per picture.
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
    """(pictures, …), without dimensions of one."""
    shape = [size for size in arrays[0].shape if size > 1]
    return np.stack([one.reshape(shape) for one in arrays]).astype(np.float64)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Of stacked outputs: channels come first of an image's dimensions, and are fewer than a detector's anchors. A
    vector has none: what one of its numbers is over a few pictures says little."""
    if len(shape) == 3:
        return 1 if shape[1] <= shape[2] else 2
    return 1 if len(shape) > 3 else None
