"""The memory that a pipeline will take, part by part, and how it is made smaller where that is too much."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from edgert.errors import BudgetError
from edgert.units import format_bytes

Kind = Literal["runtime", "weights", "activations", "bindings", "structure", "frames", "decoder", "encoder"]
"""``runtime`` is what the process holds before anything is made; ``structure`` an engine's nodes and kernels."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """The memory of one part.

    Attributes:
        name: of the model or stage, or ``process``.
        on: the accelerator whose memory it is; ``cpu`` for the host's.
        kind: what it is for.
        size_bytes: at its peak.
        note: how it was found, or what was assumed.
    """

    name: str
    on: str
    kind: Kind
    size_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """A pipeline's memory, predicted.

    Attributes:
        parts: what adds up.
        budget_bytes: the limit of ``budgets:``; None without one.
        machine_bytes: what the machine can give at all; 0 when unknown.
        steps: changes of the pipeline that save memory, in words.
        error: relative error of such predictions at worst. A budget is kept with this to spare. The machine only has to
            have the least that it can mean: a prediction must not stop what may well run.
        doubt_bytes: memory that may not be needed, as nothing here predicts it better.
    """

    parts: tuple[Part, ...]
    budget_bytes: int | None
    machine_bytes: int
    steps: tuple[str, ...] = ()
    error: float = 0.0
    doubt_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all parts at their peak."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def limit_bytes(self) -> int:
        """The smaller of budget and machine; 0 where neither is known."""
        return min(filter(None, (self.budget_bytes, self.machine_bytes)), default=0)

    @property
    def most_bytes(self) -> int:
        """Sum of all parts, if the prediction is too small by its worst error."""
        return round(self.total_bytes * (1 + self.error))

    @property
    def least_bytes(self) -> int:
        """Sum of all parts, if the prediction is too large by its worst error."""
        return round((self.total_bytes - self.doubt_bytes) * (1 - self.error))

    @property
    def keeps_budget(self) -> bool:
        """Whether it is within the budget, including the error."""
        return self.budget_bytes is None or self.most_bytes <= self.budget_bytes

    @property
    def fits(self) -> bool:
        """Whether it keeps the budget, and the machine has that much."""
        return self.keeps_budget and not 0 < self.machine_bytes < self.least_bytes

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("total_bytes", "least_bytes", "most_bytes", "limit_bytes")
        sums = {name: getattr(self, name) for name in names}
        return {**asdict(self), **sums, "fits": self.fits}


Step = tuple[str, Callable[[T], T | None]]
"""A name for people, and a function that returns a smaller pipeline; None where nothing is left to save."""


def shrunk(first: T, plan: Callable[[T], Footprint], steps: Iterable[Step[T]]) -> tuple[T, Footprint]:
    """Return the pipeline as it is, or changed step by step until it fits; steps that save nothing are left out.

    Args:
        first: the pipeline as it was written.
        plan: its memory.
        steps: in the order in which they hurt least; each is repeated as long as it saves memory.

    Returns:
        The last pipeline that was tried, and its memory with the steps that led to it; it may still not fit.
    """
    now, footprint, taken = first, plan(first), list[str]()
    for name, change in steps:
        while not footprint.fits and (smaller := change(now)) is not None:
            found = plan(smaller)
            if found.total_bytes >= footprint.total_bytes:
                break
            saved = format_bytes(footprint.total_bytes - found.total_bytes)
            taken.append(f"{name}: {saved} less")
            now, footprint = smaller, found
    return now, replace(footprint, steps=tuple(taken))


def check_footprint(footprint: Footprint, where: str) -> None:
    """Refuse a pipeline that does not fit.

    Raises:
        BudgetError: with the largest parts, what was tried, and the budget that would do.
    """
    if footprint.fits:
        return
    largest = sorted(footprint.parts, key=lambda part: -part.size_bytes)[:3]
    listed = ", ".join(f"{part.name} {part.kind} {format_bytes(part.size_bytes)}" for part in largest)
    tried = f"; already tried: {'; '.join(footprint.steps)}" if footprint.steps else ""
    least, most, machine = map(format_bytes, (footprint.least_bytes, footprint.most_bytes, footprint.machine_bytes))
    if footprint.keeps_budget:
        needs = f"at least {least} of memory, this machine has {machine}, swap and all"
    else:
        needs = f"up to {most} of memory, the budget has {format_bytes(footprint.budget_bytes or 0)}"
    fix = f"budgets: {{memory: {-(-footprint.most_bytes // 2**20)}MiB}}"
    if 0 < footprint.machine_bytes < footprint.least_bytes:
        fix = "a machine with more memory, or a higher limit where a container or service has one"
    raise BudgetError(
        f"the pipeline needs {needs}",
        why=f"the largest parts: {listed}{tried}",
        where=where,
        fix=f"{fix}; or a smaller model; edgert run --dry-run shows every part",
        code="E701",
    )
