"""Method ``auto``: for each scale, the threshold whose rounding changes the following nodes' outputs least."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node, extract, write
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.threshold import METHODS
from edgert.quantization.calibration.walk import THREADS, Feeds, walk
from edgert.quantization.lowering.weights import LIMIT, kernel_of
from edgert.quantization.scheme.units import Scheme

DEFAULT = "mse"
"""The method where several tie, and where no weighted node reads a tensor: then only its own error counts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The effect of each method on the tensors of one scale.

    Attributes:
        tensors: those that share the scale.
        method: the one chosen.
        thresholds: method → amax.
        errors: method → squared error per element at the outputs of the weighted nodes that read a tensor, relative to
            the squared outputs. Empty without such nodes.
    """

    tensors: tuple[str, ...]
    method: str
    thresholds: Mapping[str, float]
    errors: Mapping[str, float]


def choices(
    graph: Graph,
    scheme: Scheme,
    table: RangeTable,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: threading.Event | None = None,
) -> tuple[Choice, ...]:
    """Choose the method of every scale, and return it with the errors that decided it.

    A tensor is rounded with each threshold in turn while everything else stays float. The graph runs once per image,
    and each weighted node once more per image and threshold.

    Args:
        graph: the float graph that the scheme was made for.
        scheme: which tensors are rounded, and which share a scale.
        table: their measured ranges.
        feeds: a few images.
        like: the model that the graph was read from.
        stop: ends it when set.

    Raises:
        CalibrationError: there are no images, or the table lacks a tensor; stopped.
        BuildError: ONNX Runtime cannot run the graph.
    """
    if not feeds:
        raise CalibrationError("methods cannot be chosen by output error without images", why="0 given")
    tables = {method: table.with_method(method) for method in METHODS}
    groups = dict.fromkeys(group for group in scheme.groups.values() if any(name in scheme.needed for name in group))
    thresholds = {group: {method: tables[method].amax(group) for method in METHODS} for group in groups}
    totals = {group: Counter[str]() for group in groups}
    readers = _readers(graph, scheme, thresholds)
    with ThreadPoolExecutor(THREADS) as pool:
        for name, values in zip(readers, walk(graph, list(readers), feeds, like, stop=stop), strict=True):
            group = scheme.groups[name]
            for node in readers[name]:
                # Without its bias the node is linear: the error of its input becomes the error of its output.
                alone = replace(graph, nodes=(replace(node, inputs=node.inputs[:2]),))
                linear = Function(write(extract(alone, node.outputs[:1], [name]), like), fused=False)
                for errors in pool.map(partial(_errors, linear, name, thresholds[group]), values):
                    totals[group].update(errors)
    found = []
    for group in groups:
        errors = totals[group] if any(totals[group].values()) else {}
        best = min(METHODS, key=lambda method: (errors.get(method, 0.0), method != DEFAULT))
        found.append(Choice(group, best, thresholds[group], dict(errors)))
    return tuple(found)


def _readers(graph: Graph, scheme: Scheme, groups: Mapping[tuple[str, ...], object]) -> Mapping[str, list[Node]]:
    """Return tensor → the weighted nodes that read it rounded, both in graph order."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if not node.inputs or kernel_of(graph, node) is None:
            continue
        name = node.inputs[0]
        point = scheme.points.get(name)
        if point is not None and node.name in point.readers and scheme.groups[name] in groups:
            found.setdefault(name, []).append(node)
    return found


def _errors(function: Function, name: str, thresholds: Mapping[str, float], values: Array) -> Mapping[str, float]:
    """Return method → error of the node's output for one image, relative to the output's own square."""

    def power(array: Array) -> float:
        (output,) = function({name: array}).values()
        return float(np.square(output, dtype=np.float64).sum())

    signal = power(values) or 1.0
    found = {}
    for amax in set(thresholds.values()):
        scale = np.float32(amax) / np.float32(LIMIT)
        found[amax] = power(np.clip(np.rint(values / scale), -LIMIT, LIMIT) * scale - values) / signal
    return {method: found[amax] for method, amax in thresholds.items()}
