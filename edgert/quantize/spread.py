"""Equalisation by what was seen: channels scaled so that those of one tensor reach equally far.

One scale holds for all channels of a tensor, so that a channel which is 200 times smaller than the largest is left with
one step or none: YOLOX-nano's first SiLUs do that. Each channel is scaled as it is made, and back in the weights that
read it. How far lies between two goods, the steps of the channel and those of the weights that read it, halfway as in
SmoothQuant (Xiao et al. 2022, https://arxiv.org/abs/2211.10438, equation 4, alpha 1/2); where each output reads one
channel alone there is nothing to lose, and the channel gets all.

Scales are powers of two. So the graph computes bit for bit what it did, and two machines whose peaks differ in the last
digits make the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph.model import Model
from edgert.graph.node import Graph, Names, Node, extract, write
from edgert.graph.spec import TensorSpec
from edgert.quantize.channel import FIXED, Channels, Layer, channels
from edgert.quantize.equalize import Scaling, equalize
from edgert.quantize.gate import Gate, gates, opened
from edgert.quantize.kernel import F64
from edgert.quantize.walk import Feeds

_LEAST = 2.0**-10
"""A channel that is smaller than this part of the largest is dead, and a weight likewise."""

Exponents = npt.NDArray[np.int64]


def spread(graph: Graph, feeds: Sequence[Feeds], like: Model) -> Graph:
    """The graph with its channels evened out; it computes the same, to the bit unless numbers become denormal.

    Channels pass pools, concatenations, residual additions, homogeneous activations and gates. A gate whose channels
    are scaled gets a Mul of its own that brings them back for g.

    Args:
        graph: a clean float graph with known shapes.
        feeds: pictures, 8 or more: two left YOLOX-nano's INT8 with twice the loss that eight did.
        like: the model that the graph was read from.

    Returns:
        The graph itself where there is nothing to gain.

    Raises:
        CalibrationError: there are no pictures.
        BuildError: ONNX Runtime cannot run the graph.
    """
    if not feeds:
        raise CalibrationError("channels cannot be compared without pictures", why="0 given", fix="give 8 or more")
    ready = opened(graph)
    found = gates(ready)
    classes = channels(ready, found)
    free = [layer for layer in classes.layers if (layer.reads != FIXED).any()]
    if not free:
        return graph
    peaks = channel_peaks(ready, [layer.kernel.node.inputs[0] for layer in free], feeds, like)
    shifts = exponents(classes, peaks)
    if not shifts.any():
        return graph
    return _restored(_scaled(ready, classes, shifts), found, classes, shifts)


def exponents(classes: Channels, peaks: Mapping[str, F64]) -> Exponents:
    """(classes,) which power of two each is divided by.

    Args:
        peaks: (channels,) largest magnitude of the tensors that the layers read.
    """
    size, weight = np.zeros(classes.count), np.zeros(classes.count)
    for layer in classes.layers:
        peak = peaks.get(layer.kernel.node.inputs[0])
        if peak is not None and len(peak) == len(layer.reads) and peak.any():
            np.maximum.at(size, layer.reads, np.maximum(peak / peak.max(), _LEAST))
            np.maximum.at(weight, layer.reads, _shares(layer))
    scale = np.where(weight > 0, np.sqrt(size / np.maximum(weight, _LEAST)), size)
    fixed = np.zeros(classes.count, np.bool_)
    fixed[FIXED] = True
    for ceiling in classes.ceilings:
        fixed[ceiling.labels] = True
    whole: Exponents = np.rint(np.log2(np.where((size > 0) & ~fixed, scale, 1.0))).astype(np.int64)
    return whole


def _shares(layer: Layer) -> F64:
    """(input channels,) largest weight that reads each, in parts of the largest of its row; 0 where rows read one."""
    values = np.abs(layer.kernel.values).max(axis=3)
    if values.shape[2] == 1:
        return np.zeros(len(layer.reads))
    rows = np.maximum(values.max(axis=2, keepdims=True), np.finfo(np.float64).tiny)
    shares: F64 = np.maximum((values / rows).max(axis=1).reshape(-1), _LEAST)
    return shares


def channel_peaks(graph: Graph, tensors: Sequence[str], feeds: Sequence[Feeds], like: Model) -> Mapping[str, F64]:
    """Tensor → (channels along axis 1,) largest magnitude over the pictures.

    Raises:
        BuildError: ONNX Runtime cannot run the graph.
    """
    wanted = tuple(dict.fromkeys(tensors))
    names, nodes, outputs = Names(graph), list[Node](), dict[str, str]()
    for tensor in wanted:
        magnitude = names.new(f"{tensor}_magnitude")
        nodes.append(Node("Abs", (tensor,), (magnitude,), name=magnitude))
        outputs[tensor] = magnitude
        if len(graph.specs[tensor].shape) > 2:
            outputs[tensor] = names.new(f"{tensor}_peak")
            nodes.append(Node("GlobalMaxPool", (magnitude,), (outputs[tensor],), name=outputs[tensor]))
    specs = tuple(TensorSpec(name, (), "float32") for name in outputs.values())
    measured = replace(graph, nodes=(*graph.nodes, *nodes), outputs=specs)
    function = Function(write(extract(measured, list(outputs.values())), like))
    peaks = {tensor: np.zeros(1) for tensor in wanted}
    for one in feeds:
        found = function(one)
        for tensor, output in outputs.items():
            peaks[tensor] = np.maximum(peaks[tensor], _per_channel(found[output]))
    return peaks


def _per_channel(values: Array) -> F64:
    found: F64 = values.reshape(values.shape[0], values.shape[1], -1).max(axis=(0, 2)).astype(np.float64)
    return found


def _scaled(graph: Graph, classes: Channels, shifts: Exponents) -> Graph:
    factors = np.exp2(shifts.astype(np.float64))
    plan = [Scaling(one.kernel.node.name, factors[one.makes], factors[one.reads]) for one in classes.layers]
    return equalize(graph, [one for one in plan if (one.outputs != 1).any() or (one.inputs != 1).any()])


def _restored(graph: Graph, found: Sequence[Gate], classes: Channels, shifts: Exponents) -> Graph:
    """The graph with a Mul in front of the g of every gate whose channels are scaled."""
    names, nodes, stored, specs = Names(graph), list[Node](), dict(graph.constants), dict(graph.specs)
    waiting = {name: gate.tensor for gate in found if _is_moved(classes, gate, shifts) for name in gate.readers}
    restored: dict[str, str] = {}
    for node in graph.nodes:
        tensor = waiting.get(node.name)
        if tensor is None:
            nodes.append(node)
            continue
        if tensor not in restored:
            restored[tensor] = names.new(f"{tensor}_restored")
            factor = names.new(f"{tensor}_spread")
            rank = len(specs[tensor].shape)
            scale = np.exp2(shifts[classes.labels[tensor]]).astype(np.float32)
            stored[factor] = scale.reshape([1, -1, *[1] * (rank - 2)])
            specs[restored[tensor]] = replace(specs[tensor], name=restored[tensor])
            nodes.append(Node("Mul", (tensor, factor), (restored[tensor],), name=restored[tensor]))
        nodes.append(replace(node, inputs=tuple(restored[tensor] if n == tensor else n for n in node.inputs)))
    return replace(graph, nodes=tuple(nodes), constants=stored, specs=specs)


def _is_moved(classes: Channels, gate: Gate, shifts: Exponents) -> bool:
    return gate.tensor in classes.labels and bool(shifts[classes.labels[gate.tensor]].any())
