"""How often a placement delivers a frame, from what was measured of its parts alone and of the whole with company."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgert.graph.node import Graph
from edgert.place.partition import Part
from edgert.place.profile import Profile, tensor_bytes

_ROUNDS = 100  # far more than it takes to settle: each is the mean of the last and the next


def period_ms(busy_ms: Mapping[str, float], contention: Mapping[str, float]) -> float:
    """Milliseconds between frames of accelerators that work on different frames at the same time.

    The slowest one sets the pace. An accelerator works at 1/``contention`` of its speed while all others are busy; when
    they are busy for a part of the time only, it is slowed for that part. How busy they are depends on the pace, which
    is found by iteration.

    Args:
        busy_ms: accelerator → how long a frame keeps it busy, alone on the machine.
        contention: accelerator → how many times longer it takes when all others are busy.
    """
    period = max(busy_ms.values())
    slowed = dict(busy_ms)
    for _ in range(_ROUNDS):
        share = {name: ms / period for name, ms in slowed.items()}
        for name, ms in busy_ms.items():
            company = sum(part for other, part in share.items() if other != name) / max(1, len(contention) - 1)
            expected = ms / (1 - min(1.0, company) * (1 - 1 / contention[name]))
            slowed[name] = (slowed[name] + expected) / 2
        period = max(slowed.values())
    return period


def replicated_ms(profile: Profile, weights: Mapping[str, int], edge_ms: float = 0.0) -> float:
    """Milliseconds between frames that are dealt to accelerators by weight, each of which runs the whole model.

    Args:
        edge_ms: what else a frame costs where it is run: filling the input, reading the outputs.
    """
    busy = {name: weight * (profile.whole[name].alone_ms + edge_ms) for name, weight in weights.items()}
    return period_ms(busy, _contention(profile)) / sum(weights.values())


def split_ms(
    profile: Profile, graph: Graph, parts: Sequence[Part], first_ms: float = 0.0, last_ms: float = 0.0
) -> float:
    """Milliseconds between frames of a model whose parts work on different frames.

    Args:
        first_ms: what the first part does besides: filling the input.
        last_ms: what the last one does besides: reading the outputs.
    """
    busy = dict.fromkeys((part.accelerator for part in parts), 0.0)
    extra = {0: first_ms, len(parts) - 1: last_ms} if len(parts) > 1 else {0: first_ms + last_ms}
    for number, part in enumerate(parts):
        busy[part.accelerator] += part_ms(profile, graph, parts, number) + extra.get(number, 0.0)
    return period_ms(busy, _contention(profile))


def part_ms(profile: Profile, graph: Graph, parts: Sequence[Part], number: int) -> float:
    """How long one part takes, with its half of what is handed to it and by it."""
    part, handing = parts[number], profile.handing
    own = set(part.nodes)
    work = sum(unit.time_ms[part.accelerator] * len(own & set(unit.nodes)) / len(unit.nodes) for unit in profile.units)
    made_before = {name for other in parts[:number] for name in other.outputs}
    read_later = {name for other in parts[number + 1 :] for name in other.inputs}
    crossed = [*made_before.intersection(part.inputs), *read_later.intersection(part.outputs)]
    hops = (number > 0) + (number < len(parts) - 1)
    return (
        work + sum(handing.crossing_ms(tensor_bytes(graph, name)) for name in crossed) / 2 + hops * handing.hop_ms / 2
    )


def _contention(profile: Profile) -> dict[str, float]:
    return {name: whole.contention for name, whole in profile.whole.items()}
