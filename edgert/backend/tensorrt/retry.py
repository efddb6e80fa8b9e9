"""Fallbacks after a failed build: plain inputs, larger pools, smaller DLA regions, and finally the GPU alone.

Pure: what was tried and the last log go in, the next try comes out. Who builds decides whether to go on.
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
"""TensorRT's own pools since 8.6: NVIDIA's page on DLA memory pools."""
_LARGEST = {"dla_sram_bytes": 4 << 20, "dla_local_bytes": 4 << 30, "dla_global_bytes": 2 << 30}
"""Four times as much, which every board with a DLA has; SRAM beyond the chip's is spilled, not refused."""
_FOUND = 2
"""Nodes that are searched for one by one. Beyond, regions go to the GPU: builds take minutes each."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try.

    Attributes:
        pools: memory limits.
        placement: node → accelerator.
        rung: what is tried; empty for the first.
        reason: the same in words.
        base: placement that a search goes back to.
        suspects: nodes on the DLA one of which is to blame if this try fails.
        optional: whether optional formats are asked for.
    """

    pools: Pools
    placement: Placement
    rung: Rung = ""
    reason: str = ""
    base: Placement = field(default_factory=dict)
    suspects: tuple[str, ...] = ()
    optional: bool = False


def next_attempt(tried: Sequence[Attempt], log: Sequence[LogRecord], order: Sequence[str]) -> Attempt | None:
    """Return the next attempt, or None when the complete network was already tried on the GPU.

    A search halves the blamed region: one half goes to the GPU. If that does not help, it comes back, and the other
    half is halved.

    Args:
        tried: the attempts so far, in order, at least one.
        log: of the last one.
        order: the nodes in the order they run.
    """
    last = tried[-1]
    if not _on_dla(last.placement, order):
        return None
    if last.optional:
        return replace(last, optional=False, rung="plain", reason="a DLA may not take the layout of its input")
    sizes = {name: getattr(last.pools, name) or default for name, default in _DEFAULTS.items()}
    doubled = {name: max(size, min(2 * size, _LARGEST[name])) for name, size in sizes.items()}
    larger = replace(last.pools, **doubled)
    if larger != last.pools and last.rung in ("", "plain"):
        return replace(last, pools=larger, rung="pools", reason="the DLA compiler may have run out of memory")
    if last.suspects:
        return _halved(last, last.base, last.suspects)
    base = last.base if last.rung == "split" else last.placement
    region = _blamed(log, base, order) or _longest(base, order)
    rungs = [attempt.rung for attempt in tried]
    if len(region) > 2 and "split" not in rungs:
        middle = region[len(region) // 2]
        reason = f"a region of {len(region)} nodes is split at {middle!r}"
        return Attempt(last.pools, _moved(base, [middle]), "split", reason, base)
    found = sum(attempt.rung == "bisect" and not attempt.suspects for attempt in tried)
    if found < _FOUND:
        return _halved(last, base, tuple(region))
    return Attempt(last.pools, _moved(base, region), "gpu", f"all {len(region)} nodes of a region go to the GPU")


def _halved(last: Attempt, base: Placement, suspects: tuple[str, ...]) -> Attempt:
    """Move the second half of the suspects to the GPU, or the only one for good."""
    middle = len(suspects) // 2
    half = suspects[middle:]
    names = repr(half[0]) + (f" to {half[-1]!r}" if len(half) > 1 else "")
    reason = f"looking for what cannot be built: {names} on the GPU"
    return Attempt(last.pools, _moved(base, half), "bisect", reason, base, suspects[:middle])


def _moved(base: Placement, names: Sequence[str]) -> Placement:
    return {**base, **dict.fromkeys(names, GPU)}


def _on_dla(placement: Placement, order: Sequence[str]) -> list[str]:
    return [name for name in order if placement.get(name, GPU) != GPU]


def _blamed(log: Sequence[LogRecord], placement: Placement, order: Sequence[str]) -> list[str]:
    """Return nodes on the DLA of the region that no implementation was found for."""
    places = {name: position for position, name in enumerate(order)}
    for record in reversed(log):
        ends = foreign_ends(record.layer) or (record.layer,)
        known = [places[name] for name in ends if name in places]
        if record.kind in ("implementation", "refused") and known:
            return [name for name in _on_dla(placement, order) if min(known) <= places[name] <= max(known)]
    return []


def _longest(placement: Placement, order: Sequence[str]) -> list[str]:
    """Return the longest run of nodes on the DLA."""
    runs = [list(run) for on_gpu, run in groupby(order, lambda name: placement.get(name, GPU) == GPU) if not on_gpu]
    return max(runs, key=len, default=[])


# Building until it works: each rung of the ladder is reported before it is tried.


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and what it took.

    Attributes:
        result: the engine.
        request: what was built in the end; its placement, pools and formats may differ from what was asked for.
        attempts: every try, the successful one last.
    """

    result: BuildResult
    request: BuildRequest
    attempts: tuple[Attempt, ...]


def build_retrying(
    request: BuildRequest,
    once: Callable[[BuildRequest], BuildResult],
    report: Callable[[Attempt], object] = lambda attempt: None,
) -> Built:
    """Build; after a failure of the compiler retry with fewer demands.

    Retries drop optional formats, enlarge pools, shrink DLA regions, and in the end use the GPU only.

    Args:
        request: what to build.
        once: builds one request, as :func:`~edgert.backend.tensorrt.build_process.build` does.
        report: gets every attempt but the first, before it.

    Raises:
        CompileError: of the last attempt, on the GPU.
        BuildError: what a retry would not change: a refusal, a bad model, a canceled build.
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
            return Built(once(requested), requested, (*tried, attempt))
        except CompileError as failed:
            error = failed
            tried.append(attempt)
        attempt = next_attempt(tried, error.log, tuple(request.nodes))
    assert error is not None  # the ladder ends only after a failure
    raise error
