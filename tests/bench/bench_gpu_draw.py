"""Results drawn on frames on a GPU: what an image costs there and on the host, and how far it is from OpenCV's.

    python tests/bench/bench_gpu_draw.py [--json FILE]

The demo's belt, 50 frames of 640x480 and of 1080p with boxes, labels, trails and stats; and a busy scene, 1080p with 50
moving boxes, their labels and trails and a mask of the whole image. GPU time is that of one image between two events
(list, kernel); host time is that of one call, nothing waited for. Beside them, the host's painter on the same results.
Needs a GPU, PyCUDA and NVRTC; says so and passes where they are missing.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.errors import EdgertError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, open_device
from edgert.runtime.records import Result
from edgert.stages.draw import Images, Overlay
from edgert.stages.gpu.overlay import GpuPainter
from tests.bench.report import main
from tests.helpers.gpu import to_gpu
from tests.helpers.overlay_scenes import Demo, busy_scene

FRAMES, ROUNDS, MANY = 50, 5, 200
BAR_MS, BAR_LEVELS = 0.3, 2
Shown = tuple[str, ...]
DEMO: Shown = ("boxes", "labels", "trails", "stats")
BUSY: Shown = (*DEMO, "masks")


def taken_ms(device: CudaDevice, painter: GpuPainter, frames: Sequence[Result], shown: Shown) -> tuple[Any, Any]:
    """(ROUNDS, FRAMES) milliseconds on the GPU, and on the host. Shapes are found by the host as in a pipeline."""
    start, end = device.event(timed=True), device.event(timed=True)
    gpu, host = np.zeros((ROUNDS, len(frames))), np.zeros((ROUNDS, len(frames)))
    overlay = Overlay(shown)
    for round_number in range(ROUNDS):
        for index, result in enumerate(frames):
            size = result.frame.width, result.frame.height
            start.record(painter.stream)
            started = time.perf_counter_ns()
            image = painter.paint(result.frame, size, overlay.shapes(size, result))
            host[round_number, index] = (time.perf_counter_ns() - started) / 1e6
            end.record(painter.stream).synchronize()
            gpu[round_number, index] = end.since_ms(start)
            del image
    return gpu, host


def kernel_ms(device: CudaDevice, painter: GpuPainter, result: Result, shown: Shown) -> float:
    """Of many images put on the stream one behind another, so that the host's share is hidden."""
    size = result.frame.width, result.frame.height
    shapes = Overlay(shown).shapes(size, result)
    start, end = device.event(timed=True), device.event(timed=True)
    for _ in range(10):
        painter.paint(result.frame, size, shapes)
    with device:
        drawing, image = painter._listed(size, shapes), painter._take((size[1], size[0], 3))
        launches = list(painter._launches(result.frame, image, drawing.packed))
        start.record(painter.stream)
        for _ in range(MANY):
            drawing.region.sent = 0
            drawing.send(painter.stream, painter._tiles)
            for launch in launches:
                launch.enqueue(painter.stream)
        end.record(painter.stream).synchronize()
        return end.since_ms(start) / MANY


def host_ms(frames: Sequence[Result], shown: Shown) -> list[float]:
    """The host's painter, conversion included."""
    overlay, images, taken = Overlay(shown), Images(), []
    for result in frames:
        started = time.perf_counter_ns()
        images.painted(result, None, lambda size, result=result: overlay.shapes(size, result))  # type: ignore[misc]
        taken.append((time.perf_counter_ns() - started) / 1e6)
    return taken


def levels(painter: GpuPainter, on_host: Sequence[Result], on_gpu: Sequence[Result], shown: Shown) -> list[int]:
    """How many bytes of all images are 0, 1, 2 ... levels from the host's painter's."""
    fixed = type("Fixed", (), {"now_ns": staticmethod(lambda: 10**12)})()
    ours, theirs, images = Overlay(shown, fixed), Overlay(shown, fixed), Images()
    counts = np.zeros(256, np.int64)
    for here, there in zip(on_host, on_gpu, strict=True):
        exact = images.painted(here, None, lambda size, here=here: theirs.shapes(size, here))  # type: ignore[misc]
        size = there.frame.width, there.frame.height
        found = painter.paint(there.frame, size, ours.shapes(size, there)).to_host()
        counts += np.bincount(np.abs(found.astype(np.int16) - exact).ravel(), minlength=256)
    return [int(count) for count in counts[: int(np.flatnonzero(counts).max()) + 1]]


def measure() -> Iterator[Figure]:
    """Two figures for each scene, and the table beside them."""
    try:
        device = open_device()
        painter = GpuPainter(device, Counter())
    except EdgertError as error:
        print(f"skipped: {error.what}")
        return
    small, large = Demo(640, 480), Demo(1920, 1080)
    still = large.result(0).frame
    scenes: list[tuple[str, Shown, Callable[[int], Result]]] = [
        ("demo 640x480", DEMO, small.result),
        ("demo 1080p", DEMO, large.result),
        ("busy 1080p", BUSY, lambda index: busy_scene(still, index)),
        ("busy 1080p, all labels new", BUSY, lambda index: busy_scene(still, index, jitter=0.5)),
    ]
    for name, shown, scene in scenes:
        yield from measured(device, painter, name, shown, [scene(index) for index in range(FRAMES)])


def measured(
    device: CudaDevice, painter: GpuPainter, name: str, shown: Shown, frames: Sequence[Result]
) -> Iterator[Figure]:
    """Those of one scene."""
    there = [Result(to_gpu(device, one.frame), one.outputs) for one in frames]
    gpu, host = taken_ms(device, painter, there, shown)
    found = levels(painter, frames, there, shown)
    table = {
        "gpu_with_gaps_p50_ms": statistics.median(gpu[1:].ravel().tolist()),
        "host_p50_ms": statistics.median(host[1:].ravel().tolist()),
        "host_p99_ms": float(np.percentile(host[1:], 99)),
        "host_first_round_ms": float(host[0].mean()),
        "opencv_on_host_p50_ms": statistics.median(host_ms(frames, shown)),
        "objects": statistics.mean(len(one.detections) for one in frames),
        "levels": str(found),
        "gpu": device.name,
    }
    kernel = kernel_ms(device, painter, there[-1], shown)
    yield Figure(f"{name}: image on the GPU", kernel, "ms", BAR_MS, "lower", ROUNDS * len(frames), table)
    off = len(found) - 1
    yield Figure(f"{name}: levels from the host's", off, "", BAR_LEVELS, "lower", len(frames), is_exact=True)


if __name__ == "__main__":
    main(__doc__ or "", measure)
