"""Predicted memory of a pipeline in parts, and changes that make it smaller where it does not fit."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from edgert.errors import BudgetError
from edgert.units import format_bytes

Kind = Literal["runtime", "weights", "activations", "bindings", "structure", "frames", "decoder", "encoder"]
"""``runtime`` is the process before it builds anything; ``structure`` is an engine's nodes and kernels."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """Memory of one part.

    Attributes:
        name: name of the model or stage, or ``process``.
        on: accelerator whose memory it is; ``cpu`` for the host's.
        kind: purpose.
        size_bytes: peak size.
        note: source of the number, or assumption.
    """

    name: str
    on: str
    kind: Kind
    size_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Predicted memory of a pipeline.

    Attributes:
        parts: parts of the memory.
        budget_bytes: limit of ``budgets:``; None without one.
        machine_bytes: memory of the machine; 0 if unknown.
        steps: changes of the pipeline that saved memory, in words.
        error: largest relative error of such predictions. A budget is kept if even the upper end fits, and the machine
            is large enough if the lower end fits, so that no prediction stops what may run.
        doubt_bytes: memory that may not be needed.
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
        """Smaller of budget and machine memory; 0 if both are unknown."""
        return min(filter(None, (self.budget_bytes, self.machine_bytes)), default=0)

    @property
    def most_bytes(self) -> int:
        """Upper end of the prediction."""
        return round(self.total_bytes * (1 + self.error))

    @property
    def least_bytes(self) -> int:
        """Lower end of the prediction."""
        return round((self.total_bytes - self.doubt_bytes) * (1 - self.error))

    @property
    def keeps_budget(self) -> bool:
        """Whether the upper end is within the budget."""
        return self.budget_bytes is None or self.most_bytes <= self.budget_bytes

    @property
    def fits(self) -> bool:
        """Whether it keeps the budget and the machine has enough memory."""
        return self.keeps_budget and not 0 < self.machine_bytes < self.least_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the footprint as JSON values."""
        names = ("total_bytes", "least_bytes", "most_bytes", "limit_bytes")
        sums = {name: getattr(self, name) for name in names}
        return {**asdict(self), **sums, "fits": self.fits}


Step = tuple[str, Callable[[T], T | None]]
"""Name for people, and function that returns a smaller pipeline, or None if it can save no more."""


def shrunk(first: T, plan: Callable[[T], Footprint], steps: Iterable[Step[T]]) -> tuple[T, Footprint]:
    """Return the pipeline, changed step by step until it fits, and its memory; it may still not fit.

    Args:
        first: pipeline as written.
        plan: pipeline → memory.
        steps: steps, the least harmful first; each is repeated as long as it saves memory.
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
    """Raise BudgetError if a pipeline does not fit.

    Raises:
        BudgetError: the error names the largest parts, the steps that were tried, and a budget that would fit.
    """
    if footprint.fits:
        return
    largest = sorted(footprint.parts, key=lambda part: -part.size_bytes)[:3]
    listed = ", ".join(f"{part.name} {part.kind} {format_bytes(part.size_bytes)}" for part in largest)
    tried = f"; already tried: {'; '.join(footprint.steps)}" if footprint.steps else ""
    least, most, machine = map(format_bytes, (footprint.least_bytes, footprint.most_bytes, footprint.machine_bytes))
    if footprint.keeps_budget:
        needs = f"at least {least} of memory, this machine has {machine}, including swap"
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
