from typing import Any

import cv2
import numpy as np
import pytest

from edgert import limits
from edgert.memory import Counter, Lease
from edgert.runtime.records import Classification, Embedding, Result
from edgert.stages.paint import Pen
from edgert.stages.sink.web.event_log import EventLog
from edgert.stages.sink.web.live_images import LiveImages
from edgert.stages.zones.rules import Event, Events
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.moving import zones_stage


def leased(index: int) -> tuple[Result, Lease]:
    """A result and its lease; the sink's caller holds it only while it calls."""
    frame = frame_of(320, 240, "i420", index=index)
    return result_of(frame, {"find": detections((40, 40, 200, 200))}), frame.lease


def test_only_the_newest_frame_is_held_and_none_after_close() -> None:
    live, leases = LiveImages(), []
    for index in range(3):
        result, lease = leased(index)
        live.show(result)
        lease.release()
        leases.append(lease)
    assert [lease.alive for lease in leases] == [False, False, True]
    live.close()
    assert not any(lease.alive for lease in leases)
    assert live.jpegs({"camera": 0}) == []


def test_images_are_encoded_once_and_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = cv2.imencode
    monkeypatch.setattr(cv2, "imencode", lambda *args: encoded.append(1) or encode(*args))
    live = LiveImages()
    for index in range(10):
        live.show(leased(index)[0])
    assert not encoded
    (first,), (second,) = live.jpegs({"camera": 0}), live.jpegs({"camera": 0})
    assert first == second and first[:2] == ("camera", 10) and len(encoded) == 1
    (tile,) = live.jpegs({"camera": 540})
    assert tile[:2] == ("camera", 10) and live.jpegs({"camera": 540}) == [tile] and len(encoded) == 2


def test_labels_are_written_for_the_tile_that_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    written = dict[int, list[str]]()

    def label(pen: Any, size: tuple[int, int], text: str, *place: Any) -> Any:
        written.setdefault(size[0], []).append(f"{pen.height_px} px: {text}")
        return real(pen, size, text, *place)

    real = Pen.label
    monkeypatch.setattr(Pen, "label", label)
    live = LiveImages()
    frame = frame_of(1280, 720, "i420")
    live.show(result_of(frame, {"find": detections((40, 40, 200, 200))}))
    for tile_px in (0, 180, 540):
        assert live.jpegs({"camera": tile_px})
    texts = {width_px: texts[0] for width_px, texts in written.items()}
    assert texts == {1280: "17 px: bolt 0.90", 320: "20 px: bolt", 640: "13 px: bolt"}
    live.close()
    frame.lease.release()


def test_boxes_are_painted_when_nobody_drew() -> None:
    live = LiveImages()
    result, lease = leased(0)
    live.show(result)
    (found,) = live.jpegs({"camera": 0})
    image = cv2.imdecode(np.frombuffer(found[2], np.uint8), cv2.IMREAD_COLOR)
    bare = result.frame.to_bgr()
    edge = np.abs(image[100:150, 39:42].astype(int) - bare[100:150, 39:42]).mean()
    assert image.shape == (240, 320, 3) and edge > 40 and lease.alive


def test_a_large_frame_is_shown_smaller() -> None:
    live = LiveImages()
    live.show(Result(frame_of(1600, 400, "i420")))
    for tile_px, shape in ((0, (320, 1280, 3)), (800, (320, 1280, 3)), (540, (100, 400, 3)), (180, (100, 400, 3))):
        (found,) = live.jpegs({"camera": tile_px})
        assert cv2.imdecode(np.frombuffer(found[2], np.uint8), cv2.IMREAD_COLOR).shape == shape


def test_the_table_shows_what_is_in_the_image_once() -> None:
    live = LiveImages()
    assert live.table() == {"stream": None, "frame": None, "objects": [], "places": []}
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
        "places": [],
    }


def test_every_camera_has_an_image_of_its_own() -> None:
    live = LiveImages()
    leases = []
    for stream, index in (("a", 0), ("b", 0), ("a", 1)):
        frame = frame_of(64, 48, "bgr", stream=stream, index=index)
        live.show(Result(frame))
        frame.lease.release()
        leases.append(frame.lease)
    assert [lease.alive for lease in leases] == [False, True, True] and live.newest == "a"
    assert live.numbers() == {"a": 3, "b": 2}
    assert [name for name, _, _ in live.jpegs(dict.fromkeys(("a", "b", "nobody"), 540))] == ["a", "b"]
    assert live.table("b")["stream"] == "b" and live.table()["frame"] == 1
    assert live.streams()["b"]["size"] == [64, 48] and live.streams()["b"]["age_s"] >= 0
    live.close()
    assert not any(lease.alive for lease in leases) and live.numbers() == {}


def test_cameras_beyond_the_limit_stay_away_and_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    live = LiveImages()
    frames = [frame_of(16, 16, "bgr", stream=f"camera_{number}") for number in range(limits.PAGE_STREAMS + 2)]
    for frame in frames:
        live.show(Result(frame))
        frame.lease.release()
    assert len(live.numbers()) == limits.PAGE_STREAMS and not frames[-1].lease.alive
    (record,) = caplog.records
    assert f"at most {limits.PAGE_STREAMS} cameras; camera_{limits.PAGE_STREAMS} " in record.getMessage()
    live.close()


def test_zones_are_given_to_be_drawn_anew() -> None:
    live, area = LiveImages(), ((0.1, 0.2), (0.9, 0.2), (0.5, 0.75))
    stage = zones_stage({"yard": area}, {"gate": ((0.5, 0.0), (0.5, 1.0))})
    live.show(stage.process(result_of(frame_of(320, 240), {"find": detections((40, 40, 200, 200), ids=(1,))})))
    yard, gate = live.table()["places"]
    assert yard == {"name": "yard", "kind": "zone", "points": [list(point) for point in area]}
    assert (gate["name"], gate["kind"], len(gate["points"])) == ("gate", "line", 2)


def event(phase: str, number: str = "ab12", seconds: float = 0.0) -> Event:
    box = (10.0, 10.0, 60.0, 90.0)
    return Event(number, "intruder", phase, "camera", 10**18, seconds, "yard", "", 4, "person", 0.9, box)  # type: ignore[arg-type]


def test_events_have_an_image_of_their_beginning_and_end() -> None:
    jobs: list[Any] = []
    live = LiveImages()
    log = EventLog(live, jobs.append)
    frame = frame_of(320, 240)
    begun = Result(frame, {"alarm": Events((event("begin"),))})
    log.add(begun)
    frame.lease.release()
    assert frame.lease.alive and log.newest_first()[0]["image"] is False and log.image("ab12") is None
    jobs.pop()()
    image = cv2.imdecode(np.frombuffer(log.image("ab12") or b"", np.uint8), cv2.IMREAD_COLOR)
    assert image is not None and image.shape == (200, 320, 3) and not frame.lease.alive
    before = log.count
    log.add(result_of(frame_of(320, 240), {"alarm": Events((event("end", seconds=4.5), event("begin", "cd34")))}))
    newest, oldest = log.newest_first()
    assert log.count > before and newest["id"] == "cd34" and not newest["ended"]
    assert oldest["ended"] and oldest["seconds"] == 4.5 and oldest["image"]


def test_only_so_many_events_are_remembered_and_few_frames_held() -> None:
    jobs: list[Any] = []
    log = EventLog(LiveImages(), jobs.append)
    for number in range(250):
        log.add(result_of(frame_of(32, 32), {"alarm": Events((event("begin", f"{number:x}"),))}))
    assert len(log.newest_first()) == 100 and log.newest_first()[0]["id"] == "f9" and len(jobs) == 4
