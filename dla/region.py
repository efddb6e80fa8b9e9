"""Nodes that the DLA can run, grown into few segments; each is one loadable.

A segment must be convex: no path may leave it and come back, or it would wait for its own result. Nodes get levels such
that no edge goes down and every change between what may and may not run here goes up; what hangs together on one level
is convex, for a path between two of its nodes cannot leave the level. Segments that an edge joins are then merged
wherever no other path connects them, which keeps all of them convex and leaves none that could still be merged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dla.footprint import Footprint
from dla.limit import GLOBAL_BYTES, LIMITS, LOCAL_BYTES
from dla.node import Node, Wiring, data_tensors
from dla.rule import Target
from dla.rules.general import batch_of
from dla.verdict import Answer, Verdict

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
