"""A running pipeline as the operations on it need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from edgert.clock import Clock
from edgert.config import PipelineConfig, PipelineFile, SourceStage
from edgert.errors import StageError, nearest
from edgert.swap.candidate import Run
from edgert.tracing import ThreadEvents, Tracing

if TYPE_CHECKING:
    from edgert.swap.model_swap import ModelSwap


class Controlled(Run, Protocol):
    """A running pipeline, as the operations on it use it."""

    @property
    def written(self) -> PipelineConfig | None:
        """Its records as they are written, not as they fit this machine; None: only its document is known."""
        ...

    @property
    def clock(self) -> Clock:
        """By which it runs."""
        ...

    @property
    def label(self) -> str:
        """What it says of results that are not this machine's; empty for none."""
        ...

    @property
    def swaps(self) -> dict[str, ModelSwap]:
        """Model → its newest swap."""
        ...

    @property
    def tracing(self) -> Tracing:
        """Records what its threads do."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or is about to."""
        ...

    def governor_events(self) -> Sequence[ThreadEvents]:
        """Return the governor's actions so far, for a trace; empty without budgets."""
        ...

    def changeable(self) -> None:
        """Raise StageError where it cannot be changed now, or not from this thread."""
        ...

    def admitted(self, file: PipelineFile) -> Callable[[], None]:
        """Return what has the budgets of a changed pipeline be kept, once it has changed.

        Raises:
            BudgetError: they cannot be kept, or there is too little memory.
        """
        ...

    def note(self, file: PipelineFile) -> None:
        """Note in a recording that the stages which were replaced since are those of this file."""
        ...

    def changed(self, file: PipelineFile, written: PipelineConfig | None = None) -> None:
        """Note that the pipeline runs as this file has it now; ``written`` are its records before they fit here."""
        ...


def data_of(run: Controlled) -> dict[str, Any]:
    """Return the keys of a running pipeline as plain data that may be changed."""
    data: dict[str, Any] = deepcopy(run.file.document.data)
    return data


def check_source(run: Controlled, name: str) -> None:
    """Raise StageError unless there is a source of that name."""
    known = [one for one, stage in run.file.config.stages.items() if isinstance(stage, SourceStage)]
    if name not in known:
        raise StageError(f"no source {name!r}{nearest(name, known)}", fix=f"sources: {', '.join(known)}")
