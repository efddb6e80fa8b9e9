"""AdaRound: weights rounded up or down so that the layer's output changes least.

Nagel et al. 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization" (https://arxiv.org/abs/2004.10568).
The error of a layer's output is Δw·E[x·xᵀ]·Δwᵀ per output channel (their section 3), which needs only the second
moments of the inputs.
"""

from collections.abc import Mapping, Sequence
from threading import Event

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node
from edgert.quantization.calibration.walk import Feeds, check_stop, walk
from edgert.quantization.lowering import weights

# The error of row d is d·G·dᵀ with d = rounded - wanted and G the second moments of the inputs. First the rounding is
# relaxed to h in [0, 1] and driven to its ends by gradient descent, as in section 3 of the paper. Then single roundings
# are flipped while that helps, which is fast and finds what the relaxation missed.

_STRETCH = (-0.1, 1.1)  # ends of the sigmoid before it is clipped to 0..1; section 4 of the paper
_WARM = 0.2  # part of the steps without pressure, as in the paper's experiments
_BETA = (20.0, 2.0)  # first and last exponent of the pressure, as in these experiments
_ADAM = (0.9, 0.999, 1e-8)  # https://arxiv.org/abs/1412.6980
_SWEEPS = 10  # largest number; usually fewer flip everything that helps

_RATE = 0.03  # of gradient descent
_PRESSURE = 3.0  # weight of the term that drives relaxed roundings to 0 or 1, against an error of 1 per weight
_STEPS = 300  # of gradient descent
_PATCHES_PER_UNKNOWN = 8  # patches to measure, over all images, for each weight of an output channel
_LEAST_PATCHES = 4096  # smallest number of patches to measure, of all images together
_DAMPING = 0.01  # summand of the second moments' diagonal relative to its mean, for directions without patches


def round_rows(wanted: weights.F64, gram: weights.F64) -> weights.F64:
    """Return integers for ``wanted`` (groups, rows, n), given second moments (groups, n, n) of the inputs.

    No row has a larger error than the nearest integers.
    """
    nearest = np.clip(np.rint(wanted), -weights.LIMIT, weights.LIMIT)
    low = np.clip(np.floor(wanted), -weights.LIMIT, weights.LIMIT - 1)
    size = gram.shape[-1]
    mean = np.einsum("gii->g", gram) / size
    damped = gram + (_DAMPING * mean)[:, None, None] * np.eye(size)
    better = _flip(low + _relax(wanted, low, damped), low, wanted, damped)
    worse = errors(better - wanted, gram) >= errors(nearest - wanted, gram)
    return np.where(worse[..., None], nearest, better)


def errors(difference: weights.F64, gram: weights.F64) -> weights.F64:
    """Return the error d·G·dᵀ of each row: (groups, rows)."""
    found: weights.F64 = np.einsum("grn,grn->gr", difference @ gram, difference)
    return found


def _relax(wanted: weights.F64, low: weights.F64, gram: weights.F64) -> weights.F64:
    """Return 1 where to round up and 0 elsewhere, by gradient descent on the error relative to nearest rounding."""
    before = errors(np.rint(wanted) - wanted, gram)
    weight = np.divide(wanted.shape[2], before, where=before > 0, out=np.zeros_like(before))[..., None]
    below, moments = (low - wanted).astype(np.float32), gram.astype(np.float32)
    pull = (2 * weight).astype(np.float32)
    start, stop = _STRETCH
    part = (np.clip(-below, 0.01, 0.99) - start) / (stop - start)
    state = np.log(part / (1 - part))
    mean, square, rate = np.zeros_like(state), np.zeros_like(state), _RATE
    keep, keep_square, tiny = _ADAM
    for step in range(_STEPS):
        bent = 1 / (1 + np.exp(-state))
        open_ = bent * (stop - start) + start
        up: weights.F32 = np.clip(open_, 0, 1).astype(np.float32, copy=False)
        inside = (open_ > 0) & (open_ < 1)
        slope = pull * ((below + up) @ moments) + _pressure(up, step)
        slope = np.where(inside, slope * (stop - start) * bent * (1 - bent), np.float32(0))
        mean = keep * mean + (1 - keep) * slope
        square = keep_square * square + (1 - keep_square) * slope * slope
        size = np.sqrt(square / (1 - keep_square ** (step + 1))) + tiny
        state -= np.asarray(rate / (1 - keep ** (step + 1)) * mean / size, np.float32)
    return (state >= 0).astype(np.float64)


def _pressure(up: weights.F32, step: int) -> weights.F32:
    """Return the slope of pressure · (1 - |2h - 1|**beta); beta falls along a cosine."""
    rest = (step / _STEPS - _WARM) / (1 - _WARM)
    if rest < 0:
        return np.zeros_like(up)
    first, last = _BETA
    beta = last + (first - last) * 0.5 * (1 + np.cos(rest * np.pi))
    side = 2 * up - 1
    steepness = np.abs(side) ** np.float32(beta - 1)
    slope: weights.F32 = np.float32(-2 * _PRESSURE * beta) * np.sign(side) * steepness
    return slope


def _flip(values: weights.F64, low: weights.F64, wanted: weights.F64, gram: weights.F64) -> weights.F64:
    """Flip roundings one by one (coordinate descent) wherever that lowers the error of the row."""
    values = values.copy()
    pull = (values - wanted) @ gram
    diagonal = np.einsum("gii->gi", gram)
    for _ in range(_SWEEPS):
        flipped = False
        for column in range(values.shape[2]):
            step = np.where(values[:, :, column] > low[:, :, column], -1.0, 1.0)
            gain = 2 * step * pull[:, :, column] + diagonal[:, None, column]
            step[gain >= 0] = 0
            if step.any():
                flipped = True
                values[:, :, column] += step
                pull += step[:, :, None] * gram[:, None, column, :]
        if not flipped:
            break
    return values


I8 = npt.NDArray[np.int8]


def roundings(
    graph: Graph,
    lowered: Graph,
    scales: Mapping[str, Array],
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: Event | None = None,
) -> Mapping[str, I8]:
    """Return int8 values in [-127, 127] that lower the error of the layer's output, by weight name.

    :func:`~edgert.quantization.lowering.lower.lower` uses them in place of the nearest integers. Weights without
    scales, shared weights, and those of a ConvTranspose are left out. Equal arguments give equal values. ``lowered`` is
    the graph quantized with nearest rounding; its activations are the inputs of its weighted nodes. Scales broadcast
    over the weights. ``stop`` ends the work before the next weight. Raises CalibrationError: there are no images, or
    ``stop`` was set. Raises BuildError: ONNX Runtime cannot run the quantized graph.
    """
    if not feeds:
        raise CalibrationError("weights cannot be rounded by their effect without images", why="0 given")
    quantized_inputs = {node.outputs[0]: node.inputs[0] for node in lowered.nodes if node.outputs}
    readers: dict[str, list[Node]] = {}  # tensor of the quantized graph → nodes of the float graph
    for node in weights.weighted_nodes(graph):
        if node.op not in weights.SUPPORTED or node.outputs[0] not in quantized_inputs:
            continue
        if graph.is_private(node.inputs[1]) and node.inputs[1] in scales:
            readers.setdefault(quantized_inputs[node.outputs[0]], []).append(node)
    done: dict[str, I8] = {}
    for nodes, values in zip(readers.values(), walk(lowered, list(readers), feeds, like, stop=stop), strict=True):
        for node in nodes:
            check_stop(stop)
            done[node.inputs[1]] = _round(graph, node, scales[node.inputs[1]], values)
    return done


def _round(graph: Graph, node: Node, scales: Array, values: Sequence[Array]) -> I8:
    kernel = weights.kernel_of(graph, node)
    assert kernel is not None  # as of all weighted nodes
    moments, random = weights.Moments.empty(kernel), np.random.default_rng(0)
    unknowns = moments.first.shape[1]
    each = max(_LEAST_PATCHES, _PATCHES_PER_UNKNOWN * unknowns) // len(values) + 1
    for image in values:
        moments.add(weights.patches(kernel, image, each, random))
    steps = weights.to_kernel_layout(np.broadcast_to(np.asarray(scales, np.float64), kernel.stored), node)
    wanted = (kernel.values / steps).reshape(*kernel.values.shape[:2], -1)
    # centered, since bias correction follows and removes the mean error
    solved = round_rows(wanted, moments.gram(centered=True))
    return weights.from_kernel_layout(solved.reshape(kernel.values.shape), node, kernel.stored).astype(np.int8)
