"""What a segment keeps in memory."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dla.node import Node, Shape, Tensor, Wiring, constants, data_inputs, given, numbers, whole, word
from dla.rule import Target

# The window that a convolution or pooling slides over an image.

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
    image = given(node, 0)
    sides = _sides(image)
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


def _sides(image: Tensor | None) -> Pair | None:
    if image is None or image.shape is None or len(image.shape) != 4:
        return None
    high, wide = image.shape[2:]
    return None if high is None or wide is None else (high, wide)


def _pair(values: tuple[int, ...] | list[int]) -> Pair:
    return values[0], values[1]


# Orin stores operands that are no kernels in cells of 4 bytes, with the channels padded:
# https://github.com/NVIDIA/Deep-Learning-Accelerator-SW
_CELL_BYTES = 4
_CELL_CHANNELS = {"fp16": 16, "int8": 32}
_HALF_BYTES = 2
_KERNELS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class Footprint:
    """Sizes of segments of one graph.

    Args:
        wiring: the graph.
        target: decides how large a number is.
        outputs: tensors that leave the graph whoever else reads them.
    """

    def __init__(self, wiring: Wiring, target: Target, outputs: Collection[str]) -> None:
        self.wiring, self.target, self.outputs = wiring, target, outputs

    def weight_bytes(self, places: Sequence[int]) -> int:
        """Stored operands, each counted once."""
        sizes: dict[str, int] = {}
        for place in places:
            node = self.wiring.nodes[place]
            for position, tensor in enumerate(constants(node)):
                if tensor.dtype == "int64":
                    continue  # shapes and axes become part of the layer
                is_kernel = node.op in _KERNELS and position == 0
                sizes[tensor.name] = self._kernel(tensor) if is_kernel else self._cells(tensor)
        return sum(sizes.values())

    def inner_bytes(self, places: Sequence[int]) -> int:
        """Tensors that are made and read inside."""
        made = self._made(places)
        left = set(self.ends(places)[1])
        return sum((tensor.size or 0) * self.target.element_bytes for name, tensor in made.items() if name not in left)

    def ends(self, places: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tensors that are read from outside, and those that somebody outside reads."""
        made, inside = self._made(places), set(places)
        reads = [tensor for place in places for tensor in self.wiring.nodes[place].inputs if tensor is not None]
        inputs = dict.fromkeys(tensor.name for tensor in reads if not tensor.is_constant and tensor.name not in made)
        outputs = [name for name in made if self._leaves(name, inside)]
        return tuple(inputs), tuple(outputs)

    def with_folded(self, places: Sequence[int]) -> tuple[int, ...]:
        """These nodes and the folded ones between them."""
        inside = set(places)
        for place, gone in enumerate(self.wiring.folded):
            if gone and place not in inside and self._is_between(place, inside):
                inside.add(place)
        return tuple(sorted(inside))

    def _is_between(self, place: int, inside: set[int]) -> bool:
        """Whether a folded node reads from inside and everyone who reads it is inside, or folded in turn."""
        node = self.wiring.nodes[place]
        sources = [self.wiring.producers.get(tensor.name) for tensor in data_inputs(node)]
        readers = [one for made in node.outputs if made is not None for one in self.wiring.readers.get(made.name, [])]
        read_inside = bool(readers) and all(one in inside or self.wiring.folded[one] for one in readers)
        return bool(sources) and all(source in inside for source in sources) and read_inside

    def _made(self, places: Sequence[int]) -> dict[str, Tensor]:
        made = [tensor for place in places for tensor in self.wiring.nodes[place].outputs if tensor is not None]
        return {tensor.name: tensor for tensor in made if not tensor.is_constant}

    def _leaves(self, name: str, inside: set[int]) -> bool:
        readers = self.wiring.readers.get(name, [])
        return name in self.outputs or not readers or any(reader not in inside for reader in readers)

    def _kernel(self, tensor: Tensor) -> int:
        return (tensor.size or 0) * self.target.element_bytes

    def _cells(self, tensor: Tensor) -> int:
        """Factors, shifts, biases: FP16 on Xavier, padded cells on Orin."""
        if not self.target.is_orin:
            return (tensor.size or 0) * _HALF_BYTES
        channels = _channels(tensor.shape or ())
        return (tensor.size or 0) // channels * _up(channels, _CELL_CHANNELS[self.target.precision]) * _CELL_BYTES


def _channels(shape: Shape) -> int:
    """Channels of an operand: third from last, or all of a list."""
    return (shape[-3] if len(shape) >= 3 else shape[0] if len(shape) == 1 else 1) or 1


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
