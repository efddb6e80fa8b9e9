"""ByteTrack: who keeps which number, what is refused, and what does not grow."""

import copy
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgert.errors import StageError
from edgert.stages.bytetrack import UNTRACKED, ByteTrack
from tests.helpers.tracking import byte_track

Detected = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int32]]
NOTHING: Detected = (np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))


@dataclass(frozen=True)
class Tracks:
    """The confirmed tracks after the newest step, oldest first."""

    ids: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float64]
    missed: npt.NDArray[np.int64]

    @property
    def centers(self) -> npt.NDArray[np.float64]:
        """(T, 2) x, y in pixels."""
        return np.asarray((self.boxes[:, :2] + self.boxes[:, 2:]) / 2)


def tracks(tracker: ByteTrack) -> Tracks:
    """Copies of what the filter holds: boxes smoothed, or predicted while unseen."""
    rows = (tracker._ids != UNTRACKED).nonzero()[0]
    return Tracks(tracker._ids[rows], tracker.motion.sides(tracker._state[:4, rows]).T.copy(), tracker._missed[rows])


def _detected(centers: Any, scores: Any = 0.9, classes: Any = 0, size_px: float = 40.0) -> Detected:
    """Square boxes around centers, as a detector gives them."""
    middle = np.asarray(centers, np.float32).reshape(-1, 2)
    half = np.float32(size_px / 2)
    boxes = np.concatenate((middle - half, middle + half), axis=1)
    count = len(middle)
    return boxes, np.full(count, scores, np.float32), np.full(count, classes, np.int32)


def _churn(frames: int, seed: int, objects: int = 20) -> Iterator[Detected]:
    """Objects that come, wander, flicker and go."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(0, 1000, (objects, 2))
    for _ in range(frames):
        places += rng.normal(0, 3, places.shape)
        gone = rng.random(len(places)) < 0.02
        places[gone] = rng.uniform(0, 1000, (int(gone.sum()), 2))
        seen = rng.random(len(places)) < 0.9
        yield _detected(places[seen], scores=rng.uniform(0.3, 1.0, int(seen.sum())))


def _held_bytes(tracker: ByteTrack) -> int:
    """What a copy of the tracker and of all it refers to needs."""
    tracemalloc.start()
    twin = copy.deepcopy(tracker)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(twin) == len(tracker)
    return held_bytes


def test_what_is_there_in_the_first_frame_has_its_number_at_once() -> None:
    tracker = byte_track()
    assert tracker.update(*_detected([100, 100])).tolist() == [1]
    slow = byte_track(confirm=3)
    assert [slow.update(*_detected([100, 100])).item() for _ in range(3)] == [UNTRACKED, 1, 1]


def test_one_frame_is_enough_if_asked() -> None:
    tracker = byte_track(confirm=1)
    assert tracker.update(*_detected([[100, 100], [300, 300]])).tolist() == [1, 2]
    assert tracker.update(*_detected([[300, 300], [100, 100]])).tolist() == [2, 1]


def test_poor_overlap_is_no_pair() -> None:
    tracker = byte_track(match=0.5)
    for _ in range(3):
        tracker.update(*_detected([100, 100]))
    assert tracker.update(*_detected([120, 100])).tolist() == [UNTRACKED]  # intersection over union 1/3


@pytest.mark.parametrize(("frame_rate", "buffer"), [(30.0, 30), (15.0, 15), (10.0, 10), (31.0, 31)])
def test_lost_tracks_end_after_the_buffer(frame_rate: float, buffer: int) -> None:
    tracker = byte_track(rate_hz=frame_rate)
    for _ in range(2):
        tracker.update(*_detected([100, 100]))
    for _ in range(buffer + 1):  # as the published code has it
        tracker.update(*NOTHING)
    assert len(tracker) == 1
    tracker.update(*NOTHING)
    assert len(tracker) == 0


def test_ids_are_never_reused() -> None:
    tracker = byte_track(keep="0s")
    seen: list[int] = []
    for _ in range(10):
        for _ in range(2):
            ids = tracker.update(*_detected([[100, 100], [300, 300]]))
        seen += ids.tolist()
        for _ in range(2):
            tracker.update(*NOTHING)
    assert seen == list(range(1, 21))


def test_class_aware_pairs_within_a_class_only() -> None:
    flickering = [_detected([100, 100], classes=step % 2) for step in range(8)]
    agnostic, aware = byte_track(), byte_track(by_class=True)
    agnostic.update(*NOTHING), aware.update(*NOTHING)
    assert [agnostic.update(*seen).item() for seen in flickering][1:] == [1] * 7
    assert {aware.update(*seen).item() for seen in flickering} == {UNTRACKED}


def test_class_aware_tells_overlapping_objects_apart() -> None:
    tracker = byte_track(by_class=True)
    here, there = [100, 100], [104, 100]
    for _ in range(2):
        tracker.update(*_detected([here, there], classes=[0, 1]))
    assert tracker.update(*_detected([here, there], classes=[1, 0])).tolist() == [2, 1]


def test_predict_moves_boxes_and_misses_nothing() -> None:
    tracker = byte_track()
    for step in range(30):
        tracker.update(*_detected([100 + 8 * step, 50]))
    before = tracks(tracker)
    for _ in range(3):
        tracker.predict()
    after = tracks(tracker)
    np.testing.assert_allclose(after.centers - before.centers, [[24, 0]], atol=0.5)
    assert after.missed.tolist() == [0]
    assert tracker.update(*_detected([100 + 8 * 33, 50])).tolist() == [1]


def test_boxes_without_area_disturb_nobody() -> None:
    tracker = byte_track()
    flat = np.array([[50, 50, 50, 90], [50, 50, 50, 90], [10, 10, 5, 5]], np.float32)
    boxes, _, _ = _detected([100, 100])
    for _ in range(4):
        ids = tracker.update(np.concatenate((flat, boxes)), np.full(4, 0.9, np.float32), np.zeros(4, np.int32))
    assert ids.tolist() == [UNTRACKED] * 3 + [1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["box", "score"])
def test_numbers_that_are_none_are_refused_before_anything_changes(value: float, where: str) -> None:
    tracker, same = byte_track(), byte_track()
    for step in range(3):
        tracker.update(*_detected([100 + step, 100]))
        same.update(*_detected([100 + step, 100]))
    boxes, scores, classes = _detected([[100, 100], [300, 300]])
    (boxes[1] if where == "box" else scores[1:])[0] = value
    with pytest.raises(StageError, match="1 of 2 detections") as caught:
        tracker.update(boxes, scores, classes)
    assert "row 1" in caught.value.why
    assert np.array_equal(tracks(tracker).boxes, tracks(same).boxes)


@pytest.mark.parametrize("wrong", [(3, 2, 2), (2, 3, 2), (2, 2, 3)])
def test_shapes_that_disagree_are_refused(wrong: tuple[int, int, int]) -> None:
    boxes, scores, classes = (np.zeros((wrong[0], 4), np.float32), np.zeros(wrong[1], np.float32), np.zeros(wrong[2]))
    with pytest.raises(StageError, match="shapes disagree"):
        byte_track().update(boxes, scores, classes.astype(np.int32))


def test_many_tracks_outgrow_the_first_room() -> None:
    tracker = byte_track()
    grid = np.stack(np.meshgrid(np.arange(20), np.arange(15)), axis=-1).reshape(-1, 2) * 100.0
    tracker.update(*_detected(grid[:5]))
    tracker.update(*_detected(grid))
    ids = tracker.update(*_detected(grid))
    assert ids.tolist() == list(range(1, 301))


@pytest.mark.slow
def test_memory_stays_bounded_over_ten_thousand_frames_of_churn() -> None:
    tracker, last = byte_track(), 0
    frames = list(_churn(500, seed=7, objects=5))
    held_bytes = []
    for _ in range(20):
        for seen in frames:
            last = max(last, *tracker.update(*seen).tolist())
        held_bytes.append(_held_bytes(tracker))
    assert last > 500  # so many tracks have come and gone
    assert len(tracker) < 64
    assert max(held_bytes[1:]) <= 2 * held_bytes[0] < 64 * 1024
