"""Environment that a pipeline gives to its sources, stages and sinks, and helpers that most stages share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.clock import REAL, Clock
from edgert.memory import Counter, Pool
from edgert.runtime.decisions import Journal
from edgert.runtime.frame import U8
from edgert.runtime.records import Result
from edgert.runtime.stage import ServedSource, SimpleStage as SimpleStage, Source

_IN_FLIGHT = 6  # being painted, waiting in a queue or two, in a sink, shown to a viewer
_MOST_SIZES = 8  # as of cameras whose images a stage makes


@dataclass(frozen=True, slots=True)
class Context:
    """Argument of ``make`` of sources, stages, sinks and trackers.

    Attributes:
        directory: folder of the pipeline file, where relative input paths start.
        clock: clock of the run.
        counter: counter of copies and allocations.
        stats: function that returns the state of the run as plain data; empty before the run.
        function: the user's function for a ``callback`` sink; None elsewhere.
        rate_hz: results per second that reach the stage, as far as the file shows.
        score: lowest score of the detections that reach the stage, where a model's ``task:`` sets one.
        leave: function that a sink calls when its last window was closed. When all sinks of a pipeline have called it,
            the pipeline stops.
        starts_over: whether every run takes the same frames, so that its output replaces the last one's. False for
            cameras, and wherever frames may come without an end.
        pipeline: name of the pipeline.
        sources: sources whose frames reach the stage, by name.
        before: sections of the stages that its frames come through, by name.
        swap_page: function that returns the report of the newest swap of a model as HTML; empty without one.
        control: function that answers a request to change the pipeline, both lines of JSON; its second argument names
            the requester.
        run: id of the run; empty outside one.
        journal: journal of the run's decisions, where a sink records it; None elsewhere.
        about: function that returns the head of a recording of the run: its file, models, versions and tasks.
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

        Cameras lose frames meanwhile, and a program that submits frames would itself be held up.
        """
        sources = self.sources.values()
        return bool(sources) and not any(one.live or isinstance(one, ServedSource) for one in sources)


class ImageBuffers:
    """Reused memory for images that may outlive their frames, such as those that an encoder or a viewer keeps.

    The lease on an image is released at once. A :class:`~edgert.memory.Pool` never reuses a buffer that an array still
    refers to, so that code which holds the image, or a view of it, is safe without further steps.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[int, Counter], Pool] = {}

    def take(self, shape: tuple[int, ...], counter: Counter) -> U8:
        """Return a C-contiguous uint8 array of ``shape``, contents undefined. Never waits.

        Allocates for another size, and when more are held at the same time than ever before.
        """
        key = math.prod(shape), counter
        if key not in self._pools:
            if len(self._pools) == _MOST_SIZES:
                del self._pools[next(iter(self._pools))]
            self._pools[key] = Pool(key[0], counter, _IN_FLIGHT)
        leased = self._pools[key].acquire()
        assert leased is not None  # there is no limit
        leased[1].release()
        return leased[0].reshape(shape)

    def clear(self) -> None:
        """Free the memory that no array refers to."""
        self._pools.clear()


def make_stage(section: Any, name: str, context: Context) -> Any:
    """Return the stage, sink or tracker that a section describes, not opened. Every registered section has ``make``.

    Raises EdgertError: its settings cannot work.
    """
    return section.make(name, context)
