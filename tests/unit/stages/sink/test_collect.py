"""``sink: collect``: which frames it keeps, what it writes, and that this is read back as a dataset."""

import errno
import json
import logging
import math
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.config import DetectTask, KeypointsTask
from edgert.config.pipeline_file import load_pipeline
from edgert.config.stages import SinkStage
from edgert.dataset import open_dataset, open_images
from edgert.dataset.labels import GroundTruthBoxes
from edgert.errors import ConfigError, StageError
from edgert.runtime.records import Detections, Keypoints, Result, Segmentation
from edgert.stages.context import Context
from edgert.stages.sink.collect.chooser import Chooser, disagree
from edgert.stages.sink.collect.collect_sink import CollectSink
from edgert.stages.sink.collect.dataset_folder import DatasetFolder
from edgert.stages.zones.rules import Event, Events
from tests.helpers.frames import LABELS, frame_of
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.written import opened, write

S = 10**9
DETECT = DetectTask(detect="yolov8")
LIMITS: Any = {"count": 1, "size": 1 << 30, "age": 1e6, "free": 1}


def found(*rows: tuple[float, ...], labels: tuple[str, ...] = LABELS) -> Detections:
    """Rows of class, score, x1, y1, x2, y2."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, 2:], table[:, 1], table[:, 0].astype(np.int32), labels)


def sink_of(folder: Path, *, again: bool = False, waits: bool = True, **keys: Any) -> CollectSink:
    """The sink of a pipeline file, with a clock that stands still."""
    keys = {"gap": "0s", **keys} if "every" in keys else {"score": [0.3, 0.5], "gap": "0s", **keys}
    section = SinkStage.model_validate({"sink": "collect", "from": "find", "path": folder, **keys})
    sources: dict[str, Any] = {"camera": SimpleNamespace(live=False)} if waits else {}
    sink = section.make("harvest", Context(clock=VirtualClock(), starts_over=again, sources=sources))  # type: ignore[attr-defined]
    assert isinstance(sink, CollectSink)
    return sink


def result(index: int, record: Any = None, seconds: float | None = None, **about: Any) -> Result:
    at_ns = round(S * (index if seconds is None else seconds))
    frame = frame_of(64, 48, index=index, media_ns=at_ns, timestamp_ns=at_ns, **about)
    return Result(frame, {"find": found((1, 0.4, 8, 6, 40, 30)) if record is None else record})


def truth(path: Path, task: Any = DETECT) -> GroundTruthBoxes:
    read = open_dataset(path, task)
    assert isinstance(read.ground_truth, GroundTruthBoxes)
    return read.ground_truth


def settle(sink: CollectSink) -> None:
    """Wait until what came so far is written."""
    assert sink._worker is not None
    sink._worker.submit(lambda: None).result(10)


def images(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "images").iterdir())


# Which frames.


@pytest.mark.parametrize(
    ("scores", "why"), [((0.9,), []), ((0.9, 0.4), ["score"]), ((0.29,), []), ((0.5,), ["score"]), ((), [])]
)
def test_a_score_in_doubt(scores: tuple[float, ...], why: list[str]) -> None:
    record = found(*((0, score, 0, 0, 9, 9) for score in scores))
    assert Chooser(score=(0.3, 0.5)).reasons(result(0, record), 0) == why


def test_two_models_disagree_about_an_object_that_one_is_sure_of() -> None:
    one = found((0, 0.8, 0, 0, 20, 20), (1, 0.3, 30, 30, 40, 40))
    same = found((0, 0.1, 1, 1, 20, 21))
    assert not disagree(one, same) and not disagree(found(), found()) and not disagree(found(), same)
    assert disagree(one, found()) and disagree(found(), one)
    assert disagree(one, found((1, 0.9, 0, 0, 20, 20)))  # another class
    assert disagree(one, found((0, 0.9, 12, 0, 32, 20)))  # too little overlap
    assert disagree(one, found((0, 0.1, 0, 0, 20, 20), (2, 0.6, 1, 1, 9, 9)))
    both = Result(result(0).frame, {"a": one, "b": found()})
    assert Chooser(differ=("a", "b")).reasons(both, 0) == ["differ"]
    assert Chooser(differ=("a", "c")).reasons(both, 0) == []


def test_doubts_come_no_faster_than_the_gap_and_events_always() -> None:
    chooser = Chooser(score=(0.3, 0.5), rules=["intruder"], gap_ns=10 * S)
    assert [bool(chooser.reasons(result(n), 0)) for n in (0, 5, 9, 10, 12)] == [True, False, False, True, False]
    assert chooser.reasons(result(3), 0) == ["score"]  # the stream began again
    begun = Result(result(4).frame, {"alarm": Events((Event("e", "intruder", "begin", "camera", 0),))})
    ended = Result(result(4).frame, {"alarm": Events((Event("e", "intruder", "end", "camera", 0),))})
    other = Result(result(4).frame, {"alarm": Events((Event("e", "smoke", "begin", "camera", 0),))})
    assert [chooser.reasons(one, 0) for one in (begun, ended, other)] == [["rule intruder"], [], []]


def test_one_frame_of_each_stream_in_a_time() -> None:
    chooser = Chooser()
    kept = [(s, n) for n in range(0, 1300, 100) for s in "ab" if chooser.reasons(result(n, stream=s), 600 * S)]
    assert kept == [(s, n) for n in (0, 600, 1200) for s in "ab"]


# What is written.


@pytest.mark.parametrize("layout", ["yolo", "coco"])
def test_the_dataset_is_read_back(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "parts"
    record = found((1, 0.4, 8, 6, 40, 30), (0, 0.9, -5, 10, 20, 70), (2, 0.8, 70, 5, 90, 9))
    write(sink_of(folder, format=layout), result(3, record), result(4, found((0, 0.9, 1, 1, 2, 2))))
    assert len(images(folder)) == 1
    read = truth(folder)
    assert read.names == dict(enumerate(LABELS))
    (only,) = read.images
    assert only.classes.tolist() == [1, 0]
    assert only.corners.ravel().tolist() == pytest.approx([8, 6, 40, 30, 0, 10, 20, 48], abs=0.01)
    assert len(open_images(folder / "images")) == 1  # what calibrate takes
    assert not (folder / ".parts").exists()


def test_pycocotools_reads_it(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    write(sink_of(tmp_path, format="coco"), result(1), result(2), result(3, found((2, 0.45, 1, 2, 11, 12))))
    read = COCO(str(tmp_path / "annotations" / "instances_collected.json"))
    assert [one["name"] for one in read.loadCats(read.getCatIds())] == list(LABELS)
    assert len(read.getImgIds()) == 3 and {one["file_name"] for one in read.imgs.values()} == set(images(tmp_path))
    (last,) = read.loadAnns(read.getAnnIds(catIds=[2]))
    assert last["bbox"] == [1, 2, 10, 10] and last["area"] == 100
    assert read.imgs[1]["why"] == ["score"]


@pytest.mark.parametrize("layout", ["yolo", "coco"])
def test_outlines_and_turned_boxes(tmp_path: Path, layout: str) -> None:
    boxes = np.array([[8, 8, 40, 40]], np.float32)
    mask = np.zeros((8, 8), np.uint8)
    mask[2:6, 2:6] = 1
    plain = boxes, np.array([0.4], np.float32), np.zeros(1, np.int32), ("part",)
    masked = Detections(*plain, masks=(Segmentation(mask, (8, 8, 40, 40)),))
    turned = Detections(*plain, corners=np.array([[[8, 20], [20, 8], [40, 28], [28, 40]]], np.float32))
    empty = Detections(*plain, masks=(Segmentation(mask * 0, (8, 8, 40, 40)),))
    write(sink_of(tmp_path, format=layout), result(1, masked), result(2, turned), result(3, empty))
    read = {len(one.outlines[0][0]) if one.outlines else 0: one for one in truth(tmp_path).images}
    assert len(read) == 2  # a polygon of four points each, and an object of an empty mask has its box
    assert all(one.corners.tolist()[0][0] >= 8 for one in read.values())


@pytest.mark.parametrize("layout", ["yolo", "coco"])
def test_points(tmp_path: Path, layout: str) -> None:
    points = np.array([[[10, 12, 0.9], [20, 30, 0.1]]], np.float32)
    body = Keypoints.of(np.array([[8, 8, 40, 40]], np.float32), np.array([0.4], np.float32), points)
    write(sink_of(tmp_path, format=layout), result(1, body))
    (only,) = truth(tmp_path, KeypointsTask(keypoints="yolo-pose")).images
    assert only.points is not None
    assert only.points.ravel().tolist() == pytest.approx([10, 12, 2, 20, 30, 0], abs=0.01)


def test_classes_are_added_and_never_renumbered(tmp_path: Path) -> None:
    other = found((0, 0.4, 1, 1, 9, 9), (1, 0.4, 1, 1, 9, 9), labels=("gear", "belt"))
    write(sink_of(tmp_path), result(1))
    write(sink_of(tmp_path), result(2, other))
    read = truth(tmp_path)
    assert read.names == dict(enumerate((*LABELS, "belt")))
    assert sorted(one.classes.tolist() for one in read.images) == [[1], [2, 3]]


def test_a_model_without_labels_has_numbers(tmp_path: Path) -> None:
    write(sink_of(tmp_path), result(1, found((3, 0.4, 1, 1, 9, 9), labels=())))
    assert truth(tmp_path).names == {0: "0", 1: "1", 2: "2", 3: "3"}


def test_the_image_is_the_frame_without_drawings(tmp_path: Path) -> None:
    plain = result(1, pixels=(np.full((48, 64, 3), 90, np.uint8),))
    drawn = Result(plain.frame, plain.outputs, np.full((48, 64, 3), 255, np.uint8))
    write(sink_of(tmp_path), drawn)
    assert abs(int(cv2.imread(str(tmp_path / "images" / images(tmp_path)[0])).mean()) - 90) <= 1


# Limits, restarts, trouble.


@pytest.mark.parametrize("layout", ["yolo", "coco"])
def test_the_oldest_go(tmp_path: Path, layout: str) -> None:
    keep = {"count": 5, "age": "100s"}
    write(sink_of(tmp_path, format=layout, keep=keep), *(result(n) for n in range(9)))
    assert [name.rpartition("-")[2] for name in images(tmp_path)] == [f"{n}.jpg" for n in range(4, 9)]
    assert len(truth(tmp_path).images) == 5
    write(sink_of(tmp_path, format=layout, keep=keep), result(107))  # of the earlier run, 8 is not too old
    assert [name.rpartition("-")[2] for name in images(tmp_path)] == ["8.jpg", "107.jpg"]
    if layout == "yolo":
        assert len(list((tmp_path / "labels").iterdir())) == 2


def test_a_size(tmp_path: Path) -> None:
    write(sink_of(tmp_path, keep={"size": "40KiB"}), *(result(n) for n in range(30)))
    used = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 20_000 < used <= 40 << 10 and len(images(tmp_path)) >= 3


def test_a_restart_overwrites_nothing(tmp_path: Path) -> None:
    write(sink_of(tmp_path), result(1), result(2))
    before = {path: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    write(sink_of(tmp_path), result(1, seconds=50), result(2, seconds=60))
    assert len(images(tmp_path)) == 4 and all(path.read_bytes() == data for path, data in before.items())


def test_a_recording_that_is_played_again_adds_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        write(sink_of(tmp_path, again=True), result(1), result(2))
    assert images(tmp_path) == ["camera-000001.jpg", "camera-000002.jpg"]
    assert (tmp_path / "collected.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("key", ["image", "size", "time_s", "bytes", "objects"])
def test_lines_filled_with_noise_are_left_out(tmp_path: Path, key: str) -> None:
    write(sink_of(tmp_path / "set"), result(0), result(1))
    index, outside = tmp_path / "set" / "collected.jsonl", tmp_path / "mine.jpg"
    outside.write_bytes(b"mine")
    (tmp_path / "set" / "images" / "mine.jpg").write_bytes(b"")
    about, first, second = map(json.loads, index.read_text().splitlines())
    noise = [int("9" * 400), math.inf, "x\0", "\ud800", "y" * 300, "../../mine.jpg", None, -1, []]
    noise += [[{"label": 0, "score": 1, "box": [0, 0, int("9" * 400), 1]}]]
    lines = [json.dumps({**second, key: one}) for one in noise]
    index.write_text("\n".join([json.dumps(about), "[" * 100_000, json.dumps(first), *lines]) + "\n")
    folder = DatasetFolder(tmp_path / "set", "yolo", "stages.x", **LIMITS)
    folder.open()
    assert len(folder) >= 1 and folder.has(first["image"])
    folder.remove_excess(2e9)
    folder.close()
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("layout", ["yolo", "coco"])
@pytest.mark.parametrize("step", range(5))
def test_a_run_that_ends_between_two_steps(
    tmp_path: Path, layout: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run finds a dataset, and goes on with it."""
    write(sink_of(tmp_path, format=layout), result(0), result(1))
    folder = DatasetFolder(tmp_path, layout, "stages.x", **LIMITS | {"count": 2})
    folder.open()
    left, steps = [step], [Path.replace, Path.unlink]

    def dying(real: Any) -> Any:
        def step_of(*args: Any, **keys: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return real(*args, **keys)

        return step_of

    _, jpeg = cv2.imencode(".jpg", np.zeros((48, 64, 3), np.uint8))
    sample: Any = {"image": "camera-x-2.jpg", "stream": "camera", "frame": 2, "time": "", "time_s": 1e9}
    sample |= {"why": [], "size": (64, 48), "objects": []}
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for real in steps:
            patch.setattr(Path, real.__name__, dying(real))
        folder.add(jpeg.data, sample, found((1, 0.4, 8, 6, 40, 30)))
    os.close(folder._lock)
    with (tmp_path / "collected.jsonl").open("ab") as index:
        index.write(b'{"image": "half')  # as a power cut leaves it
    write(sink_of(tmp_path, format=layout), result(3))
    assert 3 <= len(images(tmp_path)) <= 4 and len(truth(tmp_path).images) == len(images(tmp_path))
    if layout == "yolo":
        assert {path.stem for path in (tmp_path / "labels").iterdir()} <= {name[:-4] for name in images(tmp_path)}


def test_a_full_disk_is_an_event_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink, is_full = sink_of(tmp_path), [False]
    real = Path.write_bytes

    def write(self: Path, data: Any) -> int:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    sink.open()
    with caplog.at_level(logging.INFO):
        for n in range(6):
            is_full[0] = 1 <= n <= 4
            sink.process(result(n))
            settle(sink)
        sink.close()
    assert len(images(tmp_path)) == 2 and sink.left_out == 4 and len(truth(tmp_path).images) == 2
    logged = [one.message for one in caplog.records]
    assert sum("No space left" in one for one in logged) == 1 and any("images are written to" in one for one in logged)


def test_an_unexpected_error_of_the_writer_holds_up_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(*_: Any) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(DatasetFolder, "add", add)
    sink = sink_of(tmp_path)
    feeder = threading.Thread(target=write, args=(sink, *map(result, range(8))), daemon=True)  # more than are queued
    feeder.start()
    feeder.join(5)
    assert not feeder.is_alive() and sink.left_out == 8


def test_old_images_that_cannot_be_removed_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def remove_excess(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(DatasetFolder, "remove_excess", remove_excess)
    monkeypatch.setattr("edgert.stages.sink.collect.collect_sink._TRIM_S", -1.0)
    with opened(sink_of(tmp_path)) as sink:
        sink.process(result(0, found()))
        settle(sink)
    assert f"cannot remove old images of {tmp_path}: Permission denied" in caplog.text and not sink.left_out


def test_nothing_is_added_while_little_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = sink_of(tmp_path, keep={"free": "900000GB"})
    write(sink, result(1))
    assert images(tmp_path) == [] and "keep: free leaves" in caplog.text and sink.left_out == 1


def test_a_folder_that_is_moved_away_is_begun_again(tmp_path: Path) -> None:
    with opened(sink_of(tmp_path / "set", format="coco")) as sink:
        sink.process(result(1))
        settle(sink)
        shutil.move(tmp_path / "set", tmp_path / "labeled")
        sink.process(result(2))
    assert len(truth(tmp_path / "labeled").images) == len(truth(tmp_path / "set").images) == 1


def test_two_writers(tmp_path: Path) -> None:
    with opened(sink_of(tmp_path)), pytest.raises(StageError, match="cannot write"):
        sink_of(tmp_path).open()
    write(sink_of(tmp_path), result(1))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StageError, match="cannot write"):
        sink_of(tmp_path / "file" / "set").open()


def test_a_slow_disk_never_holds_up_a_camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes, real = threading.Event(), DatasetFolder.add

    def add(self: DatasetFolder, *args: Any) -> None:
        assert goes.wait(10)
        real(self, *args)

    monkeypatch.setattr(DatasetFolder, "add", add)
    with opened(sink_of(tmp_path, waits=False)) as sink:
        for n in range(20):
            sink.process(result(n))
        goes.set()
    assert len(images(tmp_path)) + sink.left_out == 20 and sink.left_out >= 15


# The pipeline file.

FILE = """
models: {{net: {{onnx: net.onnx, task: {{detect: yolox}}}}, big: {{onnx: big.onnx, task: {{detect: yolox}}}}}}
stages:
  camera: {{source: "rtsp://10.0.0.7/x"}}
  find: {{infer: net, from: camera}}
  hide: {{stage: privacy, from: find, classes: [face]}}
  second: {{infer: big, from: hide}}
  areas: {{stage: zones, from: second, zones: {{yard: [[0, 0], [1, 0], [1, 1]]}}}}
  alarm: {{stage: events, from: areas, rules: {{crowd: {{zone: yard, count: 3}}}}}}
  harvest: {{sink: collect, path: set, {keys}}}
"""


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ("from: alarm, score: [0.3, 0.5], differ: [find, second], rules: [crowd], every: 10m", ""),
        ("from: alarm", "it keeps no frame"),
        ("from: alarm, score: [0.5, 0.3]", "the lower first"),
        ("from: alarm, score: 0.3", "expected two scores"),
        ("from: alarm, differ: [find, secnd]", "did you mean 'second'"),
        ("from: alarm, rules: [crowds]", "did you mean 'crowd'"),
        ("from: second, rules: [crowd]", "which no stage before it has"),
        ("from: find, every: 10m", "would keep images in which everything is seen that 'hide' hides"),
        ("from: alarm, every: 10m, keep: {count: 0}", "count"),
        ("from: alarm, every: 10m, format: voc", "format"),
    ],
)
def test_the_pipeline_file(tmp_path: Path, keys: str, wrong: str) -> None:
    (tmp_path / "a.yaml").write_text(FILE.format(keys=keys))
    if not wrong:
        load_pipeline(tmp_path / "a.yaml")
        return
    with pytest.raises(ConfigError) as caught:
        load_pipeline(tmp_path / "a.yaml")
    assert wrong in str(caught.value)


def test_every_changes_while_it_runs(tmp_path: Path) -> None:
    with opened(sink_of(tmp_path, every="10m")) as sink:
        sink.process(result(0))
        sink.process(result(60))
        sink.every = 60.0
        sink.process(result(60))
    assert len(images(tmp_path)) == 2
