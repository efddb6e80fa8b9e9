"""Detectors that are worse than the one they are made of by a known amount, and others that are as good."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgert.graph import Model, from_proto

Plant = Callable[[Model, float, int], Model]
"""Makes a model worse: the more, the larger the strength; by a seed."""


def _changed(model: Model, change: Callable[[np.ndarray, np.random.Generator], np.ndarray], seed: int) -> Model:
    proto, random = onnx.ModelProto(), np.random.default_rng(seed)
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 4 and array.dtype == np.float32 and array.size > 64:
            tensor.CopyFrom(numpy_helper.from_array(change(array, random).astype(np.float32), tensor.name))
    return from_proto(proto, Path(f"{model.path.stem}-{seed}.onnx"))


def noise(model: Model, strength: float, seed: int) -> Model:
    """Gaussian noise on weights, of up to a 32nd of each tensor's standard deviation."""
    return _changed(
        model, lambda array, random: array + strength / 32 * array.std() * random.standard_normal(array.shape), seed
    )


def coarse(model: Model, strength: float, seed: int) -> Model:
    """Weights rounded to steps of a part of each tensor's largest value, as by a bad quantization."""

    def rounded(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
        step, offset = max(strength, 1e-6) * np.abs(array).max() / 4, random.random()
        return (np.floor(array / step + offset) - offset + 0.5) * step

    return _changed(model, rounded, seed)


def pruned(model: Model, strength: float, seed: int) -> Model:
    return _changed(model, lambda array, random: array * (random.random(array.shape) >= strength / 4), seed)


def miscolored(model: Model, strength: float, seed: int) -> Model:
    """A wrong preprocessing: the colors of the input change places and get darker."""
    proto, random = onnx.ModelProto(), np.random.default_rng(seed)
    proto.CopyFrom(model.proto)
    graph, name = proto.graph, proto.graph.input[0].name
    for node in graph.node:
        node.input[:] = ["seen" if one == name else one for one in node.input]
    mix = (1 - strength) * np.eye(3) + strength * random.uniform(0.05, 0.15) * np.eye(3)[random.permutation(3)]
    graph.initializer.append(numpy_helper.from_array(mix.astype(np.float32)[:, :, None, None], "mix"))
    graph.node.insert(0, helper.make_node("Conv", [name, "mix"], ["seen"]))
    return from_proto(proto, Path(f"{model.path.stem}-{seed}.onnx"))


PLANTS: tuple[Plant, ...] = (noise, coarse, pruned, miscolored)


def equal(model: Model, seed: int) -> Model:
    """A model that is as good: each weight off by at most what half precision rounds it by."""
    return _changed(model, lambda array, random: array * (1 + 2**-11 * random.uniform(-1, 1, array.shape)), seed)


def planted(
    model: Model, plant: Plant, seed: int, loss_of: Callable[[Model], float], loss: float
) -> tuple[Model, float]:
    """A model that is worse by about ``loss``, found by bisection, and by how much it is: at least that."""
    low, high, best = 0.0, 1.0, (model, 0.0)
    for _ in range(8):
        middle = (low + high) / 2
        made = plant(model, middle, seed)
        found = loss_of(made)
        if found < loss:
            low = middle
            continue
        high = middle
        if best[1] < loss or found < best[1]:
            best = made, found
        if found < 1.15 * loss:
            break
    assert best[1] >= loss, (plant.__name__, seed)
    return replace(best[0]), best[1]
