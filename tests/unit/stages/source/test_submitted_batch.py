"""Batches of frames that a program submits as one array, or in one lent buffer."""

import threading
from typing import Any

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.runtime import Frame
from edgert.stages.context import Context
from edgert.stages.source.api import ApiSource
from edgert.stages.source.user_memory import most_in_use


def source_of(**options: Any) -> ApiSource:
    return ApiSource("cam", SourceStage.model_validate({"source": "api", "queue": 16, **options}), Context())


def numbered(count: int, *shape: int) -> Any:
    """Images, each full of its number."""
    return np.arange(count, dtype=np.uint8).reshape(count, *[1] * len(shape)) + np.zeros(shape, np.uint8)


def taken(source: ApiSource, count: int) -> list[Frame]:
    frames = source.frames(threading.Event())
    return [next(frames) for _ in range(count)]


@pytest.mark.parametrize(
    ("form", "shape"),
    [("bgr", (4, 6, 3)), ("rgb", (4, 6, 3)), ("yuyv", (4, 6, 2)), ("gray", (4, 6)), ("nv12", (6, 8))],
)
def test_frames_are_the_arrays_images_in_order_under_one_lease(form: Any, shape: tuple[int, ...]) -> None:
    source, array = source_of(), numbered(3, *shape)
    assert source.submit(array, format=form) == 0 and source.submit(array[:2], format=form) == 3
    frames = taken(source, 5)
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4] and source._counter.read().copies == 0
    for row, frame in enumerate(frames[:3]):
        assert frame.format == form and (frame.width, frame.height) == ((8, 4) if form == "nv12" else (6, 4))
        assert all((plane == row).all() and np.shares_memory(plane, array[row]) for plane in frame.planes)
    assert len({id(frame.lease) for frame in frames[:3]}) == 1
    for frame in frames[:2]:
        frame.lease.release()
    assert frames[2].lease.alive
    frames[2].lease.release()
    assert not frames[2].lease.alive


def test_a_copy_is_one_and_protects_from_changes() -> None:
    source, array = source_of(), numbered(2, 4, 6, 3)
    source.submit(array, copy=True)
    array[:] = 9
    assert [int(frame.planes[0][0, 0, 0]) for frame in taken(source, 2)] == [0, 1]
    assert source._counter.read().copies == 1 and source._counter.read().bytes_copied == array.nbytes


def test_times_are_one_for_all_or_one_for_each() -> None:
    source, array = source_of(), numbered(2, 4, 6, 3)
    source.submit(array, timestamp_ns=50)
    source.submit(array, timestamp_ns=[60, 70])
    frames = taken(source, 4)
    assert [frame.timestamp_ns for frame in frames] == [50, 50, 60, 70]
    assert [frame.media_ns for frame in frames] == [0, 0, 10, 20]


@pytest.mark.parametrize(
    ("array", "options", "said"),
    [
        (np.zeros((0, 4, 6, 3), np.uint8), {}, "without images"),
        (np.zeros((2, 4, 6, 3), np.float32), {}, "uint8"),
        (np.zeros((2, 4, 6, 4), np.uint8), {}, "shape"),
        (np.zeros((2, 4, 6, 3), np.uint8)[:, :, ::-1], {}, "contiguous"),
        (np.zeros((2, 7, 8), np.uint8), {"format": "nv12"}, "height \\* 3 / 2"),
        (np.zeros((4, 6, 3), np.uint8), {"format": "gray"}, "shape"),
        (np.zeros((2, 2, 4, 6, 3), np.uint8), {}, "shape"),
        (np.zeros((2, 4, 6, 3), np.uint8), {"timestamp_ns": [1, 2, 3]}, "3 times for 2 frames"),
        (np.zeros((4, 6, 3), np.uint8), {"timestamp_ns": [1, 2]}, "2 times for 1 frame"),
    ],
)
def test_what_is_no_batch_is_named_and_changes_nothing(array: Any, options: Any, said: str) -> None:
    source = source_of()
    with pytest.raises(StageError, match=said):
        source.submit(array, **options)
    assert source.submit(numbered(2, 4, 6, 3)) == 0


def test_a_limit_ends_in_the_middle_and_the_rest_is_let_go() -> None:
    source, buffer = source_of(limit=2), None
    buffer = source.buffer((6, 4), batch=3)
    source.submit(buffer)
    frames = list(source.frames(threading.Event()))
    assert [frame.index for frame in frames] == [0, 1]
    for frame in frames:
        frame.lease.release()
    assert not frames[0].lease.alive


class TestBuffers:
    def test_one_for_a_batch_is_filled_submitted_and_lent_again(self) -> None:
        source, seen = source_of(), set[int]()
        frames = source.frames(threading.Event())
        for turn in range(20):
            with source.buffer((8, 4), format="nv12", batch=3) as buffer:
                assert buffer.array.shape == buffer.shape == (3, 6, 8) and buffer.is_batch
                buffer.array[:] = numbered(3, 6, 8)
                seen.add(buffer.array.ctypes.data)
                assert source.submit(buffer) == 3 * turn
            for row in range(3):
                frame = next(frames)
                assert all((plane == row).all() for plane in frame.planes)
                frame.lease.release()
                del frame
        assert len(seen) <= 3 and source._counter.read() == type(source._counter.read())(allocations=len(seen))

    def test_of_one_image_is_a_batch_too(self) -> None:
        buffer = source_of().buffer((6, 4), batch=1)
        assert buffer.shape == (1, 4, 6, 3) and buffer.is_batch

    @pytest.mark.parametrize("count", [0, -1])
    def test_without_images_there_is_none(self, count: int) -> None:
        with pytest.raises(StageError, match=f"batch of {count}"):
            source_of().buffer((6, 4), batch=count)

    def test_no_more_than_stated_are_lent(self) -> None:
        source = source_of()
        assert (most_in_use(0), most_in_use(1), most_in_use(4), most_in_use(8), most_in_use(64)) == (48, 48, 12, 8, 8)
        held = [source.buffer((6, 4), batch=8) for _ in range(8)]
        with pytest.raises(StageError, match="no buffer came back") as caught:
            source.buffer((6, 4), batch=8, timeout_s=0.01)
        assert caught.value.why.startswith("8 of this size")
        held.pop().release()
        source.buffer((6, 4), batch=8, timeout_s=0.01)

    @pytest.mark.parametrize("options", [{"timeout_s": 0.01}, {"timestamp_ns": [1]}])
    def test_what_was_refused_is_still_its_holders(self, options: Any) -> None:
        source = source_of(queue=1)
        source.submit(np.zeros((4, 6, 3), np.uint8))
        buffer = source.buffer((6, 4), batch=2)
        with pytest.raises(StageError):
            source.submit(buffer, **options)
        buffer.array[:] = 3
        frames = source.frames(threading.Event())
        next(frames)
        source.submit(buffer)
        assert [int(next(frames).planes[0][0, 0, 0]) for _ in range(2)] == [3, 3]
