"""BoT-SORT: what it knows beside boxes; and that both trackers number detections as their authors' code does."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.runtime import Crops, Detections, Embedding, Result
from edgert.runtime.frame import U8, Frame, PixelFormat
from edgert.stages.botsort import BotSort, CameraMotion, appearance_vectors
from edgert.stages.bytetrack import UNTRACKED
from tests.helpers import tracking
from tests.helpers.frames import frame_of, things

SIZE = (640, 360)


def world() -> U8:
    """A wide scene with corners everywhere."""
    coarse = np.random.default_rng(3).integers(0, 256, (90, 130), np.uint8)
    return np.asarray(cv2.resize(coarse, (1300, 900), interpolation=cv2.INTER_CUBIC), np.uint8)


def view(scene: U8, affine: Any, form: PixelFormat = "gray", index: int = 0) -> Frame:
    """What a camera sees of it: (2, 3), pixels of the scene → pixels of the image."""
    gray = np.asarray(cv2.warpAffine(scene, np.asarray(affine, np.float64), SIZE), np.uint8)
    pixels = {
        "gray": (gray,),
        "bgr": (np.repeat(gray[..., None], 3, axis=2),),
        "nv12": (gray, np.full((SIZE[1] // 2, SIZE[0] // 2, 2), 128, np.uint8)),
        "yuyv": (np.dstack((gray, np.full_like(gray, 128))),),
    }
    return frame_of(*SIZE, form, pixels=pixels[form], index=index)


@pytest.mark.parametrize("form", ["gray", "bgr", "nv12", "yuyv"])
def test_the_cameras_motion_is_found(form: PixelFormat) -> None:
    scene, motion = world(), CameraMotion()
    before = np.array([[1, 0, -200], [0, 1, -150.0]])
    turn = np.vstack((cv2.getRotationMatrix2D((320, 180), 1.0, 1.01), (0, 0, 1)))
    turn[:2, 2] += (9, -5)
    assert motion.estimate(view(scene, before, form)) is None
    found = motion.estimate(view(scene, turn[:2] @ np.vstack((before, (0, 0, 1))), form, 1))
    corners = np.array([(0, 0, 1), (640, 0, 1), (640, 360, 1), (0, 360, 1)]).T
    assert found is not None and np.abs(found @ corners - turn[:2] @ corners).max() < 1.0


def test_an_image_without_corners_moves_nothing() -> None:
    motion, flat = CameraMotion(), frame_of(*SIZE, "gray", pixels=(np.full(SIZE[::-1], 90, np.uint8),))
    assert [motion.estimate(flat) for _ in range(3)] == [None] * 3
    scene, still = world(), np.array([[1, 0, -200], [0, 1, -150.0]])
    assert motion.estimate(view(scene, still)) is None
    assert motion.estimate(frame_of(64, 48, "gray")) is None  # of another size


def found(boxes: Any, scores: Any = 0.9) -> Detections:
    return things(*np.reshape(boxes, (-1, 4)), scores=scores)


def step(tracker: BotSort, record: Detections, outputs: Any = (), frame: Frame | None = None) -> list[int]:
    tracker.look(Result(frame or frame_of(*SIZE, "gray"), {"find": record, **dict(outputs)}), record)
    return [int(one) for one in tracker.update(record.boxes, record.scores, record.classes)]


def test_objects_that_stand_keep_their_numbers_while_the_camera_pans() -> None:
    scene = world()
    numbers: dict[bool, list[list[int]]] = {}
    for follows in (True, False):
        tracker, numbers[follows] = tracking.bot_sort(camera_motion=follows), []
        for n in range(12):
            shift = 0 if n < 4 else 45 * (n % 2)  # it shakes by more than the objects are wide
            box = np.array((100 + shift, 100, 130 + shift, 150))
            frame = view(scene, np.array([[1, 0, shift - 300], [0, 1, -150.0]]), index=n)
            numbers[follows].append(step(tracker, found([box, box + np.array((200, 50, 200, 50))]), frame=frame))
    assert numbers[True][1:] == [[1, 2]] * 11
    assert numbers[False] != numbers[True]


def seen(vectors: dict[int, Any], parent: str = "find") -> dict[str, Crops]:
    records = tuple(Embedding(np.array(one, np.float32)) for one in vectors.values())
    return {"recognize": Crops(parent, np.array(list(vectors), np.int32), records)}


RED, BLUE = (1.0, 0.0), (0.0, 1.0)


def test_looks_decide_between_boxes_that_are_near() -> None:
    """Two walk into one another and turn back; boxes alone say that they pass."""
    places = [(100 + 10 * n, 220 - 10 * n) for n in range(6)]
    path = [*places, *reversed(places)]
    final = {}
    for knows in (True, False):
        tracker = tracking.bot_sort(match=0.01, proximity=1.0)
        for left, right in path:
            record = found([(left, 50, left + 60, 200), (right, 50, right + 60, 200)])
            ids = step(tracker, record, seen({0: RED, 1: BLUE}) if knows else {})
        final[knows] = ids
    assert final[True] == [1, 2]


def test_what_was_hidden_teaches_no_looks_and_unseen_rows_count_by_boxes() -> None:
    tracker = tracking.bot_sort()
    box = (100, 100, 160, 220)
    for _ in range(3):
        ids = step(tracker, found([box]), seen({0: RED}))
    assert ids == [1]
    assert step(tracker, found([box], 0.3), seen({0: BLUE})) == [1]
    assert np.allclose(tracker._appearances, [RED])
    assert step(tracker, found([box, (400, 100, 460, 220)]), seen({1: BLUE})) == [1, UNTRACKED]
    assert step(tracker, found([box, (400, 100, 460, 220)])) == [1, 2]
    assert np.allclose(tracker._appearances, [RED, BLUE])
    assert step(tracker, found([]), {}) == [] and step(tracker, found([box]), seen({0: (1, 0, 0)})) == [1]


def test_vectors_are_those_of_crops_of_these_detections() -> None:
    record, other = found([(0, 0, 9, 9), (20, 20, 40, 40)]), found([(0, 0, 9, 9)])
    frame = frame_of()
    vectors = appearance_vectors(Result(frame, {"find": record, **seen({1: RED})}), record)
    assert vectors is not None and np.isnan(vectors[0]).all() and vectors[1].tolist() == list(RED)
    assert appearance_vectors(Result(frame, {"find": record, "more": other, **seen({0: RED}, "more")}), record) is None
    assert appearance_vectors(Result(frame, {"find": record}), record) is None
    empty = {"find": record, "recognize": Crops("find", np.zeros(0, np.int32), ())}
    assert appearance_vectors(Result(frame, empty), record) is None


DATA = Path(__file__).parents[2] / "data" / "tracks"
MADE = {"bytetrack": tracking.byte_track, "botsort": tracking.bot_sort}
CHAOS = {("botsort", "crowd"): 0.011}  # there a track of theirs comes back after its end


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("scene", tracking.SCENES)
def test_the_authors_tracks(name: str, scene: tracking.Scene) -> None:
    theirs = np.array(json.loads((DATA / f"{name}.json").read_text())[scene.__name__], np.int64)
    tracker, frames = MADE[name](), tracking.scene(scene)
    ours = np.concatenate([tracker.update(one.boxes, one.scores, np.zeros(len(one.boxes), np.int32)) for one in frames])
    assert len(ours) == len(theirs) > 500 and len(np.unique(ours[ours != UNTRACKED])) >= 10
    wrong = tracking.disagreements(ours, theirs)
    assert wrong <= CHAOS.get((name, scene.__name__), 0) * len(ours), f"{wrong} of {len(ours)} detections differ"
