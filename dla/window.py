"""The window that a convolution or pooling slides over a picture."""

from __future__ import annotations

from dataclasses import dataclass

from dla.node import Node, Tensor, given, numbers, whole, word

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Height before width everywhere.

    Attributes:
        kernel, stride, dilation: in pixels.
        begin, end: padding before and after; None where it depends on a size that is not known.
    """

    kernel: Pair
    stride: Pair
    dilation: Pair
    begin: Pair | None
    end: Pair | None

    @property
    def padding(self) -> tuple[int, ...]:
        """All paddings that are known."""
        return (*(self.begin or ()), *(self.end or ()))

    @property
    def reach(self) -> Pair:
        """Pixels between the window's first and last, both counted."""
        high, wide = (dilation * (kernel - 1) + 1 for kernel, dilation in zip(self.kernel, self.dilation, strict=True))
        return high, wide


def window(node: Node) -> Window | None:
    """A node's window; None where it is not two-dimensional or not known."""
    weight = given(node, 1)
    stored = weight.shape[2:] if weight is not None and weight.shape is not None else ()
    kernel = node.attributes.get("kernel_shape", stored)
    if len(kernel) != 2 or None in kernel:
        return None
    high, wide = map(int, kernel)
    stride, dilation = numbers(node, "strides", (1, 1)), numbers(node, "dilations", (1, 1))
    pads = numbers(node, "pads", (0, 0, 0, 0))
    if len(stride) != 2 or len(dilation) != 2 or len(pads) != 4:
        return None
    bare = Window((high, wide), _pair(stride), _pair(dilation), _pair(pads[:2]), _pair(pads[2:]))
    return _padded(node, bare)


def _padded(node: Node, bare: Window) -> Window:
    """Padding as it will be: what SAME stands for, and what rounding the size up adds at the end."""
    mode = word(node, "auto_pad", "NOTSET")
    picture = given(node, 0)
    sides = _sides(picture)
    if min(bare.stride) < 1:
        return bare
    if mode == "VALID":
        return Window(bare.kernel, bare.stride, bare.dilation, (0, 0), (0, 0))
    if mode.startswith("SAME"):
        if sides is None:
            return Window(bare.kernel, bare.stride, bare.dilation, None, None)
        totals = [max((-(-size // step) - 1) * step + reach - size, 0) for size, step, reach in _axes(sides, bare)]
        small = _pair([total // 2 for total in totals])
        large = _pair([total - total // 2 for total in totals])
        begin, end = (large, small) if mode == "SAME_LOWER" else (small, large)
        return Window(bare.kernel, bare.stride, bare.dilation, begin, end)
    if not whole(node, "ceil_mode", 0) or sides is None or bare.begin is None or bare.end is None:
        return bare
    paired = zip(_axes(sides, bare), bare.begin, bare.end, strict=True)
    end = _pair([last + (reach - size - first - last) % step for (size, step, reach), first, last in paired])
    return Window(bare.kernel, bare.stride, bare.dilation, bare.begin, end)


def _axes(sides: Pair, bare: Window) -> list[tuple[int, int, int]]:
    return list(zip(sides, bare.stride, bare.reach, strict=True))


def _sides(picture: Tensor | None) -> Pair | None:
    if picture is None or picture.shape is None or len(picture.shape) != 4:
        return None
    high, wide = picture.shape[2:]
    return None if high is None or wide is None else (high, wide)


def _pair(values: tuple[int, ...] | list[int]) -> Pair:
    return values[0], values[1]
