"""Building until it works: the retry ladder climbed, each rung told before it is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgert.backend.trt.failure import CompileError
from edgert.backend.trt.ladder import Attempt, Failure, next_attempt
from edgert.backend.trt.request import BuildRequest
from edgert.backend.trt.result import BuildResult


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
    tell: Callable[[Attempt], object] = lambda attempt: None,
) -> Built:
    """Builds; after a failure of the compiler, without optional formats, with larger pools, smaller DLA regions, and
    in the end on the GPU.

    Args:
        once: builds one request, as :func:`~edgert.backend.trt.build.build` does.
        tell: called before every try but the first, with its reason.

    Raises:
        CompileError: that of the last try, on the GPU.
        BuildError: what another try would not change: a refusal, a bad model, a cancelled build.
    """
    optional = len(request.demanded) < len(request.formats)
    attempt: Attempt | None = Attempt(request.pools, request.placement, optional=optional)
    tried: list[tuple[Attempt, Failure]] = []
    error: CompileError | None = None
    while attempt is not None:
        if tried:
            tell(attempt)
        formats = request.formats if attempt.optional else request.demanded
        asked = replace(request, pools=attempt.pools, placement=attempt.placement, formats=formats)
        try:
            return Built(once(asked), asked, (*(one for one, _ in tried), attempt))
        except CompileError as failed:
            error = failed
            tried.append((attempt, Failure(tuple(failed.log), failed.crashed)))
        attempt = next_attempt(tried, tuple(request.nodes))
    assert error is not None  # the ladder ends only after a failure
    raise error
