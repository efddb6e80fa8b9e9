"""Overhead of a pipeline, compared with its bare engine in a loop, and of its threads, channels and leases."""

import gc
import math
import queue
import statistics
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from time import perf_counter, perf_counter_ns

import cv2
import numpy as np

from edgert import files, installation, meters
from edgert.assemble import MOST_REPLICAS
from edgert.backend import Engine, EngineOptions, Session, backend
from edgert.benchmark.measure import Figure, interleave, median_ratio, wall_ms
from edgert.board.host import core_count
from edgert.clock import REAL
from edgert.config import ModelConfig, flow
from edgert.config.stages import SourceStage
from edgert.engine import build_engine, image_input
from edgert.graph import load
from edgert.memory import Counter, lend
from edgert.runtime import Frame, Result, Runner, SourceStats, Stage, Task
from edgert.runtime.branches import Branch, branch_tasks
from edgert.runtime.graph import connect
from edgert.stages.context import Context
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.infer import HostInference, Infer
from edgert.stages.preprocess import Preprocessor
from edgert.stages.sink.results import NullSink
from edgert.stages.source import api, kinds

_STREAM = frozenset({"null"})
_ARRIVAL_S = 60.0  # longest wait for a frame, in case a pipeline fails


class Pass:
    """Stage that passes every result on."""

    def open(self) -> None:
        """Do nothing."""

    def process(self, result: Result) -> Result:
        """Return the result unchanged."""
        return result

    def close(self) -> None:
        """Do nothing."""


def null_chain(stages: int, frames: int) -> tuple[Runner, Counter]:
    """Return the runner of a blank source, ``stages`` null stages and a null sink, and its counter of copies."""
    counter = Counter()
    source = SourceStage(source="synthetic:blank", size="64x64", limit=frames)  # type: ignore[arg-type]
    tasks = [Task("null", kinds.source_for("null", source, Context(counter=counter)))]
    for name in [*(f"pass{n}" for n in range(stages)), "sink"]:
        tasks.append(Task(name, NullSink() if name == "sink" else Pass()))
        connect(tasks[-2], tasks[-1], _STREAM, 4, "never")
    return Runner(tasks), counter


def run_ns(runner: Runner) -> int:
    """Return wall nanoseconds from start to end."""
    started = perf_counter_ns()
    runner.start()
    runner.wait()
    return perf_counter_ns() - started


def hop(rounds: int = 9, frames: int = 4000) -> Figure:
    """Return the microseconds that a further stage adds to every frame at full speed: (9 stages − 1 stage) / 8."""
    short = [run_ns(null_chain(1, frames)[0]) for _ in range(rounds)]
    long = [run_ns(null_chain(9, frames)[0]) for _ in range(rounds)]
    hops = [(b - a) / 8 / frames / 1e3 for a, b in zip(short, long, strict=True)]
    return Figure("one hop between null stages", statistics.median(hops), "µs", 20.0, n=rounds)


def growth(warm_up: int = 500, frames: int = 2000, rounds: int = 3) -> list[Figure]:
    """Return the growth of Python objects and resident memory over many frames of a null pipeline.

    One frame is in the pipeline at a time, so that every thread is at the same point at each reading. A leak grows in
    every round, so the round with the least growth counts: other threads of the process also create objects.
    """
    counter = Counter()
    source = api.ApiSource("null", SourceStage(source="api"), Context(counter=counter))
    done: queue.SimpleQueue[None] = queue.SimpleQueue()

    class Arrival(Pass):
        """Sink that reports the arrival of a frame."""

        def process(self, result: Result) -> None:  # type: ignore[override]
            """Report the arrival."""
            done.put(None)

    tasks = [Task("null", source), Task("pass", Pass()), Task("end", Arrival())]
    for before, after in pairwise(tasks):
        connect(before, after, _STREAM, 2, "never")
    runner = Runner(tasks)
    runner.start()
    image = np.zeros((64, 64, 3), np.uint8)

    def pass_through(count: int) -> tuple[int, int]:
        for _ in range(count):
            source.submit(image)
            done.get(timeout=_ARRIVAL_S)
        gc.collect()
        return len(gc.get_objects()), meters.rss_bytes()

    pass_through(warm_up)
    readings = [pass_through(1), *(pass_through(frames) for _ in range(rounds))]
    source.finish()
    runner.wait()
    objects, rss = (min(b - a for a, b in pairwise(taken)) for taken in zip(*readings, strict=True))
    copies = counter.read().copies
    return [
        Figure(f"objects left behind by {frames} frames", max(0, objects), "objects", 0.0, n=rounds, is_exact=True),
        Figure(f"memory growth over {frames} frames", rss / 2**20, "MiB", 1.0, n=rounds),
        Figure("copies of pixels by the runtime", copies, "copies", 0.0, n=rounds * frames, is_exact=True),
    ]


def overhead(config: ModelConfig, rounds: int = 7, frames: int = 60, bar: float | None = 0.97) -> Figure:
    """Return the ratio of a pipeline's frames per second to those of the bare engine with as many threads.

    The source repeats one image in the network's size; the pipeline converts, normalizes and decodes it each time.
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

    bare_ms, piped_ms = interleave(rounds, bare, piped)
    detail = {"bare_ms": statistics.median(bare_ms), "pipeline_ms": statistics.median(piped_ms), "frames": frames}
    ratio = median_ratio(bare_ms, piped_ms)
    return Figure(f"pipeline / bare engine, {config.onnx.stem}", ratio, "of its fps", bar, "higher", rounds, detail)


_OVERHEAD_STREAM = frozenset({"still"})


class _Stopwatch(NullSink):
    """Null sink that measures the time from the first result to the last, without the start of threads."""

    def __init__(self) -> None:
        self._first_ns = self._last_ns = self._count = 0

    def process(self, result: Result) -> None:
        """Record the time."""
        self._last_ns = perf_counter_ns()
        self._first_ns = self._first_ns or self._last_ns
        self._count += 1

    @property
    def ms_per_result(self) -> float:
        """Milliseconds between results."""
        return (self._last_ns - self._first_ns) / 1e6 / (self._count - 1)


_LEAST_RUNS, _WARM_S = 5, 0.5


def engine_speed(path: Path, threads: int, runs: int = 50, limit_s: float = math.inf) -> Figure:
    """Return milliseconds per run of one model alone; after ``limit_s`` no further run begins, if there are five."""
    options = EngineOptions(threads, store=files.FileStore(files.cache_folder() / "ort"))
    session = backend("auto").compile(load(path), options).session()
    begun = perf_counter()
    session.run()
    while perf_counter() - begun < min(limit_s, _WARM_S):
        session.run()
    begun, samples = perf_counter(), list[float]()
    while len(samples) < runs and (len(samples) < _LEAST_RUNS or perf_counter() - begun < limit_s):
        samples.append(wall_ms(session.run))
    low, *_, high = statistics.quantiles(samples, n=20)
    detail = {"threads": options.threads, "p5_ms": low, "p95_ms": high}
    name = f"engine alone, {path.stem}, {options.threads} thread{'' if options.threads == 1 else 's'}"
    return Figure(name, statistics.median(samples), "ms", n=len(samples), detail=detail)


def _pipeline(config: ModelConfig, engine: Engine, replicas: int, frames: int, sink: Stage) -> Runner:
    cv2.setNumThreads(1)  # as in a real pipeline
    inferences = [inference_of(config, engine)[0] for _ in range(replicas)]
    source, end = Task("still", RepeatedImage(*inferences[0].network, frames)), Task("end", sink)
    infers = branch_tasks(
        "infer", [Branch((Infer("infer", inference),)) for inference in inferences], _OVERHEAD_STREAM, flow.STAGE_QUEUE
    )
    connect(source, infers[0], _OVERHEAD_STREAM, flow.FILE_QUEUE, "never")
    connect(infers[-1], end, _OVERHEAD_STREAM, flow.STAGE_QUEUE, "never")
    return Runner([source, *infers, end])


class RepeatedImage:
    """Source that repeats one demo image ``limit`` times at no cost."""

    live = False

    def __init__(self, width: int, height: int, limit: int) -> None:
        self._limit = limit
        config = SourceStage(source=installation.demo_images(), size=f"{width}x{height}", limit=1)  # type: ignore[arg-type]
        with closing(kinds.source_for("still", config)) as source:
            (frame,) = source.frames(threading.Event())
            self._image = np.array(frame.to_bgr())

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield the image ``limit`` times."""
        height, width = self._image.shape[:2]
        counter = Counter()
        for n in range(self._limit):
            if stop.is_set():
                return
            lease = lend(self._image, counter)
            yield Frame("still", n, REAL.now_ns(), n, width, height, "bgr", (self._image,), lease)

    def stats(self) -> SourceStats:
        """Return statistics without events."""
        return SourceStats()

    def close(self) -> None:
        """Do nothing."""


def inference_of(config: ModelConfig, engine: Engine) -> tuple[HostInference, Session]:
    """Return the inference of an infer stage, and its session."""
    session = engine.session()
    tensor = session.inputs[image_input(session.inputs, str(config.onnx))]
    return HostInference(
        session, Preprocessor(config.input, tensor), decoder_for(config.task, ()), engine.batched
    ), session
