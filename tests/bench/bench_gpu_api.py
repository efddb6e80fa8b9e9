"""What a program that uses the Python API gets on a GPU: its start, frames one by one, 30 calls a second, openings.

A start is a process of ten lines that imports edgert, opens a pipeline, submits a 1080p NV12 frame and waits for its
result. The first run, into an empty cache, is ``cold_s``, beside the median of the others; ``open_s`` is the pipeline's
constructor, ``import_s`` everything before.

The rest is of networks in FP16 with random weights, and 1080p NV12 frames in buffers of ``pipeline.buffer``, which were
filled before. Frames that are submitted one by one into batches of eight are compared with buffers of eight
frames, in turns: this costs Python's time for each frame, which hides behind a network that takes the GPU longer. What
follows is of ResNet-50 at 224 × 224. At 30 frames a second, the processor's time of the whole process counts. Openings
are of one pipeline after the other in one process, each called three times.

What a frame and an opening cost without edgert is beside it, by TensorRT-RTX called by hand: batches of eight copies
and of one; a loop that sleeps, brings a frame to the GPU, replays one CUDA graph and looks for its end; an engine
opened, run in as many execution contexts as a pipeline has, and closed. Needs a GPU, PyCUDA, PyTorch, which makes the
network, and the engine; says so and passes where one is missing.
"""

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import edgert
from edgert.benchmark.measure import Figure
from edgert.stages.gpu.infer_gpu import SLOTS
from tests.bench.gpu_entry import ENGINES, IMAGES, Entry, missing
from tests.bench.gpu_public import Subject
from tests.bench.gpu_run import HEIGHT, WIDTH
from tests.bench.gpu_task import TASKS, scenes
from tests.bench.report import main

ROUNDS, COUNT, BATCH = 5, 8000, 8
RATE_HZ, PACED, LOOK_S = 30.0, 150, 1e-4
CALLS, WARM_OPENINGS = 3, 10
SIZE = (WIDTH, HEIGHT)
KINDS = ("start", "batches", "pace", "openings")

BAR_S = 2.0
PROGRAM = """
import json, sys, time
import edgert
import numpy as np
luma, chroma = np.full((1080, 1920), 90, np.uint8), np.full((540, 960, 2), 128, np.uint8)
imported = time.time()
with edgert.Pipeline(sys.argv[1], strict=True) as pipeline:
    opened = time.time()
    results = pipeline.results("find", timeout=60.0)
    pipeline.submit([luma, chroma], format="nv12")
    next(results)
    print(json.dumps([imported, opened, time.time()]), flush=True)
"""


def once(file: Path, cache: Path) -> dict[str, float]:
    """Return the seconds of one process until its first answer."""
    environment = {**os.environ, "EDGERT_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # of a container's; every start would compile Python's modules
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    imported, opened, answered = json.loads(done.stdout.strip().splitlines()[-1])
    return {"import_s": imported - began, "open_s": opened - imported, "s": answered - began}


def started(subject: Subject, runs: int) -> Figure:
    """Return the median of ``runs`` processes after the one that fills the cache."""
    file = subject.written({"cam": "source: api"})
    with tempfile.TemporaryDirectory() as cache:
        cold = once(file, Path(cache))
        warm = [once(file, Path(cache)) for _ in range(runs)]
    detail = {name: statistics.median(each[name] for each in warm) for name in ("import_s", "open_s")}
    seconds = statistics.median(each["s"] for each in warm)
    return Figure(
        f"{subject.task.name} b{subject.rows} {subject.engine}: process start to first answer, cache warm",
        seconds,
        "s",
        BAR_S,
        "lower",
        runs,
        {**detail, "cold_s": cold["s"], "most_s": max(each["s"] for each in warm)},
    )


def per_second(subject: Subject, batch: int | None) -> float:
    """Return the frames per second of a pipeline whose program submits lent buffers, each of ``batch`` frames."""
    done, count = threading.Event(), 0
    marks = list[float]()

    def take(result: Any) -> None:
        nonlocal count
        count += 1
        if count in (COUNT // 4, COUNT):
            marks.append(time.perf_counter())
        if count == COUNT:
            done.set()

    with subject.pipeline({"cam": "source: api"}, take) as pipeline:
        for _ in range(COUNT // (batch or 1)):
            pipeline.submit(pipeline.buffer(SIZE, format="nv12", batch=batch))
        pipeline.finish()
        if not done.wait(60):
            raise RuntimeError(f"{count} of {COUNT} results came")
    return (COUNT - COUNT // 4) / (marks[1] - marks[0])


def batches(subject: Subject) -> Iterator[Figure]:
    found = [(per_second(subject, None), per_second(subject, BATCH)) for _ in range(ROUNDS)]
    one, many = (statistics.median(each) for each in zip(*found, strict=True))
    ratio = statistics.median(a / b for a, b in found)
    detail = {"one by one, frames/s": one, "buffers of eight, frames/s": many, "least": min(a / b for a, b in found)}
    title = f"{subject.task.name} {subject.engine}: one by one / buffers of eight"
    yield Figure(title, ratio, "x", 0.9, "higher", ROUNDS, detail)


def bare_batches(entry: Entry) -> Iterator[Figure]:
    """The same by one thread that calls TensorRT-RTX: a copy for each frame beside one for each batch."""
    from tests.bench.gpu_bare import FedRtx

    frames = [*entry.pinned, *entry.pinned][:BATCH]
    sides = [FedRtx(entry.lines, frames, BATCH, entry.exported(BATCH), one_by_one) for one_by_one in (True, False)]
    found = [[side.saturated(1.0).fps for side in sides] for _ in range(ROUNDS)]
    for side in sides:
        side.close()
    one, many = (statistics.median(each) for each in zip(*found, strict=True))
    ratio = statistics.median(a / b for a, b in found)
    detail = {"a copy each, frames/s": one, "a copy of eight, frames/s": many}
    title = f"{entry.task.name} rtx by hand: a copy each / a copy of eight"
    yield Figure(title, ratio, "x", None, "higher", ROUNDS, detail)


def processor_us(work: Callable[[], object]) -> float:
    """Return the microseconds of the whole process per frame, at the pace of a camera."""
    for _ in range(10):
        work()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for index in range(PACED):
        time.sleep(max(began_s + index / RATE_HZ - time.perf_counter(), 0.0))
        work()
    return 1e6 * (time.process_time() - cpu_s) / PACED


def pace(subject: Subject) -> Iterator[Figure]:
    file = subject.written({"cam": "source: api"})
    with edgert.Pipeline(file, strict=True) as called, edgert.Pipeline(file, strict=True) as started:
        results = started.results("find", timeout=30.0)

        def submit() -> None:
            started.submit(started.buffer(SIZE, format="nv12"))
            next(results)

        ways = {"a call": lambda: called(called.buffer(SIZE, format="nv12")), "submit and next(results)": submit}
        found = {name: [processor_us(work) for _ in range(3)] for name, work in ways.items()}
    for name, each in found.items():
        title = f"{subject.engine}: {name} at {RATE_HZ:g} frames/s, processor time per frame"
        yield Figure(title, statistics.median(each), "µs", 1000.0, "lower", 3 * PACED, {"most": max(each)})


def bare_pace(entry: Entry) -> Iterator[Figure]:
    from tests.bench.gpu_bare import FedRtx

    bare = FedRtx(entry.lines, entry.pinned, 1, entry.exported(1))

    def run() -> None:
        done = bare.submit(0)
        while not done.query():
            time.sleep(LOOK_S)

    with ThreadPoolExecutor(1) as other:
        ways = {
            "nothing at all": bool,
            "nothing, in another thread": lambda: other.submit(bool).result(),
            "rtx by hand: a copy, a graph, its end": run,
        }
        found = {name: [processor_us(work) for _ in range(3)] for name, work in ways.items()}
    for name, each in found.items():
        title = f"{name} at {RATE_HZ:g} frames/s, processor time per frame"
        yield Figure(title, statistics.median(each), "µs", None, "lower", 3 * PACED, {"most": max(each)})
    bare.close()


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33: ten counts, of which 4 is ``hblkhd`` and 7 is ``uordblks``."""

    _fields_ = (("counts", ctypes.c_size_t * 10),)


def memory_mib() -> tuple[float, float]:
    """Return the MiB that are resident, and those that malloc has given out and not got back."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallocInfo
    counts = mallinfo2().counts
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, (counts[4] + counts[7]) / 2**20


def grown(open_once: Callable[[], None], count: int) -> tuple[float, float, dict[str, float]]:
    """MiB by which resident memory, and memory in use, grow from the tenth opening to the last; and details."""
    for _ in range(WARM_OPENINGS):
        open_once()
    first = memory_mib()
    for _ in range(count - WARM_OPENINGS):
        open_once()
    resident, in_use = (after - before for before, after in zip(first, memory_mib(), strict=True))
    return resident, in_use, {"MiB at the tenth": first[0], "MiB in use each": in_use / (count - WARM_OPENINGS)}


def openings(subject: Subject, entry: Entry, count: int) -> Iterator[Figure]:
    """How memory grows with each pipeline that is opened, called and closed; and with TensorRT-RTX opened by hand."""
    file = subject.written({"cam": "source: api"})

    def open_once() -> None:
        with edgert.Pipeline(file, strict=True) as pipeline:
            for _ in range(CALLS):
                pipeline(pipeline.buffer(SIZE, format="nv12"))

    last = f"growth from the tenth to the {count}th opening"
    resident, own, detail = grown(open_once, count)
    yield Figure(f"{subject.engine}: {last}", resident, "MiB", 10.0, "lower", count, detail)
    if subject.engine == ENGINES["rtx"]:
        from tests.bench.gpu_bare import reopened

        resident, bare, detail = grown(reopened(entry.exported(1), SLOTS), count)
        yield Figure(f"rtx by hand, {SLOTS} contexts: {last}", resident, "MiB", None, "lower", count, detail)
        yield Figure(f"{subject.engine}: in use, of edgert alone", own - bare, "MiB", 10.0, "lower", count)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    parser.add_argument(
        "--only", nargs="+", choices=("start", "batches", "pace", "openings"), default=["start", "batches", "pace"]
    )
    parser.add_argument(
        "--networks", nargs="+", choices=tuple(TASKS), default=list(TASKS), help="of starts and batches"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="of starts")
    parser.add_argument("--runs", type=int, default=5, help="of starts")
    parser.add_argument("--openings", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="where ONNX files are kept")


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    if reason := missing():
        print(f"skipped: {reason}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "start" in options.only:
            yield from starts(options, folder, Path(temporary))
        if not {"batches", "pace", "openings"}.intersection(options.only):
            return
        if "batches" in options.only:
            for name, engine in itertools.product(options.networks, options.engines):
                entry = Entry(name, folder, scenes(4))
                yield from batches(Subject(entry.task, entry.model, ENGINES[engine], BATCH, Path(temporary)))
                if engine == "rtx":
                    yield from bare_batches(entry)
        if not {"pace", "openings"}.intersection(options.only):
            return
        entry = Entry("resnet50", folder, scenes(4))
        for engine in options.engines:
            subject = Subject(entry.task, entry.model, ENGINES[engine], 1, Path(temporary))
            if "pace" in options.only:
                yield from pace(subject)
                if engine == "rtx":
                    yield from bare_pace(entry)
            if "openings" in options.only:
                yield from openings(subject, entry, options.openings)


def starts(options: argparse.Namespace, folder: Path, temporary: Path) -> Iterator[Figure]:
    for name in options.networks:
        entry = Entry(name, folder, scenes(IMAGES))
        for engine, rows in itertools.product(options.engines, options.batches):
            try:
                yield started(Subject(entry.task, entry.model, ENGINES[engine], rows, temporary), options.runs)
            except RuntimeError as error:
                print(f"  {name} b{rows} {engine}: left out, {error}", flush=True)


if __name__ == "__main__":
    main(__doc__ or "", measure, arguments)
