"""An inference slot whose work behind the frames is recorded once, as CUDA graphs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice, Loans
from edgert.stages.gpu import infer_gpu, waiting
from edgert.stages.gpu.infer_gpu import SLOTS
from tests.helpers.frames import frame_of
from tests.helpers.gpu import on_gpu
from tests.helpers.gpu_inference import RecordedGraph, Rig, nv12, shared


def test_graphs_are_recorded_at_the_start_and_follow_the_kernel_that_reads_the_frames(
    graphs: list[RecordedGraph],
) -> None:
    rig = Rig(rows=2)
    rig.inference.warm_up()
    assert len(graphs) == 2 * 2 * SLOTS and [session.sizes for session in rig.sessions] == [[2, 2, 1, 1]] * SLOTS
    rig.inference.warm_up()
    assert len(graphs) == 2 * 2 * SLOTS
    before, launches = rig.device.counter.read().copies, len(rig.gpu.launches)
    for index in range(2 * SLOTS):
        rig.inference.run(rig.inference.fill(nv12(index)))
    runs, decodes = graphs[2 * SLOTS :: 2], graphs[2 * SLOTS + 1 :: 2]
    assert all(graph.launches == 2 for graph in (*runs, *decodes))
    assert len(rig.gpu.launches) == launches + 2 * SLOTS
    assert rig.device.counter.read().copies - before == 3 * 2 * SLOTS
    assert [len(session.sizes) for session in rig.sessions] == [4] * SLOTS
    rig.close()


def test_what_becomes_faster_is_recorded_again_at_its_next_turn(graphs: list[RecordedGraph]) -> None:
    rig = Rig(rows=2)
    rig.inference.warm_up()
    for session in rig.sessions:
        session.renewed.add(2)
    rig.inference.run(rig.inference.fill(nv12()))
    assert len(graphs) == 2 * 2 * SLOTS  # one row is as it was
    pairs = [
        rig.inference.submit_batch([rig.inference.fill(nv12(), row) for row in range(2)]) for _ in range(2 * SLOTS)
    ]
    assert len(graphs) == 3 * 2 * SLOTS and not any(session.renewed for session in rig.sessions)
    assert all(graph.launches == 2 for graph in graphs[-2 * SLOTS :])
    for pending in pairs:
        pending.records()
    rig.close()


def test_what_becomes_faster_waits_for_its_recording_while_others_record(graphs: list[RecordedGraph]) -> None:
    rig, held, done = Rig(), threading.Event(), threading.Event()
    rig.inference.warm_up()
    before = len(graphs)

    def other() -> None:
        with rig.device.recording:
            held.set()
            assert done.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(10)
    for session in rig.sessions:
        session.renewed.add(1)
    rig.inference.run(rig.inference.fill(nv12()))
    assert len(graphs) == before
    done.set()
    thread.join()
    for _ in range(SLOTS):
        rig.inference.run(rig.inference.fill(nv12()))
    assert len(graphs) == before + 2 * SLOTS and not any(session.renewed for session in rig.sessions)
    rig.close()


@dataclass
class Refine:
    """What an engine is asked to prepare while it runs."""

    sizes: Sequence[int] = ()
    is_closed: bool = False

    def __call__(self, sizes: Sequence[int]) -> Refine:
        self.sizes = sizes
        return self

    def close(self) -> None:
        self.is_closed = True


def test_batches_that_are_not_full_are_prepared_while_full_ones_run(graphs: list[RecordedGraph]) -> None:
    rig, refine = Rig(rows=4), Refine()
    rig.inference._refine = cast("Any", refine)
    rig.inference.warm_up()
    assert refine.sizes == (1, 2) and len(graphs) == 2 * SLOTS
    rig.inference.warm_up()
    assert len(graphs) == 2 * SLOTS

    def ran(rows: int) -> RecordedGraph:
        """The graph of the engine that a batch of so many launched; its records are those of its frames."""
        before = [graph.launches for graph in graphs]
        found = rig.inference.run(*(rig.inference.fill(nv12(), row) for row in range(rows)))
        assert len(found) == rows
        return next(graph for graph, count in zip(graphs, before, strict=True) if graph.launches > count)

    full = graphs[::2]
    assert all(ran(rows) in full for rows in (1, 2, 3, 4))
    rig.close()
    assert refine.is_closed


@pytest.mark.usefixtures("graphs")
def test_what_can_be_recorded_at_any_time_is_so_at_the_next_turns() -> None:
    rig = Rig(rows=4)
    for session in rig.sessions:
        session.renewed.update((1, 2))
    rig.inference._refine = cast("Any", Refine())
    rig.inference.warm_up()
    for turn, sizes in enumerate(({4, 2}, {4, 2, 1}, {4, 2, 1})):
        for slot in rig.inference._slots:
            rig.inference.run(rig.inference.fill(nv12()))
            assert set(slot._graphs) == sizes and len(slot.late) == max(1 - turn, 0)
    assert [session.sizes for session in rig.sessions] == [[4, 4, 2, 2, 1, 1]] * SLOTS  # run, and recorded
    rig.close()


def test_without_graphs_nothing_is_prepared_while_others_run() -> None:
    rig, refine = Rig(rows=2), Refine()
    rig.inference._refine = cast("Any", refine)
    rig.inference.warm_up()
    assert refine.sizes == () and [set(session.sizes) for session in rig.sessions] == [{1, 2}] * SLOTS
    rig.close()


def test_all_of_it_is_one_graph_where_the_engines_stream_decodes(graphs: list[RecordedGraph]) -> None:
    rig = Rig(beside=False)
    rig.inference.warm_up()
    assert len(graphs) == SLOTS
    before = rig.device.counter.read().copies
    for index in range(2 * SLOTS):
        frame = shared(rig, index)
        rig.inference.run(rig.inference.fill(frame))
        frame.lease.release()
    assert all(graph.launches == 2 for graph in graphs)
    assert rig.device.counter.read().copies - before == 2 * SLOTS * 3  # staged, up, outputs down
    del frame
    rig.close()


@pytest.mark.usefixtures("graphs")
def test_images_of_several_formats_are_several_launches_before_one_graph() -> None:
    rig = Rig(rows=2)
    rig.inference.warm_up()
    launches = len(rig.gpu.launches)
    rig.inference.run(rig.inference.fill(nv12(), 0), rig.inference.fill(frame_of(64, 48, "bgr"), 1))
    assert len(rig.gpu.launches) == launches + 2
    rig.close()


def test_work_that_cannot_be_recorded_is_enqueued_each_time() -> None:
    rig, reasons = Rig(), list[str]()
    rig.inference._without_graph = reasons.append
    rig.inference.warm_up()
    assert len(reasons) == 1 and reasons[0].startswith("there is no CUDA driver")
    for index in range(3 * SLOTS):
        rig.inference.run(rig.inference.fill(nv12(index)))
    tries = len(infer_gpu._PAUSES_S)  # each is behind a run, and the first behind one more
    assert [len(session.sizes) for session in rig.sessions] == [1 + tries + 3] * SLOTS
    rig.close()


def test_what_others_left_on_the_gpu_is_freed_before_the_first_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    class Circle:
        def __init__(self) -> None:
            self.itself = self

    def capture(device: CudaDevice, stream: Any, enqueue: Callable[[], None]) -> RecordedGraph:
        assert left() is None
        return RecordedGraph(enqueue)

    monkeypatch.setattr(CudaDevice, "capture", capture)
    rig = Rig()
    left = weakref.ref(Circle())
    rig.inference.warm_up()
    rig.close()


@pytest.mark.parametrize("times", [1, 2])
def test_a_recording_that_is_disturbed_is_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    disturbed = [True] * times

    def capture(device: CudaDevice, stream: Any, enqueue: Callable[[], None]) -> RecordedGraph:
        if disturbed.pop() if disturbed else False:
            raise DeviceError("recording a CUDA graph failed", why="somebody freed memory")
        return RecordedGraph(enqueue)

    monkeypatch.setattr(CudaDevice, "capture", capture)
    rig, reasons = Rig(), list[str]()
    rig.inference._without_graph = reasons.append
    with caplog.at_level("INFO", infer_gpu.log.name):
        rig.inference.warm_up()
    assert not reasons and caplog.text.count("somebody freed memory") == times
    assert all(slot._graphs for slot in rig.inference._slots)
    rig.close()


def test_frames_are_free_once_they_were_read_and_before_the_engine_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, back = Rig(beside=False), list[int]()
    rig.inference.warm_up()
    loans = Loans(rig.device, rig.device.counter, back.append)
    frame = shared(rig)
    leased = replace(frame, lease=loans.lend(7), planes=on_gpu(frame, rig.device.stream()).planes)
    session, run = rig.sessions[0], rig.sessions[0].enqueue

    def stuck(rows: int | None = None) -> None:
        session.stream.raw.run()  # the GPU has come this far
        rig.gpu.paused = True
        run(rows)

    monkeypatch.setattr(session, "enqueue", stuck)
    pending = rig.inference.submit_batch((rig.inference.fill(leased),))
    leased.lease.release()
    loans.reclaim()
    assert back == [7] and session.stream.raw.work
    pending.records()[0]
    rig.gpu.paused = False
    frame.lease.release()
    del frame, leased
    rig.close()


def test_frames_are_prepared_on_the_stream_that_brings_them_while_the_engine_works_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(feeds_beside=True)
    rig.inference.warm_up()
    feeding, engines, back = rig.inference._uploader.stream, rig.sessions[0].stream, list[int]()
    loans = Loans(rig.device, rig.device.counter, back.append)
    frame = shared(rig)
    leased = replace(frame, lease=loans.lend(7), planes=on_gpu(frame, feeding).planes)
    rig.gpu.paused = True
    pending = rig.inference.submit_batch((rig.inference.fill(leased),))
    leased.lease.release()
    assert rig.gpu.launches[-1][3] == feeding.handle
    feeding.raw.run()
    loans.reclaim()
    assert back == [7] and engines.raw.work  # it waits for the kernel, and the frame for nothing more
    pending.records()[0]
    rig.gpu.paused = False
    frame.lease.release()
    del frame, leased
    rig.close()


@pytest.mark.parametrize(("patient", "behind"), [(False, waiting.PollingWait), (True, waiting.BlockingWait)])
def test_a_run_beside_cameras_that_waits_behind_another_is_waited_for_by_the_driver(
    patient: bool, behind: type[waiting.Waiting]
) -> None:
    rig = Rig()
    rig.inference.is_patient = patient
    slots = rig.inference._slots
    pending = [rig.inference.submit_batch((rig.inference.fill(nv12()),)) for _ in range(2)]
    assert type(slots[0]._done) is waiting.PollingWait and type(slots[1]._done) is behind
    for each in pending:
        each.records()
    rig.inference.run(rig.inference.fill(nv12()))
    assert type(slots[2]._done) is waiting.PollingWait
    blocking, ways = rig.gpu.event_flags.BLOCKING_SYNC, slots[0]._waits
    assert {how: bool(way.event.raw.flags & blocking) for how, way in ways.items()} == {
        "poll": False,
        "block": True,
    }
    rig.close()
