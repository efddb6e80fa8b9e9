"""AdaRound: rounding each weight up or down so that the layer's output, not the weight, is closest.

Nagel et al. 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization" (https://arxiv.org/abs/2004.10568).
The error of a layer's output is Δw·E[x·xᵀ]·Δwᵀ per output channel (their section 3), so the second moments of the
inputs are all that is kept of the pictures; :mod:`edgert.quantize.relax` solves the rounding on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.errors import CalibrationError
from edgert.graph.model import Model
from edgert.graph.node import Graph, Node
from edgert.quantize.kernel import Kernel, arranged, canonical, kernel_of, weighted
from edgert.quantize.patch import SUPPORTED, Moments, patches
from edgert.quantize.relax import Effort, errors, solve
from edgert.quantize.walk import THREADS, Feeds, walk

I8 = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Rounding:
    """What came of one weight.

    Attributes:
        node: the name of the node that reads it.
        weight: its own name.
        values: int8, of its shape.
        nearest, error: mean squared error of the node's output, summed over channels, with every weight rounded to
            nearest and with ``values``; the second is never the larger.
        flipped: how many values are not the nearest.
    """

    node: str
    weight: str
    values: I8
    nearest: float
    error: float
    flipped: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Weights done, of how many, and the one that was just finished."""

    done: int
    total: int
    rounding: Rounding


def round_weights(
    graph: Graph,
    lowered: Graph,
    scales: Mapping[str, Array],
    feeds: Sequence[Feeds],
    like: Model,
    *,
    units: Collection[str] | None = None,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    progress: Callable[[Progress], None] | None = None,
    stop: Event | None = None,
) -> Mapping[str, I8]:
    """Weight name → int8 values in [-127, 127], for :func:`~edgert.quantize.lower.lower` to use instead of the nearest.

    Weights that are not asked for, that two nodes share, or that belong to a ConvTranspose are left out: to nearest is
    right for those. The same arguments give the same values.

    Args:
        graph: the float graph.
        lowered: the same graph quantised to nearest: what its weighted nodes read decides the rounding.
        scales: weight name → its scales, of a shape that broadcasts to the weight's.
        feeds: pictures.
        like: the model that the graph was read from.
        units: names of the weighted nodes to round; None: all that ``scales`` has.
        effort: work per layer.
        progress: called after each weight.
        stop: once set, no further weight is begun and what is done is returned.

    Raises:
        CalibrationError: there are no pictures.
        BuildError: ONNX Runtime cannot run the quantised graph.
    """
    found = roundings(graph, lowered, scales, feeds, like, units=units, effort=effort, progress=progress, stop=stop)
    return {one.weight: one.values for one in found}


def roundings(
    graph: Graph,
    lowered: Graph,
    scales: Mapping[str, Array],
    feeds: Sequence[Feeds],
    like: Model,
    *,
    units: Collection[str] | None = None,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    progress: Callable[[Progress], None] | None = None,
    stop: Event | None = None,
) -> tuple[Rounding, ...]:
    """As :func:`round_weights`, with what was gained."""
    if not feeds:
        raise CalibrationError("weights cannot be rounded by their effect without pictures", why="0 given")
    readers = _readers(graph, lowered, scales, units)
    total = sum(map(len, readers.values()))
    done: list[Rounding] = []
    for nodes, values in zip(readers.values(), walk(lowered, list(readers), feeds, like, threads=THREADS), strict=True):
        for node in nodes:
            if stop is not None and stop.is_set():
                return tuple(done)
            done.append(_round(graph, node, scales[node.inputs[1]], values, effort))
            if progress is not None:
                progress(Progress(len(done), total, done[-1]))
    return tuple(done)


def _readers(
    graph: Graph, lowered: Graph, scales: Mapping[str, Array], units: Collection[str] | None
) -> Mapping[str, list[Node]]:
    """Tensor of the quantised graph → the nodes of the float graph that read it there, both in order."""
    there = {node.outputs[0]: node.inputs[0] for node in lowered.nodes if node.outputs}
    found: dict[str, list[Node]] = {}
    for node in weighted(graph):
        asked = node.inputs[1] in scales and (units is None or node.name in units)
        known = node.op in SUPPORTED and node.outputs[0] in there and graph.is_private(node.inputs[1])
        if asked and known:
            found.setdefault(there[node.outputs[0]], []).append(node)
    return found


def _round(graph: Graph, node: Node, scales: Array, values: Sequence[Array], effort: Effort) -> Rounding:
    kernel = kernel_of(graph, node)
    assert kernel is not None  # weighted() named it
    gram = _moments(kernel, values, effort).gram(centred=effort.centred)
    steps = canonical(np.broadcast_to(np.asarray(scales, np.float64), kernel.stored), node)
    groups, rows = kernel.values.shape[:2]
    wanted = (kernel.values / steps).reshape(groups, rows, -1)
    solved = solve(wanted, gram, effort)
    size = np.square(steps.reshape(groups, rows, -1)[:, :, 0])
    before, after = (float((errors(one - wanted, gram) * size).sum()) for one in (solved.nearest, solved.values))
    stored = arranged(solved.values.reshape(kernel.values.shape), node, kernel.stored).astype(np.int8)
    flipped = int(np.count_nonzero(solved.values != solved.nearest))
    return Rounding(node.name, node.inputs[1], stored, before, after, flipped)


def _moments(kernel: Kernel, values: Sequence[Array], effort: Effort) -> Moments:
    """Second moments of patches drawn from every picture alike. The draw is the same every time."""
    moments, random = Moments.empty(kernel), np.random.default_rng(0)
    unknowns = moments.first.shape[1]
    each = max(effort.least_patches, effort.patches_per_unknown * unknowns) // len(values) + 1
    for one in values:
        moments.add(patches(kernel, one, each, random))
    return moments
