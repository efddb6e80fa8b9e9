"""Lanes on a GPU that is this process's memory; kernels are launched and counted, and compute nothing."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgert.backend.gpu import GpuTensor
from edgert.config import InputConfig
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.runtime import Frame, Node, Result, Runner, SourceStats
from edgert.runtime.branch import Branch, branch_nodes
from edgert.runtime.edge import connect
from edgert.stages.geometry import Geometry
from edgert.stages.gpu import slot as slot_module
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.lane import SLOTS, Collect, GpuLane, Pending, Submitting
from edgert.stages.gpu.outputs import HostReader
from edgert.stages.gpu.preprocess import GpuPreprocessor
from edgert.stages.gpu.slot import Slot, run_sizes
from edgert.stages.gpu.staging import Staging
from edgert.stages.gpu.target import target
from edgert.stages.gpu.upload import Uploader
from edgert.stages.infer import Infer
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import frame_of, result_of

SIDE = 16


class Session:
    """An engine that writes, for each row, how many runs there were."""

    def __init__(self, device: CudaDevice, rows: int, dynamic: bool = True) -> None:
        self.device, self.stream, self.exclusive = device, device.stream(), threading.RLock()
        self.dynamic, self.recordable, self.sizes = dynamic, True, []
        shape = (rows, 3, SIDE, SIDE)
        self.inputs_on_gpu = {"x": GpuTensor("x", shape, "float32", device.block(4 * int(np.prod(shape))))}
        self.outputs_on_gpu = (GpuTensor("y", (rows, 2), "float32", device.block(8 * rows)),)
        self.inputs = {"x": self.inputs_on_gpu["x"].host}

    sizes: list[int]

    def run(self, rows: int | None = None) -> Sequence[Any]:
        raise AssertionError("the lane must not go through the host")

    def enqueue(self, rows: int | None = None) -> None:
        self.sizes.append(rows or 0)
        values = np.arange(len(self.sizes), len(self.sizes) + (rows or 0), dtype=np.float32).repeat(2)
        block = self.outputs_on_gpu[0].block
        with self.device:
            self.stream.raw.put(lambda: self.device.driver.memcpy_htod(block.address, values))


class Rig:
    """A lane on a GPU of its own."""

    def __init__(self, rows: int = 1, dynamic: bool = True, gpu: CudaDouble | None = None, beside: bool = True) -> None:
        self.gpu = gpu or CudaDouble()
        self.device = CudaDevice(self.gpu, 0, Counter())
        compiler = SimpleNamespace(compile=lambda *_: b"")
        kernels = Kernels(self.device, compiler=cast("Callable[[], Any]", lambda: compiler))
        config = InputConfig(resize="stretch")
        self.sessions = [Session(self.device, rows, dynamic) for _ in range(SLOTS)]
        slots, other = [], self.device.stream()
        for session in self.sessions:
            address = session.inputs_on_gpu["x"].block.address
            preprocessor = GpuPreprocessor(config, target("nchw", "float32", rows, SIDE, SIDE), address, kernels)
            reading = other if beside else session.stream
            slots.append(Slot(session, preprocessor, HostReader(session.outputs_on_gpu, (True,), record), reading))
        uploader = Uploader(self.device, self.device.stream(), self.device.counter, in_flight=4 * rows)
        self.lane = GpuLane(slots, config, uploader)

    def close(self) -> None:
        self.lane.close()
        for session in self.sessions:
            for tensor in (*session.inputs_on_gpu.values(), *session.outputs_on_gpu):
                tensor.block.release()


def record(outputs: Sequence[Any], geometry: Geometry) -> tuple[float, Geometry]:
    return float(outputs[0][0]), geometry


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.setattr(CudaDevice, "capture", capture)


def nv12(index: int = 0) -> Frame:
    return frame_of(64, 48, "nv12", index=index)


def test_a_frame_of_others_is_copied_once_goes_up_once_and_the_outputs_come_down_once() -> None:
    rig = Rig()
    rig.lane.warm_up()
    before, launches = rig.device.counter.read(), len(rig.gpu.launches)
    frame = nv12()
    geometry = rig.lane.fill(frame)
    frame.lease.release()  # the host's pixels are not needed any more
    ((value, way_back),) = rig.lane.run(geometry)
    after = rig.device.counter.read()
    assert (value, way_back.scale_x, way_back.scale_y) == (3, 4, 3)
    assert after.copies - before.copies == 3 and after.bytes_copied - before.bytes_copied == 2 * (64 * 48 * 3 // 2) + 8
    assert [launch[0] for launch in rig.gpu.launches[launches:]] == ["preprocess"]
    rig.close()
    assert rig.device.live_bytes == 0 and rig.device.leaked == 0


def shared(rig: Rig, index: int = 0) -> Frame:
    staging = Staging(rig.device)
    return staging.taken(nv12(index))


def test_a_frame_in_shared_memory_goes_up_as_it_lies() -> None:
    rig = Rig()
    rig.lane.warm_up()
    frame = shared(rig)
    before = rig.device.counter.read()
    rig.lane.run(rig.lane.fill(frame))
    after = rig.device.counter.read()
    assert after.copies - before.copies == 2 and after.bytes_copied - before.bytes_copied == 64 * 48 * 3 // 2 + 8
    assert after.allocations == before.allocations
    there = Uploader(rig.device, rig.device.stream(), rig.device.counter).upload(frame.crop(8, 4, 40, 36))
    assert rig.device.counter.read().copies == after.copies  # it is there, and a crop is a part of it
    luma = cast("Any", there.planes[0])
    rows = np.lib.stride_tricks.as_strided(_bytes_at(luma.address, 64 * 32), luma.shape, luma.strides)
    assert np.array_equal(rows, nv12().planes[0][4:36, 8:40])
    there.lease.release()
    frame.lease.release()
    del frame, there, luma, rows
    rig.close()
    assert rig.device.live_bytes == 0 and rig.device.leaked == 0


def test_models_that_look_at_the_same_frame_share_one_upload() -> None:
    one = Rig()
    other = Rig(gpu=one.gpu)  # an engine of its own, which opened the same GPU for itself
    frame = shared(one)
    before = [rig.device.counter.read() for rig in (one, other)]
    geometries = one.lane.fill(frame), other.lane.fill(frame)
    frame.lease.release()
    one.lane.run(geometries[0])
    assert frame.lease.alive  # the other is not done with it
    other.lane.run(geometries[1])
    assert not frame.lease.alive
    after = [rig.device.counter.read() for rig in (one, other)]
    copies = [now.copies - then.copies for now, then in zip(after, before, strict=True)]
    nbytes = sum(now.bytes_copied - then.bytes_copied for now, then in zip(after, before, strict=True))
    assert copies == [2, 1] and nbytes == 64 * 48 * 3 // 2 + 2 * 8
    del frame
    one.close()
    other.close()
    assert one.device.live_bytes == other.device.live_bytes == 0


def test_over_many_frames_no_memory_stream_or_event_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, events = Rig(rows=2), list[int]()
    made = rig.gpu.Event
    monkeypatch.setattr(rig.gpu, "Event", lambda flags=0: events.append(flags) or made(flags))
    staging = Staging(rig.device)
    rig.lane.warm_up()

    def run(count: int) -> tuple[int, int, int, int]:
        for index in range(count):
            shared = staging.taken(nv12(index))
            rig.lane.run(rig.lane.fill(shared), rig.lane.fill(nv12(index).crop(0, 0, 16, 16), 1))
            shared.lease.release()
        counted = rig.device.counter.read().allocations, rig.device.live_bytes
        return *counted, len(rig.gpu.streams), len(events)

    settled = run(100)  # every buffer has met every stream by then
    assert settled[3] > 0 and run(200) == settled
    staging.close()
    rig.close()


def test_the_host_waits_for_nothing_before_the_record_is_wanted() -> None:
    rig = Rig()
    stage, collect = Infer("find", Submitting(rig.lane)), Collect("find")
    stage.open()
    rig.gpu.paused = True
    first, second = (stage.process(result_of(nv12(index))) for index in range(2))
    assert isinstance(first.outputs["find"], Pending) and rig.gpu.streams[0].work
    assert [collect.process(one).outputs["find"][0] for one in (first, second)] == [3, 3]
    passing = result_of(nv12(2))
    assert collect.process(passing) is passing
    rig.gpu.paused = False
    rig.close()


def test_a_batch_that_nobody_read_keeps_its_records_when_its_tensors_are_used_again() -> None:
    rig = Rig()
    pending = [rig.lane.submit(rig.lane.fill(nv12(index)))[0] for index in range(2 * SLOTS)]
    assert [one.record()[0] for one in pending] == [1] * SLOTS + [2] * SLOTS  # runs of each session
    rig.close()


def test_sizes_of_a_batch_are_rounded_up_and_rows_keep_their_order() -> None:
    rig = Rig(rows=5)
    rig.lane.warm_up()
    assert rig.sessions[0].sizes == [1, 1, 2, 2, 4, 4, 5, 5]
    geometries = [rig.lane.fill(nv12(row), row) for row in range(3)]
    assert [value for value, _ in rig.lane.run(*geometries)] == [9, 10, 11]
    assert rig.sessions[0].sizes[-1] == 4
    assert rig.gpu.launches[-1][1][2] == 3  # pictures in the grid
    rig.close()


@pytest.mark.parametrize(
    ("rows", "dynamic", "sizes"), [(1, True, (1,)), (8, True, (1, 2, 4, 8)), (6, True, (1, 2, 4, 6)), (8, False, (8,))]
)
def test_run_sizes(rows: int, dynamic: bool, sizes: tuple[int, ...]) -> None:
    assert run_sizes(rows, dynamic) == sizes


class Recorded:
    """A graph that notes what it is told."""

    def __init__(self, stream: Any, enqueue: Callable[[], None]) -> None:
        self.told: list[Any] = []
        self._stream, self._enqueue = stream, enqueue
        enqueue()

    def start_with(self, launch: Any) -> None:
        self.told.append(launch.argument)

    def __call__(self) -> None:
        self.told.append("launched")


def test_graphs_are_recorded_at_the_start_and_told_where_the_frames_are(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Recorded] = []

    def capture(device: CudaDevice, stream: Any, enqueue: Callable[[], None]) -> Recorded:
        graphs.append(Recorded(stream, enqueue))
        return graphs[-1]

    monkeypatch.setattr(CudaDevice, "capture", capture)
    rig = Rig(rows=2)
    rig.lane.warm_up()
    assert len(graphs) == 2 * 2 * SLOTS and [session.sizes for session in rig.sessions] == [[1, 1, 2, 2]] * SLOTS
    rig.lane.warm_up()
    assert len(graphs) == 2 * 2 * SLOTS
    before = rig.device.counter.read().copies
    for index in range(2 * SLOTS):
        rig.lane.run(rig.lane.fill(nv12(index)))
    runs, decodes = graphs[: 2 * SLOTS : 2], graphs[1 : 2 * SLOTS : 2]
    assert all(graph.told[1::2] == ["launched"] * 2 and len(graph.told) == 4 for graph in runs)
    assert all(graph.told == ["launched"] * 2 for graph in decodes)
    assert len({graph.told[0] for graph in runs}) == SLOTS  # each says where another frame lies
    assert rig.device.counter.read().copies - before == 3 * 2 * SLOTS
    assert [len(session.sizes) for session in rig.sessions] == [4] * SLOTS
    rig.close()


def test_all_of_it_is_one_graph_where_the_engines_stream_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Recorded] = []

    def capture(device: CudaDevice, stream: Any, enqueue: Callable[[], None]) -> Recorded:
        graphs.append(Recorded(stream, enqueue))
        return graphs[-1]

    monkeypatch.setattr(CudaDevice, "capture", capture)
    rig = Rig(beside=False)
    rig.lane.warm_up()
    assert len(graphs) == SLOTS
    before = rig.device.counter.read().copies
    for index in range(2 * SLOTS):
        frame = shared(rig, index)
        rig.lane.run(rig.lane.fill(frame))
        frame.lease.release()
    assert all(graph.told[1::2] == ["launched"] * 2 for graph in graphs)
    assert rig.device.counter.read().copies - before == 2 * SLOTS * 3  # staged, up, outputs down
    del frame
    rig.close()


def test_pictures_of_several_formats_are_several_launches_before_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaDevice, "capture", lambda device, stream, enqueue: Recorded(stream, enqueue))
    rig = Rig(rows=2)
    rig.lane.warm_up()
    launches = len(rig.gpu.launches)
    rig.lane.run(rig.lane.fill(nv12(), 0), rig.lane.fill(frame_of(64, 48, "bgr"), 1))
    assert len(rig.gpu.launches) == launches + 1  # the second is in the graph
    rig.close()


def test_work_that_cannot_be_recorded_is_enqueued_each_time(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level("INFO", slot_module.log.name):
        rig.lane.warm_up()
    assert caplog.text.count("no CUDA graph: there is no CUDA driver") == SLOTS
    for index in range(3 * SLOTS):
        rig.lane.run(rig.lane.fill(nv12(index)))
    assert [len(session.sizes) for session in rig.sessions] == [5] * SLOTS
    rig.close()


def test_a_gpu_that_is_lost_is_an_error_and_closing_goes_on() -> None:
    rig = Rig()
    rig.lane.run(rig.lane.fill(nv12()))
    pending = rig.lane.submit(rig.lane.fill(nv12(1)))
    rig.gpu.broken["event"] = "cuEventSynchronize failed: an illegal memory access was encountered"
    with pytest.raises(DeviceError, match="the GPU is lost to this process"):
        pending[0].record()
    rig.gpu.broken["free"] = rig.gpu.broken["event"]
    rig.close()
    assert rig.device.live_bytes == 0


class Reel:
    """A source of ten frames. ``before`` is called with the number of each."""

    live = False

    def __init__(self, before: Callable[[int], None]) -> None:
        self._before = before

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for index in range(10):
            if stop.is_set():
                return
            self._before(index)
            yield nv12(index)

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None: ...


class Kept:
    """A sink."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.closed = False

    def open(self) -> None: ...

    def process(self, result: Result) -> None:
        self.records.append(result.outputs["find"])

    def close(self) -> None:
        self.closed = True


def test_a_gpu_that_is_lost_ends_the_pipeline_and_what_came_before_is_kept() -> None:
    rig, kept = Rig(), Kept()

    def lose(index: int) -> None:
        if index == 6:
            while len(kept.records) < 3:
                time.sleep(0.001)
            rig.gpu.broken["event"] = "cuEventSynchronize failed: unspecified launch failure"

    chain = branch_nodes("find", [Branch((Infer("find", Submitting(rig.lane)), Collect("find")))], frozenset("a"), 1)
    source, sink = Node("a", Reel(lose)), Node("sink", kept)
    connect(source, chain[0], frozenset("a"), 1, "never")
    connect(chain[-1], sink, frozenset("a"), 1, "never")
    runner = Runner([source, *chain, sink])
    runner.start()
    with pytest.raises(DeviceError, match="the GPU is lost to this process") as caught:
        runner.wait(10)
    assert "find" in caught.value.where and not runner.running
    assert 3 <= len(kept.records) < 10 and kept.closed
    rig.close()
    del caught, runner, chain, source, sink  # the error knows the call that failed, and so its frame
    gc.collect()  # errors and the threads that they ended know each other
    gc.collect()  # what finalizers of the first round let go
    assert rig.device.live_bytes == 0


def test_crops_and_frames_of_several_sizes_keep_their_memory() -> None:
    rig = Rig(rows=4)
    whole = nv12()
    frames = [whole.crop(0, 0, 16, 16), frame_of(32, 24, "nv12"), whole.crop(8, 8, 64, 48), nv12(1)]
    geometries = [rig.lane.fill(frame, row) for row, frame in enumerate(frames)]
    assert (geometries[2].offset_x, geometries[2].offset_y) == (8, 8)
    held = [rig.lane._frames[row] for row in range(4)]
    for there, frame in zip(held, frames, strict=True):
        luma = there.planes[0]
        rows = np.lib.stride_tricks.as_strided(_bytes_at(luma.address, 64 * 48), luma.shape, luma.strides)
        assert np.array_equal(rows, frame.planes[0])
    del held, there, luma
    blocks = len(rig.gpu.allocations)
    rig.lane.run(*geometries)
    for row in range(3):
        rig.lane.fill(whole.crop(0, 0, 20 + 2 * row, 30), row)
    assert len(rig.gpu.allocations) == blocks
    rig.close()
    assert rig.device.live_bytes == 0


def _bytes_at(address: int, nbytes: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def test_frames_on_the_gpu_are_not_uploaded() -> None:
    rig = Rig()
    uploader = Uploader(rig.device, rig.device.stream(), rig.device.counter)
    frame = uploader.upload(nv12())
    before = rig.device.counter.read()
    rig.lane.run(rig.lane.fill(frame))
    assert rig.device.counter.read().copies == before.copies + 1  # the outputs
    assert frame.lease.alive
    frame.lease.release()
    del frame
    rig.close()
    uploader.close()
