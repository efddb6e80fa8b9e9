"""Frames of sources in memory that the GPU reads."""

import threading
from typing import Any

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.installation import demo_images
from edgert.memory import TYPICAL_BUFFERS, Counter
from edgert.memory.cuda import CudaDevice, SharedLease
from edgert.stages.context import Context
from edgert.stages.gpu.upload import Staging, is_shared
from edgert.stages.source.api import ApiSource
from edgert.stages.source.kinds import source_for
from edgert.stages.source.python_images import PythonSource
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import frame_of


def gpu() -> CudaDevice:
    return CudaDevice(CudaDouble(), 0, Counter())


@pytest.mark.parametrize("form", ["nv12", "i420", "yuyv", "bgr", "gray"])
def test_frames_are_copied_pixel_by_pixel_once_and_the_source_gets_its_own_back(form: Any) -> None:
    device, given_back = gpu(), []
    frame = frame_of(31, 17, form)
    frame.lease._give_back = lambda: given_back.append(1)
    staging = Staging(device)
    taken = staging.shared_frame(frame)
    assert given_back and not frame.lease.alive and is_shared(taken, device)
    assert device.counter.read().copies == 1
    assert all(np.array_equal(one, other) for one, other in zip(taken.planes, frame.planes, strict=True))
    assert all(plane.ctypes.data % 64 == 0 and plane.strides[0] % 64 == 0 for plane in taken.planes)
    assert staging.shared_frame(taken) is taken and device.counter.read().copies == 1
    assert not is_shared(taken, CudaDevice(CudaDouble(), 1))


def test_a_user_who_keeps_all_frames_gets_them_in_memory_that_can_be_swapped() -> None:
    device = gpu()
    staging = Staging(device)
    kept = [staging.shared_frame(frame_of(8, 8, "bgr", index=index)) for index in range(TYPICAL_BUFFERS + 2)]
    assert [is_shared(frame, device) for frame in kept] == [True] * TYPICAL_BUFFERS + [False] * 2
    assert all(frame.lease.alive for frame in kept)


def test_a_source_that_changes_its_size_gives_the_old_memory_back() -> None:
    device = gpu()
    staging = Staging(device)
    sizes = []
    for width in (8, 400, 8):
        frame = staging.shared_frame(frame_of(width, 8, "gray"))
        frame.lease.release()
        del frame
        sizes.append(device.live_bytes)
    assert sizes[0] == sizes[2] < sizes[1]
    staging.close()
    assert device.live_bytes == 0 and device.leaked == 0


def generated(source: str) -> PythonSource:
    config = SourceStage.model_validate({"source": source, "limit": 12, "size": "320x240"})
    made = source_for("cam", config)
    assert isinstance(made, PythonSource)
    return made


@pytest.mark.parametrize(
    ("scene", "copies"),
    [(demo_images(), 0), ("synthetic:counter", 0), ("synthetic:noise", 12), ("synthetic:blank", 12)],
)
def test_scenes_are_drawn_where_the_gpu_reads_and_images_made_once_are_copied_there(scene: str, copies: int) -> None:
    device, source = gpu(), generated(scene)
    source.share(device)
    plain = generated(scene).frames(threading.Event())
    for frame, other in zip(source.frames(threading.Event()), plain, strict=True):
        assert is_shared(frame, device) and np.array_equal(frame.planes[0], other.planes[0])
        frame.lease.release()
        other.lease.release()
    assert device.counter.read().copies == copies
    source.close()
    del frame, other
    assert device.live_bytes == 0


def test_a_users_frames_are_copied_in_the_sources_thread() -> None:
    device = gpu()
    source = ApiSource("cam", SourceStage(source="api"), Context())
    source.share(device)
    pixels = np.full((48, 64, 3), 9, np.uint8)
    source.submit(pixels)
    source.finish()
    (frame,) = source.frames(threading.Event())
    pixels[:] = 0
    assert isinstance(frame.lease, SharedLease) and set(frame.planes[0].ravel()) == {9}
