"""What a pipeline adds to its engine: null source → infer → null sink against the bare engine in a loop."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns

import cv2
import numpy as np

from edgert.artifact import FileStore, cache_folder
from edgert.assemble import FILE_QUEUE, MOST_REPLICAS, STAGE_QUEUE
from edgert.backend import Engine, EngineOptions, Session, backend
from edgert.bench.measure import Figure, in_turn, median_ratio, wall_ms
from edgert.bench.runtime import run_ns
from edgert.board.host import core_count
from edgert.clock import REAL
from edgert.config import ModelConfig
from edgert.graph.load import load
from edgert.memory import Counter, lend
from edgert.ready import build_engine, picture_input
from edgert.runtime import Frame, Node, Result, Runner, SourceStats, Stage
from edgert.runtime.branch import Branch, branch_nodes
from edgert.runtime.edge import connect
from edgert.stages.decode.select import decoder_for
from edgert.stages.infer import Infer, Lane
from edgert.stages.preprocess import Preprocessor
from edgert.stages.sink.null import NullSink
from edgert.stages.source.conveyor import Conveyor


def overhead(config: ModelConfig, rounds: int = 7, frames: int = 60, bar: float | None = 0.97) -> Figure:
    """Frames per second of the pipeline over those of the bare engine with as many threads, taken in turn.

    The source gives one picture of the network's own size again and again; the pipeline converts, normalises and
    decodes it each time.
    """
    threads = core_count()
    replicas = min(threads, MOST_REPLICAS)
    engine = build_engine(load(config.onnx), config, threads)
    shared = build_engine(load(config.onnx), config, threads // replicas)
    session = engine.session()
    session.run()

    def bare() -> float:
        return wall_ms(lambda: [session.run() for _ in range(frames)]) / frames

    def piped() -> float:
        sink = _Stopwatch()
        run_ns(_pipeline(config, shared, replicas, frames + 1, sink))
        return sink.ms_per_result

    bare_ms, piped_ms = in_turn(rounds, bare, piped)
    detail = {"bare_ms": statistics.median(bare_ms), "pipeline_ms": statistics.median(piped_ms), "frames": frames}
    ratio = median_ratio(bare_ms, piped_ms)
    return Figure(f"pipeline / bare engine, {config.onnx.stem}", ratio, "of its fps", bar, "higher", rounds, detail)


_STREAM = frozenset({"still"})


class _Stopwatch(NullSink):
    """A null sink that times results from the first to the last, so that starting threads is not counted."""

    def __init__(self) -> None:
        self._first_ns = self._last_ns = self._count = 0

    def process(self, result: Result) -> None:
        """Notes the time."""
        self._last_ns = perf_counter_ns()
        self._first_ns = self._first_ns or self._last_ns
        self._count += 1

    @property
    def ms_per_result(self) -> float:
        """Milliseconds between results."""
        return (self._last_ns - self._first_ns) / 1e6 / (self._count - 1)


def engine_speed(path: Path, threads: int | None = None, runs: int = 50, null: bool = False) -> Figure:
    """Milliseconds per run of one model by itself."""
    options = EngineOptions(threads or core_count(), store=FileStore(cache_folder() / "ort"))
    session = backend("null" if null else "auto").compile(load(path), options).session()
    for _ in range(3):
        session.run()
    samples = [wall_ms(session.run) for _ in range(runs)]
    low, *_, high = statistics.quantiles(samples, n=20)
    detail = {"threads": options.threads, "p5_ms": low, "p95_ms": high}
    return Figure(f"engine alone, {path.stem}", statistics.median(samples), "ms", n=runs, detail=detail)


def _pipeline(config: ModelConfig, engine: Engine, replicas: int, frames: int, sink: Stage) -> Runner:
    cv2.setNumThreads(1)  # as assemble does
    lanes = [lane_of(config, engine)[0] for _ in range(replicas)]
    source, end = Node("still", Still(*lanes[0].network, frames)), Node("end", sink)
    infers = branch_nodes("infer", [Branch((Infer("infer", lane),)) for lane in lanes], _STREAM, STAGE_QUEUE)
    connect(source, infers[0], _STREAM, FILE_QUEUE, "never")
    connect(infers[-1], end, _STREAM, STAGE_QUEUE, "never")
    return Runner([source, *infers, end])


class Still:
    """A source without work of its own: one picture of the conveyor, ``limit`` times."""

    live = False

    def __init__(self, width: int, height: int, limit: int) -> None:
        self._picture, self._limit = np.empty((height, width, 3), np.uint8), limit
        Conveyor(width, height, fps=30.0, seed=0).render(0, self._picture)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """See :class:`~edgert.runtime.Source`."""
        height, width = self._picture.shape[:2]
        counter = Counter()
        for n in range(self._limit):
            if stop.is_set():
                return
            lease = lend(self._picture, counter)
            yield Frame("still", n, REAL.now_ns(), n, width, height, "bgr", (self._picture,), lease)

    def stats(self) -> SourceStats:
        """Nothing ever happens."""
        return SourceStats()

    def close(self) -> None:
        """Nothing to give back."""


def lane_of(config: ModelConfig, engine: Engine) -> tuple[Lane, Session]:
    """What an infer stage runs, and the session in it."""
    session = engine.session()
    tensor = session.inputs[picture_input(session.inputs, str(config.onnx))]
    return Lane(session, Preprocessor(config.input, tensor), decoder_for(config.task, ()), engine.batched), session
