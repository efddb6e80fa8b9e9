"""How far a quantised graph is from the one it was made of, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.backend.base import Array
from edgert.errors import CalibrationError
from edgert.graph.model import Model
from edgert.graph.node import Graph
from edgert.quantize.kernel import weighted
from edgert.quantize.walk import Feeds, walk

_CHUNK = 8  # pictures on their way at once; more only cost memory, fewer rebuild the pieces more often


@dataclass(frozen=True, slots=True)
class Agreement:
    """Sums over all elements of a tensor and all pictures: x in the one graph, y in the other.

    Attributes:
        signal, other, product, noise: Σ x², Σ y², Σ x·y, Σ (x - y)².
    """

    signal: float = 0.0
    other: float = 0.0
    product: float = 0.0
    noise: float = 0.0

    def __add__(self, more: Agreement) -> Agreement:
        return Agreement(
            self.signal + more.signal,
            self.other + more.other,
            self.product + more.product,
            self.noise + more.noise,
        )

    @property
    def sqnr_db(self) -> float:
        """Signal to quantisation noise, 10 log10(Σ x² / Σ (x - y)²): inf when equal, -inf for noise without signal."""
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def cosine(self) -> float:
        """Σ x·y / sqrt(Σ x² · Σ y²): 1 when both are all zeros, 0 when only one is."""
        if self.signal == 0 or self.other == 0:
            return float(self.signal == self.other)
        return self.product / math.sqrt(self.signal * self.other)


def sqnr(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    tensors: Iterable[str] | None,
    like: Model,
) -> Mapping[str, float]:
    """Signal to quantisation noise in dB, tensor by tensor; see :class:`Agreement` for the limits of the scale.

    Args:
        graph: the float graph.
        lowered: the same graph quantised, each node computed as the standard says.
        feeds: pictures.
        tensors: names that both graphs compute; None: outputs of weighted nodes and of the graph, as far as both have
            them.
        like: the model that the graph was read from.

    Raises:
        CalibrationError: there are no pictures.
        ModelError: a tensor that one of the graphs does not compute.
        BuildError: ONNX Runtime cannot run one of them.
    """
    return {name: one.sqnr_db for name, one in agreement(graph, lowered, feeds, tensors, like).items()}


def agreement(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    tensors: Iterable[str] | None,
    like: Model,
) -> Mapping[str, Agreement]:
    """As :func:`sqnr`, with all sums; the one pass that cosines of outputs can be had from as well."""
    if not feeds:
        raise CalibrationError("graphs cannot be compared without pictures", why="0 given", fix="give at least one")
    names = _shared(graph, lowered) if tensors is None else _ordered(graph, tensors)
    totals = dict.fromkeys(names, Agreement())
    for chunk in _chunks(feeds):
        pairs = zip(names, walk(graph, names, chunk, like), walk(lowered, names, chunk, like), strict=True)
        for name, first, second in pairs:
            totals[name] = sum(map(_agreement, first, second), totals[name])
    return totals


def _shared(graph: Graph, lowered: Graph) -> list[str]:
    """Tensors to compare by default, in the order they are computed."""
    names = {node.outputs[0] for node in weighted(graph)} | graph.output_names
    return [name for name in _ordered(graph, names) if name in lowered.producers]


def _ordered(graph: Graph, tensors: Iterable[str]) -> list[str]:
    """Names in the order they are computed; what the graph does not compute comes last."""
    position = {name: number for number, name in enumerate(graph.producers)}
    return sorted(dict.fromkeys(tensors), key=lambda name: position.get(name, len(position)))


def _chunks(feeds: Sequence[Feeds]) -> Iterator[Sequence[Feeds]]:
    return (feeds[start : start + _CHUNK] for start in range(0, len(feeds), _CHUNK))


def _agreement(first: Array, second: Array) -> Agreement:
    """Of one tensor and picture. Squares are summed in float64: a sum of millions in float32 loses digits."""
    x, y = first.reshape(-1).astype(np.float64), second.reshape(-1).astype(np.float64)
    difference = x - y
    return Agreement(float(x @ x), float(y @ y), float(x @ y), float(difference @ difference))
