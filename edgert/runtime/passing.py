"""What stages do with results on their way through a pipeline, and no program that reads results has to know."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from edgert.runtime.frame import has_pixels
from edgert.runtime.frame import without_pixels as frame_without_pixels
from edgert.runtime.records import Result


def merged(first: Result, second: Result) -> Result:
    """Join two results of one frame into one, with pixels if either has any."""
    image = second.image if first.image is None else first.image
    frame = first.frame if has_pixels(first.frame) else second.frame
    return replace(first, frame=frame, outputs={**first.outputs, **second.outputs}, image=image)


def without_outputs(result: Result, stages: Collection[str]) -> Result:
    """Return the result without the records of these stages."""
    return replace(result, outputs={name: record for name, record in result.outputs.items() if name not in stages})


def without_pixels(result: Result) -> Result:
    """Return the result with a frame that has no pixels any more. Ends no lease."""
    if not has_pixels(result.frame):
        return result
    return Result(frame_without_pixels(result.frame), result.outputs, result.image, result.stage, result._ticket)


def ticket_of(result: Result) -> int:
    """Return the number of a result among those that several threads of one stage take.

    It is below zero for what stands in the place of a :func:`lost` result, and 0 where one thread runs the stage.
    """
    return result._ticket


def with_ticket(result: Result, ticket: int) -> Result:
    """Return the result with its number among those that several threads of one stage take."""
    return replace(result, _ticket=ticket)


def lost(result: Result) -> Result:
    """Return what stands for a lost result where others wait for its ticket."""
    return replace(result, _ticket=-abs(result._ticket))
