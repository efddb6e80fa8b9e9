"""Live 1080p cameras of 30 frames per second on one GPU: how long each frame takes, and how many cameras it holds.

An edgert.Pipeline of one camera, without a batch, beside one of eight, ``batch: {max: 8, wait: 5ms}``; both are open,
and film in turns. The cameras write NV12 into memory that the GPU reads, as V4L2 drivers do, their frames due one after
the other. Latency is from when a frame was due to when a callback has its result, the camera's thread and Python's lock
included. Before, the machine is asked by itself: how late it wakes as many threads that sleep from frame to frame and
do nothing else, how long a piece of Python takes that is always the same, and how long a copy of a frame takes, on the
GPU and until the host knows.
``--most`` then opens a pipeline of so many cameras, and of the next number while no frame is lost. Processor
time is that of the whole process, cameras included. The network has random weights, FP16. Needs a GPU, PyCUDA, PyTorch,
which makes the network, and the engine; says so and passes where one is missing.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.errors import EdgertError
from edgert.memory.cuda import CudaDevice, open_device
from tests.bench.gpu_entry import ENGINES, IMAGES, Entry, missing
from tests.bench.gpu_public import Cameras, Live, Subject, add_kind
from tests.bench.gpu_race import idle
from tests.bench.gpu_run import HEIGHT, WIDTH
from tests.bench.gpu_task import TASKS, scenes
from tests.bench.report import main

RATE_HZ, ROWS, SLEEPS_S = 30.0, 8, 2.0
P99, CPU_US, IDLE_S = 1.5, 1000.0, 30.0
OBJECTS = 3000
"""Of a piece of work: 0.8 MB, more than a core keeps for itself of a machine that others use, too."""


def sleepers(number: int) -> Figure:
    """The 99th percentile of how late the machine wakes threads at a camera's pace, which do nothing else."""
    late_ms = list[float]()

    def sleep() -> None:
        for _ in range(round(SLEEPS_S * RATE_HZ)):
            started = time.perf_counter()
            time.sleep(1 / RATE_HZ)
            late_ms.append((time.perf_counter() - started - 1 / RATE_HZ) * 1e3)

    threads = [threading.Thread(target=sleep) for _ in range(number)]
    for thread in threads:
        thread.start()
        time.sleep(1 / RATE_HZ / number)
    for thread in threads:
        thread.join()
    p50, p99 = np.percentile(late_ms, [50, 99]).tolist()
    detail = {"p50_ms": p50, "most_ms": max(late_ms)}
    return Figure(f"{number} threads that sleep alone: late, p99", p99, "ms", None, "lower", len(late_ms), detail)


def pieces(number: int, seconds: float = SLEEPS_S) -> Figure:
    """The 99th percentile of how long a thread takes for a piece of Python that is always the same, at the pace of so
    many cameras: on a machine whose cores are its own, hardly more than the median."""
    objects, taken_ms = [{"index": index, "boxes": [index]} for index in range(OBJECTS)], list[float]()
    for _ in range(round(seconds * RATE_HZ * number)):
        time.sleep(1 / RATE_HZ / number)
        started = time.perf_counter()
        for one in objects:
            one["boxes"] = [one["index"]]
        taken_ms.append((time.perf_counter() - started) * 1e3)
    p50, p99 = np.percentile(taken_ms, [50, 99]).tolist()
    detail = {"p50_ms": p50, "most_ms": max(taken_ms)}
    return Figure("a piece of Python that is always the same: p99", p99, "ms", None, "lower", len(taken_ms), detail)


def copies(device: CudaDevice, number: int, seconds: float = SLEEPS_S) -> Figure:
    """The 99th percentile of how long copies of frames to the GPU take until the host knows, at the pace of so many
    cameras, and by the GPU's own clock."""
    block, stream = device.block(WIDTH * HEIGHT * 3 // 2, "staged"), device.stream()
    begun, ended = device.event(timed=True), device.event(timed=True)
    gpu_ms, known_ms = list[float](), list[float]()
    for _ in range(round(seconds * RATE_HZ * number)):
        time.sleep(1 / RATE_HZ / number)
        started = time.perf_counter()
        begun.record(stream)
        block.upload(stream)
        ended.record(stream)
        ended.synchronize()
        known_ms.append((time.perf_counter() - started) * 1e3)
        gpu_ms.append(ended.since_ms(begun))
    block.release()
    p50, p99 = np.percentile(known_ms, [50, 99]).tolist()
    gpu_p50, gpu_p99 = np.percentile(gpu_ms, [50, 99]).tolist()
    detail = {"p50_ms": p50, "most_ms": max(known_ms), "gpu_p50_ms": gpu_p50, "gpu_p99_ms": gpu_p99}
    detail["gpu_most_ms"] = max(gpu_ms)
    return Figure(f"frames of {number} cameras brought alone: p99", p99, "ms", None, "lower", len(gpu_ms), detail)


def in_turns(one: Cameras, several: Cameras, runs: int, seconds: float) -> list[tuple[Live, Live]]:
    """One camera, then several, so many times; a second of each before does not count."""
    for cameras in (one, several):
        cameras.live(1.0)
    return [(one.live(seconds), several.live(seconds)) for _ in range(runs)]


def latency(subject: Subject, single: Subject, options: argparse.Namespace) -> Iterator[Figure]:
    title = f"{subject.task.name} {subject.engine}"
    one, several = Cameras(single, 1, RATE_HZ), Cameras(subject, options.cameras, RATE_HZ)
    idle(IDLE_S)  # engines are refined beside
    pairs = in_turns(one, several, options.runs, options.seconds)
    for cameras in (one, several):
        cameras.close()
    for number, (alone, together) in enumerate(pairs):
        detail = {**asdict(together), **{f"one_{name}": value for name, value in asdict(alone).items()}}
        name = f"{title}: {options.cameras} cameras, p99 / one camera's, run {number + 1} of {len(pairs)}"
        yield Figure(name, together.p99_ms / alone.p99_ms, "x", P99, "lower", together.given, detail)
    frames = sum(together.given for _, together in pairs)
    lost = sum(together.lost for _, together in pairs)
    yield Figure(f"{title}: frames of {options.cameras} cameras lost", lost, "", 0, "lower", frames)
    for name, found in (("one camera", [pair[0] for pair in pairs]), ("all cameras", [pair[1] for pair in pairs])):
        given = sum(each.given for each in found)
        cpu_us = sum(each.cpu_us * each.given for each in found) / given
        yield Figure(f"{title}: {name}, processor time per frame", cpu_us, "µs", CPU_US, "lower", given)


def capacity(subject: Subject, options: argparse.Namespace) -> Iterator[Figure]:
    for number in options.most:
        cameras = Cameras(subject, number, RATE_HZ)
        idle(IDLE_S)
        cameras.live(1.0)
        found = cameras.live(options.seconds)
        cameras.close()
        name = f"{subject.task.name} {subject.engine}: frames of {number} cameras lost"
        yield Figure(name, found.lost, "", 0 if number <= 48 else None, "lower", found.given, asdict(found))
        if found.lost:
            return


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    parser.add_argument("--network", choices=tuple(TASKS), default="yolov8s")
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5, help="0 leaves latency out")
    parser.add_argument("--seconds", type=float, default=4.0, help="that one run films")
    parser.add_argument(
        "--most", nargs="*", type=int, default=[48, 64, 80], help="numbers of cameras to try; none: not"
    )
    parser.add_argument("--folder", type=Path, help="where ONNX files are kept")


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    if reason := missing():
        print(f"skipped: {reason}")
        return
    yield sleepers(options.cameras)
    yield pieces(options.cameras)
    device = open_device()
    yield copies(device, options.cameras)
    device.close()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        add_kind(Path(temporary))
        entry = Entry(options.network, folder, scenes(IMAGES))
        for engine in options.engines:
            single, subject = (
                Subject(entry.task, entry.model, ENGINES[engine], rows, Path(temporary)) for rows in (1, ROWS)
            )
            try:
                if options.runs:
                    yield from latency(subject, single, options)
                yield from capacity(subject, options)
            except EdgertError as error:
                print(f"  {engine}: left out, {error.what}: {error.why}")


if __name__ == "__main__":
    main(__doc__ or "", measure, arguments)
