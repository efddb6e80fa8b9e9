"""What was changed in a model's weights to win accuracy back, found by comparing them before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.config import ModelConfig
from edgert.graph.model import Model
from edgert.graph.node import Graph, Node, read
from edgert.graph.operators import about
from edgert.precision.calibration import prepared
from edgert.precision.outcome import Outcome
from edgert.quantize.equalize import scalings
from edgert.quantize.kernel import bias_factor
from edgert.quantize.operator import is_weighted
from edgert.quantize.recipe import matching
from edgert.quantize.weight import channel_axis, quantize_weight, spread, weight_scales
from edgert.report import Correction

Array = npt.NDArray[Any]

EQUALISATION = "Cross-layer equalisation"


def corrections(outcome: Outcome, model: Model, config: ModelConfig) -> tuple[Correction, ...]:
    """All changes, in the order they were made; equalisation is worked out anew from the file."""
    found: list[Correction] = []
    if config.quantize.equalize:
        found += _equalized(model, config)
    pair = _Pair(read(outcome.prepared), outcome.quantized.graph, outcome)
    if outcome.recipe.adaround:
        found += pair.rounded()
    if outcome.recipe.correct_bias:
        found += pair.shifted()
    return tuple(found)


def _equalized(model: Model, config: ModelConfig) -> Iterator[Correction]:
    plain = config.model_copy(update={"quantize": config.quantize.model_copy(update={"equalize": False})})
    for one in scalings(read(prepared(model, plain))):
        parts = [("outputs divided by", one.outputs), ("inputs multiplied by", one.inputs)]
        said = [f"{verb} {_span(values)}" for verb, values in parts if (values != 1).any()]
        yield Correction(EQUALISATION, (one.node,), ", ".join(said))


def _span(values: Array) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


@dataclass(frozen=True, slots=True)
class _Pair:
    """A model before and after."""

    before: Graph
    after: Graph
    outcome: Outcome

    def rounded(self) -> Iterator[Correction]:
        """Nodes whose weights AdaRound rounded, and how many of these the other way."""
        known = {node.name: node for node in self.after.nodes}
        weighted = sorted(self.outcome.quantized.scheme.weighted & known.keys())
        names = set(matching(self.outcome.recipe.adaround, weighted, "adaround"))
        for node in self.before.nodes:
            if node.name in names:
                share = self._turned(node, known[node.name])
                yield Correction("AdaRound", (node.name,), f"{share:.1%} of the weights rounded the other way")

    def shifted(self) -> Iterator[Correction]:
        """Nodes whose bias was corrected, and by how much of the largest output."""
        after = {node.name: node for node in self.after.nodes}
        for node in self.before.nodes:
            if about(node.op).work == "matmul" or node.name not in after or not is_weighted(self.before, node):
                continue  # a MatMul has no bias of its own
            shift = self._shift(node, after[node.name])
            if shift > 0:
                histogram = self.outcome.table.histograms.get(node.outputs[0])
                part = f", {shift / histogram.amax:.2%} of the largest output" if histogram and histogram.amax else ""
                yield Correction("Bias correction", (node.name,), f"by {shift:.3g} at most{part}")

    def _turned(self, node: Node, made: Node) -> float:
        weight = self.before.constants[node.inputs[1]]
        axis = channel_axis(node, weight) if self.outcome.recipe.per_channel else None
        scales = weight_scales(weight, axis)
        nearest = quantize_weight(weight, scales, axis).restored
        now, _ = _stored(self.after, made.inputs[1])
        return float(np.mean(np.abs(now - nearest) > spread(scales, axis, weight.ndim) / 2))

    def _shift(self, node: Node, made: Node) -> float:
        """The largest change of a bias that is more than its rounding to integers; 0 for none."""
        if len(made.inputs) < 3 or not made.inputs[2]:
            return 0.0
        now, step = _stored(self.after, made.inputs[2])
        old = self.before.constants[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
        change = np.abs(bias_factor(made) * now.reshape(-1) - bias_factor(node) * np.float64(old).reshape(-1))
        return float(np.where(change > step, change, 0.0).max(initial=0.0))


def _stored(graph: Graph, name: str) -> tuple[Array, Array]:
    """The values of a stored tensor, plain or behind a DQ, and the steps it is stored in; 0 for a plain one."""
    if name in graph.constants:
        return np.asarray(graph.constants[name], np.float64), np.zeros(())
    node = graph.producers[name]
    values = np.asarray(graph.constants[node.inputs[0]], np.float64)
    scales = np.asarray(graph.constants[node.inputs[1]], np.float64)
    axis = node.attributes.get("axis", 0) if scales.ndim else None
    return values * spread(scales, axis, values.ndim), scales
