"""How long a part of a model takes, from what was measured of its units."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.graph.operations import Graph
from edgert.placement.cutting import Part
from edgert.placement.profile import Profile, tensor_bytes


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
        work + sum(handing.transition_ms(tensor_bytes(graph, name)) for name in crossed) / 2 + hops * handing.hop_ms / 2
    )
