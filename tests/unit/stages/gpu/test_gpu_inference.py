"""Frames in GPU inference: how often they are copied, what memory they take, and in what order their records come."""

import threading
from typing import Any, cast

import numpy as np
import pytest

from edgert.config import CropConfig, SourceStage
from edgert.policy import run_sizes
from edgert.stages.context import Context
from edgert.stages.gpu import infer_gpu, infer_stage, upload
from edgert.stages.gpu.infer_gpu import SLOTS, InferenceSlot, PendingInference
from edgert.stages.infer import InferCrops
from edgert.stages.source.api import ApiSource
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.gpu import uploaded
from tests.helpers.gpu_inference import Rig, bytes_at, nv12, shared

WARM = 1 + len(infer_gpu._PAUSES_S)
"""Runs before the first frame: there is no graph, and one is behind each try."""


def test_a_frame_of_others_is_copied_once_goes_up_once_and_the_outputs_come_down_once() -> None:
    rig = Rig()
    rig.inference.warm_up()
    before, launches = rig.device.counter.read(), len(rig.gpu.launches)
    frame = nv12()
    geometry = rig.inference.fill(frame)
    frame.lease.release()  # the host's pixels are not needed any more
    ((value, way_back),) = rig.inference.run(geometry)
    after = rig.device.counter.read()
    assert (value, way_back.scale_x, way_back.scale_y) == (WARM + 1, 4, 3)
    assert after.copies - before.copies == 3 and after.bytes_copied - before.bytes_copied == 2 * (64 * 48 * 3 // 2) + 8
    assert [launch[0] for launch in rig.gpu.launches[launches:]] == ["preprocess"]
    rig.close()
    assert rig.device.live_bytes == 0 and rig.device.leaked == 0


def test_a_frame_in_shared_memory_goes_up_as_it_lies() -> None:
    rig = Rig()
    rig.inference.warm_up()
    frame = shared(rig)
    before = rig.device.counter.read()
    rig.inference.run(rig.inference.fill(frame))
    after = rig.device.counter.read()
    assert after.copies - before.copies == 2 and after.bytes_copied - before.bytes_copied == 64 * 48 * 3 // 2 + 8
    assert after.allocations == before.allocations
    uploader = upload.Uploader(rig.device)
    there = uploaded(uploader, frame.crop(8, 4, 40, 36))
    assert rig.device.counter.read().copies == after.copies  # it is there, and a crop is a part of it
    luma = cast("Any", there.planes[0])
    rows = np.lib.stride_tricks.as_strided(bytes_at(luma.address, 64 * 32), luma.shape, luma.strides)
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
    geometries = one.inference.fill(frame), other.inference.fill(frame)
    frame.lease.release()
    one.inference.run(geometries[0])
    assert frame.lease.alive  # the other is not done with it
    other.inference.run(geometries[1])
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
    staging = upload.Staging(rig.device)
    rig.inference.warm_up()

    def run(count: int) -> tuple[int, int, int, int]:
        for index in range(count):
            shared = staging.shared_frame(nv12(index))
            rig.inference.run(rig.inference.fill(shared), rig.inference.fill(nv12(index).crop(0, 0, 16, 16), 1))
            shared.lease.release()
        counted = rig.device.counter.read().allocations, rig.device.live_bytes
        return *counted, len(rig.gpu.streams), len(events)

    settled = run(100)  # every buffer has met every stream by then
    assert run(200) == settled and not events  # those of the slots stand for all that they read
    staging.close()
    rig.close()


def test_the_host_waits_for_nothing_before_the_record_is_wanted() -> None:
    rig = Rig()
    stage = infer_stage.GpuInfer("find", [rig.inference])
    stage.open()
    rig.gpu.paused = True
    for index in range(2):
        stage.submit([one := result_of(nv12(index))], [one])
    assert stage.in_flight == 2 and not stage.is_ready and rig.gpu.streams[0].work
    found = [*stage.collect(wait=True), *stage.collect(wait=True)]
    assert [one.outputs["find"][0] for one in found] == [WARM + 1] * 2
    assert stage.in_flight == 0 and stage.due_ns() is None
    rig.gpu.paused = False
    rig.close()


def test_a_batch_that_nobody_read_keeps_its_records_when_its_tensors_are_used_again() -> None:
    rig = Rig()
    pending = [rig.inference.submit_batch((rig.inference.fill(nv12(index)),)) for index in range(2 * SLOTS)]
    assert [one.records()[0][0] for one in pending] == [1] * SLOTS + [2] * SLOTS  # runs of each session
    rig.close()


def test_sizes_of_a_batch_are_rounded_up_and_rows_keep_their_order() -> None:
    rig = Rig(rows=5)
    rig.inference.warm_up()
    assert rig.sessions[0].sizes == [size for size in (5, 4, 2, 1) for _ in range(WARM)]
    geometries = [rig.inference.fill(nv12(row), row) for row in range(3)]
    assert [value for value, _ in rig.inference.run(*geometries)] == [4 * WARM + 1, 4 * WARM + 2, 4 * WARM + 3]
    assert rig.sessions[0].sizes[-1] == 4
    assert rig.gpu.launches[-1][1][2] == 3  # images in the grid
    rig.close()


@pytest.mark.parametrize(
    ("rows", "dynamic", "sizes"), [(1, True, (1,)), (8, True, (1, 2, 4, 8)), (6, True, (1, 2, 4, 6)), (8, False, (8,))]
)
def test_run_sizes(rows: int, dynamic: bool, sizes: tuple[int, ...]) -> None:
    assert run_sizes(rows, dynamic) == sizes


def test_crops_and_frames_of_several_sizes_keep_their_memory() -> None:
    rig = Rig(rows=4)
    whole = nv12()
    frames = [whole.crop(0, 0, 16, 16), frame_of(32, 24, "nv12"), whole.crop(8, 8, 64, 48), nv12(1)]
    geometries = [rig.inference.fill(frame, row) for row, frame in enumerate(frames)]
    assert (geometries[2].offset_x, geometries[2].offset_y) == (8, 8)
    held = [rig.inference._frames[row] for row in range(4)]
    for there, frame in zip(held, frames, strict=True):
        luma, pitch = frame.planes[0], -(-frame.width // 64) * 64
        rows = np.lib.stride_tricks.as_strided(bytes_at(there.addresses[0], 64 * 48), luma.shape, (pitch, 1))
        assert np.array_equal(rows, luma)
    del held, there, luma
    blocks = len(rig.gpu.allocations)
    rig.inference.run(*geometries)
    for row in range(3):
        rig.inference.fill(whole.crop(0, 0, 20 + 2 * row, 30), row)
    assert len(rig.gpu.allocations) == blocks
    rig.close()
    assert rig.device.live_bytes == 0


def test_frames_on_the_gpu_are_not_uploaded() -> None:
    rig = Rig()
    uploader = upload.Uploader(rig.device)
    frame = uploaded(uploader, nv12())
    before = rig.device.counter.read()
    rig.inference.run(rig.inference.fill(frame))
    assert rig.device.counter.read().copies == before.copies + 1  # the outputs
    assert frame.lease.alive
    frame.lease.release()
    del frame
    rig.close()
    uploader.close()


def test_all_crops_of_a_frame_are_on_their_way_before_the_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that are run together are written by one launch."""
    rig = Rig(rows=2)
    rig.inference.warm_up()
    stage = InferCrops("read", PendingInference(rig.inference), CropConfig(min_size=4))
    ran, launches, seen = sum(len(one.sizes) for one in rig.sessions), len(rig.gpu.launches), []
    read = InferenceSlot.read

    def noted(slot: InferenceSlot, geometries: Any) -> Any:
        seen.append(sum(len(one.sizes) for one in rig.sessions) - ran)
        return read(slot, geometries)

    monkeypatch.setattr(InferenceSlot, "read", noted)
    boxes = [(x, 0, x + 8, 8) for x in range(0, 40, 8)]
    result = result_of(shared(rig), {"find": detections(*boxes)})
    crops = stage.process(result).outputs["read"]
    assert seen == [3, 3, 3] and crops.rows.tolist() == [0, 1, 2, 3, 4] and len(crops.records) == 5
    assert [geometry.bounds[0] for _, geometry in crops.records] == [0, 8, 16, 24, 32]
    assert [launch[0] for launch in rig.gpu.launches[launches:]] == ["preprocess"] * 3
    result.frame.lease.release()
    rig.close()


@pytest.mark.parametrize("is_cropped", [False, True])
def test_images_of_one_buffer_are_brought_as_one_and_lie_where_each_alone_would(is_cropped: bool) -> None:
    rig = Rig(rows=4)
    rig.inference.warm_up()
    source = ApiSource("cam", SourceStage(source="api"), Context(counter=rig.device.counter))
    source.read_by(rig.device)
    buffer = source.buffer((64, 48), format="nv12", batch=4)
    buffer.array[:] = np.arange(4, dtype=np.uint8)[:, None, None]
    frames = source.take(buffer, source.images(buffer), threading.Event())
    if is_cropped:
        frames[2] = frames[2].crop(8, 8, 64, 48)
    plans, lease = rig.inference._plans, frames[0].lease
    wanted = [plans.ready(frame, rig.inference._uploader.stream) for frame in frames]
    before = rig.device.counter.read()
    geometries = rig.inference.fill_batch(frames)
    found = [rig.inference._frames[row] for row in range(4)]
    assert [one.addresses for one in found] == [one.addresses for one in wanted]
    assert all(one.plan is other.plan for one, other in zip(found, wanted, strict=True))
    assert geometries == [one.plan.geometry for one in wanted]
    assert rig.device.counter.read().bytes_copied - before.bytes_copied == 4 * 64 * 48 * 3 // 2
    rig.inference.run(*geometries)
    assert lease.alive
    lease.release(4)
    assert not lease.alive, "what was held for the GPU is let go"
    source.close()
    rig.close()
    del found, wanted, buffer, frames
    assert rig.device.live_bytes == 0


def test_images_of_several_buffers_are_brought_one_by_one() -> None:
    rig = Rig(rows=2)
    rig.inference.warm_up()
    frames = [shared(rig), nv12(1)]
    geometries = rig.inference.fill_batch(frames)
    for frame in frames:
        frame.lease.release()
    assert len(rig.inference.run(*geometries)) == 2
    rig.close()
