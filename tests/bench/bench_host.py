"""Processor time of the whole process per frame, from a source through a model on a GPU to a sink.

The GPU is a stand-in that does nothing, at once, and the records of frames are ready: what is left is the host's own
work. Frames are 1080p NV12, in pinned memory or on the GPU; one at a time and eight; of a source that gives them as
fast as they are taken, or of a program that submits lent buffers, of one frame or eight, and has a callback. What the
calls of a real CUDA driver cost comes on top, so these are counted beside it. Needs no GPU.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.assemble.pixels import mark_pixel_use
from edgert.benchmark.measure import Figure
from edgert.clock import REAL
from edgert.config import InputConfig, SourceStage
from edgert.config.flow import FILE_QUEUE, STAGE_QUEUE
from edgert.memory import Counter, Lease
from edgert.memory.cuda import CudaDevice, Loans, SharedPool, Stream
from edgert.policy import Batcher, Reads
from edgert.runtime import Embedding, Execution, Frame, Record, Result, Runner, SourceStats, Task
from edgert.runtime.branches import Branch, branch_tasks
from edgert.runtime.call_loop import CallLoop
from edgert.runtime.graph import connect
from edgert.runtime.inline_loop import share_threads
from edgert.stages.context import Context
from edgert.stages.crop import Geometry
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, plain_target
from edgert.stages.gpu.infer_gpu import SLOTS, GpuInference, InferenceSlot
from edgert.stages.gpu.infer_stage import GpuInfer
from edgert.stages.gpu.upload import Uploader
from edgert.stages.sink.results import CallbackSink
from edgert.stages.source.api import ApiSource
from edgert.stages.source.planes import device_planes
from tests.bench.gpu_run import BUFFERS, HEIGHT, WIDTH
from tests.bench.report import main
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu_inference import Session, no_kernels

ROUNDS, COUNT, SIDE = 5, 8000, 224
BARS_US = {1: 120.0, 8: 60.0}
_READY = Embedding(cast("Any", None))


class _Idle:
    """A stream, event, module and function of the stand-in: all calls return at once, and are counted."""

    handle, num_regs, local_size_bytes = 1, 32, 0

    def __init__(self, gpu: IdleGpu) -> None:
        self._gpu = gpu

    def called(self, *_: object) -> bool:
        self._gpu.calls += 1
        return True

    def query(self) -> bool:
        return self.called()

    record = synchronize = wait_for_event = prepared_async_call = push = pop = detach = called

    def get_function(self, name: str) -> _Idle:
        return _Idle(self._gpu)


class IdleGpu(CudaDouble):
    """A GPU without work. ``calls``: of its driver so far; ``is_busy``: so it seems where batches are made."""

    calls, is_busy, detached = 0, False, False

    def __init__(self) -> None:
        super().__init__()
        real, gpu = cast("type[Any]", self.Device), self

        class Device(real):  # type: ignore[misc, valid-type]
            def retain_primary_context(self) -> Any:
                return _Idle(gpu)

        self.Device = Device  # type: ignore[assignment]

    def Stream(self, flags: int = 0) -> Any:
        return _Idle(self)

    def Event(self, flags: int = 0) -> Any:
        return _Idle(self)

    def launch(self) -> None:
        self.calls += 1

    def check(self) -> None: ...

    def module_from_buffer(self, binary: bytes) -> Any:
        return _Idle(self)

    def memset_d8_async(self, *_: object) -> None: ...

    def memcpy_htod_async(self, *_: object) -> None:
        self.calls += 1


class _Passing(_Idle):
    _at_s = 0.0
    _gpu: BusyGpu

    def called(self, *_: object) -> bool:
        self._at_s = self._gpu.free_s
        return super().called()

    record = called

    def query(self) -> bool:
        return super().called() and time.perf_counter() >= self._at_s

    def synchronize(self, *_: object) -> bool:
        time.sleep(max(self._at_s - time.perf_counter(), 0.0))
        return super().called()


class BusyGpu(IdleGpu):
    """A GPU that takes as long for every batch; ``waiting``: batches under way at each launch."""

    def __init__(self, batch_s: float) -> None:
        super().__init__()
        self.batch_s, self.free_s, self.idle_s, self.waiting = batch_s, 0.0, list[float](), list[float]()
        self._launches = 0

    def Event(self, flags: int = 0) -> Any:
        return _Passing(self)

    def launch(self) -> None:
        """A graph: the engine's, and then that which decodes."""
        self.calls += 1
        self._launches += 1
        if self._launches % 2:
            now_s = time.perf_counter()
            self.waiting.append(max(self.free_s - now_s, 0.0) / self.batch_s)
            self.idle_s.append(max(now_s - self.free_s, 0.0))
            self.free_s = max(self.free_s, now_s) + self.batch_s

    @property
    def busy(self) -> float:
        """Part of the time that it worked, from the tenth batch on."""
        worked_s = len(self.waiting[10:]) * self.batch_s
        return worked_s / (worked_s + sum(self.idle_s[10:]))


class Marks:
    """Notes the processor's time and the calls of the driver, from the tenth of so many frames on."""

    def __init__(self, gpu: IdleGpu, count: int) -> None:
        self._gpu, self._frames = gpu, count
        self._count, self._first, self._last = 0, (0, 0), (0, 0)

    def take(self, result: Result) -> None:
        self._count += 1
        if self._count == self._frames // 10:
            self._first = self._now()
        elif self._count == self._frames:
            self._last = self._now()

    @property
    def per_frame(self) -> tuple[float, float]:
        """Microseconds, and calls."""
        frames = self._frames - self._frames // 10
        return (self._last[0] - self._first[0]) / frames / 1e3, (self._last[1] - self._first[1]) / frames

    def _now(self) -> tuple[int, int]:
        return time.process_time_ns(), self._gpu.calls


class ReadyReader:
    """Has the records before anybody asks."""

    def set_transforms(self, geometries: Sequence[Geometry]) -> None: ...

    def enqueue(self, rows: int, stream: Stream) -> None: ...

    def copy_sizes(self, rows: int) -> Sequence[int]:
        return ()

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        return [_READY for _ in geometries]

    def close(self) -> None: ...


def inference_of(device: CudaDevice, rows: int) -> GpuInference:
    """An inference slot whose graphs, of engine and of decoding, are recorded and take no time."""
    gpu = cast("IdleGpu", device.driver)
    device.capture = lambda stream, enqueue: gpu.launch  # type: ignore[assignment, method-assign, return-value]
    kernels = no_kernels(device)
    config, target = InputConfig(resize="stretch"), plain_target("nchw", "float16", rows, SIDE, SIDE, 3)
    sessions = [Session(device, rows) for _ in range(SLOTS)]
    for session in sessions:
        session.enqueue = lambda rows=None: None  # type: ignore[method-assign, assignment]
    reading = device.stream()
    slots = [InferenceSlot(one, GpuPreprocessor(config, target, 256, kernels), ReadyReader(), reading)
             for one in sessions]  # fmt: skip
    return Feeding(slots, Uploader(device, in_flight=rows * (SLOTS + 1)))


class Feeding(GpuInference):
    @property
    def idle(self) -> bool:
        return not cast("IdleGpu", self.device.driver).is_busy and super().idle


class Film:
    """A source of 1080p NV12 frames that were written into pinned memory, or are on the GPU already, as those of a
    camera or a decoder; it does nothing else."""

    name, live = "cam", False

    def __init__(self, device: CudaDevice, count: int, on_gpu: bool = False) -> None:
        self._count, self._pool = count, SharedPool(device, WIDTH * HEIGHT * 3 // 2, BUFFERS)
        self._loans = Loans(device, device.counter, lambda key: None) if on_gpu else None
        self._device, self._stream = device, device.stream()

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for index in range(self._count):
            planes, lease = self._filmed(index)
            yield Frame("cam", index, time.monotonic_ns(), index, WIDTH, HEIGHT, "nv12", planes, lease)

    def _filmed(self, index: int) -> tuple[Any, Lease]:
        if self._loans is None:
            leased = self._pool.acquire()
            assert leased is not None
            luma, chroma = leased[0][: WIDTH * HEIGHT], leased[0][WIDTH * HEIGHT :]
            return (luma.reshape(HEIGHT, WIDTH), chroma.reshape(HEIGHT // 2, WIDTH // 2, 2)), leased[1]
        self._loans.reclaim()
        lease = self._loans.lend(4096 * (1 + index % BUFFERS))
        rows = (4096, WIDTH), (4096 + WIDTH * HEIGHT, WIDTH)
        return device_planes("nv12", (WIDTH, HEIGHT), rows, lease, self._device, self._stream), lease

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None: ...


def piped(device: CudaDevice, rows: int, on_gpu: bool) -> tuple[float, float]:
    """Microseconds of the process per frame, and calls of the driver per frame; starting and ending left out."""
    marks = Marks(cast("IdleGpu", device.driver), COUNT)
    with running(device, rows, Film(device, COUNT, on_gpu), marks, "nothing") as runner:
        runner.wait()
    return marks.per_frame


def submitted(device: CudaDevice, rows: int, batch: int | None = None) -> tuple[float, float]:
    """The same of a program that fills lent buffers, without writing them, and submits them: of an image each, or of a
    batch."""
    marks = Marks(cast("IdleGpu", device.driver), COUNT)
    source = ApiSource("cam", SourceStage(source="api"), Context(counter=device.counter))
    source.read_by(device)
    with running(device, rows, source, marks) as runner:
        for _ in range(COUNT // (batch or 1)):
            source.submit(source.buffer((WIDTH, HEIGHT), format="nv12", batch=batch))
        source.finish()
        runner.wait()
    return marks.per_frame


def mapped(device: CudaDevice, rows: int) -> tuple[float, float]:
    """The same of a program that iterates over results, as ``Pipeline.map`` does, of batches in lent buffers."""
    marks, stop = Marks(cast("IdleGpu", device.driver), COUNT), threading.Event()
    source = ApiSource("cam", SourceStage(source="api"), Context(counter=device.counter))
    source.read_by(device)
    inference, nodes = linked(device, rows, source)
    loop = CallLoop(nodes, REAL, stop, print, ())
    leased = list[Result]()

    def take(results: list[Result]) -> None:
        for result in leased:
            result.frame.lease.release()
        for result in results:
            marks.take(result)
        leased[:] = results

    for _ in range(COUNT // rows):
        buffer = source.buffer((WIDTH, HEIGHT), format="nv12", batch=rows if rows > 1 else None)
        images = source.images(buffer)
        take(loop.run([(partial(source.take, buffer, images, stop), len(images))], leaves=True))
    take(loop.run(()))
    take([])
    loop.close()
    inference.close()
    return marks.per_frame


def linked(device: CudaDevice, rows: int, work: Film | ApiSource) -> tuple[GpuInference, list[Task]]:
    inference, names = inference_of(device, rows), frozenset({"cam"})
    inference.is_patient = False  # as where a pipeline is assembled
    batcher = Batcher[Result](rows, wait=5e6, fills=True) if rows > 1 else None
    first = GpuInfer("find", [inference], batcher=batcher)
    source = Task("cam", work, execution=Execution(reads="nothing"))
    chain = branch_tasks("find", [Branch((first,), reads="anywhere")], names, 1)
    connect(source, chain[0], names, max(FILE_QUEUE, 2 * rows), "never")
    return inference, [source, *chain]


@contextmanager
def running(
    device: CudaDevice, rows: int, work: Film | ApiSource, marks: Marks, reads: Reads = "host"
) -> Iterator[Runner]:
    inference, nodes = linked(device, rows, work)
    end = Task("end", CallbackSink("end", marks.take), execution=Execution(reads=reads))
    connect(nodes[-1], end, frozenset({"cam"}), STAGE_QUEUE, "never")
    nodes = [*nodes, end]
    mark_pixel_use(nodes)
    share_threads(nodes)
    cast("IdleGpu", device.driver).is_busy = True  # so that batches are full
    runner = Runner(nodes)
    runner.start()
    yield runner
    inference.close()


def measure() -> Iterator[Figure]:
    device = CudaDevice(IdleGpu(), 0, Counter())
    none = dict.fromkeys(BARS_US)
    for name, run, bars in (
        ("pinned frames, batch {}: processor time per frame", partial(piped, on_gpu=False), BARS_US),
        ("frames on the GPU, batch {}: processor time per frame", partial(piped, on_gpu=True), BARS_US),
        ("buffers that a program submits, batch {}", submitted, none),
        ("batches of {} that a program submits", lambda device, rows: submitted(device, rows, rows), {8: None}),
        ("buffers of {} that a program maps over", mapped, none),
    ):
        for rows, bar in bars.items():
            taken = [run(device, rows) for _ in range(ROUNDS)]
            value, detail = statistics.median(one[0] for one in taken), {"driver_calls": taken[0][1]}
            yield Figure(name.format(rows), value, "µs", bar, "lower", ROUNDS, detail)


if __name__ == "__main__":
    main(__doc__ or "", measure)
