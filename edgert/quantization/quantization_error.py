"""The error of a quantized graph: measured by tensors and by outputs, and its mean subtracted from the biases."""

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Names, Node
from edgert.graph.operators import about
from edgert.quantization.calibration.walk import Feeds, check_stop, walk
from edgert.quantization.lowering import weights

_CHUNK = 8  # images on their way at once; more only cost memory, fewer rebuild the pieces more often


def sqnr(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    tensors: Iterable[str] | None,
    like: Model,
) -> Mapping[str, float]:
    """Return the signal to quantization noise of each tensor in dB.

    It is 10 log10(Σ x² / Σ (x - y)²) over all elements and images, x in the float graph and y in the other. Equal
    tensors give inf, noise without signal -inf. An image counts where both have as many rows; behind a suppression
    each graph finds boxes of its own. A tensor that no image compares is left out.

    Args:
        graph: the float graph.
        lowered: the same graph quantized, each node computed as the standard defines it.
        feeds: images.
        tensors: names that both graphs compute; None: outputs of weighted nodes and of the graph, as far as both have
            them.
        like: the model that the graph was read from.

    Raises:
        CalibrationError: there are no images.
        ModelError: a tensor that one of the graphs does not compute.
        BuildError: ONNX Runtime cannot run one of them.
    """
    if not feeds:
        raise CalibrationError("graphs cannot be compared without images", why="0 given", fix="give at least one")
    position = {name: number for number, name in enumerate(graph.producers)}
    if tensors is None:
        default = {node.outputs[0] for node in weights.weighted(graph)} | graph.output_names
        tensors = default & lowered.producers.keys()
    # in the order they are computed; what the graph does not compute comes last
    names = sorted(dict.fromkeys(tensors), key=lambda name: position.get(name, len(position)))
    totals, compared = {name: np.zeros(2) for name in names}, set[str]()
    for start in range(0, len(feeds), _CHUNK):
        chunk = feeds[start : start + _CHUNK]
        pairs = zip(names, walk(graph, names, chunk, like), walk(lowered, names, chunk, like), strict=True)
        for name, first, second in pairs:
            for x, y in zip(first, second, strict=True):  # in float64: a sum of millions in float32 loses digits
                if x.shape != y.shape:
                    continue
                signal, difference = (one.reshape(-1) for one in (x.astype(np.float64), np.subtract(x, y, dtype=float)))
                totals[name] += signal @ signal, difference @ difference
                compared.add(name)
    return {name: decibels(*totals[name]) for name in names if name in compared}


def decibels(signal: float, noise: float) -> float:
    """Return the signal to noise of two powers, in dB."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def drowned(noise_db: Mapping[str, float], outputs: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each output that has more noise than signal; one without any signal is not judged.

    Args:
        noise_db: tensor → signal to noise, in dB.
        outputs: of the model.
    """
    return tuple(
        f"the noise of output {name!r} is larger than its signal ({noise_db[name]:.1f} dB)"
        for name in sorted(outputs)
        if -math.inf < noise_db.get(name, 0.0) < 0
    )


def outputs_in_order(graph: Graph) -> frozenset[str]:
    """Return the outputs whose rows keep their places: no TopK, NonZero or suppression comes before them.

    Rows that were sorted by score change places with the last bit, so that comparing them by number shows noise where
    there is none.
    """
    sorted_ = set[str]()
    for node in graph.nodes:
        if about(node.op).kind == "selection" or not sorted_.isdisjoint(node.reads):
            sorted_.update(node.outputs)
    return graph.output_names - sorted_


_CLEAR_DB = 10.0
"""From here on the noise is less than a third of the signal, and agreement needs no further proof."""


def is_clear(noise_db: Mapping[str, float], outputs: Iterable[str]) -> bool:
    """Return whether hardly any noise is in any of the outputs that have a signal."""
    return all(not -math.inf < noise_db.get(name, math.inf) < _CLEAR_DB for name in outputs)


def output_noise(reference: Function, other: Function, feeds: Iterable[Feeds]) -> Mapping[str, float]:
    """Return the signal to noise of each output that two versions of a model have alike, in dB.

    Raises:
        BuildError: ONNX Runtime cannot run one of them.
    """
    totals: dict[str, tuple[float, float]] = {}
    for one in feeds:
        wanted, found = reference(one), other(one)
        for name in wanted.keys() & found.keys():
            if wanted[name].shape == found[name].shape:
                signal = wanted[name].astype(np.float64)
                powers = np.square(signal).sum(), np.square(signal - found[name]).sum()
                before = totals.get(name, (0.0, 0.0))
                totals[name] = before[0] + float(powers[0]), before[1] + float(powers[1])
    return {name: decibels(*total) for name, total in totals.items()}


# How much of a reduced model's outputs is noise: a measure that needs no labels, nor what the outputs mean.


class OutputNoise:
    """The noise of versions of one model.

    Args:
        model: the float model.
        feeds: images, at least one.
        stop: ends it when set, before the next image.

    Raises:
        BuildError: ONNX Runtime cannot run the model.
        CalibrationError: stopped.
    """

    def __init__(self, model: Model, feeds: Sequence[Feeds], stop: threading.Event | None = None) -> None:
        self._feeds, self._stop = feeds, stop
        self._wanted = self._outputs(Function(model))

    def of(self, found: Function) -> float:
        """Return the noise of one version, as :func:`noise_share` defines it.

        Raises:
            BuildError: the version cannot be run.
            CalibrationError: stopped.
        """
        return noise_share(self._wanted, self._outputs(found))

    def _outputs(self, function: Function) -> list[Mapping[str, Array]]:
        found: list[Mapping[str, Array]] = []
        for one in self._feeds:
            check_stop(self._stop)
            found.append(function(one))
        return found


def noise_share(wanted: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]) -> float:
    """Return noise over noise and signal: 0 for equal outputs, 1/2 where both are as large, 1 for noise alone.

    It is the mean over outputs, and within an output over its channels. Otherwise large numbers (a detector's boxes)
    would hide the error of small ones (its scores). Signal is what varies over images and places; a constant is none.
    A row that only one version has, such as a box, counts as one of zeros in the other.

    Args:
        wanted: name → array with a batch dimension, one mapping per image: the reference.
        found: the same outputs of the other version.
    """
    return float(np.mean([_share(name, wanted, found) for name in wanted[0]]))


def _share(name: str, wanted: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]) -> float:
    true, other = np.split(_stacked([one[name] for both in (wanted, found) for one in both]), [len(wanted)])
    noise = np.square(true - other)
    # Channels come first of an image's dimensions, and are fewer than a detector's anchors. A vector has none: one of
    # its numbers over a few images is no measure.
    axis = None if true.ndim < 3 else 2 if true.ndim == 3 and true.shape[1] > true.shape[2] else 1
    rest = tuple(one for one in range(true.ndim) if one != axis)
    signal: weights.F64 = np.asarray(true.var(axis=rest))
    lost: weights.F64 = np.asarray(noise.mean(axis=rest))
    whole = signal + lost
    return float(np.divide(lost, whole, where=whole > 0, out=np.zeros_like(whole)).mean())


def _stacked(arrays: Sequence[Array]) -> weights.F64:
    """Return (images, …), without dimensions of one; smaller arrays are filled up with zeros."""
    shape = np.max([one.shape for one in arrays], axis=0)
    whole = np.zeros((len(arrays), *shape))
    for place, one in zip(whole, arrays, strict=True):
        place[tuple(slice(size) for size in one.shape)] = one
    return whole.reshape(len(arrays), *(size for size in shape if size > 1))


# Bias correction: what quantization adds to the mean of a channel is taken off its bias again.
#
# The empirical form of Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"
# (https://arxiv.org/abs/1906.04721), appendix D: layer after layer, each mean measured with everything upstream already
# corrected.

_WORTH = 0.1
"""Part of a channel's squared error that a shift must remove to be applied. Smaller shifts do more harm than good, as a
few images measure them badly. That is worst where errors are rare and large, as clipping makes them: correcting
their mean moves everything else. With 0.02 the outputs of SqueezeNet on other images were worse than uncorrected, and
YOLOX-nano found nothing any more; with 0.25 MobileNet's had nearly twice the noise that 0.02 left. (Measured on
calibration images that nothing was fitted to.)"""


def correct_biases(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: threading.Event | None = None,
) -> Graph:
    """Return the float graph with the biases that its quantized form needs; lower it again to apply them there.

    Args:
        graph: the float graph, clean.
        lowered: its quantized form; outputs of weighted nodes keep their names.
        feeds: images, 16 or more; all of them move through both graphs side by side.
        like: the model that the graph was read from.
        stop: ends it when set.

    Raises:
        CalibrationError: there are no images; stopped.
        BuildError: ONNX Runtime cannot run one of the graphs.
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
    """Return output tensor of a weighted node → (channels,) shifts that give it the means of the float graph.

    A shift is 0 where these images cannot show that a mean is off. Each one is measured with those of all nodes before
    it applied. Nodes whose bias cannot be changed (see :func:`can_shift`) are left out. Arguments and errors are those
    of :func:`correct_biases`.
    """
    if not feeds:
        raise CalibrationError("biases cannot be corrected without images", why="0 given", fix="give 16 or more")
    nodes = [n for n in weights.weighted(graph) if can_shift(graph, n) and n.outputs[0] in lowered.producers]
    names = [node.outputs[0] for node in nodes]
    exact, coarse = (walk(one, names, feeds, like, stop=stop) for one in (graph, lowered))
    walks = zip(nodes, exact, coarse, strict=True)
    shifts = {}
    for node, wanted, found in walks:
        axis = weights.channel_axis(node, wanted[0].ndim)
        pairs = [(x, y) for x, y in zip(wanted, found, strict=True) if x.shape == y.shape and x.size]
        if not pairs:  # rows are of proposals, of which each graph finds a number of its own
            continue
        shift = shifts[node.outputs[0]] = worthwhile(*channel_errors(axis, *zip(*pairs, strict=True)))
        for array in found:  # for what is computed from it next
            array += shift.astype(array.dtype).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return shifts


def channel_errors(axis: int, wanted: Sequence[Array], found: Sequence[Array]) -> tuple[weights.F64, weights.F64]:
    """Return mean and mean square of the error, (images, channels) each."""
    differences = [x - y for x, y in zip(wanted, found, strict=True)]
    means = np.stack([weights.channel_means(one, axis) for one in differences])
    return means, np.stack([weights.channel_means(np.square(one), axis) for one in differences])


def worthwhile(means: weights.F64, squares: weights.F64) -> weights.F64:
    """Return shifts per channel, 0 where one would remove less than :data:`_WORTH` of the error.

    The squared standard error of the mean, which is due to the choice of images, is subtracted from the square of the
    shift first.
    """
    shift: weights.F64 = means.mean(axis=0)
    luck = means.var(axis=0, ddof=1) / len(means) if len(means) > 1 else 0.0
    return np.where(shift * shift - luck > _WORTH * squares.mean(axis=0), shift, 0.0)


def can_shift(graph: Graph, node: Node) -> bool:
    """Return whether a weighted node has, or may be given, a bias of its own per output channel."""
    return _place(graph, node) is not None


def shift_biases(graph: Graph, shifts: Mapping[str, weights.F64]) -> Graph:
    """Return the graph with values added to biases: output tensor of a weighted node → (channels,).

    A node without a bias gets one, and one that shares its bias with others gets its own.

    Raises:
        CalibrationError: a node whose bias cannot be changed; see :func:`can_shift`.
    """
    names, constants, changed = Names(graph), {}, {}
    for tensor, shift in shifts.items():
        node = graph.producers[tensor]
        place = _place(graph, node)
        if place is None:
            raise CalibrationError(f"node {node.name!r} has no bias that could be shifted", why=f"it is a {node.op}")
        owner, slot, bias = place
        stored = graph.constants[bias].astype(np.float64).reshape(-1) * weights.bias_factor(owner) if bias else 0.0
        inputs = [*owner.inputs, *[""] * (slot + 1 - len(owner.inputs))]
        inputs[slot] = name = names.new(f"{bias or node.inputs[1]}_shifted")
        constants[name] = (stored + shift).astype(graph.constants[node.inputs[1]].dtype)
        changed[id(owner)] = replace(owner, inputs=tuple(inputs), attributes=weights.with_plain_bias(owner))
    nodes = tuple(changed.get(id(node), node) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants})


def _place(graph: Graph, node: Node) -> tuple[Node, int, str] | None:
    """Return the node and input slot that hold the bias, and the stored bias, "" for none.

    The bias of a MatMul is in the Add behind it. None where it cannot be changed.
    """
    kernel, owner, slot = weights.kernel_of(graph, node), node, 2
    if kernel is None:
        return None
    if about(node.op).work == "matmul":
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
