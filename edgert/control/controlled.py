"""The interface of a running pipeline for the operations on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from edgert.clock import Clock
from edgert.config import PipelineConfig, PipelineFile
from edgert.swap.candidate import Run
from edgert.tracing import ThreadEvents, Tracing

if TYPE_CHECKING:
    from edgert.swap.model_swap import ModelSwap


class Controlled(Run, Protocol):
    """A running pipeline, as the operations on it use it."""

    @property
    def written(self) -> PipelineConfig | None:
        """Its records as written, without adaptations to this machine; None where only the document is known."""

    @property
    def clock(self) -> Clock:
        """Clock of the run."""

    @property
    def label(self) -> str:
        """Note on figures that are not this machine's; empty for none."""

    @property
    def swaps(self) -> dict[str, ModelSwap]:
        """Model → its newest swap."""

    @property
    def tracing(self) -> Tracing:
        """Recorder of what the threads do."""

    @property
    def has_ended(self) -> bool:
        """Whether the pipeline has ended or is ending."""

    def governor_events(self) -> Sequence[ThreadEvents]:
        """Return the governor's actions so far, for a trace; empty without budgets."""

    def check_changeable(self) -> None:
        """Check that the pipeline can be changed. Raises StageError: not now, or not from this thread."""

    def shorten_collections(self) -> None:
        """Leave present objects out of garbage collections until the end of the run."""

    def prepare_budgets(self, file: PipelineFile) -> Callable[[], None]:
        """Check the budgets of a changed pipeline; return a function that applies them after the change.

        Raises BudgetError where they cannot be kept, or there is too little memory.
        """

    def record_file(self, file: PipelineFile) -> None:
        """Write to recordings that stages which were replaced since the last call are those of this file."""

    def set_file(self, file: PipelineFile, written: PipelineConfig | None = None) -> None:
        """Set the file that describes the pipeline from now on; ``written`` as in :attr:`written`."""


def copy_data(run: Controlled) -> dict[str, Any]:
    """Return a copy of a running pipeline's data."""
    data: dict[str, Any] = deepcopy(run.file.document.data)
    return data
