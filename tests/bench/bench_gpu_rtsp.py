"""Sixteen 1080p RTSP cameras decoded by one GPU: processor time of a stream, frames lost, latency.

Another process serves H.264 of 4 Mbit/s over RTSP (RTP interleaved in TCP, loopback), every image numbered, in real
time whoever reads. Each stream is a source of its own here, with ``decode: gpu``; one stage takes all frames on the GPU
and releases them. Processor time is that of this whole process, network, decoder and pipeline included, over wall time
and streams; ``*_us`` is that of one kind of thread, per frame. Lost is what the server sent and the stage did not get,
in order; once a second each stream's number is also read from its pixels. Latency is from the moment that a frame is
due at the server to its being decoded. Needs a GPU, PyCUDA and PyNvVideoCodec; says so and passes where one is missing.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config.stages import SourceStage
from edgert.errors import EdgertError
from edgert.memory.cuda import CudaDevice, open_device
from edgert.runtime import Result, Runner, Task
from edgert.runtime.graph import connect
from edgert.stages.context import Context
from edgert.stages.source.kinds import source_for
from edgert.stages.source.live import LiveSource
from edgert.stages.source.nvdec import missing
from tests.bench.report import main
from tests.helpers.clips import h264_units
from tests.helpers.counter import read_counter
from tests.helpers.rtsp_server import RtspServer

START_S = 60.0
"""Longest wait until every camera gives frames at its pace."""


@dataclass(frozen=True)
class Setup:
    """What is measured, ``seconds`` long, after and before ``spare_s`` in which streams begin, catch up and end.
    ``clip`` images are made once and sent round and round."""

    cameras: int = 16
    size: tuple[int, int] = (1920, 1080)
    fps: int = 30
    seconds: int = 20
    spare_s: int = 20
    clip: int = 120
    bit_rate: int = 4_000_000

    @property
    def frames(self) -> int:
        return (self.seconds + self.spare_s) * self.fps


def serve(pipe: Connection, setup: Setup) -> None:
    units = h264_units(setup.clip, size=setup.size, gop=setup.fps, bit_rate=setup.bit_rate)
    rounds = -(-setup.frames // setup.clip)
    with RtspServer((units * rounds)[: setup.frames], fps=setup.fps, once=True) as server:
        pipe.send((server.url, sum(map(len, units)) * 8 * setup.fps / setup.clip))
        pipe.recv()
        pipe.send((server.sent, server.started_s, time.process_time()))


class Server:
    def __init__(self, setup: Setup) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, setup), daemon=True)

    def __enter__(self) -> Server:
        self._process.start()
        self.url, self.bit_rate = self._pipe.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def report(self) -> tuple[dict[str, int], dict[str, float], float]:
        """By URL, units sent and the monotonic time of the first; and the processor time it took."""
        self._pipe.send("report")
        return self._pipe.recv()  # type: ignore[no-any-return]


@dataclass
class Watch:
    setup: Setup
    seen: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    wrong: int = 0

    def open(self) -> None: ...

    def process(self, result: Result) -> None:
        frame = result.frame
        self.seen[frame.stream].append((frame.index, frame.timestamp_ns))
        if frame.index % self.setup.fps == 0:
            luma = frame.planes[0][:8, :256]
            self.wrong += read_counter(luma.to_host()) != frame.index % self.setup.clip  # type: ignore[attr-defined]

    def close(self) -> None: ...

    def count(self) -> int:
        return sum(len(frames) for frames in list(self.seen.values()))

    def is_steady(self) -> bool:
        """Whether each camera has given frames at its own pace for a second: none is behind any more."""
        now_ns, fps = time.monotonic_ns(), self.setup.fps
        lately = [sum(at_ns > now_ns - 1e9 for _, at_ns in frames[-3 * fps :]) for frames in list(self.seen.values())]
        return len(lately) == self.setup.cameras and all(abs(count - fps) <= fps / 10 for count in lately)


def source(name: str, url: str, device: CudaDevice) -> LiveSource:
    config = SourceStage(source=url, decode="gpu")
    made = source_for(name, config, Context(counter=device.counter))
    assert isinstance(made, LiveSource)
    if reason := made.on_gpu(device):
        raise SystemExit(reason)
    return made


def thread_seconds() -> dict[str, float]:
    kinds = {"process": time.process_time(), "reader": 0.0, "source": 0.0, "stage": 0.0}
    for thread in threading.enumerate():
        name = thread.name
        kind = "reader" if name.endswith("-reader") else "stage" if name == "edgert:watch" else "source"
        if name.startswith("edgert") and thread.ident is not None:
            kinds[kind] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return kinds


@dataclass(frozen=True)
class Run:
    """What came of one: ``seconds`` of processor time by kind of thread, ``wall_s`` and ``frames`` of the measured
    time; and of the whole run what :meth:`Server.report` gives, and what the stage's queue dropped."""

    seconds: dict[str, float]
    wall_s: float
    frames: int
    sent: dict[str, int]
    started_s: dict[str, float]
    server_s: float
    dropped: int


def run(device: CudaDevice, setup: Setup, server: Server, watch: Watch) -> Run:
    nodes = [
        Task(str(number), source(str(number), f"{server.url}/{number}", device)) for number in range(setup.cameras)
    ]
    end = Task("watch", watch)
    for node in nodes:
        connect(node, end, frozenset({node.name}), 1, "oldest")
    runner = Runner([*nodes, end])
    runner.start()
    began = time.monotonic()
    while not watch.is_steady() and runner.is_running and time.monotonic() < began + START_S:
        time.sleep(0.1)
    began, before, frames = time.monotonic(), thread_seconds(), watch.count()
    time.sleep(setup.seconds)
    wall_s, after, frames = time.monotonic() - began, thread_seconds(), watch.count() - frames
    runner.wait()
    took = {kind: after[kind] - before[kind] for kind in after}
    return Run(took, wall_s, frames, *server.report(), sum(channel.dropped for channel in end.wiring.inlet.channels))


def measured(device: CudaDevice, setup: Setup) -> Iterator[Figure]:
    watch = Watch(setup)
    with Server(setup) as server:
        found = run(device, setup, server, watch)
    title = f"{setup.cameras} RTSP streams, {setup.size[1]} lines, {setup.fps} fps"
    us = {f"{kind}_us": seconds / max(found.frames, 1) * 1e6 for kind, seconds in found.seconds.items()}
    us["other_us"] = 2 * us["process_us"] - sum(us.values())
    detail = {**us, "megabit_s": server.bit_rate / 1e6, "server_s": found.server_s}
    share = found.seconds["process"] / found.wall_s / setup.cameras * 100
    yield Figure(f"{title}: processor time of one", share, "% of a core", 5, "lower", found.frames, detail)
    wanted, arrived = setup.frames * setup.cameras, watch.count()
    swapped = sum(one >= other for seen in watch.seen.values() for (one, _), (other, _) in pairwise(seen))
    detail = {"sent": sum(found.sent.values()), "arrived": arrived, "dropped": found.dropped}
    detail |= {"out_of_order": swapped, "wrong_number": watch.wrong}
    yield Figure(f"{title}: frames lost", wanted - arrived + swapped + watch.wrong, "", 0, "lower", wanted, detail)
    ages_ms = [
        at_ns / 1e6 - (found.started_s[f"{server.url}/{name}"] + index / setup.fps) * 1e3
        for name, seen in watch.seen.items()
        for index, at_ns in seen[setup.fps :]
    ]
    p50, p99 = np.percentile(ages_ms, [50, 99]).tolist()
    detail = {"p99_ms": p99, "max_ms": max(ages_ms)}
    yield Figure(f"{title}: due at the server to decoded, p50", p50, "ms", None, "lower", len(ages_ms), detail)


def measure() -> Iterator[Figure]:
    if reason := missing():
        print(f"skipped: {reason}")
        return
    try:
        device = open_device()
    except EdgertError as error:
        print(f"skipped: {error.what}: {error.why}")
        return
    yield from measured(device, Setup())
    yield Figure("blocks leaked", device.leaked, "", 0, "lower", 1)


if __name__ == "__main__":
    main(__doc__ or "", measure)
