"""Retries after a failed build: with plain inputs, larger pools, smaller DLA regions, and finally the GPU only.

:func:`next_attempt` is pure: it takes the earlier attempts and the last log.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from edgert.backend.tensorrt.build_process import BuildResult, CompileError
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Pools
from edgert.backend.tensorrt.log import LogRecord, foreign_ends

Rung = Literal["", "plain", "pools", "split", "bisect", "gpu"]
Placement = Mapping[str, str]

_DEFAULTS = {"dla_sram_bytes": 1 << 20, "dla_local_bytes": 1 << 30, "dla_global_bytes": 512 << 20}
"""TensorRT's default pools since 8.6: NVIDIA's page on DLA memory pools."""
_LARGEST = {"dla_sram_bytes": 4 << 20, "dla_local_bytes": 4 << 30, "dla_global_bytes": 2 << 30}
"""Four times the defaults, which every board with a DLA has. TensorRT spills SRAM beyond the chip's size to DRAM."""
_MAX_SEARCHES = 2
"""Number of nodes that are searched for one by one. Then complete regions move to the GPU, as builds take minutes."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to build an engine.

    Attributes:
        rung: kind of retry; empty for the first attempt.
        base: placement to which a search returns.
        suspects: nodes on the DLA, one of which is the cause if this attempt fails.
    """

    pools: Pools
    placement: Placement
    rung: Rung = ""
    reason: str = ""
    base: Placement = field(default_factory=dict)
    suspects: tuple[str, ...] = ()
    optional: bool = False


def next_attempt(tried: Sequence[Attempt], log: Sequence[LogRecord], order: Sequence[str]) -> Attempt | None:
    """Return the next attempt, or None if the complete network was already tried on the GPU.

    A search halves the failing region, and moves one half to the GPU. If this does not help, that half moves back, and
    the other half is halved. ``order`` are the nodes in execution order; ``log`` is that of the last attempt.
    """
    last = tried[-1]
    if not _dla_nodes(last.placement, order):
        return None
    if last.optional:
        return replace(last, optional=False, rung="plain", reason="the DLA may not support the layout of its input")
    sizes = {name: getattr(last.pools, name) or default for name, default in _DEFAULTS.items()}
    doubled = {name: max(size, min(2 * size, _LARGEST[name])) for name, size in sizes.items()}
    larger = replace(last.pools, **doubled)
    if larger != last.pools and last.rung in ("", "plain"):
        return replace(last, pools=larger, rung="pools", reason="the DLA compiler may have run out of memory")
    if last.suspects:
        return _halve_suspects(last, last.base, last.suspects)
    base = last.base if last.rung == "split" else last.placement
    region = _logged_region(log, base, order) or _longest_region(base, order)
    rungs = [attempt.rung for attempt in tried]
    if len(region) > 2 and "split" not in rungs:
        middle = region[len(region) // 2]
        reason = f"a region of {len(region)} nodes is split at {middle!r}"
        return Attempt(last.pools, _move_to_gpu(base, [middle]), "split", reason, base)
    searches = sum(attempt.rung == "bisect" and not attempt.suspects for attempt in tried)
    if searches < _MAX_SEARCHES:
        return _halve_suspects(last, base, tuple(region))
    return Attempt(last.pools, _move_to_gpu(base, region), "gpu", f"all {len(region)} nodes of a region go to the GPU")


def _halve_suspects(last: Attempt, base: Placement, suspects: tuple[str, ...]) -> Attempt:
    """Return an attempt with the second half of the suspects on the GPU; a single one stays there."""
    middle = len(suspects) // 2
    half = suspects[middle:]
    names = repr(half[0]) + (f" to {half[-1]!r}" if len(half) > 1 else "")
    reason = f"looking for what cannot be built: {names} on the GPU"
    return Attempt(last.pools, _move_to_gpu(base, half), "bisect", reason, base, suspects[:middle])


def _move_to_gpu(base: Placement, names: Sequence[str]) -> Placement:
    return {**base, **dict.fromkeys(names, GPU)}


def _dla_nodes(placement: Placement, order: Sequence[str]) -> list[str]:
    return [name for name in order if placement.get(name, GPU) != GPU]


def _logged_region(log: Sequence[LogRecord], placement: Placement, order: Sequence[str]) -> list[str]:
    """Return the DLA nodes of the last region in the log that has no implementation, or was refused."""
    positions = {name: position for position, name in enumerate(order)}
    for record in reversed(log):
        ends = [positions[name] for name in foreign_ends(record.layer) or (record.layer,) if name in positions]
        if record.kind in ("implementation", "refused") and ends:
            return [name for name in _dla_nodes(placement, order) if min(ends) <= positions[name] <= max(ends)]
    return []


def _longest_region(placement: Placement, order: Sequence[str]) -> list[str]:
    runs = [list(run) for on_gpu, run in groupby(order, lambda name: placement.get(name, GPU) == GPU) if not on_gpu]
    return max(runs, key=len, default=[])


@dataclass(frozen=True, slots=True)
class RetriedBuild:
    """A built engine, and the attempts it took.

    Placement, pools and formats of the last attempt's request may differ from the original request.
    """

    result: BuildResult
    request: BuildRequest
    attempts: tuple[Attempt, ...]


def build_retrying(
    request: BuildRequest,
    build_once: Callable[[BuildRequest], BuildResult],
    report: Callable[[Attempt], object] = lambda attempt: None,
) -> RetriedBuild:
    """Build an engine, and retry with fewer demands if the compiler fails.

    Retries drop optional formats, enlarge pools, shrink DLA regions, and in the end use the GPU only. ``build_once``
    builds one request; ``report`` is called with each attempt but the first, before it. Raises CompileError: the last
    attempt, on the GPU, failed. Raises BuildError: a retry would fail as well: the request or the model is not
    supported, or the build was canceled.
    """
    required = {name: form for name, form in request.formats.items() if not form.optional}
    optional = len(required) < len(request.formats)
    attempt: Attempt | None = Attempt(request.pools, request.placement, optional=optional)
    tried: list[Attempt] = []
    error: CompileError | None = None
    while attempt is not None:
        if tried:
            report(attempt)
        formats = request.formats if attempt.optional else required
        requested = replace(request, pools=attempt.pools, placement=attempt.placement, formats=formats)
        try:
            return RetriedBuild(build_once(requested), requested, (*tried, attempt))
        except CompileError as failed:
            error = failed
            tried.append(attempt)
        attempt = next_attempt(tried, error.log, tuple(request.nodes))
    assert error is not None  # the ladder ends only after a failure
    raise error
