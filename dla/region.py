"""Nodes that the DLA can run, grown into few segments; each is one loadable.

A segment must be convex: no path may leave it and come back, or it would wait for its own result. Nodes get levels such
that no edge goes down and every change between what may and may not run here goes up; what hangs together on one level
is convex, for a path between two of its nodes cannot leave the level. Segments that an edge joins are then merged
wherever no other path connects them, which keeps all of them convex and leaves none that could still be merged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dla.limit import GLOBAL_BYTES, LIMITS, LOCAL_BYTES
from dla.node import (
    Answer,
    Node,
    Shape,
    Tensor,
    Verdict,
    Wiring,
    constants,
    data_inputs,
    data_tensors,
    given,
    numbers,
    whole,
    word,
)
from dla.rule import Target
from dla.rules.general import batch_of

# What a segment keeps in memory.

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


# Segments that are too large for the DLA's memory pools, cut into some that fit.


def split(places: Sequence[int], wiring: Wiring, footprint: Footprint) -> list[list[int]]:
    """The segment, or parts that each stay below both pools where a single node does.

    A part is a run of a convex segment in an order in which every node follows those it reads, so it is convex.
    """
    if _fits(places, footprint):
        return [list(places)]
    runs: list[list[int]] = [[]]
    for place in places:
        if runs[-1] and not _fits([*runs[-1], place], footprint):
            runs.append([])
        runs[-1].append(place)
    return [part for run in runs for part in _connected(run, wiring)]


def _fits(places: Sequence[int], footprint: Footprint) -> bool:
    return footprint.weight_bytes(places) < GLOBAL_BYTES and footprint.inner_bytes(places) < LOCAL_BYTES


def _connected(run: Sequence[int], wiring: Wiring) -> list[list[int]]:
    """Parts of a run that hang together."""
    left, parts = set(run), []
    while left:
        part, waiting = [], [left.pop()]
        while waiting:
            place = waiting.pop()
            part.append(place)
            near = {*wiring.before[place], *wiring.after[place]} & left
            left -= near
            waiting.extend(near)
        parts.append(sorted(part))
    return sorted(parts)


MAX_LOADABLES = LIMITS["general.loadables"].high
"""Loadables that one core holds at a time, over all engines that use it."""


_SURE: tuple[Answer, ...] = ("yes",)


@dataclass(frozen=True, slots=True)
class Region:
    """One segment.

    Attributes:
        places: of its nodes, ascending; folded ones inside it too.
        inputs: tensors it reads from outside.
        outputs: tensors that are read outside, or are outputs of the graph.
        macs: multiply-adds of its nodes.
        weight_bytes: of its stored operands, as the loadable holds them.
        inner_bytes: of the tensors that stay inside.
    """

    places: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: int
    weight_bytes: int
    inner_bytes: int


def regions(
    nodes: Sequence[Node],
    verdicts: Sequence[Verdict],
    target: Target,
    *,
    answers: Collection[Answer] = _SURE,
    macs: Mapping[str, int] | None = None,
    outputs: Collection[str] = (),
    min_nodes: int = 1,
    min_macs: int = 0,
    at_most: int | None = None,
) -> tuple[Region, ...]:
    """Few convex segments that hold the nodes with these answers, in graph order.

    Args:
        nodes: each after those it reads.
        verdicts: of the nodes.
        target: generation, release of TensorRT and precision.
        answers: ``("yes", "verify")`` shows what there would be if every doubt turned out well.
        macs: node name → multiply-adds.
        outputs: outputs of the graph that are also read inside it.
        min_nodes: segments of fewer layers are left to the GPU: handing tensors over costs more than they save.
        min_macs: so are segments with fewer multiply-adds.
        at_most: how many to keep, those with the most work; None for all.
    """
    wiring = Wiring(nodes, verdicts)
    keys = _keys(nodes, verdicts, answers)
    footprint = Footprint(wiring, target, frozenset(outputs))
    whole = _merged(_levelled(wiring, keys), wiring, keys)
    parts = [part for group in whole for part in split(group, wiring, footprint)]
    found = [_region(wiring, footprint, part, macs or {}) for part in parts]
    kept = [one for one in found if one.macs >= min_macs and _layers(wiring, one) >= min_nodes]
    if at_most is not None:
        kept = sorted(kept, key=lambda one: (-one.macs, -len(one.places)))[:at_most]
    return tuple(sorted(kept, key=lambda one: one.places))


def _keys(nodes: Sequence[Node], verdicts: Sequence[Verdict], answers: Collection[Answer]) -> list[int | None]:
    """Batch of every node that may run here (a loadable has one batch), None for the others."""
    keys: list[int | None] = []
    for node, verdict in zip(nodes, verdicts, strict=True):
        batches = [batch_of(tensor.shape) for tensor in data_tensors(node)]
        fits = verdict.answer in answers and not verdict.is_folded
        keys.append(max(filter(None, batches), default=1) if fits else None)
    return keys


def _levelled(wiring: Wiring, keys: Sequence[int | None]) -> list[list[int]]:
    """What hangs together on one level, as lists of places."""
    levels: list[int] = []
    groups: dict[int, list[int]] = {}
    home: list[int] = []
    for place, before in enumerate(wiring.before):
        levels.append(max((levels[one] + (keys[one] != keys[place]) for one in before), default=0))
        home.append(place)
        groups[place] = [place]
        if keys[place] is None:
            continue
        for one in before:
            if levels[one] == levels[place] and home[one] != home[place]:
                _absorb(groups, home, home[place], home[one])
    return [group for first, group in groups.items() if keys[first] is not None]


def _absorb(groups: dict[int, list[int]], home: list[int], one: int, other: int) -> None:
    """Puts the smaller group into the larger."""
    small, large = sorted((one, other), key=lambda name: len(groups[name]))
    for place in groups[small]:
        home[place] = large
    groups[large] += groups.pop(small)


def _merged(groups: list[list[int]], wiring: Wiring, keys: Sequence[int | None]) -> list[list[int]]:
    home = list(range(len(keys)))
    members = {min(group): sorted(group) for group in groups}
    for first, group in members.items():
        for place in group:
            home[place] = first
    while True:
        pairs = {(home[one], home[place]) for place, before in enumerate(wiring.before) for one in before}
        pairs = {(a, b) for a, b in pairs if a != b and keys[a] is not None and keys[a] == keys[b]}
        heavy_first = sorted(pairs, key=lambda pair: (-len(members[pair[0]]) - len(members[pair[1]]), pair))
        free = next((pair for pair in heavy_first if not _detour(*pair, members, home, wiring)), None)
        if free is None:
            return list(members.values())
        a, b = free
        for place in members[b]:
            home[place] = a
        members[a] = sorted(members[a] + members.pop(b))


def _detour(a: int, b: int, members: Mapping[int, list[int]], home: Sequence[int], wiring: Wiring) -> bool:
    """Whether a path from group a to group b goes through something else."""
    last = members[b][-1]
    waiting = [place for one in members[a] for place in wiring.after[one] if home[place] not in (a, b)]
    seen: set[int] = set()
    while waiting:
        place = waiting.pop()
        group = home[place]
        if group in seen:
            continue
        seen.add(group)
        inside = members.get(group, [group])
        if inside[0] > last:
            continue
        for one in inside:
            for reader in wiring.after[one]:
                if home[reader] == b:
                    return True
                if home[reader] != a:
                    waiting.append(reader)
    return False


def _layers(wiring: Wiring, region: Region) -> int:
    return sum(not wiring.folded[place] for place in region.places)


def _region(wiring: Wiring, footprint: Footprint, part: Sequence[int], macs: Mapping[str, int]) -> Region:
    places = footprint.with_folded(part)
    inputs, outputs = footprint.ends(places)
    return Region(
        places=places,
        inputs=inputs,
        outputs=outputs,
        macs=sum(macs.get(wiring.nodes[place].name, 0) for place in part),
        weight_bytes=footprint.weight_bytes(part),
        inner_bytes=footprint.inner_bytes(places),
    )
