"""Nodes for the DLA's rules, made without onnx."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dla import Node, Target, Tensor, Verdict, check

IMAGE = (1, 16, 32, 32)
ORIN = Target(2, "10.3", "fp16")
INT8 = Target(2, "10.3", "int8")
XAVIER = Target(1, "8.5.2", "fp16")
OLD = Target(2, "8.6.2", "fp16")
MIDDLE = Target(2, "8.6.12", "fp16")
TYPED = Target(2, "11.4.1", "int8")


@dataclass(frozen=True)
class Op(Node):
    name: str = "node"


def data(name: str, *shape: int | None, dtype: str = "float32") -> Tensor:
    """A tensor that is computed at run time."""
    return Tensor(name, shape, dtype)


def stored(name: str, *shape: int, values: Sequence[float] | None = None, dtype: str = "float32") -> Tensor:
    """A tensor that is there beforehand."""
    listed = None if values is None else tuple(values)
    return Tensor(name, shape, dtype, True, listed, None if listed is None else not any(listed))


def listed(name: str, *values: float, dtype: str = "int64") -> Tensor:
    return stored(name, len(values), values=values, dtype=dtype)


def unary(op: str, *more: Tensor | None, shape: Sequence[int | None] = IMAGE, **attributes: Any) -> Op:
    """``y = op(x, more…)``, of one shape."""
    return Op(op, (data("x", *shape), *more), (data("y", *shape),), attributes)


def binary(op: str, a: Tensor | None = None, b: Tensor | None = None, **attributes: Any) -> Op:
    first, second = a or data("a", *IMAGE), b or data("b", *IMAGE)
    return Op(op, (first, second), (data("y", *IMAGE),), attributes)


def conv(
    *,
    channels: int = 16,
    made: int = 16,
    kernel: tuple[int, int] = (3, 3),
    width: int = 32,
    group: int = 1,
    is_stored: bool = True,
    **attributes: Any,
) -> Op:
    """A Conv whose output has some size; the rules do not compute it."""
    shape = (made, channels // group, *kernel)
    weight = replace(stored("w", *shape), is_constant=is_stored)
    inputs = (data("x", 1, channels, 32, width), weight)
    return Op("Conv", inputs, (data("y", 1, made, 32, width),), {"group": group, **attributes})


def deconv(*, kernel: tuple[int, int] = (2, 2), channels: tuple[int, int] = (16, 8), **attributes: Any) -> Op:
    weight = stored("w", *channels, *kernel)
    return Op("ConvTranspose", (data("x", *IMAGE), weight), (data("y", 1, 8, 64, 64),), attributes)


def resize(*scales: float, opset: int = 17, **attributes: Any) -> Op:
    inputs = (data("x", *IMAGE), None, listed("scales", *scales, dtype="float32"))
    return replace(Op("Resize", inputs, (data("y", 1, 16, 64, 64),), attributes), opset=opset)


def answer(op: Op, target: Target = ORIN) -> str:
    return check(op, target).answer


def verdict(op: Op, target: Target = ORIN) -> Verdict:
    return check(op, target)
