"""Cross-layer equalisation: channels scaled so that neighbouring layers have weights of one size.

Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"
(https://arxiv.org/abs/1906.04721), section 4.1, for every class of channels that can be scaled, not pairs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgert.backend.base import Array
from edgert.graph.node import Graph, Names, Node
from edgert.quantize.channel import FIXED, Channels, Layer, channels
from edgert.quantize.kernel import F64, arranged

_SWEEPS = 200
_SETTLED = 0.01  # no scale changes by more than 1 % in a sweep: below what 127 steps can tell

_LARGEST = 1024.0  # a channel further than 10 bits from its neighbours is dead, not small


@dataclass(frozen=True, slots=True)
class Scaling:
    """What equalisation does to one weighted node.

    Attributes:
        node: its name.
        outputs: (output channels,) what its rows and bias are divided by.
        inputs: (input channels,) what its columns are multiplied by.
    """

    node: str
    outputs: F64
    inputs: F64


def equalize(graph: Graph, plan: Sequence[Scaling] | None = None) -> Graph:
    """The graph with equalised weights; it computes the same, up to rounding of the new weights.

    Args:
        graph: a clean float graph with known shapes.
        plan: from :func:`scalings` of this graph; None asks for it.
    """
    by_name = {one.node: one for one in (scalings(graph) if plan is None else plan)}
    names, stored, nodes = Names(graph), dict(graph.constants), []
    layers = {layer.kernel.node.name: layer for layer in channels(graph).layers if layer.kernel.node.name in by_name}
    for node in graph.nodes:
        layer = layers.get(node.name)
        nodes.append(node if layer is None else _rescaled(layer, by_name[node.name], names, stored))
    return replace(graph, nodes=tuple(nodes), constants=stored)


def scalings(graph: Graph, peaks: Mapping[str, F64] | None = None) -> tuple[Scaling, ...]:
    """What to scale, so that for each class of channels the largest weight that makes it equals the largest that reads
    it: s = sqrt(r1 / r2), repeated until it settles.

    A class keeps its scale when nothing can be gained (no weight makes it, or none reads it) and when anything else
    sees it. No channel's bias grows beyond the largest weight or bias that its layer had: of a channel with next to no
    weights it would blow up the range of the whole tensor.

    Args:
        graph: a clean float graph with known shapes.
        peaks: (channels,) largest value of a tensor that a Clip bounds. A Clip is not homogeneous, so without them its
            channels keep their scale; with them it is left alone as long as a channel stays below the bound, before
            and after. Then the graph computes the same only for pictures like those the peaks were measured on.
    """
    classes = channels(graph)
    floor = _floors(graph, classes, peaks or {})
    scale = np.ones(classes.count)
    for _ in range(_SWEEPS):
        makes, reads = _ranges(classes, scale)
        useful = (makes > 0) & (reads > 0) & np.isfinite(floor)
        step = np.sqrt(np.divide(makes, reads, where=useful, out=np.ones_like(makes)))
        bounded = np.clip(np.maximum(scale * step, floor), 1 / _LARGEST, _LARGEST)
        before, scale = scale, np.where(useful, bounded, 1.0)
        if np.abs(np.log(scale / before)).max(initial=0.0) < _SETTLED:
            break
    found = (Scaling(one.kernel.node.name, scale[one.makes], scale[one.reads]) for one in classes.layers)
    return tuple(one for one in found if (one.outputs != 1).any() or (one.inputs != 1).any())


def _ranges(classes: Channels, scale: F64) -> tuple[F64, F64]:
    """Per class, the largest weight that makes it and the largest that reads it, with scales in force."""
    makes, reads = np.zeros(classes.count), np.zeros(classes.count)
    for layer in classes.layers:
        factor = _factor(layer, scale[layer.reads], scale[layer.makes])
        values = np.abs(layer.kernel.values).max(axis=3) * factor[..., 0]
        np.maximum.at(makes, layer.makes, values.max(axis=2).reshape(-1))
        np.maximum.at(reads, layer.reads, values.max(axis=1).reshape(-1))
    return makes, reads


def _factor(layer: Layer, inputs: F64, outputs: F64) -> F64:
    """What to multiply a kernel by: (groups, outputs, inputs, 1)."""
    groups = layer.kernel.values.shape[0]
    return inputs.reshape(groups, 1, -1, 1) / outputs.reshape(groups, -1, 1, 1)


def _floors(graph: Graph, classes: Channels, peaks: Mapping[str, F64]) -> F64:
    """Per class, the least it may be divided by; inf where it must keep its scale."""
    floor = np.zeros(classes.count)
    floor[FIXED] = np.inf
    for layer in classes.layers:
        bias = np.abs(_bias(graph, layer))
        largest = max(bias.max(initial=0.0), np.abs(layer.kernel.values).max(initial=0.0)) or 1.0
        np.maximum.at(floor, layer.makes, bias / largest)
    for ceiling in classes.ceilings:
        peak = peaks.get(ceiling.tensor)
        least = np.full(len(ceiling.labels), np.inf) if peak is None else np.maximum(peak, 0) / ceiling.upper
        np.maximum.at(floor, ceiling.labels, np.where(least > 1, np.inf, least))
    return floor


def _bias(graph: Graph, layer: Layer) -> F64:
    """(output channels,), zeros where there is none."""
    node, count = layer.kernel.node, layer.kernel.outputs
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = graph.constants[name].astype(np.float64).reshape(-1) if name else np.zeros(1)
    return np.broadcast_to(bias, (count,))


def _rescaled(layer: Layer, scaling: Scaling, names: Names, stored: dict[str, Array]) -> Node:
    """The node reading its new weights, which are stored beside the old ones: others may read those."""
    kernel, node = layer.kernel, layer.kernel.node
    values = kernel.values * _factor(layer, scaling.inputs, scaling.outputs)
    inputs = list(node.inputs)
    changed = {1: arranged(values, node, kernel.stored)}
    if len(inputs) > 2 and inputs[2]:
        changed[2] = stored[inputs[2]].astype(np.float64).reshape(-1) / scaling.outputs
    for slot, array in changed.items():
        before = stored[inputs[slot]]
        inputs[slot] = names.new(f"{inputs[slot]}_equalized")
        stored[inputs[slot]] = array.astype(before.dtype)
    return replace(node, inputs=tuple(inputs))
