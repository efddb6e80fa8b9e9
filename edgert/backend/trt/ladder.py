"""What to try after a build has failed: larger pools, then smaller DLA regions, in the end the GPU.

Pure: the plan so far and how it failed go in, the next one comes out. Who builds decides whether to go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgert.backend.trt.log import LogRecord, foreign_ends
from edgert.backend.trt.pool import Pools
from edgert.backend.trt.request import GPU

Rung = Literal["pools", "split", "bisect", "gpu"]

_DEFAULTS = {"dla_sram_bytes": 1 << 20, "dla_local_bytes": 1 << 30, "dla_global_bytes": 512 << 20}
"""TensorRT's own since 8.6: NVIDIA's page on DLA memory pools."""
_LARGEST = {"dla_sram_bytes": 4 << 20, "dla_local_bytes": 4 << 30, "dla_global_bytes": 2 << 30}
"""Four times as much, which no board with a DLA lacks; SRAM beyond what the chip has is spilled, not refused."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try.

    Attributes:
        pools: memory limits.
        placement: node → accelerator.
        rung: why it is tried; empty for the first.
        reason: the same in words.
    """

    pools: Pools
    placement: Mapping[str, str]
    rung: Rung | Literal[""] = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a try ended.

    Attributes:
        log: its records.
        crashed: whether the compiler took its process down.
    """

    log: tuple[LogRecord, ...] = ()
    crashed: bool = False


def next_attempt(tried: Sequence[tuple[Attempt, Failure]], order: Sequence[str]) -> Attempt | None:
    """The next try, or None when the whole network was already tried on the GPU.

    Args:
        tried: what was tried and how it failed, in order; at least one.
        order: the nodes in the order they run.
    """
    last, failure = tried[-1]
    on_dla = [name for name in order if last.placement.get(name, GPU) != GPU]
    if not on_dla:
        return None
    larger = _larger(last.pools)
    if larger != last.pools and not any(attempt.rung for attempt, _ in tried):
        return Attempt(larger, last.placement, "pools", "the DLA compiler may have run out of memory: larger pools")
    region = _blamed(failure.log, on_dla, order) or _longest(last.placement, order)
    splits = sum(attempt.rung == "split" for attempt, _ in tried)
    if len(region) > 2 and not splits:
        middle = region[len(region) // 2]
        return _moved(last, (middle,), "split", f"a region of {len(region)} nodes is split at {middle!r}")
    if len(region) > 1:
        half = region[len(region) // 2 :]
        return _moved(last, half, "bisect", f"{len(half)} of {len(region)} nodes go to the GPU, from {half[0]!r} on")
    rung: Rung = "gpu" if len(on_dla) == len(region) else "bisect"
    return _moved(last, region, rung, f"node {region[0]!r} goes to the GPU")


def _larger(pools: Pools) -> Pools:
    """Every DLA pool doubled, up to a limit."""
    sizes = {name: getattr(pools, name) or default for name, default in _DEFAULTS.items()}
    return replace(pools, **{name: max(size, min(2 * size, _LARGEST[name])) for name, size in sizes.items()})


def _moved(last: Attempt, names: Sequence[str], rung: Rung, reason: str) -> Attempt:
    return Attempt(last.pools, {**last.placement, **dict.fromkeys(names, GPU)}, rung, reason)


def _blamed(log: Sequence[LogRecord], on_dla: Sequence[str], order: Sequence[str]) -> list[str]:
    """Nodes on the DLA of the region that no implementation was found for."""
    places = {name: position for position, name in enumerate(order)}
    for record in reversed(log):
        ends = foreign_ends(record.layer) if record.kind == "implementation" else ()
        known = [places[name] for name in ends or (record.layer,) if name in places]
        if record.kind in ("implementation", "refused") and known:
            return [name for name in on_dla if min(known) <= places[name] <= max(known)]
    return []


def _longest(placement: Mapping[str, str], order: Sequence[str]) -> list[str]:
    """The longest run of nodes on the DLA."""
    longest: list[str] = []
    run: list[str] = []
    for name in order:
        run = [*run, name] if placement.get(name, GPU) != GPU else []
        longest = max(longest, run, key=len)
    return longest
