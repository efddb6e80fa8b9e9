"""Refitting: weights chosen anew for the inputs that a layer gets once everything before it is quantised.

The layer-wise calibration of Hubara et al. 2020, "Improving Post Training Neural Quantization: Layer-wise Calibration
and Integer Programming" (https://arxiv.org/abs/2006.10518), for given scales and in closed form. With x what the float
graph feeds a layer and x̂ what the quantised one does, the weights that bring ŵ·x̂ closest to w·x are
w·E[x·x̂ᵀ]·E[x̂·x̂ᵀ]⁻¹: they listen less to channels that are lost in rounding noise, and make up for it with others.
Layers follow each other with all those before them already refitted, and biases are corrected along the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph.model import Model
from edgert.graph.node import Graph, Names, Node, extract, write
from edgert.graph.spec import TensorSpec
from edgert.quantize.correct import add_to_channels, can_shift, channel_errors, shift_biases, worthwhile
from edgert.quantize.kernel import F64, Kernel, arranged, channel_axis, kernel_of, weighted
from edgert.quantize.patch import SUPPORTED, patches
from edgert.quantize.walk import THREADS, Feeds, walk
from edgert.quantize.weight import channel_axis as weight_axis
from edgert.quantize.weight import quantize_weight, weight_scales

_HELD_OUT = 4
"""Every fourth picture only judges: new weights must be better on it."""

_BETTER = 0.98
"""And by more than 2 %: what is gained by less is as likely luck."""

_RIDGE = 0.1
"""What is added to each diagonal element of E[x̂·x̂ᵀ], in parts of itself. Without it the fit follows what few pictures
have in common. Of 0.01, 0.1 and 0.3 this gave the best outputs of YOLOX-nano and NanoDet where each was tried."""

_PATCHES_PER_UNKNOWN = 8
_LEAST_PATCHES = 2048


@dataclass(frozen=True, slots=True)
class Refit:
    """What came of one weighted node.

    Attributes:
        node: its name.
        before, after: mean squared error of its output, without its mean, on pictures that were not used for fitting:
            with its old weights, and with those it has now; equal when the old ones were kept.
        shift: largest change of its bias.
    """

    node: str
    before: float
    after: float
    shift: float


def refit(
    graph: Graph,
    lowered: Callable[[Graph], Graph],
    feeds: Sequence[Feeds],
    like: Model,
    *,
    per_channel: bool = True,
    report: Callable[[Refit], None] | None = None,
) -> Graph:
    """The float graph with the weights and biases that its quantised form needs; lower it again to have them there.

    It takes the place of :func:`~edgert.quantize.correct.correct_biases`. A weight that two nodes share, and one of
    a ConvTranspose, stay as they are; the biases are corrected all the same.

    Args:
        graph: the float graph, clean.
        lowered: quantises a float graph; outputs of weighted nodes keep their names.
        feeds: pictures, 32 or more; all of them move through both graphs side by side.
        like: the model that the graph was read from.
        per_channel: whether ``lowered`` rounds weights with one scale per output channel.
        report: called after each node.

    Raises:
        CalibrationError: there are too few pictures to hold some out.
        BuildError: ONNX Runtime cannot run one of the graphs.
    """
    if len(feeds) < _HELD_OUT:
        raise CalibrationError(
            "weights cannot be refitted to so few pictures", why=f"{len(feeds)} given", fix="give 32 or more"
        )
    quantised = lowered(graph)
    nodes = [n for n in weighted(graph) if can_shift(graph, n) and n.outputs[0] in quantised.producers]
    names, stored, shifts, changed = Names(graph), dict(graph.constants), dict[str, F64](), dict[int, Node]()
    for layer in _layers(graph, quantised, nodes, feeds, like, per_channel):
        weight, shift, refitted = layer.improve()
        node = layer.kernel.node
        shifts[node.outputs[0]] = shift
        if weight is not None:
            name = names.new(f"{node.inputs[1]}_refitted")
            stored[name] = weight
            changed[id(node)] = replace(node, inputs=(node.inputs[0], name, *node.inputs[2:]))
        if report is not None:
            report(refitted)
    fitted = replace(graph, nodes=tuple(changed.get(id(n), n) for n in graph.nodes), constants=stored)
    return shift_biases(fitted, shifts)


def _layers(
    graph: Graph, quantised: Graph, nodes: Sequence[Node], feeds: Sequence[Feeds], like: Model, per_channel: bool
) -> Iterator[_Layer]:
    """Each node with what goes in and comes out on both sides."""
    twins = [quantised.producers[node.outputs[0]] for node in nodes]
    floats = walk(graph, [name for n in nodes for name in (n.inputs[0], n.outputs[0])], feeds, like)
    rounded = walk(quantised, [name for n in twins for name in (n.inputs[0], n.outputs[0])], feeds, like)
    for node, twin in zip(nodes, twins, strict=True):
        kernel = kernel_of(graph, node)
        assert kernel is not None  # weighted() named it
        given, taken = next(floats), next(rounded)
        is_free = node.op in SUPPORTED and graph.is_private(node.inputs[1])
        run = _alone(graph, node, like) if is_free else None
        rounding = _rounding(node, per_channel) if twin.inputs[1] != node.inputs[1] else None
        yield _Layer(kernel, given, taken, next(floats), next(rounded), run, rounding)


Rounding = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One weighted node.

    Attributes:
        kernel: its weights.
        given, taken: its inputs, one per picture: in the float graph, and in the quantised one.
        wanted, found: its outputs likewise; ``found`` is what later layers read.
        run: input, stored weight → output; None when its weights must stay.
        rounding: what quantisation makes of a stored weight; None when it makes nothing of this one.
    """

    kernel: Kernel
    given: Sequence[Array]
    taken: Sequence[Array]
    wanted: Sequence[Array]
    found: Sequence[Array]
    run: Callable[[Array, Array], Array] | None
    rounding: Rounding | None

    def improve(self) -> tuple[Array | None, F64, Refit]:
        """New weights, if they are better; what to add to the bias. ``found`` becomes what these give."""
        axis = channel_axis(self.kernel.node, self.wanted[0].ndim)
        before = _spread(self.wanted, self.found, axis)
        weight, after = self._refitted(before, axis) if self.run is not None else (None, before)
        shift = worthwhile(*channel_errors(axis, self.wanted, self.found))
        add_to_channels(self.found, shift, axis)
        return weight, shift, Refit(self.kernel.node.name, before, after, float(np.abs(shift).max(initial=0.0)))

    def _refitted(self, before: float, axis: int) -> tuple[Array | None, float]:
        assert self.run is not None
        weight = self._solve()
        effective = self.rounding(weight) if self.rounding else weight
        with ThreadPoolExecutor(THREADS) as pool:
            outputs = list(pool.map(self.run, self.taken, [effective] * len(self.taken)))
        after = _spread(self.wanted, outputs, axis)
        if not after < _BETTER * before:  # NaN is no better
            return None, before
        for array, output in zip(self.found, outputs, strict=True):
            array[...] = output
        return weight, after

    def _solve(self) -> Array:
        """The weight of least squares, in the layout and type of the stored one."""
        own, cross = self._moments()
        groups, rows, inputs, taps = self.kernel.values.shape
        old = self.kernel.values.reshape(groups, rows, inputs * taps)
        diagonal = np.einsum("gii->gi", own)
        floor = 1e-3 * diagonal.mean(axis=1, keepdims=True) + np.finfo(np.float64).tiny
        damped = own + np.eye(inputs * taps) * (_RIDGE * (diagonal + floor))[:, None, :]
        change = np.linalg.solve(damped, np.swapaxes(old @ (cross - own), 1, 2))
        values = (old + np.swapaxes(change, 1, 2)).reshape(self.kernel.values.shape)
        stored: Array = arranged(values, self.kernel.node, self.kernel.stored).astype(np.float32)
        return stored

    def _moments(self) -> tuple[F64, F64]:
        """Covariances E[x̂·x̂ᵀ] and E[x·x̂ᵀ] per group, of the pictures that are not held out."""
        groups, _, inputs, taps = self.kernel.values.shape
        size = inputs * taps
        pairs = [pair for index, pair in enumerate(zip(self.given, self.taken, strict=True)) if index % _HELD_OUT]
        each = max(_LEAST_PATCHES, _PATCHES_PER_UNKNOWN * size) // len(pairs) + 1
        own, cross = np.zeros((groups, size, size)), np.zeros((groups, size, size))
        sums, count = np.zeros((2, groups, size)), 0
        for seed, (given, taken) in enumerate(pairs):
            x, y = (patches(self.kernel, one, each, np.random.default_rng(seed)) for one in (given, taken))
            own += y.transpose(0, 2, 1) @ y
            cross += x.transpose(0, 2, 1) @ y
            sums += x.sum(axis=1, dtype=np.float64), y.sum(axis=1, dtype=np.float64)
            count += x.shape[1]
        first, second = sums / count
        return own / count - second[:, :, None] * second[:, None, :], cross / count - first[:, :, None] * second[
            :, None, :
        ]


def _spread(wanted: Sequence[Array], found: Sequence[Array], axis: int) -> float:
    """Mean squared error on the held-out pictures once the mean error of the others is taken off, over channels."""
    means, squares = channel_errors(axis, wanted, found)
    judges = np.arange(len(means)) % _HELD_OUT == 0
    shift = means[~judges].mean(axis=0)
    return float((squares[judges] - 2 * shift * means[judges] + shift * shift).mean())


def _alone(graph: Graph, node: Node, like: Model) -> Callable[[Array, Array], Array]:
    """The node as a function of its input and its stored weight."""
    spec = replace(graph.specs[node.inputs[0]], name=node.inputs[0])
    stored = graph.constants[node.inputs[1]]
    fed = (spec, TensorSpec(node.inputs[1], stored.shape, stored.dtype.name))
    constants = {name: graph.constants[name] for name in node.inputs[2:] if name}
    alone = replace(graph, nodes=(node,), constants=constants, inputs=fed)
    function = Function(write(extract(alone, node.outputs[:1], [one.name for one in fed]), like), fused=False)

    def run(values: Array, weight: Array) -> Array:
        (output,) = function({node.inputs[0]: values, node.inputs[1]: weight}).values()
        return output

    return run


def _rounding(node: Node, per_channel: bool) -> Rounding:
    """A stored weight → what is left of it in INT8."""

    def rounded(weight: Array) -> Array:
        axis = weight_axis(node, weight) if per_channel else None
        restored: Array = quantize_weight(weight, weight_scales(weight, axis), axis).restored
        return restored

    return rounded
