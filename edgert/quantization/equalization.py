"""Cross-layer equalization and activation smoothing: channels scaled so that 8 bits hold them better.

Both divide a channel by s where it is made and multiply the weights that read it by s: the graph computes the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node, TensorSpec, extract, write
from edgert.graph.draft import Builder
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.lowering.weights import F64, arranged
from edgert.quantization.scheme.channels import FIXED, Channels, Gate, Layer, channels, gates, opened

# Cross-layer equalization: channels scaled so that neighboring layers have weights of one size.
#
# Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"
# (https://arxiv.org/abs/1906.04721), section 4.1, for every class of channels that can be scaled, not pairs alone.

_SWEEPS = 200
_SETTLED = 0.01  # no scale changes by more than 1 % in a sweep: below what 127 steps resolve

_LARGEST = 1024.0  # a channel further than 10 bits from its neighbors is dead, not small


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scale factors that equalization applies to one weighted node.

    Attributes:
        node: its name.
        outputs: (output channels,) what its rows and bias are divided by.
        inputs: (input channels,) what its columns are multiplied by.
    """

    node: str
    outputs: F64
    inputs: F64


def equalize(graph: Graph, plan: Sequence[Scaling] | None = None) -> Graph:
    """Return the graph with equalized weights; it computes the same, up to rounding of the new weights.

    Args:
        graph: a clean float graph with known shapes.
        plan: from :func:`scalings` of this graph; None computes it.
    """
    by_name = {one.node: one for one in (scalings(graph) if plan is None else plan)}
    layers = {layer.kernel.node.name: layer for layer in channels(graph).layers}
    builder = Builder(graph)
    for node in graph.nodes:
        scaling = by_name.get(node.name)
        builder.nodes.append(node if scaling is None else _rescaled(layers[node.name], scaling, builder))
    return builder.finish()


def scalings(graph: Graph) -> tuple[Scaling, ...]:
    """Return what to scale so that neighboring layers have weights of one size.

    For each class of channels, the largest weight that makes it then equals the largest that reads it: s = sqrt(r1 /
    r2), repeated until it settles.

    A class keeps its scale when nothing can be gained: no weight makes it, or none reads it. It also does when any
    other node sees it, or a Clip bounds it, which is not homogeneous. No channel's bias grows beyond the largest weight
    or bias that its layer had. Otherwise a channel with tiny weights would blow up the range of the whole tensor.

    Args:
        graph: a clean float graph with known shapes.
    """
    classes = channels(graph)
    floor = _floors(graph, classes)
    scale = np.ones(classes.count)
    for _ in range(_SWEEPS):
        makes, reads = _ranges(classes, scale)
        useful = (makes > 0) & (reads > 0) & np.isfinite(floor)
        step = np.sqrt(np.divide(makes, reads, where=useful, out=np.ones_like(makes)))
        bounded = np.clip(np.maximum(scale * step, floor), 1 / _LARGEST, _LARGEST)
        before, scale = scale, np.where(useful, bounded, 1.0)
        if np.abs(np.log(scale / before)).max(initial=0.0) < _SETTLED:
            break
    return _changes(classes, scale)


def _changes(classes: Channels, scale: F64) -> tuple[Scaling, ...]:
    """Return how the classes' scales change each layer, for the layers that they change."""
    found = (Scaling(one.kernel.node.name, scale[one.makes], scale[one.reads]) for one in classes.layers)
    return tuple(one for one in found if (one.outputs != 1).any() or (one.inputs != 1).any())


def _ranges(classes: Channels, scale: F64) -> tuple[F64, F64]:
    """Return, per class, the largest weight that makes it and the largest that reads it, with scales applied."""
    makes, reads = np.zeros(classes.count), np.zeros(classes.count)
    for layer in classes.layers:
        factor = _factor(layer, scale[layer.reads], scale[layer.makes])
        values = np.abs(layer.kernel.values).max(axis=3) * factor[..., 0]
        np.maximum.at(makes, layer.makes, values.max(axis=2).reshape(-1))
        np.maximum.at(reads, layer.reads, values.max(axis=1).reshape(-1))
    return makes, reads


def _factor(layer: Layer, inputs: F64, outputs: F64) -> F64:
    """Return the factors of a kernel: (groups, outputs, inputs, 1)."""
    groups = layer.kernel.values.shape[0]
    return inputs.reshape(groups, 1, -1, 1) / outputs.reshape(groups, -1, 1, 1)


def _floors(graph: Graph, classes: Channels) -> F64:
    """Return, per class, the least it may be divided by; inf where it must keep its scale."""
    floor = np.zeros(classes.count)
    for layer in classes.layers:
        name = "".join(layer.kernel.node.inputs[2:3])
        bias = np.abs(graph.constants[name].astype(np.float64).reshape(-1)) if name else np.zeros(1)
        largest = max(bias.max(initial=0.0), np.abs(layer.kernel.values).max(initial=0.0)) or 1.0
        np.maximum.at(floor, layer.makes, np.broadcast_to(bias / largest, (layer.kernel.outputs,)))
    floor[_held(classes)] = np.inf
    return floor


def _held(classes: Channels) -> npt.NDArray[np.bool_]:
    """Return (classes,) whether each must keep its scale: other nodes see it, or a Clip bounds it."""
    held = np.zeros(classes.count, np.bool_)
    held[FIXED] = True
    for ceiling in classes.ceilings:
        held[ceiling.labels] = True
    return held


def _rescaled(layer: Layer, scaling: Scaling, builder: Builder) -> Node:
    """Return the node reading its new weights, which are stored beside the old ones: others may read those."""
    kernel, node, stored = layer.kernel, layer.kernel.node, builder.graph.constants
    values = kernel.values * _factor(layer, scaling.inputs, scaling.outputs)
    changed = {1: arranged(values, node, kernel.stored)}
    if "".join(node.inputs[2:]):
        changed[2] = stored[node.inputs[2]].astype(np.float64).reshape(-1) / scaling.outputs
    inputs = list(node.inputs)
    for slot, array in changed.items():
        name = node.inputs[slot]
        inputs[slot] = builder.add_constant(array.astype(stored[name].dtype), f"{name}_equalized")
    return replace(node, inputs=tuple(inputs))


# Activation smoothing (SmoothQuant): channels scaled so that those of one tensor have similar ranges.
#
# One scale holds for all channels of a tensor, so that a channel which is 200 times smaller than the largest is left
# with one step or none: YOLOX-nano's first SiLUs do that. Each channel is scaled as it is made, and back in the
# weights that read it. The factor is halfway, as a power, between the range of the channel and that of the weights that
# read it, as in SmoothQuant (Xiao et al. 2022, https://arxiv.org/abs/2211.10438, equation 4, alpha 1/2); where each
# output reads one channel alone, it is the range of the channel.
#
# Factors are powers of two. So the graph computes bit for bit what it did, and two machines whose peaks differ in the
# last digits make the same graph.

_LEAST = 2.0**-10
"""A channel that is smaller than this part of the largest is dead, and a weight likewise."""

Exponents = npt.NDArray[np.int64]


def smooth_activations(graph: Graph, feeds: Sequence[Feeds], like: Model) -> Graph:
    """Return the graph with smoothed activations; it computes the same, bit for bit unless numbers become denormal.

    Factors pass pools, concatenations, residual additions, homogeneous activations and gates. A gate whose channels are
    scaled gets a Mul of its own that gives its g the unscaled input.

    Args:
        graph: a clean float graph with known shapes.
        feeds: images, 8 or more: with two, YOLOX-nano's INT8 lost twice as much as with eight.
        like: the model that the graph was read from.

    Returns:
        The graph itself where there is nothing to gain.

    Raises:
        CalibrationError: there are no images.
        BuildError: ONNX Runtime cannot run the graph.
    """
    if not feeds:
        raise CalibrationError("channels cannot be compared without images", why="0 given", fix="give 8 or more")
    ready = opened(graph)
    found = gates(ready)
    classes = channels(ready, found)
    free = [layer.kernel.node.inputs[0] for layer in classes.layers if (layer.reads != FIXED).any()]
    shifts = _exponents(classes, channel_peaks(ready, free, feeds, like)) if free else np.zeros(0, np.int64)
    if not shifts.any():
        return graph
    scaled = equalize(ready, _changes(classes, np.exp2(shifts.astype(np.float64))))
    return _restored(scaled, found, classes, shifts)


def _exponents(classes: Channels, peaks: Mapping[str, F64]) -> Exponents:
    """Return (classes,) the power of two that each is divided by.

    Args:
        classes: channels that share a scale, and the layers that make and read them.
        peaks: tensor that a layer reads → (channels,) its largest magnitudes.
    """
    size, weight = np.zeros(classes.count), np.zeros(classes.count)
    for layer in classes.layers:
        peak = peaks.get(layer.kernel.node.inputs[0])
        if peak is not None and len(peak) == len(layer.reads) and peak.any():
            np.maximum.at(size, layer.reads, np.maximum(peak / peak.max(), _LEAST))
            np.maximum.at(weight, layer.reads, _shares(layer))
    scale = np.where(weight > 0, np.sqrt(size / np.maximum(weight, _LEAST)), size)
    whole: Exponents = np.rint(np.log2(np.where((size > 0) & ~_held(classes), scale, 1.0))).astype(np.int64)
    return whole


def _shares(layer: Layer) -> F64:
    """Return (input channels,) the largest weight that reads each, relative to the largest of its row.

    It is 0 where rows read one channel.
    """
    values = np.abs(layer.kernel.values).max(axis=3)
    if values.shape[2] == 1:
        return np.zeros(len(layer.reads))
    rows = np.maximum(values.max(axis=2, keepdims=True), np.finfo(np.float64).tiny)
    shares: F64 = np.maximum((values / rows).max(axis=1).reshape(-1), _LEAST)
    return shares


def channel_peaks(graph: Graph, tensors: Sequence[str], feeds: Sequence[Feeds], like: Model) -> Mapping[str, F64]:
    """Return tensor → (channels along axis 1,) largest magnitude over the images.

    Raises:
        BuildError: ONNX Runtime cannot run the graph.
    """
    builder, outputs = Builder(graph), dict[str, str]()
    builder.nodes.extend(graph.nodes)
    for tensor in dict.fromkeys(tensors):
        outputs[tensor] = builder.add("Abs", [tensor], builder.name(f"{tensor}_magnitude"))
        if len(graph.specs[tensor].shape) > 2:
            outputs[tensor] = builder.add("GlobalMaxPool", [outputs[tensor]], builder.name(f"{tensor}_peak"))
    specs = tuple(TensorSpec(name, (), "float32") for name in outputs.values())
    measured = replace(builder.finish(), outputs=specs)
    function = Function(write(extract(measured, list(outputs.values())), like))
    peaks = {tensor: np.zeros(1) for tensor in outputs}
    for one in feeds:
        found = function(one)
        for tensor, output in outputs.items():
            values = found[output]
            peak = values.reshape(*values.shape[:2], -1).max(axis=(0, 2)).astype(np.float64)
            peaks[tensor] = np.maximum(peaks[tensor], peak)
    return peaks


def _restored(graph: Graph, found: Sequence[Gate], classes: Channels, shifts: Exponents) -> Graph:
    """Return the graph with a Mul in front of the g of every gate whose channels are scaled."""
    builder, specs, restored = Builder(graph), dict(graph.specs), dict[str, str]()
    tensors = {gate.tensor for gate in found if gate.tensor in classes.labels}
    scaled = {tensor for tensor in tensors if shifts[classes.labels[tensor]].any()}
    readers = {name: gate.tensor for gate in found if gate.tensor in scaled for name in gate.readers}
    for node in graph.nodes:
        tensor = readers.get(node.name, "")
        if tensor and tensor not in restored:
            name = builder.name(f"{tensor}_restored")
            factors = np.exp2(shifts[classes.labels[tensor]]).astype(np.float32)
            shape = [1, -1, *[1] * (len(specs[tensor].shape) - 2)]
            builder.add("Mul", [tensor, builder.add_constant(factors.reshape(shape), f"{tensor}_factor")], name)
            specs[name] = replace(specs[tensor], name=name)
            restored[tensor] = name
        if tensor:
            node = replace(node, inputs=tuple(restored[tensor] if name == tensor else name for name in node.inputs))
        builder.nodes.append(node)
    return replace(builder.finish(), specs=specs)
