"""Frames and drawn images of a GPU come to the host once, into memory that is used again."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from edgert.errors import DeviceError
from edgert.memory import TYPICAL_BUFFERS, Counter
from edgert.memory.cuda import CudaDevice, DeviceView, SharedLease, Stream
from edgert.runtime import Frame, Result
from edgert.runtime.frame import full_frame
from edgert.runtime.records import without_pixels
from edgert.stages.gpu.download import Downloader
from edgert.stages.gpu.upload import Uploader, is_shared
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import frame_of
from tests.helpers.gpu import uploaded
from tests.helpers.gpu_inference import bytes_at
from tests.helpers.threads import in_threads


class Rig:
    def __init__(self, integrated: bool = False, compute: tuple[int, int] = (8, 7)) -> None:
        self.gpu = CudaDouble(integrated, compute)
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.uploader = Uploader(self.device, in_flight=8)
        self.downloader = Downloader()

    def frame(self, index: int = 0, form: str = "nv12") -> tuple[Frame, Frame]:
        """A frame of the host's, and the same on the GPU."""
        there = frame_of(64, 48, cast("Any", form), index=index)
        on_gpu = uploaded(self.uploader, there)
        return there, written_by(on_gpu, getattr(on_gpu.planes[0], "stream", None) or self.device.stream())


def written_by(frame: Frame, stream: Stream | None) -> Frame:
    return replace(frame, planes=cast("Any", tuple(replace(view, stream=stream) for view in cast("Any", frame.planes))))


@pytest.mark.parametrize("form", ["nv12", "i420", "yuyv", "bgr", "gray"])
@pytest.mark.parametrize("machine", [(False, (8, 7)), (True, (8, 7)), (True, (5, 3))])
def test_every_format_comes_as_it_was_in_one_counted_copy(form: str, machine: tuple[bool, tuple[int, int]]) -> None:
    rig = Rig(*machine)
    there, on_gpu = rig.frame(form=form)
    before = rig.device.counter.read()
    taken = rig.downloader.to_host(Result(on_gpu, {"n": 1}))
    assert all(np.array_equal(one, other) for one, other in zip(taken.frame.planes, there.planes, strict=True))
    assert not taken.frame.is_on_gpu and taken.outputs == {"n": 1}
    assert not on_gpu.lease.alive and taken.frame.lease.alive, "the camera's buffer is free, the copy is held"
    after = rig.device.counter.read()
    assert after.copies - before.copies == 1
    assert after.bytes_copied - before.bytes_copied >= sum(plane.nbytes for plane in there.planes)
    is_pinned = machine != (True, (5, 3))  # a Nano's processor would read pinned memory past its caches
    assert isinstance(taken.frame.lease, SharedLease) == is_pinned == is_shared(taken.frame, rig.device)


def test_memory_is_used_again_and_never_while_somebody_looks_at_it() -> None:
    rig, kept = Rig(), list[Any]()
    for index in range(200):
        _, on_gpu = rig.frame(index)
        frame = rig.downloader.to_host(Result(on_gpu)).frame
        if index == 100:
            kept += [frame.planes[0], frame.planes[0].copy()]
        frame.lease.release()
        del frame
        if index == 10:
            settled = rig.device.counter.read().allocations
    counts = rig.device.counter.read()
    assert counts.allocations - settled <= 1 and counts.escaped <= 1
    assert np.array_equal(kept[0], kept[1])


def test_whoever_keeps_frames_gets_more_memory() -> None:
    rig, frames = Rig(), list[Frame]()
    for index in range(TYPICAL_BUFFERS + 24):
        _, on_gpu = rig.frame(index)
        frames.append(rig.downloader.to_host(Result(on_gpu)).frame)
    assert len({int(frame.planes[0].ctypes.data) for frame in frames}) == TYPICAL_BUFFERS + 24
    assert sum(isinstance(frame.lease, SharedLease) for frame in frames) == TYPICAL_BUFFERS, "pinned"


def test_all_who_want_a_frame_get_the_one_copy_of_it() -> None:
    rig = Rig()
    there, on_gpu = rig.frame()
    before, found = rig.device.counter.read(), list[Frame]()
    on_gpu.lease.retain(4)
    work = lambda: found.append(Downloader().to_host(Result(on_gpu)).frame)  # noqa: E731
    in_threads(work)
    assert len({id(frame) for frame in found}) == 1 and rig.device.counter.read().copies - before.copies == 1
    assert np.array_equal(found[0].planes[0], there.planes[0])
    for frame in found:
        frame.lease.release()
    assert found[0].lease.alive, "another could still want it"
    on_gpu.lease.release()
    assert not found[0].lease.alive and not on_gpu.lease.alive


def test_crops_come_alone_and_use_memory_of_one_size() -> None:
    rig = Rig()
    there, on_gpu = rig.frame()
    before = rig.device.counter.read()
    for box in ((0, 0, 8, 8), (10, 20, 40, 30), (0, 0, 64, 48)):
        on_gpu.lease.retain()
        frame = rig.downloader.to_host(Result(on_gpu.crop(*box))).frame
        wanted = there.crop(*box)
        assert all(np.array_equal(one, other) for one, other in zip(frame.planes, wanted.planes, strict=True))
        assert frame.region == wanted.region and full_frame(frame) is frame
        frame.lease.release()
    after = rig.device.counter.read()
    assert after.allocations - before.allocations == 4, "as many as the pool starts with, of one size"
    assert after.bytes_copied - before.bytes_copied < 2 * 64 * 48 * 3 // 2


def test_a_drawn_image_of_the_gpu_comes_too_and_the_hosts_stays() -> None:
    rig = Rig()
    there, on_gpu = rig.frame(form="bgr")
    view = cast("DeviceView", on_gpu.planes[0])
    bare = without_pixels(Result(there, image=cast("Any", view)))
    taken = rig.downloader.to_host(bare)
    assert taken.frame is bare.frame and taken.image is not None and np.array_equal(taken.image, there.planes[0])
    there_still = rig.downloader.with_host_image(Result(on_gpu, image=cast("Any", view)))
    assert there_still.frame is on_gpu and isinstance(there_still.image, np.ndarray)
    again = rig.downloader.to_host(taken)
    assert again is taken, "nothing is left to bring"


def test_the_copy_waits_for_the_stream_that_writes_the_frame() -> None:
    rig = Rig()
    _, on_gpu = rig.frame()
    view = cast("DeviceView", on_gpu.planes[0])
    writer = rig.device.stream()
    pixels = np.full(64 * 48, 7, np.uint8)
    rig.gpu.paused = True
    with rig.device:
        writer.raw.put(lambda: rig.gpu.memcpy_htod(view.pointer, pixels))
    late = written_by(on_gpu, writer)
    frame = rig.downloader.to_host(Result(late)).frame
    assert (frame.planes[0] == 7).all() and bytes_at(view.pointer, 1)[0] == 7


def test_memory_of_an_unknown_writer_is_refused_and_the_frame_stays_held() -> None:
    rig = Rig()
    _, on_gpu = rig.frame()
    strange = written_by(on_gpu, None)
    with pytest.raises(DeviceError, match="cannot be copied to the host"):
        rig.downloader.to_host(Result(strange))
    assert on_gpu.lease.alive
