"""Rewrites of activations and arithmetic that a DLA lacks into operators that it supports.

Piecewise linear functions become Relu, or Clip from 0 to a ceiling of 1 … 127. HardSwish(x) = x HardSigmoid(x) with
alpha 1/6 and beta 0.5. HardSigmoid(x) = max(0, min(1, alpha x + beta))
(https://onnx.ai/onnx/operators/onnx__HardSigmoid.html). With 1 / alpha between 1 and 127 it is
alpha Clip(x + beta / alpha, 0, 1 / alpha), whose constants stay small: 3 and 6.
"""

import math

import numpy as np

from dla import LIMITS
from edgert.graph.dla_rewrites.resizing import append_nearest
from edgert.graph.draft import FLOATS, Chain, Draft, rewrite
from edgert.graph.ir import Node
from edgert.graph.operators import clip_bounds

_CEILING = LIMITS["clip.ceiling"]
"""Range of the upper end of a Clip on a DLA; the lower end must be 0."""
_HUGE = 1e30
"""Largest end of a Clip; one closer to the limit of the type is none."""
_USUAL_CEILING = 6.0  # as in ReLU6; ranges of a width that the DLA does not support are scaled to it


def _hard_swish(draft: Draft, node: Node) -> None:
    shape = draft.image(node.inputs[0])
    if shape is not None:
        chain = Chain(draft, node).scalar("Add", 3).clip(0, 6).scalar("Mul", 1 / 6)
        chain.then("Mul", shape, node.inputs[0]).end("x Clip(x + 3, 0, 6) / 6")


def _hard_sigmoid(draft: Draft, node: Node) -> None:
    if draft.image(node.inputs[0]) is None:
        return
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    chain = Chain(draft, node)
    if alpha > 0 and _CEILING.low <= 1 / alpha <= _CEILING.high:
        chain.scalar("Add", beta / alpha).clip(0, 1 / alpha).scalar("Mul", alpha)
        chain.end(f"{alpha:.4g} Clip(x + {beta / alpha:.4g}, 0, {1 / alpha:.4g})")
    else:
        chain.scalar("Mul", alpha).scalar("Add", beta).clip(0, 1)
        chain.end(f"Clip({alpha:.4g} x + {beta:.4g}, 0, 1)")


def _clip(draft: Draft, node: Node) -> None:
    shape, bounds = draft.image(node.inputs[0]), clip_bounds(draft.graph, node)
    if shape is None or bounds is None:
        return
    low, high = (end if abs(end) <= _HUGE else math.copysign(math.inf, end) for end in bounds)
    if not low < high or (low, high) == (-math.inf, math.inf):
        return
    if low == 0 and _CEILING.low <= high <= _CEILING.high:
        return
    chain = Chain(draft, node)
    if math.isinf(low):
        chain.scalar("Mul", -1).scalar("Add", high).then("Relu", shape).scalar("Mul", -1).scalar("Add", high)
    else:
        _append_clip(chain, shape, low, high - low)
    chain.end(f"Clip to {low:.4g} … {high:.4g} → {'Relu' if math.isinf(high - low) else 'Clip from 0'}")


def _append_clip(chain: Chain, shape: tuple[int, ...], low: float, width: float) -> None:
    stretch = 1.0 if math.isinf(width) or _CEILING.low <= width <= _CEILING.high else _USUAL_CEILING / width
    if low:
        chain.scalar("Add", -low)
    if stretch != 1:
        chain.scalar("Mul", stretch)
    if math.isinf(width):
        chain.then("Relu", shape)
    else:
        chain.clip(0, width * stretch)
    if stretch != 1:
        chain.scalar("Mul", 1 / stretch)
    if low:
        chain.scalar("Add", low)


HARD_SWISH = rewrite("hard-swish", "HardSwish becomes Add, Clip and Mul", {"HardSwish": _hard_swish})
HARD_SIGMOID = rewrite("hard-sigmoid", "HardSigmoid becomes Add, Clip and Mul", {"HardSigmoid": _hard_sigmoid})
CLIP = rewrite(
    "clip",
    "Clip between any two numbers becomes Clip from 0, or Relu",
    {"Clip": _clip},
)


# An operand of one number per channel is enlarged to the size of the image it is combined with.
#
# Squeeze-and-excitation multiplies a (N, C, H, W) tensor by one of (N, C, 1, 1). A nearest Resize by whole numbers
# repeats its values, so the result is bit-exact.


def _enlarge_operand(draft: Draft, node: Node) -> None:
    if len(node.inputs) != 2:
        return
    images = [draft.image(name) for name in node.inputs]
    for position in (0, 1):
        small, large = images[position], images[1 - position]
        if small is None or large is None or small[2:] != (1, 1) or small[:2] != large[:2] or large[2:] == (1, 1):
            continue
        chain = Chain(draft, node, node.inputs[position])
        if append_nearest(draft, chain, (large[2], large[3])):
            chain.then(node.op, large, node.inputs[1 - position])
            chain.end(f"{node.inputs[position]!r} enlarged to {large[2]}x{large[3]} first")
        return


SPREAD = rewrite(
    "spread",
    "a number per channel that is multiplied or added to an image is enlarged to its size first",
    dict.fromkeys(("Add", "Max", "Mul"), _enlarge_operand),
)


# Arithmetic that a DLA supports as other operators.


def _negate(draft: Draft, node: Node) -> None:
    if draft.shape(node.inputs[0]) is not None and draft.dtype(node.inputs[0]) in FLOATS:
        Chain(draft, node).scalar("Mul", -1).end("Neg → Mul by -1")


def _subtract(draft: Draft, node: Node) -> None:
    first, second = node.inputs
    shape = draft.shape(node.outputs[0])
    left, right = draft.value(first), draft.value(second)
    if shape is None or draft.dtype(node.outputs[0]) not in FLOATS or (left is None) == (right is None):
        return
    if right is not None:
        chain = Chain(draft, node)
        chain.then("Add", shape, chain.store(-right, "negated")).end("Sub of a constant → Add")
    else:
        chain = Chain(draft, node, second)
        chain.scalar("Mul", -1).then("Add", shape, first).end("Sub from a constant → Mul by -1 and Add")


def _divide(draft: Draft, node: Node) -> None:
    shape, divisor = draft.shape(node.outputs[0]), draft.value(node.inputs[1])
    if shape is None or divisor is None or draft.dtype(node.inputs[0]) not in FLOATS or node.inputs[0] == "":
        return
    if draft.value(node.inputs[0]) is not None or not np.all(divisor):
        return
    inverse, limits = 1 / divisor.astype(np.float64), np.finfo(divisor.dtype)
    if np.all((np.abs(inverse) <= limits.max) & (np.abs(inverse) >= limits.tiny)):  # else it would lose digits
        chain = Chain(draft, node)
        chain.then("Mul", shape, chain.store(inverse, "inverse")).end("Div by a constant → Mul")


def _sum_to_adds(draft: Draft, node: Node) -> None:
    shapes = [shape for name in node.inputs if (shape := draft.shape(name)) is not None]
    if not 2 <= len(node.inputs) == len(shapes) or draft.dtype(node.outputs[0]) not in FLOATS:
        return
    chain = Chain(draft, node)
    for position, name in enumerate(node.inputs[1:], 2):
        chain.then("Add", np.broadcast_shapes(*shapes[:position]), name)
    chain.end(f"Sum → {len(shapes) - 1} Add")


def _reshape_slope(draft: Draft, node: Node) -> None:
    shape, slope = draft.image(node.inputs[0]), draft.value(node.inputs[1])
    if shape is None or slope is None or slope.ndim == 4:
        return
    chain = Chain(draft, node)
    chain.then("PRelu", shape, chain.store(slope.reshape((1,) * (4 - slope.ndim) + slope.shape), "slope"))
    chain.end(f"slope {list(slope.shape)} → 4 dimensions")


NEG = rewrite("neg", "Neg becomes Mul by -1", {"Neg": _negate}, grows=False)
SUB = rewrite("sub", "Sub with a constant becomes Add", {"Sub": _subtract})
DIV = rewrite(
    "div",
    "Div by a constant becomes Mul",
    {"Div": _divide},
    grows=False,
)
SUM = rewrite("sum", "Sum becomes Adds of two", {"Sum": _sum_to_adds})
PRELU_SLOPE = rewrite(
    "prelu-slope",
    "the slope of a PRelu gets four dimensions",
    {"PRelu": _reshape_slope},
    grows=False,
)
