"""Groups the nodes that the DLA can run into few segments, each of which becomes a loadable.

A segment must be convex: a path that leaves it and returns would make it wait for its own result. Segments joined by an
edge are therefore merged only if no other path connects them. All segments stay convex, and no two can be merged
further.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from dla.limit import GLOBAL_BYTES, LIMITS, LOCAL_BYTES
from dla.node import Answer, Node, Tensor, Verdict, Wiring, constants, data_inputs, data_tensors
from dla.rule import Target
from dla.rules.general import batch_of

MAX_LOADABLES = LIMITS["general.loadables"].high
"""Largest number of loadables on one core at a time, of all engines together."""

SURE: tuple[Answer, ...] = ("yes",)
# Orin stores operands other than kernels in cells of 4 bytes, with the channels padded:
# https://github.com/NVIDIA/Deep-Learning-Accelerator-SW
_CELL_BYTES = 4
_CELL_CHANNELS = {"fp16": 16, "int8": 32}
_FP16_BYTES = 2
_KERNELS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Region:
    """A segment of the graph.

    Attributes:
        places: positions of its nodes in ascending order, including folded nodes inside it.
        inputs: tensors from outside that it reads.
        outputs: tensors that are read outside, or are outputs of the graph.
        macs: multiply-adds of its nodes.
        weight_bytes: size of its stored operands in the loadable.
        inner_bytes: size of the tensors that are used only inside it.
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
    answers: Collection[Answer] = SURE,
    macs: Mapping[str, int] | None = None,
    outputs: Collection[str] = (),
    stranded: bool = True,
) -> tuple[Region, ...]:
    """Return few convex segments with all nodes that have these answers, in graph order.

    Args:
        nodes: nodes in topological order.
        verdicts: verdicts on the nodes.
        target: generation, release of TensorRT and precision.
        answers: answers of the nodes to include; ``("yes", "verify")`` assumes that the device accepts all doubtful
            nodes.
        macs: node name → multiply-adds.
        outputs: outputs of the graph that nodes of the graph also read.
        stranded: whether to keep segments without weights that read only results of the GPU. Examples are the slices
            and the Softmax of an attention, which otherwise stays on the GPU in one piece.
    """
    wiring = Wiring(nodes, verdicts)
    keys = [_batch_size(node) if verdict.answer in answers and not verdict.is_folded else -place
            for place, (node, verdict) in enumerate(zip(nodes, verdicts, strict=True))]  # fmt: skip
    segments = _Segments(wiring, target, frozenset(outputs), macs or {})
    groups = (group for group in convex_groups(wiring.before, keys) if keys[group[0]] > 0)
    found = [segments.region(part) for group in groups for part in segments.split(group)]
    placed = {place for one in found for place in one.places}
    kept = [one for one in found if stranded or not segments.is_stranded(one, placed)]
    return tuple(sorted(kept, key=lambda one: one.places))


def _batch_size(node: Node) -> int:
    """Return the batch size of a node's tensors; all nodes of a loadable have the same."""
    return max(filter(None, (batch_of(tensor.shape) for tensor in data_tensors(node))), default=1)


def convex_groups(before: Sequence[Sequence[int]], keys: Sequence[object], last: object = None) -> list[list[int]]:
    """Return connected groups of nodes with equal keys, each after those it reads, otherwise sorted by first node.

    Each node in turn joins the groups of the nodes it reads, unless that makes a cycle of groups.

    Args:
        before: for each node, the nodes whose results it reads; all come before it.
        keys: key of each node.
        last: key of the nodes that join after all others.
    """
    groups = _Groups(before, keys)
    for is_last in (False, True):
        groups.join(place for place, key in enumerate(keys) if (key == last) == is_last)
    return groups.in_order()


class _Groups:
    """A partition of the nodes that is merged step by step and never gets a cycle."""

    def __init__(self, before: Sequence[Sequence[int]], keys: Sequence[object]) -> None:
        self._before, self._keys = before, keys
        self._group = list(range(len(before)))
        self._members = {place: [place] for place in self._group}
        self._outside = {place: set(before[place]) for place in self._group}  # nodes of other groups that it reads

    def join(self, places: Iterable[int]) -> None:
        """Merge the groups of these nodes with those of the nodes they read."""
        for place in places:
            for read in self._before[place]:
                one, other = self._group[read], self._group[place]
                same = self._keys[read] == self._keys[place]
                if one != other and same and not (self._has_detour(one, other) or self._has_detour(other, one)):
                    self._merge(*sorted((one, other), key=lambda group: len(self._members[group])))

    def in_order(self) -> list[list[int]]:
        """Return the groups, each after those it reads, otherwise sorted by first node."""
        done: dict[int, None] = {}
        for group in sorted(self._members, key=lambda group: min(self._members[group])):
            stack = [group]
            while stack:
                missing = sorted(one for one in self._reads(stack[-1]) if one not in done)
                if missing:
                    stack += missing
                else:
                    done.setdefault(stack.pop())
        return [sorted(self._members[group]) for group in done]

    def _reads(self, group: int) -> set[int]:
        return {self._group[read] for read in self._outside[group]}

    def _has_detour(self, start: int, end: int) -> bool:
        waiting = list(self._reads(end) - {start})
        seen = set(waiting)
        while waiting:
            fresh = self._reads(waiting.pop()) - seen
            if start in fresh:
                return True
            seen |= fresh
            waiting += fresh
        return False

    def _merge(self, small: int, large: int) -> None:
        for place in self._members[small]:
            self._group[place] = large
        self._members[large] += self._members.pop(small)
        reads = self._outside[large] | self._outside.pop(small)
        self._outside[large] = {read for read in reads if self._group[read] != large}


@dataclass(frozen=True)
class _Segments:
    """Builds the segments of one graph and computes their sizes.

    Attributes:
        wiring: edges of the graph.
        target: target, whose precision decides the size of a number.
        outputs: outputs of the graph.
        macs: node name → multiply-adds.
    """

    wiring: Wiring
    target: Target
    outputs: Collection[str]
    macs: Mapping[str, int]

    def split(self, places: Sequence[int]) -> list[list[int]]:
        """Split a segment into parts that fit both memory pools; a single node may still be too large.

        A part is convex, since it is a run of a convex segment in topological order.
        """
        if self._fits_memory(places):
            return [list(places)]
        runs: list[list[int]] = [[]]
        for place in places:
            if runs[-1] and not self._fits_memory([*runs[-1], place]):
                runs.append([])
            runs[-1].append(place)
        return [part for run in runs for part in self._connected_parts(run)]

    def region(self, part: Sequence[int]) -> Region:
        """Return the region of some nodes, including the folded nodes between them."""
        inside = set(part)
        waiting = [one for place in part for one in self._folded_readers(place)]
        heapify(waiting)
        while waiting:  # in graph order: the sources of a folded node come first
            if (place := heappop(waiting)) not in inside and self._is_between(place, inside):
                inside.add(place)
                for one in self._folded_readers(place):
                    heappush(waiting, one)
        places = tuple(sorted(inside))
        made = self._computed_tensors(places)
        reads = [tensor for place in places for tensor in self.wiring.nodes[place].inputs if tensor is not None]
        inputs = dict.fromkeys(tensor.name for tensor in reads if not tensor.is_constant and tensor.name not in made)
        return Region(
            places=places,
            inputs=tuple(inputs),
            outputs=tuple(name for name in made if self._is_read_outside(name, inside)),
            macs=sum(self.macs.get(self.wiring.nodes[place].name, 0) for place in part),
            weight_bytes=self._weight_bytes(part),
            inner_bytes=self._inner_bytes(places),
        )

    def is_stranded(self, one: Region, placed: Collection[int]) -> bool:
        """Return whether a segment has no weights, and reads only results of nodes that are not in ``placed``."""
        wiring = self.wiring
        if any(wiring.nodes[place].op in _KERNELS for place in one.places):
            return False
        sources = {source for place in one.places for source in wiring.before[place]} - set(one.places)
        return bool(one.inputs) and all(name in wiring.producers for name in one.inputs) and sources.isdisjoint(placed)

    def _fits_memory(self, places: Sequence[int]) -> bool:
        return self._weight_bytes(places) < GLOBAL_BYTES and self._inner_bytes(places) < LOCAL_BYTES

    def _connected_parts(self, run: Sequence[int]) -> list[list[int]]:
        left, parts = set(run), []
        while left:
            part, waiting = [], [left.pop()]
            while waiting:
                place = waiting.pop()
                part.append(place)
                near = {*self.wiring.before[place], *self.wiring.after[place]} & left
                left -= near
                waiting.extend(near)
            parts.append(sorted(part))
        return sorted(parts)

    def _weight_bytes(self, places: Sequence[int]) -> int:
        """Return the size of stored operands, each counted once. Shapes and axes (int64) become part of the layer."""
        sizes = {
            tensor.name: self._stored_bytes(tensor, self.wiring.nodes[place].op in _KERNELS and position == 0)
            for place in places
            for position, tensor in enumerate(constants(self.wiring.nodes[place]))
            if tensor.dtype != "int64"
        }
        return sum(sizes.values())

    def _stored_bytes(self, tensor: Tensor, is_kernel: bool) -> int:
        """Return the size of a stored operand. Factors and biases are FP16 on Xavier, and padded cells on Orin."""
        size, shape = tensor.size or 0, tensor.shape or ()
        if is_kernel:
            return size * self.target.element_bytes
        if not self.target.is_orin:
            return size * _FP16_BYTES
        channels = (shape[-3] if len(shape) >= 3 else shape[0] if len(shape) == 1 else 1) or 1
        unit = _CELL_CHANNELS[self.target.precision]
        return size // channels * -(-channels // unit) * unit * _CELL_BYTES

    def _inner_bytes(self, places: Sequence[int]) -> int:
        inside = set(places)
        stay = [
            tensor for name, tensor in self._computed_tensors(places).items() if not self._is_read_outside(name, inside)
        ]
        return sum((tensor.size or 0) * self.target.element_bytes for tensor in stay)

    def _folded_readers(self, place: int) -> list[int]:
        names = [tensor.name for tensor in self.wiring.nodes[place].outputs if tensor is not None]
        return [one for name in names for one in self.wiring.readers.get(name, ()) if self.wiring.folded[one]]

    def _is_between(self, place: int, inside: set[int]) -> bool:
        """Return whether a folded node reads only from inside, and is read only by inside or folded nodes."""
        node = self.wiring.nodes[place]
        sources = [self.wiring.producers.get(tensor.name) for tensor in data_inputs(node)]
        readers = [one for made in node.outputs if made is not None for one in self.wiring.readers.get(made.name, [])]
        read_inside = bool(readers) and all(one in inside or self.wiring.folded[one] for one in readers)
        return bool(sources) and all(source in inside for source in sources) and read_inside

    def _computed_tensors(self, places: Sequence[int]) -> dict[str, Tensor]:
        made = [tensor for place in places for tensor in self.wiring.nodes[place].outputs if tensor is not None]
        return {tensor.name: tensor for tensor in made if not tensor.is_constant}

    def _is_read_outside(self, name: str, inside: set[int]) -> bool:
        readers = self.wiring.readers.get(name, [])
        return name in self.outputs or not readers or any(reader not in inside for reader in readers)
