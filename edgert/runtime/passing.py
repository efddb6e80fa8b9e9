"""What stages do with results on their way through a pipeline, and no program that reads results has to know."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.frozen import made_quickly
from edgert.memory import Counter, Lease
from edgert.runtime.frame import has_pixels, with_planes
from edgert.runtime.frame import without_pixels as frame_without_pixels
from edgert.runtime.records import Record, Result


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
    if isinstance(result, Together):
        return Together.of([without_pixels(one) for one in result.results], result.outputs)
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


def parts(result: Result) -> tuple[Result, ...]:
    """Return what a result is made of: itself, or those that go :class:`Together`."""
    return result.results if isinstance(result, Together) else (result,)


def size_of(result: Result) -> int:
    """Return how many results go as this one."""
    return len(result.results) if isinstance(result, Together) else 1


@made_quickly
@dataclass(frozen=True, slots=True, eq=False)
class Together(Result):
    """Results that go to the next stage as one, because it does with them what it does in one step.

    It must be a stage that knows them, and passes on what they are made of. :attr:`frame` stands for all: its lease is
    on all of their frames, its time that of the first.

    Attributes:
        outputs: what the stage before has for the next.
        results: in order, at least one.
    """

    results: tuple[Result, ...] = ()

    @classmethod
    def of(cls, results: Sequence[Result], outputs: Mapping[str, Record]) -> Together:
        """Return all of them as one, which takes no hold on their frames."""
        first = results[0].frame
        leases = [one.frame.lease for one in results]
        frame = with_planes(first, first.planes, _AllLeases(leases, first.lease.counter))
        return cls(frame, outputs, None, results=tuple(results))


class _AllLeases(Lease):
    """Leases that are held together; one that several frames have is held as often."""

    __slots__ = ("_leases",)

    def __init__(self, leases: Sequence[Lease], counter: Counter) -> None:
        self._leases, self.counter = dict[Lease, int](), counter
        for lease in leases:
            self._leases[lease] = self._leases.get(lease, 0) + 1

    @property
    def alive(self) -> bool:
        return all(lease.alive for lease in self._leases)

    def retain(self, holders: int = 1) -> Lease:
        for lease, times in self._leases.items():
            lease.retain(times * holders)
        return self

    def release(self, holders: int = 1) -> None:
        for lease, times in self._leases.items():
            lease.release(times * holders)
