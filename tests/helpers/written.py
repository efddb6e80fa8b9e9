"""A planned placement as a pipeline file says it."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.config.engine_choice import PlacementConfig, ReplicateConfig
from edgert.errors import PlacementError
from edgert.placement.plan_record import ModelRow
from edgert.placement.problem import Network

_CLOSE, _MOST = 0.03, 20
"""Weights are the smallest whole numbers whose shares are so close, of at most so many frames a turn."""


def as_written(row: ModelRow) -> PlacementConfig:
    """The value of ``placement:`` that runs a model as it was planned.

    Raises:
        PlacementError: frames would be dealt to engines that are split; files deal to whole models only.
    """
    used = [tuple(dict.fromkeys(engine.assignment)) for engine in row.engines]
    if len(used) == 1 and len(used[0]) == 1:
        return used[0][0]
    if len(used) == 1:
        return _globs(row.network, row.engines[0].assignment)
    if any(len(one) > 1 for one in used):
        raise PlacementError(
            f"the placement of {row.name} deals frames to {len(used)} engines, of which some are split",
            why="a pipeline file deals frames to whole models only",
            fix="solve with at most one segment per accelerator (loadables)",
        )
    shares = {one[0]: 0.0 for one in used}
    for (name,), engine in zip(used, row.engines, strict=True):
        shares[name] += engine.share
    weights = whole_weights(list(shares.values()))
    return ReplicateConfig(replicate={name: weight for name, weight in zip(shares, weights, strict=True) if weight})


def whole_weights(shares: Sequence[float]) -> list[int]:
    """The smallest whole numbers in about the proportion of the shares; the closest there are if none is close.

    ``[0.66, 0.34]`` → ``[2, 1]``.
    """
    total = sum(shares)
    parts = [share / total for share in shares]
    best: tuple[float, list[int]] = (2.0, [])
    for count in range(1, _MOST + 1):
        weights = [round(part * count) for part in parts]
        if not sum(weights):
            continue
        error = max(abs(weight / sum(weights) - part) for weight, part in zip(weights, parts, strict=True))
        if error <= _CLOSE:
            return weights
        best = min(best, (error, weights))
    return best[1]


def _globs(network: Network, assignment: Sequence[str]) -> dict[str, str]:
    """The accelerator of most nodes for all, and the other nodes by name."""
    places = {node: name for unit, name in zip(network.units, assignment, strict=True) for node in unit.nodes}
    counts = {name: list(places.values()).count(name) for name in places.values()}
    most = max(counts, key=lambda name: counts[name])
    return {"*": most, **{_plain(node): name for node, name in places.items() if name != most}}


def _plain(node: str) -> str:
    """A glob that fits this name alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in node)
