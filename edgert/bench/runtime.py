"""What the threads, channels and leases cost: per hop, in copies, and in memory over a long run."""

from __future__ import annotations

import gc
import queue
import statistics
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from edgert.bench.measure import Figure
from edgert.budget.meter import rss_bytes
from edgert.clock import REAL
from edgert.config.stage import SourceStage
from edgert.memory import Counter
from edgert.runtime import Node, Result, Runner
from edgert.runtime.edge import connect
from edgert.stages.sink.null import NullSink
from edgert.stages.source.api import ApiSource
from edgert.stages.source.select import source_for

_STREAM = frozenset({"null"})


class Pass:
    """A stage that passes everything on."""

    def open(self) -> None:
        """Nothing."""

    def process(self, result: Result) -> Result:
        """The result itself."""
        return result

    def close(self) -> None:
        """Nothing."""


def null_chain(stages: int, frames: int) -> tuple[Runner, Counter]:
    """A runner of a blank source, ``stages`` null stages and a null sink."""
    counter = Counter()
    source = SourceStage(source="synthetic:blank", size="64x64", limit=frames)  # type: ignore[arg-type]
    nodes = [Node("null", source_for("null", source, counter, REAL, Path()))]
    for name in [*(f"pass{n}" for n in range(stages)), "sink"]:
        nodes.append(Node(name, NullSink() if name == "sink" else Pass()))
        connect(nodes[-2], nodes[-1], _STREAM, 4, "never")
    return Runner(nodes), counter


def run_ns(runner: Runner) -> int:
    """Wall nanoseconds from start to end."""
    started = perf_counter_ns()
    runner.start()
    runner.wait()
    return perf_counter_ns() - started


def hop(rounds: int = 9, frames: int = 4000) -> Figure:
    """Microseconds that one more stage adds to every frame, at full speed: (9 stages − 1 stage) / 8."""
    short = [run_ns(null_chain(1, frames)[0]) for _ in range(rounds)]
    long = [run_ns(null_chain(9, frames)[0]) for _ in range(rounds)]
    hops = [(b - a) / 8 / frames / 1e3 for a, b in zip(short, long, strict=True)]
    return Figure("one hop between null stages", statistics.median(hops), "µs", 20.0, n=rounds)


def growth(warm_up: int = 500, frames: int = 2000, rounds: int = 3) -> list[Figure]:
    """Python objects and resident memory kept over a run of a null pipeline.

    One frame is under way at a time, so that at each reading every thread of the pipeline stands at the same place.
    Other threads of this process, such as one that draws a progress bar, come and go with objects of their own; what a
    frame leaves behind grows in every round, so the round with the least growth counts.
    """
    counter = Counter()
    source = ApiSource("null", SourceStage(source="api"), counter, REAL)
    done: queue.SimpleQueue[None] = queue.SimpleQueue()

    class Tell(Pass):
        """A sink that says when a frame has arrived."""

        def process(self, result: Result) -> None:  # type: ignore[override]
            """Says so."""
            done.put(None)

    nodes = [Node("null", source), Node("pass", Pass()), Node("end", Tell())]
    for before, after in pairwise(nodes):
        connect(before, after, _STREAM, 2, "never")
    runner = Runner(nodes)
    runner.start()
    picture = np.zeros((64, 64, 3), np.uint8)

    def pass_through(count: int) -> tuple[int, int]:
        for _ in range(count):
            source.submit(picture)
            done.get()
        gc.collect()
        return len(gc.get_objects()), rss_bytes()

    pass_through(warm_up)
    readings = [pass_through(1), *(pass_through(frames) for _ in range(rounds))]
    source.finish()
    runner.wait()
    objects, rss = (min(b - a for a, b in pairwise(taken)) for taken in zip(*readings, strict=True))
    copies = counter.read().copies
    return [
        Figure(f"objects kept over {frames} frames", max(0, objects), "objects", 0.0, n=rounds, is_exact=True),
        Figure(f"memory growth over {frames} frames", rss / 2**20, "MiB", 1.0, n=rounds),
        Figure("copies of pixels by the runtime", copies, "copies", 0.0, n=rounds * frames, is_exact=True),
    ]
