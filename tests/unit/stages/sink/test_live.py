from __future__ import annotations

import cv2
import numpy as np
import pytest

from edgert.memory import Counter, Lease
from edgert.runtime.records import Classification, Embedding, Result
from edgert.stages.sink.http import Live
from tests.helpers.frames import detections, frame_of, result_of


def leased(index: int) -> tuple[Result, Lease]:
    """A result and its lease; the sink's caller holds it only while it calls."""
    frame = frame_of(320, 240, "i420", index=index)
    return result_of(frame, {"find": detections((40, 40, 200, 200))}), frame.lease


def test_only_the_newest_frame_is_held_and_none_after_close() -> None:
    live, leases = Live(), []
    for index in range(3):
        result, lease = leased(index)
        live.show(result)
        lease.release()
        leases.append(lease)
    assert [lease.alive for lease in leases] == [False, False, True]
    live.close()
    assert not any(lease.alive for lease in leases)
    assert live.jpeg_after(0, 0) is None


def test_images_are_encoded_once_and_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = cv2.imencode
    monkeypatch.setattr(cv2, "imencode", lambda *args: encoded.append(1) or encode(*args))
    live = Live()
    for index in range(10):
        live.show(leased(index)[0])
    assert not encoded
    first, second = live.jpeg_after(0, 0), live.jpeg_after(3, 0)
    assert first is not None and first == second and first[0] == 10 and len(encoded) == 1
    assert live.jpeg_after(10, 0) is None


def test_boxes_are_painted_when_nobody_drew() -> None:
    live = Live()
    result, lease = leased(0)
    live.show(result)
    found = live.jpeg_after(0, 0)
    assert found is not None
    image = cv2.imdecode(np.frombuffer(found[1], np.uint8), cv2.IMREAD_COLOR)
    bare = result.frame.to_bgr()
    edge = np.abs(image[100:150, 39:42].astype(int) - bare[100:150, 39:42]).mean()
    assert image.shape == (240, 320, 3) and edge > 40 and lease.alive


def test_a_large_frame_is_shown_smaller() -> None:
    live = Live()
    live.show(Result(frame_of(1600, 400, "i420")))
    found = live.jpeg_after(0, 0)
    assert found is not None
    assert cv2.imdecode(np.frombuffer(found[1], np.uint8), cv2.IMREAD_COLOR).shape == (320, 1280, 3)


def test_the_table_shows_what_is_in_the_image_once() -> None:
    live = Live()
    assert live.table() == {"stream": None, "frame": None, "objects": []}
    outputs = {
        "find": detections((0, 0, 9, 9)),
        "track": detections((0, 0, 9, 9), ids=(4,)),
        "kind": Classification(np.array([0.5], np.float32), np.array([1], np.int32)),
        "vector": Embedding(np.ones(3, np.float32)),
    }
    live.show(result_of(frame_of(stream="cam", index=8, counter=Counter()), outputs))
    assert live.table() == {
        "stream": "cam",
        "frame": 8,
        "objects": [
            {"stage": "track", "label": "bolt", "class": 0, "score": 0.9, "id": 4},
            {"stage": "kind", "class": 1, "score": 0.5},
        ],
    }
