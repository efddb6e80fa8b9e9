"""Rewrites of Resize into the few forms that a DLA supports, where these sample the same pixels.

For a (N, C, H, W) tensor their ``scales`` are integers: nearest up to 32 (asymmetric with floor, or half_pixel), linear
up to 4 (half_pixel). A resize by the inverse of an integer becomes a pooling that skips pixels. A linear resize by one
half becomes the mean of four pixels. Source:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/dla-layer-restrictions.html.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dla import LIMITS
from edgert import limits
from edgert.graph.dla_rewrites.pooling import factors
from edgert.graph.draft import Chain, Draft, rewrite
from edgert.graph.ir import Node
from edgert.graph.operators import attribute_text

Positions = npt.NDArray[np.float64]
"""Sample positions of output pixels along one axis of the input (https://onnx.ai/onnx/operators/onnx__Resize.html)."""


_POSITIONS: Mapping[str, Callable[[Positions, int, int, float], Positions]] = {
    "half_pixel": lambda at, size, target, scale: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, size, target, scale: (at + 0.5) / scale - 0.5 if target > 1 else np.zeros(1),
    "asymmetric": lambda at, size, target, scale: at / scale,
    "align_corners": lambda at, size, target, scale: at * ((size - 1) / (target - 1)) if target > 1 else np.zeros(1),
}
"""Functions of output pixels, input size, output size and scale that return sample positions, by transformation."""
_ROUNDINGS: Mapping[str, Callable[[Positions], Positions]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
}


def modes(node: Node) -> tuple[str, str, str]:
    """Return (mode, coordinate transformation, rounding) of a Resize node."""
    names = (
        ("mode", "nearest"),
        ("coordinate_transformation_mode", "half_pixel"),
        ("nearest_mode", "round_prefer_floor"),
    )
    mode, transformation, rounding = (attribute_text(node, *name) for name in names)
    return mode, transformation, rounding


MAX_NEAREST, MAX_POOL_STRIDE = LIMITS["resize.nearest"].high, LIMITS["pool.stride"].high
"""Largest factor of one nearest resize, and of a pooling that skips pixels."""


@dataclass(frozen=True, slots=True)
class _Axis:
    size: int
    target: int
    scale: float
    at: Positions

    @property
    def factor(self) -> int:
        """Integer by which the axis grows; 0 where it does not."""
        return self.target // self.size if self.target % self.size == 0 else 0

    @property
    def divisor(self) -> int:
        """Integer by which the axis shrinks; 0 where it does not."""
        return self.size // self.target if self.size % self.target == 0 else 0

    @property
    def is_half_pixel(self) -> bool:
        """Whether sampling equals that of half_pixel."""
        usual = _POSITIONS["half_pixel"](np.arange(self.target, dtype=np.float64), self.size, self.target, self.factor)
        own, usual = (np.clip(at, 0, self.size - 1) for at in (self.at, usual))
        return bool(np.allclose(own, usual, atol=1e-6))


def _resize(draft: Draft, node: Node) -> None:
    shape, ends = draft.image(node.inputs[0]), draft.image(node.outputs[0])
    if shape is None or ends is None or shape[:2] != ends[:2]:
        return
    if not all(1 <= size <= limits.RESIZED_SIDE for size in (*shape[2:], *ends[2:])):
        return
    policy = node.attributes.get("keep_aspect_ratio_policy", b"stretch")  # other policies fit the image into the sizes
    if shape == ends or node.attributes.get("antialias", 0) or policy != b"stretch":
        return
    axes = _axes(draft, node, (shape[2], shape[3]), (ends[2], ends[3]))
    if axes is None:
        return
    mode, transformation, rounding = modes(node)
    if mode == "nearest" or all(axis.size == 1 for axis in axes):
        _nearest(draft, node, axes, rounding if mode == "nearest" else "floor")
    elif mode == "linear":
        _linear(draft, node, axes, transformation)


def _axes(draft: Draft, node: Node, size: tuple[int, int], target: tuple[int, int]) -> tuple[_Axis, _Axis] | None:
    scales = _scales(draft, node)
    mode = modes(node)[1]
    if mode not in _POSITIONS:
        return None
    found = []
    for axis in (0, 1):
        scale = target[axis] / size[axis] if scales is None else scales[axis]
        at = _POSITIONS[mode](np.arange(target[axis], dtype=np.float64), size[axis], target[axis], scale)
        found.append(_Axis(size[axis], target[axis], scale, at))
    return found[0], found[1]


def _scales(draft: Draft, node: Node) -> tuple[float, float] | None:
    """Return the scales of rows and columns; None where the node states sizes."""
    stored = draft.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if stored is None or stored.size != 4:
        return None  # scales of some axes only (opset 18): the sizes mean the same unless they were rounded
    return float(stored[2]), float(stored[3])


def _nearest(draft: Draft, node: Node, axes: tuple[_Axis, _Axis], rounding: str) -> None:
    rounded = _ROUNDINGS.get(rounding, _ROUNDINGS["round_prefer_floor"])
    taken = [np.clip(rounded(axis.at), 0, axis.size - 1) for axis in axes]
    if all(axis.factor and np.array_equal(index, np.arange(axis.target) // axis.factor)
           for axis, index in zip(axes, taken, strict=True)):  # fmt: skip
        if max(axis.factor for axis in axes) <= MAX_NEAREST and _is_supported_nearest(draft, node):
            return
        chain, by = Chain(draft, node), (axes[0].factor, axes[1].factor)
        count = append_nearest(draft, chain, by)
        if count:
            chain.end(f"nearest by {by[0]}x{by[1]}, asymmetric with floor, in {count} step(s)")
    elif all(axis.divisor and np.array_equal(index, np.arange(axis.target) * axis.divisor)
             for axis, index in zip(axes, taken, strict=True)):  # fmt: skip
        _skip_pixels(draft, node, axes)


def append_nearest(draft: Draft, chain: Chain, by: tuple[int, int]) -> int:
    """Append nearest resizes by integers that a DLA supports; return their number, 0 where they cannot be reached."""
    steps = [_split_factor(factor) for factor in by]
    shape = draft.image(chain.current)
    if min(map(len, steps)) == 0 or shape is None:
        return 0
    count = max(map(len, steps))
    rows, columns = ([1] * (count - len(step)) + step for step in steps)
    height, width = shape[2:]
    for row, column in zip(rows, columns, strict=True):
        height, width = height * row, width * column
        chain.then("Resize", (*shape[:2], height, width), *_resize_operands(chain, row, column), **_NEAREST)
    return count


_NEAREST = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}


def _is_supported_nearest(draft: Draft, node: Node) -> bool:
    mode, transformation, rounding = modes(node)
    allowed = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"))
    return mode == "nearest" and (transformation, rounding) in allowed and _scales(draft, node) is not None


def _split_factor(factor: int) -> list[int]:
    """Return the factor as factors of at most MAX_NEAREST; empty where it has a larger prime."""
    if factor <= MAX_NEAREST:
        return [factor]
    for part in range(MAX_NEAREST, 1, -1):
        if factor % part == 0:
            rest = _split_factor(factor // part)
            return [part, *rest] if rest else []
    return []


def _resize_operands(chain: Chain, rows: float, columns: float) -> tuple[str, str]:
    """Return the inputs of a Resize: no region, and scales, which are float32 for tensors of any type."""
    return "", chain.store_exact(np.array([1, 1, rows, columns], np.float32), "scales")


def _skip_pixels(draft: Draft, node: Node, axes: tuple[_Axis, _Axis]) -> None:
    rows, columns = (factors(axis.divisor) or [] for axis in axes)
    ends = draft.image(node.outputs[0])
    if not rows or not columns or ends is None or max(axis.divisor for axis in axes) > MAX_POOL_STRIDE:
        return
    strides = [axis.divisor for axis in axes]
    chain = Chain(draft, node).pool("MaxPool", ends, (1, 1), strides)
    chain.end(f"every {strides[0]}x{strides[1]}th pixel → MaxPool of one pixel")


def _linear(draft: Draft, node: Node, axes: tuple[_Axis, _Axis], transformation: str) -> None:
    ends = draft.image(node.outputs[0])
    if ends is None:
        return
    if all(axis.divisor == 2 and np.allclose(axis.at, np.arange(axis.target) * 2 + 0.5) for axis in axes):
        Chain(draft, node).pool("AveragePool", ends, (2, 2), (2, 2)).end("linear by one half → AveragePool 2x2")
        return
    is_plain = transformation == "half_pixel" and _scales(draft, node) is not None
    if is_plain or not all(axis.factor and axis.is_half_pixel for axis in axes):
        return
    chain = Chain(draft, node)
    given = {"mode": b"linear", "coordinate_transformation_mode": b"half_pixel"}
    chain.then("Resize", ends, *_resize_operands(chain, axes[0].factor, axes[1].factor), **given)
    chain.end(f"linear by {axes[0].factor}x{axes[1].factor}, half_pixel")


RESIZE = rewrite(
    "resize",
    "Resize gets whole scales and a mode that a DLA supports; by one half it becomes a pooling",
    {"Resize": _resize},
)
