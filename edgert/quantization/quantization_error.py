"""Error of a quantized graph by tensor and by output, and its correction in the biases."""

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Names, Node, operators
from edgert.quantization.calibration.walk import Feeds, check_stop, walk
from edgert.quantization.lowering import weights

_CHUNK = 8  # images at a time; more cost memory, fewer build the slices more often


def sqnr(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    tensors: Iterable[str] | None,
    like: Model,
) -> Mapping[str, float]:
    """Return the signal to quantization noise of each tensor in dB.

    It is 10 log10(Σ x² / Σ (x - y)²) over all elements and images, with x in the float and y in the quantized graph.
    Equal tensors give inf, noise without signal -inf. Images with different numbers of rows, as of boxes, do not count,
    and a tensor without images is left out. By default ``tensors`` are the outputs of weighted nodes and of the graph.
    ``like`` is the model that the graph was read from. Raises CalibrationError: there are no images. Raises ModelError:
    one of the graphs does not compute a tensor. Raises BuildError: ONNX Runtime cannot run one of them.
    """
    if not feeds:
        raise CalibrationError("graphs cannot be compared without images", why="0 given", fix="give at least one")
    position = {name: number for number, name in enumerate(graph.producers)}
    if tensors is None:
        default = {node.outputs[0] for node in weights.weighted_nodes(graph)} | graph.output_names
        tensors = default & lowered.producers.keys()
    # in order of execution, unknown names last
    names = sorted(dict.fromkeys(tensors), key=lambda name: position.get(name, len(position)))
    totals, compared = {name: np.zeros(2) for name in names}, set[str]()
    for start in range(0, len(feeds), _CHUNK):
        chunk = feeds[start : start + _CHUNK]
        pairs = zip(names, walk(graph, names, chunk, like), walk(lowered, names, chunk, like), strict=True)
        for name, first, second in pairs:
            for x, y in zip(first, second, strict=True):  # in float64: a sum of millions in float32 loses digits
                if x.shape != y.shape:
                    continue
                signal, difference = x.astype(np.float64).reshape(-1), np.subtract(x, y, dtype=float).reshape(-1)
                totals[name] += signal @ signal, difference @ difference
                compared.add(name)
    return {name: decibels(*totals[name]) for name in names if name in compared}


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of signal power to noise power in dB."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def noisy_outputs(noise_db: Mapping[str, float], outputs: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each output with more noise than signal; those without signal are left out."""
    return tuple(
        f"the noise of output {name!r} is larger than its signal ({noise_db[name]:.1f} dB)"
        for name in sorted(outputs)
        if -math.inf < noise_db.get(name, 0.0) < 0
    )


def outputs_with_fixed_rows(graph: Graph) -> frozenset[str]:
    """Return the outputs that do not depend on a TopK, NonZero or suppression.

    Rows that are sorted by score can change places with the last bit, and comparing them by index shows noise where
    there is none.
    """
    sorted_ = set[str]()
    for node in graph.nodes:
        if operators.about(node.op).kind == "selection" or not sorted_.isdisjoint(node.reads):
            sorted_.update(node.outputs)
    return graph.output_names - sorted_


_CLEAR_DB = 10.0
"""Signal to noise from which the noise is less than a third of the signal, and agreement can be trusted."""


def is_clear(noise_db: Mapping[str, float], outputs: Iterable[str]) -> bool:
    """Return whether all outputs with a signal have hardly any noise."""
    return all(not -math.inf < noise_db.get(name, math.inf) < _CLEAR_DB for name in outputs)


def output_noise(reference: Function, other: Function, feeds: Iterable[Feeds]) -> Mapping[str, float]:
    """Return the signal to noise in dB of each output that two versions of a model have in the same shape.

    Raises BuildError: ONNX Runtime cannot run one of them.
    """
    totals: dict[str, tuple[float, float]] = {}
    for feed in feeds:
        wanted, found = reference(feed), other(feed)
        for name in wanted.keys() & found.keys():
            if wanted[name].shape == found[name].shape:
                signal = wanted[name].astype(np.float64)
                powers = np.square(signal).sum(), np.square(signal - found[name]).sum()
                before = totals.get(name, (0.0, 0.0))
                totals[name] = before[0] + float(powers[0]), before[1] + float(powers[1])
    return {name: decibels(*total) for name, total in totals.items()}


class OutputNoise:
    """Measurement of the noise in the outputs of versions of one model, without labels.

    Raises BuildError: ONNX Runtime cannot run the model. Raises CalibrationError: ``stop`` was set.
    """

    def __init__(self, model: Model, feeds: Sequence[Feeds], stop: threading.Event | None = None) -> None:
        self._feeds, self._stop = feeds, stop
        self._wanted = self._outputs(Function(model))

    def measure(self, found: Function) -> float:
        """Return the noise of one version, as :func:`noise_share` defines it.

        Raises BuildError: the version cannot be run. Raises CalibrationError: ``stop`` was set.
        """
        return noise_share(self._wanted, self._outputs(found))

    def _outputs(self, function: Function) -> list[Mapping[str, Array]]:
        found: list[Mapping[str, Array]] = []
        for feed in self._feeds:
            check_stop(self._stop)
            found.append(function(feed))
        return found


def noise_share(wanted: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]) -> float:
    """Return noise power over noise and signal power: 0 for equal outputs, 1 for noise alone.

    It is the mean over outputs and their channels, so that large numbers (a detector's boxes) do not hide the error of
    small ones (its scores). Signal is the variance over images and positions. A row that only one version has, such as
    a box, counts as zeros in the other. Outputs have a batch dimension, one mapping per image.
    """
    return float(np.mean([_output_share(name, wanted, found) for name in wanted[0]]))


def _output_share(name: str, wanted: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]) -> float:
    true, other = np.split(_stack([outputs[name] for both in (wanted, found) for outputs in both]), [len(wanted)])
    noise = np.square(true - other)
    # channels are the first dimension of an image, and fewer than a detector's anchors; single numbers of a vector say
    # nothing over a few images
    axis = None if true.ndim < 3 else 2 if true.ndim == 3 and true.shape[1] > true.shape[2] else 1
    rest = tuple(dim for dim in range(true.ndim) if dim != axis)
    signal: weights.F64 = np.asarray(true.var(axis=rest))
    lost: weights.F64 = np.asarray(noise.mean(axis=rest))
    total = signal + lost
    return float(np.divide(lost, total, where=total > 0, out=np.zeros_like(total)).mean())


def _stack(arrays: Sequence[Array]) -> weights.F64:
    """Return arrays as (images, …) without dimensions of one, padded with zeros to one shape."""
    shape = np.max([array.shape for array in arrays], axis=0)
    stacked = np.zeros((len(arrays), *shape))
    for row, array in zip(stacked, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = array
    return stacked.reshape(len(arrays), *(size for size in shape if size > 1))


# Bias correction: the mean error that quantization adds to a channel is subtracted from its bias.
#
# The empirical form of Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"
# (https://arxiv.org/abs/1906.04721), appendix D: layer after layer, each mean is measured with all layers before it
# corrected.

_WORTH = 0.1
"""Smallest part of a channel's squared error that a shift must remove to be applied. Smaller shifts do harm, since a
few images measure them badly, above all where errors are rare and large, as from clipping. With 0.02 the outputs of
SqueezeNet on other images were worse than uncorrected, and YOLOX-nano found nothing; with 0.25 MobileNet's had nearly
twice the noise of 0.02. (Measured on calibration images to which nothing was fitted.)"""


def correct_biases(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: threading.Event | None = None,
) -> Graph:
    """Return the float graph with the biases that its quantized form needs; lower it again to apply them there.

    Outputs of weighted nodes have their names in ``lowered``. There should be 16 images or more, all in memory at a
    time. Raises CalibrationError: there are no images, or ``stop`` was set. Raises BuildError: ONNX Runtime cannot run
    one of the graphs.
    """
    return shift_biases(graph, mean_shifts(graph, lowered, feeds, like, stop=stop))


def mean_shifts(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: threading.Event | None = None,
) -> Mapping[str, weights.F64]:
    """Return (channels,) shifts that give outputs of weighted nodes the means of the float graph, by output tensor.

    A shift is 0 where images cannot show it. Each is measured with those of all nodes before it applied. Nodes whose
    bias cannot be changed (:func:`can_shift`) are left out. Arguments and errors are those of :func:`correct_biases`.
    """
    if not feeds:
        raise CalibrationError("biases cannot be corrected without images", why="0 given", fix="give 16 or more")
    nodes = [n for n in weights.weighted_nodes(graph) if can_shift(graph, n) and n.outputs[0] in lowered.producers]
    names = [node.outputs[0] for node in nodes]
    exact, coarse = (walk(version, names, feeds, like, stop=stop) for version in (graph, lowered))
    walks = zip(nodes, exact, coarse, strict=True)
    shifts = {}
    for node, wanted, found in walks:
        axis = weights.channel_axis(node, wanted[0].ndim)
        pairs = [(x, y) for x, y in zip(wanted, found, strict=True) if x.shape == y.shape and x.size]
        if not pairs:  # rows are proposals, whose number differs between the graphs
            continue
        shift = shifts[node.outputs[0]] = useful_shifts(*channel_errors(axis, *zip(*pairs, strict=True)))
        for array in found:  # for the nodes behind
            array += shift.astype(array.dtype).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return shifts


def channel_errors(axis: int, wanted: Sequence[Array], found: Sequence[Array]) -> tuple[weights.F64, weights.F64]:
    """Return mean and mean square of the error, (images, channels) each."""
    differences = [x - y for x, y in zip(wanted, found, strict=True)]
    means = np.stack([weights.channel_means(array, axis) for array in differences])
    return means, np.stack([weights.channel_means(np.square(array), axis) for array in differences])


def useful_shifts(means: weights.F64, squares: weights.F64) -> weights.F64:
    """Return shifts per channel, 0 where one would remove less than :data:`_WORTH` of the error.

    Its effect is the square of the shift without the squared standard error of the mean, which is due to the choice of
    images.
    """
    shift: weights.F64 = means.mean(axis=0)
    luck = means.var(axis=0, ddof=1) / len(means) if len(means) > 1 else 0.0
    return np.where(shift * shift - luck > _WORTH * squares.mean(axis=0), shift, 0.0)


def can_shift(graph: Graph, node: Node) -> bool:
    """Return whether a weighted node has, or can get, a bias per output channel."""
    return _bias_location(graph, node) is not None


def shift_biases(graph: Graph, shifts: Mapping[str, weights.F64]) -> Graph:
    """Return the graph with (channels,) values added to the biases of weighted nodes, by output tensor.

    A node without a bias gets one, and one that shares its bias gets another. Raises CalibrationError: the bias of a
    node cannot be changed; see :func:`can_shift`.
    """
    names, constants, changed = Names(graph), {}, {}
    for tensor, shift in shifts.items():
        node = graph.producers[tensor]
        place = _bias_location(graph, node)
        if place is None:
            raise CalibrationError(f"node {node.name!r} has no bias that could be shifted", why=f"it is {node.op}")
        owner, slot, bias = place
        stored = graph.constants[bias].astype(np.float64).reshape(-1) * weights.bias_factor(owner) if bias else 0.0
        inputs = [*owner.inputs, *[""] * (slot + 1 - len(owner.inputs))]
        inputs[slot] = name = names.new(f"{bias or node.inputs[1]}_shifted")
        constants[name] = (stored + shift).astype(graph.constants[node.inputs[1]].dtype)
        changed[id(owner)] = replace(owner, inputs=tuple(inputs), attributes=weights.with_plain_bias(owner))
    nodes = tuple(changed.get(id(node), node) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants})


def _bias_location(graph: Graph, node: Node) -> tuple[Node, int, str] | None:
    """Return the node and input slot of the bias, and the name of the stored bias, "" for none.

    The bias of a MatMul is in the Add behind it. None where it cannot be changed.
    """
    kernel, owner, slot = weights.kernel_of(graph, node), node, 2
    if kernel is None:
        return None
    if operators.about(node.op).work == "matmul":
        if not graph.is_private(node.outputs[0]):
            return None
        (owner,) = graph.consumers[node.outputs[0]]
        stored = [slot for slot, name in enumerate(owner.inputs) if name in graph.constants]
        if owner.op != "Add" or not stored:
            return None
        slot = stored[0]
    name = "".join(owner.inputs[slot : slot + 1])
    return (
        (owner, slot, name) if not name or weights.is_per_channel(graph.constants.get(name), kernel.outputs) else None
    )
