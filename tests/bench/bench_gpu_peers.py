"""1080p NV12 frames on the host → answers on the host, on one GPU: edgert's pipelines beside the best that others make.

The sides:

- careful: PyTorch by hand (gpu_careful.py): normalization fused, channels last, one CUDA graph from bytes to answer,
  pinned asynchronous copies, three batches in flight
- compile: the same lines by torch.compile(mode="reduce-overhead")
- bare-ort, bare-rtx: ONNX Runtime's and TensorRT-RTX's engine alone (gpu_bare.py): fixed shape, one CUDA graph
  replayed, no frames and no answers
- fed-rtx: bare-rtx with the bytes of each batch brought to the GPU meanwhile, by one copy that nobody reads: no frames
  of the host come faster
- edgert-ort, edgert-rtx: edgert.Pipeline with ``source: api``; the program submits a ``pipeline.buffer()`` for each
  frame, of which the pipeline makes batches, and a callback takes results
- batch-ort, batch-rtx: the same with a ``pipeline.buffer(batch=…)`` for each batch
- map-ort, map-rtx: ``pipeline.map`` over such buffers, in the thread that measures
- call-ort, call-rtx: the same pipeline called, ``pipeline(buffer)``: nothing is in flight
- file-ort, file-rtx: the same over a source that writes into memory that the GPU reads, as decoders and cameras do

What is fair:

- The same bytes: 16 frames of coarse and fine patterns. Those of PyTorch lie in pinned memory, as edgert's do where its
  sources write there; each frame is a buffer of its own, but for batches that are submitted as one.
- The same network, in FP16 with its normalization fused, and the same answer: five classes, or boxes after suppression,
  on the host. Each side's answers to the 16 frames are compared with PyTorch's, edgert's with those to frames whose
  gray levels are whole, as edgert's are. The worst frame of the 16 counts. A class agrees when its score does, to a
  quarter, so that near ties may change places (gpu_task.py: ``agreement``, and why so much).
- The same process in turns, each side warmed up, the others idle, and nothing compiled beside. Processor time is that
  of the whole process.
- edgert is measured by its public API alone.

Weights are random, their normalization settled on the frames, so that answers differ from frame to frame. `p50_ms` and
`p99_ms` are from giving a frame (edgert) or a batch to its answer while all goes as fast as it can, `alone_…` of one
batch at a time. A side that is not installed, or fails, is left out, and why is printed. ``--limit`` opens and measures
nothing more after so many seconds, ``--folder`` keeps the ONNX files for the next run. Needs a GPU, PyCUDA and PyTorch;
says so and passes where one is missing.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from tests.bench import gpu_public
from tests.bench.gpu_entry import ENGINES, IMAGES, Entry, missing
from tests.bench.gpu_race import Answering, Busy, Side, idle
from tests.bench.gpu_task import TASKS, scenes, worst
from tests.bench.report import main

DEFAULT_RUN, IDLE_S = 200, 30.0
OURS = {
    "edgert": gpu_public.Submitted,
    "batch": gpu_public.SubmittedBatches,
    "map": gpu_public.Mapped,
    "call": gpu_public.Called,
    "file": gpu_public.File,
}
SIDES = (
    "careful",
    "bare-rtx",
    "fed-rtx",
    "bare-ort",
    *(f"{kind}-{engine}" for kind in OURS for engine in ENGINES),
    "compile",
)
OVER_CAREFUL, OVER_COMPILE, OF_BARE, CPU_US, AGREEMENT = 1.15, 1.0, 0.95, 400.0, 0.8


@dataclass
class Measured:
    busy: list[Busy] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)
    agreement: float | None = None

    @property
    def fps(self) -> float:
        return statistics.median(each.fps for each in self.busy)

    @property
    def detail(self) -> dict[str, Any]:
        found = {name: statistics.median(asdict(each)[name] for each in self.busy) for name in asdict(self.busy[0])}
        if self.alone_ms:
            p50, p99 = np.percentile(self.alone_ms, [50, 99]).tolist()
            found |= {"alone_p50_ms": p50, "alone_p99_ms": p99, "alone_n": len(self.alone_ms)}
        if self.agreement is not None:
            found["agreement"] = self.agreement
        return {name: value for name, value in found.items() if name != "fps"}


class Race:
    def __init__(self, entry: Entry, rows: int, folder: Path, options: argparse.Namespace) -> None:
        self.entry, self.rows, self._folder, self._options = entry, rows, folder, options
        self.title = f"{entry.task.name} b{rows}"
        self._sides: dict[str, Side] = {}
        self.found: dict[str, Measured] = {}

    def run(self) -> Iterator[Figure]:
        for name in self._options.sides:
            started = time.perf_counter()
            if self._tried(name, lambda name=name: self._sides.update({name: self._made(name)})):  # type: ignore[misc]
                print(f"  {self.title} {name}: opened in {time.perf_counter() - started:.1f} s", flush=True)
        if self._options.rounds and not idle(IDLE_S):  # engines are refined beside
            print(f"  {self.title}: something still works after {IDLE_S} s", flush=True)
        for turn in range(self._options.rounds):
            for name in list(self._sides):
                self._tried(name, lambda name=name, turn=turn: self._measure(name, turn))  # type: ignore[misc]
        for name, measured in self.found.items():
            yield Figure(f"{self.title}: {name}", measured.fps, "frames/s", None, "higher",
                         sum(each.n for each in measured.busy), measured.detail)  # fmt: skip
        yield from self._bars()
        for side in self._sides.values():
            side.close()

    def _made(self, name: str) -> Side:
        kind, _, engine = name.partition("-")
        if kind in OURS:
            subject = gpu_public.Subject(self.entry.task, self.entry.model, ENGINES[engine], self.rows, self._folder)
            return OURS[kind](subject, self.entry.pixels)
        from tests.bench import gpu_bare, gpu_careful

        if kind in ("bare", "fed"):
            bare = gpu_bare.FedRtx if kind == "fed" else gpu_bare.BareRtx if engine == "rtx" else gpu_bare.BareOrt
            return bare(self.entry.lines, self.entry.pinned, self.rows, self.entry.exported(self.rows))
        by = gpu_careful.Careful if kind == "careful" else gpu_careful.Compiled
        return by(self.entry.lines, self.entry.pinned, self.rows)

    def _measure(self, name: str, turn: int) -> None:
        side, measured = self._sides[name], self.found.get(name, Measured())
        measured.busy.append(side.saturated(self._options.seconds))
        self.found[name] = measured
        if turn == 0 and isinstance(side, Answering):
            measured.alone_ms = side.alone(self._options.alone)
            wanted = self.entry.rounded if is_ours(name) else self.entry.answers
            measured.agreement = worst(side.answers(IMAGES), wanted, self.entry.task.score)

    def _tried(self, name: str, work: Callable[[], object]) -> bool:
        """Whether it went well; a side that fails is left out, and why is printed."""
        reason = "no time is left" if time.perf_counter() > self._options.until else ""
        if not reason:
            try:
                work()
                return True
            except Exception as error:  # noqa: BLE001 - whatever a side's library raises: the others go on
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if name in self._sides:
            with suppress(Exception):  # the same once more
                self._sides.pop(name).close()
        print(f"  {self.title} {name}: left out, {reason}", flush=True)
        return False

    def _bars(self) -> Iterator[Figure]:
        for name, measured in self.found.items():
            if measured.agreement is not None and name != "careful":
                what = f"{self.title}: {name}, part of its answers that PyTorch gives, too"
                yield Figure(what, measured.agreement, "", AGREEMENT, "higher", IMAGES)
        ours = {name: measured for name, measured in self.found.items() if is_ours(name)}
        for name, measured in ours.items():
            n = sum(each.n for each in measured.busy)
            cpu_us = measured.detail["cpu_us"]
            yield Figure(f"{self.title}: {name}, processor time per frame", cpu_us, "µs", CPU_US, "lower", n)
            if name.endswith("-rtx") and "bare-rtx" in self.found:
                yield self._ratio(name, "bare-rtx", OF_BARE)
        best = max(ours, key=lambda name: ours[name].fps, default="")
        for peer, bar in (("careful", OVER_CAREFUL), ("compile", OVER_COMPILE)):
            for name in ours if peer in self.found else ():
                yield self._ratio(name, peer, bar if name == best else None)

    def _ratio(self, name: str, peer: str, bar: float | None) -> Figure:
        one, other = self.found[name], self.found[peer]
        ratio = statistics.median(a.fps / b.fps for a, b in zip(one.busy, other.busy, strict=False))
        return Figure(f"{self.title}: {name} / {peer}", ratio, "x", bar, "higher", sum(each.n for each in one.busy))


def is_ours(name: str) -> bool:
    return name.partition("-")[0] in OURS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seconds", type=float, default=2.0, help="that each side runs in a round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--alone", type=int, default=DEFAULT_RUN, help="batches that are run one at a time")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which nothing more is begun")
    parser.add_argument("--folder", type=Path, help="where ONNX files are kept")


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    options.until = time.perf_counter() + options.limit
    if reason := missing():
        print(f"skipped: {reason}")
        return
    pixels = scenes(IMAGES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        gpu_public.add_kind(Path(temporary))
        for name in options.networks:
            entry = Entry(name, folder, pixels)
            for rows in options.batches:
                yield from Race(entry, rows, Path(temporary), options).run()


if __name__ == "__main__":
    main(__doc__ or "", measure, arguments)
