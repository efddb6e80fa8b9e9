"""Cross-layer equalization and activation smoothing: channels scaled so that 8 bits hold them better.

Both divide a channel by s where it is computed, and multiply the weights that read it by s, so that the graph computes
the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node, TensorSpec, draft, extract, write
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.lowering.weights import F64, from_kernel_layout
from edgert.quantization.scheme.channels import FIXED, Channels, Gate, Layer, channels, expand_hard_swish, gates

# Cross-layer equalization: channels are scaled so that neighboring layers have weights of similar size.
#
# Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"
# (https://arxiv.org/abs/1906.04721), section 4.1, for every class of channels that can be scaled, not pairs alone.

_SWEEPS = 200
_SETTLED = 0.01  # largest change of a scale in the last sweep, about a step of 127

_LARGEST = 1024.0  # largest scale; a channel more than 10 bits below its neighbors is dead


def equalize(graph: Graph) -> Graph:
    """Return the graph with equalized weights; it computes the same, up to rounding of the new weights."""
    classes = channels(graph)
    return _with_scales(graph, classes, balancing_scales(graph, classes))


def _with_scales(graph: Graph, classes: Channels, scale: F64) -> Graph:
    """Return the graph with each class of channels divided by its scale where it is computed."""
    layers = {layer.kernel.node.name: layer for layer in classes.layers}
    builder = draft.Builder(graph)
    for node in graph.nodes:
        layer = layers.get(node.name)
        if layer is not None and ((scale[layer.makes] != 1).any() or (scale[layer.reads] != 1).any()):
            node = _rescale(layer, scale[layer.reads], scale[layer.makes], builder)
        builder.nodes.append(node)
    return builder.finish()


def balancing_scales(graph: Graph, classes: Channels) -> F64:
    """Return (classes,) scales that give neighboring layers weights of similar size.

    For each class of channels, the largest weight that computes it becomes equal to the largest that reads it:
    s = sqrt(r1 / r2), repeated until scales settle.

    A class keeps its scale where no weight computes or reads it, another node reads it, or a Clip bounds it, which is
    not homogeneous. No bias grows beyond the largest weight or bias of its layer: otherwise a channel with tiny weights
    would enlarge the range of its tensor.
    """
    floor = _floors(graph, classes)
    scale = np.ones(classes.count)
    for _ in range(_SWEEPS):
        makes, reads = _weight_ranges(classes, scale)
        useful = (makes > 0) & (reads > 0) & np.isfinite(floor)
        step = np.sqrt(np.divide(makes, reads, where=useful, out=np.ones_like(makes)))
        bounded = np.clip(np.maximum(scale * step, floor), 1 / _LARGEST, _LARGEST)
        before, scale = scale, np.where(useful, bounded, 1.0)
        if np.abs(np.log(scale / before)).max(initial=0.0) < _SETTLED:
            break
    return scale


def _weight_ranges(classes: Channels, scale: F64) -> tuple[F64, F64]:
    makes, reads = np.zeros(classes.count), np.zeros(classes.count)
    for layer in classes.layers:
        factor = _kernel_factor(layer, scale[layer.reads], scale[layer.makes])
        values = np.abs(layer.kernel.values).max(axis=3) * factor[..., 0]
        np.maximum.at(makes, layer.makes, values.max(axis=2).reshape(-1))
        np.maximum.at(reads, layer.reads, values.max(axis=1).reshape(-1))
    return makes, reads


def _kernel_factor(layer: Layer, inputs: F64, outputs: F64) -> F64:
    """Return the factors of a kernel: (groups, outputs, inputs, 1)."""
    groups = layer.kernel.values.shape[0]
    return inputs.reshape(groups, 1, -1, 1) / outputs.reshape(groups, -1, 1, 1)


def _floors(graph: Graph, classes: Channels) -> F64:
    """Return the smallest divisor of each class; inf where it must keep its scale."""
    floor = np.zeros(classes.count)
    for layer in classes.layers:
        name = "".join(layer.kernel.node.inputs[2:3])
        bias = np.abs(graph.constants[name].astype(np.float64).reshape(-1)) if name else np.zeros(1)
        largest = max(bias.max(initial=0.0), np.abs(layer.kernel.values).max(initial=0.0)) or 1.0
        np.maximum.at(floor, layer.makes, np.broadcast_to(bias / largest, (layer.kernel.outputs,)))
    floor[FIXED] = np.inf
    return floor


def _rescale(layer: Layer, inputs: F64, outputs: F64, builder: draft.Builder) -> Node:
    """Return the node with rows and bias divided by ``outputs``, and columns multiplied by ``inputs``.

    They are stored under new names, since other nodes may read the old ones.
    """
    kernel, node, stored = layer.kernel, layer.kernel.node, builder.graph.constants
    values = kernel.values * _kernel_factor(layer, inputs, outputs)
    changed = {1: from_kernel_layout(values, node, kernel.stored)}
    if "".join(node.inputs[2:]):
        changed[2] = stored[node.inputs[2]].astype(np.float64).reshape(-1) / outputs
    names = list(node.inputs)
    for slot, array in changed.items():
        name = node.inputs[slot]
        names[slot] = builder.add_constant(array.astype(stored[name].dtype), f"{name}_equalized")
    return replace(node, inputs=tuple(names))


# Activation smoothing (SmoothQuant): channels are scaled so that those of one tensor have similar ranges.
#
# All channels of a tensor share one scale, so a channel 200 times smaller than the largest, as in YOLOX-nano's first
# SiLUs, gets one step or none. Each channel is scaled where it is computed, and back in the weights that read it. The
# factor is the geometric mean of the channel's range and the inverse of the weights', as in SmoothQuant (Xiao et al.
# 2022, https://arxiv.org/abs/2211.10438, equation 4, alpha 1/2). Where each output reads one channel, it is the range
# of the channel.
#
# Factors are powers of two. So the result is bit-exact, and two machines whose peaks differ in the last digits make the
# same graph.

_LEAST = 2.0**-10
"""Smallest part of the largest channel or weight; smaller ones count as dead."""

Exponents = npt.NDArray[np.int64]


def smooth_activations(graph: Graph, feeds: Sequence[Feeds], like: Model) -> Graph:
    """Return the graph with smoothed activations; it computes the same, bit for bit unless numbers become denormal.

    Factors pass pools, concatenations, residual additions, homogeneous activations and gates. A gate with scaled
    channels gets a Mul that gives its g the unscaled input. Give 8 images or more: with two, YOLOX-nano's INT8 lost
    twice as much as with eight. Return the graph itself where there is nothing to gain. Raises CalibrationError: there
    are no images. Raises BuildError: ONNX Runtime cannot run the graph.
    """
    if not feeds:
        raise CalibrationError("channels cannot be compared without images", why="0 given", fix="give 8 or more")
    ready = expand_hard_swish(graph)
    found = gates(ready)
    classes = channels(ready, found)
    free = [layer.kernel.node.inputs[0] for layer in classes.layers if (layer.reads != FIXED).any()]
    shifts = _exponents(classes, channel_peaks(ready, free, feeds, like)) if free else np.zeros(0, np.int64)
    if not shifts.any():
        return graph
    scaled = _with_scales(ready, classes, np.exp2(shifts.astype(np.float64)))
    return _restore_gate_inputs(scaled, found, classes, shifts)


def _exponents(classes: Channels, peaks: Mapping[str, F64]) -> Exponents:
    """Return (classes,) exponents of the powers of two by which they are divided."""
    size, weight = np.zeros(classes.count), np.zeros(classes.count)
    for layer in classes.layers:
        peak = peaks.get(layer.kernel.node.inputs[0])
        if peak is not None and len(peak) == len(layer.reads) and peak.any():
            np.maximum.at(size, layer.reads, np.maximum(peak / peak.max(), _LEAST))
            np.maximum.at(weight, layer.reads, _shares(layer))
    scale = np.where(weight > 0, np.sqrt(size / np.maximum(weight, _LEAST)), size)
    scale[FIXED] = 1.0
    whole: Exponents = np.rint(np.log2(np.where(size > 0, scale, 1.0))).astype(np.int64)
    return whole


def _shares(layer: Layer) -> F64:
    """Return (input channels,) largest weights relative to the largest of their row; 0 where rows read one channel."""
    values = np.abs(layer.kernel.values).max(axis=3)
    if values.shape[2] == 1:
        return np.zeros(len(layer.reads))
    rows = np.maximum(values.max(axis=2, keepdims=True), np.finfo(np.float64).tiny)
    shares: F64 = np.maximum((values / rows).max(axis=1).reshape(-1), _LEAST)
    return shares


def channel_peaks(graph: Graph, tensors: Sequence[str], feeds: Sequence[Feeds], like: Model) -> Mapping[str, F64]:
    """Return (channels along axis 1,) largest magnitudes over the images, by tensor.

    Raises BuildError: ONNX Runtime cannot run the graph.
    """
    builder, outputs = draft.Builder(graph), dict[str, str]()
    builder.nodes.extend(graph.nodes)
    for tensor in dict.fromkeys(tensors):
        outputs[tensor] = builder.add("Abs", [tensor], builder.name(f"{tensor}_magnitude"))
        if len(graph.specs[tensor].shape) > 2:
            outputs[tensor] = builder.add("GlobalMaxPool", [outputs[tensor]], builder.name(f"{tensor}_peak"))
    specs = tuple(TensorSpec(name, (), "float32") for name in outputs.values())
    measured = replace(builder.finish(), outputs=specs)
    function = Function(write(extract(measured, list(outputs.values())), like))
    peaks = {tensor: np.zeros(1) for tensor in outputs}
    for feed in feeds:
        found = function(feed)
        for tensor, output in outputs.items():
            values = found[output]
            peak = values.reshape(*values.shape[:2], -1).max(axis=(0, 2)).astype(np.float64)
            peaks[tensor] = np.maximum(peaks[tensor], peak)
    return peaks


def _restore_gate_inputs(graph: Graph, found: Sequence[Gate], classes: Channels, shifts: Exponents) -> Graph:
    """Return the graph with a Mul before the g of every gate with scaled channels."""
    builder, specs, restored = draft.Builder(graph), dict(graph.specs), dict[str, str]()
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
