"""What is simulated, as plain records: sources, the threads between them and the sinks, and what each result costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgert.jitter import STEADY, Jitter
from edgert.place.step import Step
from edgert.policy import Drop


@dataclass(frozen=True, slots=True)
class Source:
    """A thread that makes frames.

    Attributes:
        name: of the stage, and of its stream.
        rate_hz: frames that are due per second; None: the next is made when the last is taken.
        times_ms: when the frames of a trace came, from the first; played over and over in place of ``rate_hz``.
        start_ms: when the first is due.
        jitter: standard deviation of when a frame is due, as a part of the period.
        late_ms: how late frames come, on top of that: quantiles at :data:`edgert.jitter.AT`; empty: never.
        is_ahead: whether a frame is made before it is due, as a file's, and not after, as a camera's.
        is_live: whether a governor has frames left out; otherwise it has them made more slowly.
        steps: what making one takes.
        limit: frames; None: no end.
        objects: how many are on each frame of the trace, or on every one: the mean of a Poisson distribution.
        most: objects on every frame where ``objects`` is None.
    """

    name: str
    rate_hz: float | None = None
    times_ms: tuple[float, ...] = ()
    start_ms: float = 0.0
    jitter: float = 0.0
    late_ms: tuple[float, ...] = ()
    is_ahead: bool = False
    is_live: bool = True
    steps: tuple[Step, ...] = ()
    limit: int | None = None
    objects: tuple[int, ...] | float | None = None
    most: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """A channel into a node; see :class:`edgert.policy.BoundedQueue`."""

    producer: str
    capacity: int
    drop: Drop


@dataclass(frozen=True, slots=True)
class Task:
    """What a node does with a result.

    Attributes:
        steps: of a result that it looks at, whatever is on it.
        run: of one run of a model on top of that; empty for other stages.
        every: frames between two that the model looks at; the others cost nothing.
        crops: most objects of a frame that the model is run on; None: it runs once, on the whole frame.
        rows: crops that fit in one run. A run of n rows takes n times as long as a run of one.
        batch: frames that are run together, if as many have come when the first is ready; None: each by itself.
        wait_ms: the longest that the first frame of a batch waits for others.
        jitter: of all that is done for one result, or in one run of a batch, about the times of its steps; nothing:
            each step jitters by itself, or not at all.
    """

    steps: tuple[Step, ...] = ()
    run: tuple[Step, ...] = ()
    every: int = 1
    crops: int | None = None
    rows: int = 1
    batch: int | None = None
    wait_ms: float = math.inf
    jitter: Jitter = STEADY


@dataclass(frozen=True, slots=True)
class Node:
    """A thread that takes results and passes them on.

    Attributes:
        inputs: what it listens to.
        weights: how results are dispatched to those who listen to it, in the order of ``Design.nodes``; empty: all get
            all.
        reorders: the dispatcher whose order is restored here; empty: none.
        joins: whether several inputs bring parts of the same frames.
        spread: most objects of a frame that each go on as a result of their own; None: the frame goes on.
        wakeup_latency_ms: how late it goes on when something comes that it waited for: quantiles at
            :data:`edgert.jitter.AT`; empty: at once.
        startup_ms: when it is ready for its first result.
        stand_ins: tasks at further levels of degrading, the last for all beyond; empty: always the same.
        levels: of each listener that results are dispatched to, the level of degrading at which it gets any; empty:
            any.
    """

    name: str
    inputs: tuple[Edge, ...]
    task: Task = Task()
    weights: tuple[float, ...] = ()
    reorders: str = ""
    joins: bool = True
    spread: int | None = None
    wakeup_latency_ms: tuple[float, ...] = ()
    startup_ms: float = 0.0
    stand_ins: tuple[Task, ...] = ()
    levels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Design:
    """A whole pipeline.

    Attributes:
        nodes: each after those it listens to.
    """

    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
