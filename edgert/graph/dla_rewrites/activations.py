"""Activations that are pieces of straight lines, from those pieces that a DLA has: Relu, and Clip from 0 to 1 … 127.

HardSwish(x) = x HardSigmoid(x) with alpha 1/6 and beta 0.5; HardSigmoid(x) = max(0, min(1, alpha x + beta))
(https://onnx.ai/onnx/operators/onnx__HardSigmoid.html). With 1 / alpha between 1 and 127 that is
alpha Clip(x + beta / alpha, 0, 1 / alpha), whose numbers stay small: 3 and 6.
"""

import math

import numpy as np

from edgert.graph.dla_rewrites.resizing import MIN_OPSET, grow
from edgert.graph.draft import FLOATS, Chain, Draft, each
from edgert.graph.ir import Node
from edgert.graph.model import Array

MIN_CEILING, MAX_CEILING = 1.0, 127.0
"""Ends of the range for the upper end of a Clip on a DLA; the lower one must be 0:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/dla-layer-restrictions.html."""

_USUAL_CEILING = 6.0  # of the many networks with ReLU6; a width the DLA has not is stretched to it


def _hard_swish(draft: Draft, node: Node) -> None:
    shape = draft.image(node.inputs[0])
    if shape is None:
        return
    chain = Chain(draft, node, node.inputs[0])
    chain.scalar("Add", 3).clip(0, 6).scalar("Mul", 1 / 6).then("Mul", shape, node.inputs[0])
    chain.end("x Clip(x + 3, 0, 6) / 6")


def _hard_sigmoid(draft: Draft, node: Node) -> None:
    if draft.image(node.inputs[0]) is None:
        return
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    chain = Chain(draft, node, node.inputs[0])
    if alpha > 0 and MIN_CEILING <= 1 / alpha <= MAX_CEILING:
        chain.scalar("Add", beta / alpha).clip(0, 1 / alpha).scalar("Mul", alpha)
        chain.end(f"{alpha:.4g} Clip(x + {beta / alpha:.4g}, 0, {1 / alpha:.4g})")
    else:
        chain.scalar("Mul", alpha).scalar("Add", beta).clip(0, 1)
        chain.end(f"Clip({alpha:.4g} x + {beta:.4g}, 0, 1)")


def _clip(draft: Draft, node: Node) -> None:
    low, high = _end(draft, node, "min", 1, -math.inf), _end(draft, node, "max", 2, math.inf)
    shape = draft.image(node.inputs[0])
    if shape is None or low is None or high is None or not low < high or (low, high) == (-math.inf, math.inf):
        return
    if low == 0 and MIN_CEILING <= high <= MAX_CEILING:
        return
    chain = Chain(draft, node, node.inputs[0])
    if math.isinf(high):
        _above(chain, shape, low)
    elif math.isinf(low):
        chain.scalar("Mul", -1).scalar("Add", high).then("Relu", shape).scalar("Mul", -1).scalar("Add", high)
    else:
        _between(chain, low, high)
    chain.end(f"Clip to {low:.4g} … {high:.4g} → {'Relu' if math.isinf(high - low) else 'Clip from 0'}")


def _above(chain: Chain, shape: tuple[int, ...], low: float) -> None:
    if low == 0:
        chain.then("Relu", shape)
    else:
        chain.scalar("Add", -low).then("Relu", shape).scalar("Add", low)


def _between(chain: Chain, low: float, high: float) -> None:
    width = high - low
    stretch = 1.0 if MIN_CEILING <= width <= MAX_CEILING else _USUAL_CEILING / width
    if low:
        chain.scalar("Add", -low)
    if stretch != 1:
        chain.scalar("Mul", stretch)
    chain.clip(0, width * stretch)
    if stretch != 1:
        chain.scalar("Mul", 1 / stretch)
    if low:
        chain.scalar("Add", low)


def _end(draft: Draft, node: Node, name: str, position: int, missing: float) -> float | None:
    """One end of a Clip; None where it is computed. What is as large as the type allows counts as no end."""
    stored = None
    if position < len(node.inputs) and node.inputs[position]:
        stored = draft.value(node.inputs[position])
        if stored is None:
            return None
    value = float(node.attributes.get(name, missing) if stored is None else stored.reshape(-1)[0])
    return missing if abs(value) > 1e30 else value


write_hard_swish = each("hard-swish", {"HardSwish": _hard_swish})
write_hard_sigmoid = each("hard-sigmoid", {"HardSigmoid": _hard_sigmoid})
write_clip = each("clip", {"Clip": _clip})


# A number per channel combined with a whole image: spread over it first, so that both operands have one size.
#
# Squeeze-and-excitation multiplies a (N, C, H, W) tensor by one of (N, C, 1, 1). Enlarging the small one by whole
# numbers, nearest, repeats its values: the result is the same to the bit.


def _spread(draft: Draft, node: Node) -> None:
    if draft.graph.opset < MIN_OPSET or len(node.inputs) != 2:
        return
    images = [draft.image(name) for name in node.inputs]
    for position in (0, 1):
        small, large = images[position], images[1 - position]
        if small is None or large is None or small[2:] != (1, 1) or small[:2] != large[:2] or large[2:] == (1, 1):
            continue
        chain = Chain(draft, node, node.inputs[position])
        if not grow(draft, chain, (large[2], large[3])):
            return
        chain.then(node.op, large, node.inputs[1 - position])
        chain.end(f"{node.inputs[position]!r} enlarged to {large[2]}x{large[3]} first")
        return


spread_operands = each("spread", dict.fromkeys(("Add", "Max", "Mul"), _spread))


# Arithmetic that a DLA has under another name: Neg, Sub, Div and Sum as Mul and Add, slopes of the input's rank.


def _negate(draft: Draft, node: Node) -> None:
    shape = draft.shape(node.inputs[0])
    if shape is None or draft.dtype(node.inputs[0]) not in FLOATS:
        return
    Chain(draft, node, node.inputs[0]).scalar("Mul", -1).end("Neg → Mul by -1")


def _subtract(draft: Draft, node: Node) -> None:
    first, second = node.inputs
    shape = draft.shape(node.outputs[0])
    left, right = draft.value(first), draft.value(second)
    if shape is None or draft.dtype(node.outputs[0]) not in FLOATS or (left is None) == (right is None):
        return
    if right is not None:
        chain = Chain(draft, node, first)
        chain.then("Add", shape, chain.store(-right, "negated")).end("Sub of a constant → Add")
    else:
        chain = Chain(draft, node, second)
        chain.scalar("Mul", -1).then("Add", shape, first).end("Sub from a constant → Mul by -1 and Add")


def _divide(draft: Draft, node: Node) -> None:
    shape, divisor = draft.shape(node.outputs[0]), draft.value(node.inputs[1])
    if shape is None or divisor is None or draft.dtype(node.inputs[0]) not in FLOATS or node.inputs[0] == "":
        return
    inverse = _inverse(divisor)
    if inverse is None or draft.value(node.inputs[0]) is not None:
        return
    chain = Chain(draft, node, node.inputs[0])
    chain.then("Mul", shape, chain.store(inverse, "inverse")).end("Div by a constant → Mul")


def _inverse(divisor: Array) -> Array | None:
    """One divided by each number; None where that overflows or loses digits in the number's own type."""
    if not np.all(divisor):
        return None
    inverse: Array = 1 / divisor.astype(np.float64)
    limits = np.finfo(divisor.dtype)
    size = np.abs(inverse)
    return inverse if np.all(size <= limits.max) and np.all(size >= limits.tiny) else None


def _add_up(draft: Draft, node: Node) -> None:
    shapes = [draft.shape(name) for name in node.inputs]
    if len(shapes) < 2 or draft.dtype(node.outputs[0]) not in FLOATS:
        return
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return
    chain = Chain(draft, node, node.inputs[0])
    for position, name in enumerate(node.inputs[1:], 2):
        chain.then("Add", np.broadcast_shapes(*known[:position]), name)
    chain.end(f"Sum → {len(shapes) - 1} Add")


def _raise_slope(draft: Draft, node: Node) -> None:
    shape, slope = draft.image(node.inputs[0]), draft.value(node.inputs[1])
    if shape is None or slope is None or slope.ndim == 4:
        return
    chain = Chain(draft, node, node.inputs[0])
    chain.then("PRelu", shape, chain.store(slope.reshape((1,) * (4 - slope.ndim) + slope.shape), "slope"))
    chain.end(f"slope {list(slope.shape)} → 4 dimensions")


negate = each("neg", {"Neg": _negate})
subtract = each("sub", {"Sub": _subtract})
divide = each("div", {"Div": _divide})
add_up = each("sum", {"Sum": _add_up})
raise_slope = each("prelu-slope", {"PRelu": _raise_slope})
