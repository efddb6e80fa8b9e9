"""Pipelines over an inference slot on a GPU, without a file: the same frames over and over, and what came of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from edgert.memory import Counter, lend
from edgert.memory.cuda import CudaDevice, SharedPool
from edgert.policy import Batcher
from edgert.runtime import Frame, Result, Runner, SourceStats, Task
from edgert.runtime.branches import Branch, branch_tasks
from edgert.runtime.graph import connect
from edgert.stages.gpu.infer_gpu import GpuInference
from edgert.stages.gpu.infer_stage import GpuInfer
from edgert.stages.gpu.upload import Staging

WIDTH, HEIGHT = 1920, 1080
WAIT_S = 0.005


def frames(count: int) -> list[Any]:
    """(1620, 1920) uint8 NV12 each: coarse random patterns, so that networks see more than noise."""
    random = np.random.default_rng(0)
    coarse = random.integers(16, 236, (count, HEIGHT * 3 // 2 // 60, WIDTH // 60), np.uint8)
    return list(np.ascontiguousarray(coarse.repeat(60, 1).repeat(60, 2)))


def frame_of(pixels: Any, stream: str = "cam", index: int = 0, at_ns: int = 0) -> Frame:
    """A host frame over the pixels."""
    planes = pixels[:HEIGHT], pixels[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)
    return Frame(stream, index, at_ns, 0, WIDTH, HEIGHT, "nv12", planes, lend(pixels, Counter()))


BUFFERS = 48
"""Of a file: batches of eight under way, and queues. A camera has fewer."""
CAMERA_BUFFERS = 6
Kind = Literal["written", "staged", "foreign"]


class Pinned:
    """Frames in pinned memory that have been written into it before, as cameras and decoders do; a new one each time
    for whoever takes them."""

    def __init__(self, device: CudaDevice, pixels: Sequence[Any], count: int = BUFFERS) -> None:
        self._pool = SharedPool(device, pixels[0].nbytes, count, device.counter)
        held = [self.take() for _ in range(count)]
        for index, frame in enumerate(held):
            luma, chroma = frame_of(pixels[index % len(pixels)]).planes
            np.copyto(frame.planes[0], luma)
            np.copyto(frame.planes[1], chroma)
            frame.lease.release()

    def take(self, stream: str = "cam", index: int = 0, at_ns: int | None = None) -> Frame:
        """Waits until a buffer is free; of that moment, unless it is of another."""
        leased = self._pool.acquire()
        assert leased is not None
        pixels = leased[0].reshape(-1, WIDTH)
        planes = pixels[:HEIGHT], pixels[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)
        now_ns = time.monotonic_ns() if at_ns is None else at_ns
        return Frame(stream, index, now_ns, 0, WIDTH, HEIGHT, "nv12", planes, leased[1])


class Camera:
    """Gives frames, as fast as they are taken or so many per second.

    Args:
        rate_hz: None for a file.
        phase: 0 to 1, of the time between two frames.
        device: a GPU that is to read the frames.
        kind: written: the source wrote them into pinned memory; staged: they are copied there in the source's thread;
            foreign: they are left in ordinary memory.
    """

    def __init__(
        self,
        name: str,
        pixels: Sequence[Any],
        count: int,
        rate_hz: float | None = None,
        phase: float = 0.0,
        device: CudaDevice | None = None,
        kind: Kind = "foreign",
    ) -> None:
        self.name, self.live, self._pixels, self._count = name, rate_hz is not None, pixels, count
        self._rate_hz, self._phase = rate_hz, phase
        self._staging = Staging(device) if device and kind == "staged" else None
        buffers = CAMERA_BUFFERS if rate_hz else BUFFERS
        self._pinned = Pinned(device, pixels, buffers) if device and kind == "written" else None

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """See :class:`~edgert.runtime.Source`."""
        started = time.monotonic()
        for index in range(self._count):
            if self._rate_hz:
                time.sleep(max(started + (index + self._phase) / self._rate_hz - time.monotonic(), 0))
            if stop.is_set():
                return
            yield self._frame(index)

    def _frame(self, index: int) -> Frame:
        if self._pinned is not None:
            return self._pinned.take(self.name, index)
        frame = frame_of(self._pixels[index % len(self._pixels)], self.name, index, time.monotonic_ns())
        return frame if self._staging is None else self._staging.taken(frame)

    def stats(self) -> SourceStats:
        """Nothing went wrong."""
        return SourceStats()

    def close(self) -> None:
        """Gives the memory back when the last frame is gone."""
        self._pinned = None
        if self._staging is not None:
            self._staging.close()


class Sink:
    """Notes when results came, and how old they were."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.age_ns: list[int] = []
        self.last: Result | None = None

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> None:
        """See :class:`~edgert.runtime.Stage`."""
        now = time.monotonic_ns()
        self.at_ns.append(now)
        self.age_ns.append(now - result.timestamp_ns)
        self.last = replace(result, frame=result.frame)

    def close(self) -> None:
        """Nothing to give back."""


@dataclass(frozen=True)
class Run:
    """What came of it; the first tenth, in which graphs are recorded, is left out of the times.

    Attributes:
        fps: results per second.
        p50_ms, p99_ms: from the camera to the sink.
        lost: frames that never arrived.
        copies, bytes_copied: between host and GPU, per frame.
    """

    fps: float
    p50_ms: float
    p99_ms: float
    lost: int
    copies: float
    bytes_copied: float
    records: Any


def run(inference: GpuInference, counter: Counter, cameras: Sequence[Camera], count: int, batch: int = 1) -> Run:
    """Runs ``cameras`` of ``count`` frames each through the inference slot."""
    names = frozenset(camera.name for camera in cameras)
    fills = not any(camera.live for camera in cameras)
    batcher = Batcher[Result](batch, round(WAIT_S * 1e9), fills=fills) if batch > 1 else None
    chain = branch_tasks("find", [Branch((GpuInfer("find", [inference], batcher=batcher),))], names, batch)
    sink = Sink()
    nodes = [Task(camera.name, camera) for camera in cameras]
    for node in nodes:
        live = node.stage.live  # type: ignore[union-attr]
        connect(node, chain[0], frozenset({node.name}), 1 if live else 4, "oldest" if live else "never")
    end = Task("sink", sink)
    connect(chain[-1], end, names, 2, "never")
    inference.warm_up()
    before = counter.read()
    runner = Runner([*nodes, *chain, end])
    runner.start()
    runner.wait()
    after, total = counter.read(), len(sink.at_ns)
    skip = total // 10
    ages = np.array(sink.age_ns[skip:]) / 1e6
    assert sink.last is not None
    return Run(
        (total - skip - 1) / (sink.at_ns[-1] - sink.at_ns[skip]) * 1e9,
        *np.percentile(ages, [50, 99]).tolist(),
        lost=count * len(cameras) - total,
        copies=(after.copies - before.copies) / total,
        bytes_copied=(after.bytes_copied - before.bytes_copied) / total,
        records=sink.last.outputs["find"],
    )
