"""Environment that a pipeline gives to the kinds it makes, and helpers that most stages share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.clock import REAL, Clock
from edgert.memory import Counter
from edgert.runtime.decisions import Journal
from edgert.runtime.records import Result
from edgert.runtime.stage import ServedSource, Source


@dataclass(frozen=True, slots=True)
class Context:
    """Argument of ``make`` of sources, stages, sinks and trackers.

    Attributes:
        directory: of the pipeline file; relative input paths start there.
        clock: of the run.
        counter: of copies and allocations.
        stats: the state of the run as plain data, once there is one.
        function: the user's own, of a ``callback`` sink; None elsewhere.
        rate_hz: how often results reach a stage, as far as the file shows.
        score: lowest of the detections that reach it, where a model's ``task:`` sets that.
        leave: called by a sink whose last window was closed. When all sinks of a pipeline have called it, the pipeline
            stops.
        pipeline: name of the pipeline.
        sources: those whose frames reach it, by name.
        before: the sections of the stages that its frames come through, by name.
        control: answers a request to change the pipeline, both lines of JSON; the other argument says who asks.
        swap_page: the report of the newest swap of a model, as HTML; empty where there was none.
        run: identifies the run; empty outside one.
        journal: of what the run decides, where a sink records it; None elsewhere.
        about: returns what a recording says of the run: its file, models, versions and tasks, as plain data.
        starts_over: whether a run takes the same frames as the last, so that its output replaces the last one's. Not so
            for cameras, and wherever frames may come for ever.
    """

    directory: Path = Path()
    clock: Clock = REAL
    counter: Counter = field(default_factory=Counter)
    stats: Callable[[], Mapping[str, object]] = dict
    function: Callable[[Result], object] | None = None
    rate_hz: float = 30.0
    score: float | None = None
    leave: Callable[[], None] = lambda: None
    starts_over: bool = True
    pipeline: str = "pipeline"
    sources: Mapping[str, Source] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    swap_page: Callable[[], str] = str
    control: Callable[[bytes, str], bytes] = lambda line, who: b""
    run: str = ""
    journal: Journal | None = None
    about: Callable[[], Mapping[str, Any]] = dict

    @property
    def is_waited_for(self) -> bool:
        """Whether every source can wait for slow stages without loss, as files do.

        Cameras lose frames meanwhile, and programs that submit frames wait themselves.
        """
        sources = self.sources.values()
        return bool(sources) and not any(one.live or isinstance(one, ServedSource) for one in sources)


class SimpleStage:
    """A stage without resources: override :meth:`process`, and ``open`` and ``close`` where needed.

    See :class:`~edgert.runtime.Stage`.
    """

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def made(section: Any, name: str, context: Context) -> Any:
    """Return what the section of a kind describes, not opened yet. Every registered section has ``make``.

    Raises:
        EdgertError: it cannot be made.
    """
    return section.make(name, context)
