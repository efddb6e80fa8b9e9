"""Frames that the user brings."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counter
from edgert.runtime.frame import Frame
from edgert.stages.context import Context
from edgert.stages.source.api import ApiSource
from tests.helpers.virtual_clock import VirtualClock


def source(counter: Counter | None = None, **options: object) -> ApiSource:
    config = SourceStage.model_validate({"source": "api", **options})
    return ApiSource("cam", config, Context(counter=counter or Counter(), clock=VirtualClock(1000)))


def image(value: int = 0) -> np.ndarray:
    return np.full((4, 6, 3), value, np.uint8)


def test_frames_come_in_order_without_a_copy() -> None:
    counter, api = Counter(), source()
    images = [image(value) for value in range(3)]
    assert [api.submit(one) for one in images] == [0, 1, 2]
    api.finish()
    frames = list(api.frames(threading.Event()))
    assert [frame.index for frame in frames] == [0, 1, 2]
    assert all(np.shares_memory(frame.planes[0], one) for frame, one in zip(frames, images, strict=True))
    assert counter.read().copies == 0


def test_a_copy_is_counted_and_protects_from_changes() -> None:
    counter = Counter()
    api, mine = source(counter), image(7)
    api.submit(mine, copy=True)
    mine[:] = 0
    api.finish()
    (frame,) = api.frames(threading.Event())
    assert (frame.planes[0] == 7).all()
    assert (counter.read().copies, counter.read().bytes_copied) == (1, mine.nbytes)


@pytest.mark.parametrize("stamp", [1.5, 1_800_000_000 * 10**9])
def test_a_timestamp_of_another_clock_and_no_image_are_refused(stamp: int) -> None:
    with pytest.raises(StageError, match="is of another clock") as caught:
        source().submit(image(), timestamp_ns=stamp)
    assert "time.monotonic_ns()" in caught.value.fix
    with pytest.raises(StageError, match="None is no image"):
        source().submit(None)


def test_timestamps_are_the_callers_or_now() -> None:
    api = source()
    api.submit(image(), timestamp_ns=5_000)
    api.submit(image(), timestamp_ns=8_000)
    api.finish()
    frames = list(api.frames(threading.Event()))
    assert [(frame.timestamp_ns, frame.media_ns) for frame in frames] == [(5_000, 0), (8_000, 3_000)]
    late = source()
    late.submit(image())
    late.finish()
    assert next(iter(late.frames(threading.Event()))).timestamp_ns == 1000


def test_a_full_queue_makes_submit_wait_and_then_give_up() -> None:
    api = source(queue=2)
    api.submit(image())
    api.submit(image())
    with pytest.raises(StageError, match="no room"):
        api.submit(image(), timeout_s=0)
    frames = api.frames(threading.Event())
    next(frames)
    assert api.submit(image(), timeout_s=0) == 2


def test_a_waiting_submit_learns_that_the_pipeline_ended() -> None:
    api = source(queue=1)
    api.submit(image())
    seen: list[StageError] = []

    def submit() -> None:
        with pytest.raises(StageError) as caught:
            api.submit(image())
        seen.append(caught.value)

    waiting = threading.Thread(target=submit)
    waiting.start()
    api.close()
    waiting.join(5)
    assert "pipeline has ended" in seen[0].why


def test_after_finish_nothing_more_is_taken() -> None:
    api = source()
    api.finish()
    api.finish()
    with pytest.raises(StageError) as caught:
        api.submit(image())
    assert "finish() was called" in caught.value.why


def test_leaving_the_frames_ends_the_source_and_drops_what_waits() -> None:
    api = source()
    api.submit(image())
    api.submit(image())
    frames = api.frames(threading.Event())
    assert isinstance(frames, Iterator)
    first = next(frames)
    frames.close()  # type: ignore[attr-defined]
    assert first.lease.alive, "what was handed over stays with its holder"
    with pytest.raises(StageError, match="no more frames"):
        api.submit(image())


def test_stop_ends_an_idle_source() -> None:
    api, stop = source(), threading.Event()
    stop.set()
    assert list(api.frames(stop)) == []


def test_submit_from_many_threads_numbers_every_frame_once() -> None:
    api = source(queue=2)
    got: list[Frame] = []
    taker = threading.Thread(target=lambda: got.extend(api.frames(threading.Event())))
    taker.start()
    givers = [threading.Thread(target=lambda: [api.submit(image()) for _ in range(25)]) for _ in range(4)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join(10)
    api.finish()
    taker.join(10)
    assert [frame.index for frame in got] == list(range(100))
