"""edgert as its users have it: a pipeline file and :class:`edgert.Pipeline`, over frames that the program submits, or
over cameras and files that write NV12 into memory the GPU reads, as V4L2 drivers and decoders do.

Such a camera is a kind of source that a package adds (docs/extending.md), ``source: bench:NAME``; its images are made
before. With ``fps:`` it is live and gives so many frames per second, without it is read like a file. A :class:`Gate`
holds all of a pipeline's back, so that one that is open costs nothing while others are measured.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

import numpy as np

import edgert
from edgert.config import SourceStage
from edgert.memory import address_of
from edgert.memory.cuda import CudaDevice
from edgert.runtime import Frame, Result, SourceStats
from tests.bench.gpu_race import WARM_S, Busy, InFlight, Watch
from tests.bench.gpu_run import BUFFERS, CAMERA_BUFFERS, HEIGHT, WIDTH, Pinned, frame_of
from tests.bench.gpu_task import Answer, Task, scenes
from tests.helpers.package import install

FILE = """
schema: 1
name: race
engines: [{engine}]
models:
  net:
    onnx: {model}
    {task}
    precision: fp32
stages:
{sources}
  find: {{infer: net, from: [{names}]{batch}}}
"""
PATIENCE_S = 30.0
HELD_S = 20.0
"""A source that is held back looks so often whether it is to end: eight that did so ten times a second took 0.2 ms of
every frame of the one that was measured."""
IMAGES = 16
TURNS = 12
"""Batches until each of a model's slots has recorded every size."""


@dataclass(frozen=True)
class Subject:
    """What a pipeline file says: which model with an open batch size, on which engine, in batches of how many."""

    task: Task
    model: Path
    engine: str
    rows: int
    folder: Path

    def pipeline(self, sources: Mapping[str, str], taken: Any) -> edgert.Pipeline:
        return edgert.Pipeline(self.written(sources), callbacks={"find": taken}, strict=True)

    def written(self, sources: Mapping[str, str]) -> Path:
        """The pipeline file over sources: by name, the keys of their sections."""
        text = FILE.format(
            engine=self.engine,
            model=self.model.resolve(),
            task=self.task.yaml,
            sources="\n".join(f"  {name}: {{{keys}}}" for name, keys in sources.items()),
            names=", ".join(sources),
            batch=f", batch: {{max: {self.rows}, wait: 5ms}}" if self.rows > 1 else "",
        )
        path = self.folder / f"{self.task.name}-{self.engine}-b{self.rows}-{len(sources)}.yaml"
        path.write_text(text)
        return path


class Public(ABC):
    """A pipeline whose results a callback takes."""

    def __init__(self, subject: Subject, sources: Mapping[str, str]) -> None:
        self.rows, self.came, self._results = subject.rows, 0, SimpleQueue[tuple[float, Any]]()
        self._pipeline = subject.pipeline(sources, self._take)
        self._pipeline.start()

    @abstractmethod
    def go(self, seconds: float) -> None: ...

    def saturated(self, seconds: float) -> Busy:
        self.go(WARM_S)
        self.come()
        watch = Watch()
        self.go(seconds)
        ages = [age_ms for age_ms, _ in self.come()]
        if not ages:
            self.next()  # raises what went wrong
        return watch.busy(len(ages), ages)

    def close(self) -> None:
        self._pipeline.close()

    def come(self) -> list[tuple[float, Any]]:
        """Those results that are there: milliseconds since the frame was given, and the record."""
        found = [self._results.get() for _ in range(self._results.qsize())]
        self.came += len(found)
        return found

    def next(self) -> Any:
        try:
            found = self._results.get(timeout=PATIENCE_S)[1]
        except Empty:
            self._pipeline.close()
            raise RuntimeError(f"no result within {PATIENCE_S} s") from None
        self.came += 1
        return found

    def _take(self, result: Result) -> None:
        self._results.put(((time.monotonic_ns() - result.timestamp_ns) / 1e6, result.outputs["find"]))


def settled(pipeline: edgert.Pipeline) -> None:
    """Waits for what engines prepare in threads while they run, such as batches that are not full. Nobody else in the
    process may record meanwhile."""
    for engine in pipeline._assembly.engines.values():
        for one in getattr(engine, "refinements", ()):
            one.wait()


class Filled:
    """Buffers that a pipeline lends, each with a frame in it, or a batch of ``rows``: written when it comes the first
    time, as by a camera, and left as it is when it comes again."""

    def __init__(self, pipeline: edgert.Pipeline, pixels: Sequence[Any], rows: int) -> None:
        batch = rows if rows > 1 else None
        self._lend = partial(pipeline.buffer, (WIDTH, HEIGHT), format="nv12", batch=batch)
        self._pixels, self._rows, self._held = pixels, rows, dict[int, int]()

    def any(self) -> Any:
        buffer = self._lend()
        if address_of(buffer.array) not in self._held:
            self._write(buffer, len(self._held) * self._rows)
        return buffer

    def frames(self, index: int) -> Any:
        buffer = self._lend()
        self._write(buffer, index)
        return buffer

    def _write(self, buffer: Any, index: int) -> None:
        index %= len(self._pixels)
        array, address = buffer.array, address_of(buffer.array)
        if self._held.get(address) != index:
            for row, image in enumerate(array if buffer.is_batch else (array,)):
                np.copyto(image, self._pixels[(index + row) % len(self._pixels)])
            self._held[address] = index


class Submitted(Public):
    """The thread that measures submits one lent buffer after the other, each with a frame."""

    by_batches: ClassVar[bool] = False

    def __init__(self, subject: Subject, pixels: Sequence[Any]) -> None:
        super().__init__(subject, {"cam": "source: api"})
        self._given, self._at_once = 0, self.rows if self.by_batches else 1
        self._filled = Filled(self._pipeline, pixels, self._at_once)
        self.answers(self.rows)
        settled(self._pipeline)  # all is recorded before others make or record anything
        self.answers(TURNS * self.rows)

    def go(self, seconds: float) -> None:
        until, submit, lend = time.perf_counter() + seconds, self._pipeline.submit, self._filled.any
        while time.perf_counter() < until:
            submit(lend())
            self._given += self._at_once

    def saturated(self, seconds: float) -> Busy:
        found = super().saturated(seconds)
        while self.came < self._given:  # the last are under way
            self.next()
        return found

    def alone(self, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            self._batch([self._filled.any() for _ in range(0, self.rows, self._at_once)])
            taken.append((time.perf_counter() - started) * 1e3)
        return taken

    def answers(self, count: int) -> list[Answer]:
        return [
            answer_of(record)
            for index in range(0, count, self.rows)
            for record in self._batch([self._filled.frames(index + row) for row in range(0, self.rows, self._at_once)])
        ]

    def _batch(self, buffers: Sequence[Any]) -> list[Any]:
        for buffer in buffers:
            self._pipeline.submit(buffer)
        self._given += self.rows
        return [self.next() for _ in range(self.rows)]


class SubmittedBatches(Submitted):
    by_batches = True


class OneThread(ABC):
    """A pipeline that is called, by the thread that measures, with a buffer for each batch."""

    def __init__(self, subject: Subject, pixels: Sequence[Any]) -> None:
        self.rows = subject.rows
        self._pipeline = edgert.Pipeline(subject.written({"cam": "source: api"}), strict=True)
        self._filled = Filled(self._pipeline, pixels, self.rows)
        self.answers(self.rows)
        settled(self._pipeline)
        self.answers(TURNS * self.rows)

    @abstractmethod
    def answers(self, count: int) -> list[Answer]: ...

    def close(self) -> None:
        self._pipeline.close()


class Mapped(OneThread):
    """The measuring thread iterates over ``pipeline.map``, with a buffer for each batch."""

    def saturated(self, seconds: float) -> Busy:
        self._go(WARM_S)
        return self._go(seconds)

    def _go(self, seconds: float) -> Busy:
        until, ages = time.perf_counter() + seconds, list[float]()
        watch = Watch()
        for result in self._pipeline.map(self._buffers(until)):
            ages.append((time.monotonic_ns() - result.timestamp_ns) / 1e6)
        return watch.busy(len(ages), ages)

    def _buffers(self, until: float) -> Iterator[Any]:
        while time.perf_counter() < until:
            yield self._filled.any()

    def alone(self, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            list(self._pipeline.map([self._filled.any()]))
            taken.append((time.perf_counter() - started) * 1e3)
        return taken

    def answers(self, count: int) -> list[Answer]:
        frames = (self._filled.frames(index) for index in range(0, count, self.rows))
        return [answer_of(result.outputs["find"]) for result in self._pipeline.map(frames)]


class Called(OneThread, InFlight):
    """A pipeline that is called with a frame, or a batch, by the thread that measures."""

    in_flight = 1

    def submit(self, index: int) -> list[Any]:
        return self._pipeline.call_batch([self._filled.any()])

    def wait(self, ticket: Any) -> list[Answer]:
        return [answer_of(result.outputs["find"]) for result in ticket]

    def answers(self, count: int) -> list[Answer]:
        return [
            one
            for index in range(0, count, self.rows)
            for one in self.wait(self._pipeline.call_batch([self._filled.frames(index)]))
        ]


def answer_of(record: Any) -> Answer:
    return Answer(record.scores, record.classes, getattr(record, "boxes", None))


class Gate:
    """Holds the sources of a pipeline back until it is opened; shut at first."""

    def __init__(self) -> None:
        self.sources, self.opened_ns = list[Nv12Source](), 0
        self._is_open = threading.Event()

    def open(self) -> None:
        """From now on frames come; those of cameras start anew."""
        self.opened_ns = time.monotonic_ns()
        self._is_open.set()

    def end(self) -> None:
        self._is_open.set()

    def shut(self) -> None:
        self._is_open.clear()

    def wait(self) -> bool:
        """Whether it is open, or is opened before long."""
        return self._is_open.is_set() or self._is_open.wait(HELD_S)

    @property
    def given(self) -> int:
        return sum(source.given for source in self.sources)


GATES: dict[str, Gate] = {}
"""By what stands behind ``bench:`` in a pipeline file."""


@lru_cache(maxsize=1)
def images() -> list[Any]:
    return scenes(IMAGES)


class BenchSource:
    """The kind ``bench:GATE``; ``options: {phase: 0.5}`` moves a camera's frames by half a period."""

    unused: ClassVar[dict[str, str]] = {}

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        return config.fps is not None

    @staticmethod
    def make(name: str, config: SourceStage, context: object) -> Nv12Source:
        images()  # not in the thread that gives them out
        gate = GATES[config.source.removeprefix("bench:")]
        gate.sources.append(Nv12Source(name, config.fps, float(config.options.get("phase", 0.0)), gate))
        return gate.sources[-1]


class Nv12Source:
    """A source; a camera's frames have the time at which they were due."""

    def __init__(self, name: str, rate_hz: float | None, phase: float, gate: Gate) -> None:
        self.name, self.live, self.given = name, rate_hz is not None, 0
        self._period_ns, self._phase, self._gate = 1e9 / rate_hz if rate_hz else 0.0, phase, gate
        self._pinned: Pinned | None = None

    def share(self, device: CudaDevice) -> None:
        self._pinned = Pinned(device, images(), CAMERA_BUFFERS if self.live else BUFFERS)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        opened_ns, count = 0, 0
        while not stop.is_set():
            if not self._gate.wait():
                continue
            if opened_ns != self._gate.opened_ns:
                opened_ns, count = self._gate.opened_ns, 0
            at_ns = None
            if self.live:
                at_ns = opened_ns + round((count + self._phase) * self._period_ns)
                time.sleep(max(at_ns - time.monotonic_ns(), 0) / 1e9)
            if self._pinned is None:
                now_ns = time.monotonic_ns() if at_ns is None else at_ns
                yield frame_of(images()[self.given % IMAGES], self.name, self.given, now_ns)
            else:
                yield self._pinned.take(self.name, self.given, at_ns)
            self.given, count = self.given + 1, count + 1

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        """Gives the memory back when the last frame is gone."""
        self._pinned = None


class Sourced(Public):
    """A pipeline over sources behind a gate of their own; ``keys`` are further keys of each source."""

    def __init__(self, subject: Subject, keys: Mapping[str, str]) -> None:
        self.gate, name = Gate(), f"gate{len(GATES)}"
        GATES[name] = self.gate
        super().__init__(subject, {source: f'source: "bench:{name}"{more}' for source, more in keys.items()})
        self.gate.open()
        self.next()
        settled(self._pipeline)  # all is recorded before others make or record anything
        self.go(WARM_S)
        self.rest()

    def close(self) -> None:
        self.gate.end()
        super().close()

    def go(self, seconds: float) -> None:
        time.sleep(seconds)

    def rest(self) -> None:
        """Holds the sources back, and lets the last frames arrive and be forgotten."""
        self.gate.shut()
        time.sleep(WARM_S)
        self.come()


class File(Sourced):
    """A file that is read as fast as its frames are taken."""

    def __init__(self, subject: Subject, pixels: Sequence[Any] = ()) -> None:
        super().__init__(subject, {"cam": ""})

    def saturated(self, seconds: float) -> Busy:
        self.gate.open()
        found = super().saturated(seconds)
        self.rest()
        return found


@dataclass(frozen=True)
class Live:
    """Seconds of cameras: from when a frame was due to its result, frames lost, processor time of a frame."""

    p50_ms: float
    p99_ms: float
    lost: int
    given: int
    cpu_us: float


class Cameras(Sourced):
    """So many live cameras, their frames due one after the other."""

    def __init__(self, subject: Subject, number: int, rate_hz: float) -> None:
        super().__init__(
            subject, {f"cam{n}": f", fps: {rate_hz}, options: {{phase: {n / number:.4f}}}" for n in range(number)}
        )

    def live(self, seconds: float) -> Live:
        before, watch = self.gate.given, Watch()
        self.gate.open()
        self.go(seconds)
        given = self.gate.given - before
        busy = watch.busy(given, [])
        self.gate.shut()
        time.sleep(WARM_S)
        ages = [age_ms for age_ms, _ in self.come()]
        given = self.gate.given - before
        p50, p99 = np.percentile(ages, [50, 99]).tolist() if ages else (0.0, 0.0)
        return Live(p50, p99, given - len(ages), given, busy.cpu_us)


def add_kind(folder: Path) -> None:
    """Installs the package whose kind of source ``bench:`` is."""
    points = {"edgert.sources": {"bench": f"{__name__}:BenchSource"}}
    sys.path.append(str(install(folder / "bench-source", "bench-source", "", points)))
