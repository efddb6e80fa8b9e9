"""edgert's own kinds keep what edgert.testing asks of everybody's."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.backend import Backend
from edgert.clock import REAL
from edgert.config import CropConfig, DrawStage, PackageStage, TrackStage
from edgert.kinds import BACKENDS, DECODERS, SINKS, STAGES, TRACKERS
from edgert.runtime import Result, Stage
from edgert.stages.bytetrack import F32, I32, I64
from edgert.stages.context import Context, make_stage
from edgert.stages.crop import CropDetections, CropRegion
from edgert.stages.draw import Draw
from edgert.stages.sink import viewers
from edgert.stages.track import Track, Tracker
from edgert.testing import BackendSuite, DecoderSuite, SinkSuite, StageSuite, TrackerSuite

SINK_KEYS: dict[str, dict[str, Any]] = {
    "video": {"path": "a.mp4"},
    "jsonl": {"path": "a.jsonl"},
    "images": {"path": "images"},
    "http": {"port": 0},
    "callback": {},
    "display": {},
    "null": {},
    "mqtt": {"server": "mqtt://127.0.0.1:9", "spool": "spool.db"},
    "nats": {"server": "nats://127.0.0.1:9", "spool": "spool.db"},
    "kafka": {"server": "kafka://127.0.0.1:9", "spool": "spool.db"},
    "webhook": {"server": "http://127.0.0.1:9/", "spool": "spool.db"},
    "record": {"path": "a.mp4", "annotated": True},
    "collect": {"path": "set", "every": "1s"},
    "mcap": {"path": "a.mcap"},
    "rtsp": {"port": 0},
    "webrtc": {"port": 0},
    "ros2": {},
}
CELLS = 64 + 16 + 4  # of strides 8, 16, 32 in 64x64
SHAPES: dict[str, dict[str, list[tuple[int, ...]]]] = {
    "detect": {
        "yolox": [(CELLS, 9)],
        "yolov5": [(3 * CELLS, 9)],
        "yolov4": [(CELLS, 1, 4), (CELLS, 9)],
        "yolov5-seg": [(3 * CELLS, 13), (4, 12, 16)],
        "yolov8": [(8, CELLS)],
        "yolov8-raw": [(64 + 9, 8, 8), (64 + 9, 4, 4), (64 + 9, 2, 2)],
        "yolov8-obb": [(9, CELLS)],
        "yolov8-seg": [(12, CELLS), (4, 12, 16)],
        "yolov10": [(30, 6)],
        "nanodet": [(CELLS + 1, 32 + 7)],
        "ssd": [(1200, 3), (1200, 4)],
        "fastestdet": [(9, 4, 4)],
        "detr": [(50, 4), (50, 9)],
        "scrfd": [(size, columns) for columns in (1, 4, 10) for size in (128, 32, 8)],
        "retinaface": [(2 * CELLS, 4), (2 * CELLS, 2), (2 * CELLS, 10)],
        "yunet": [(size, columns) for columns in (1, 1, 4, 10) for size in (64, 16, 4)],
        "yolov5-face": [(3 * CELLS, 16)],
        "detr-seg": [(50, 4), (50, 9), (50, 16, 16)],
        "yolo-nas": [(CELLS, 4), (CELLS, 9)],
        "ppyoloe": [(CELLS, 4), (9, CELLS)],
        "yolo-raw": [(3, 8, 8, 9), (3, 4, 4, 9), (3, 2, 2, 9)],
        "detectnet": [(3, 4, 4), (12, 4, 4)],
        "db": [(1, 64, 64)],
        "mask-rcnn": [(30, 4), (30,), (30,), (30, 1, 64, 64)],
    },
    "classify": {
        **{name: [(1000,)] for name in ("auto", "softmax", "logits")},
        "multilabel": [(26,)],
        "heads": [(7,), (4,), (1,)],
    },
    "segment": {"argmax": [(5, 64, 64)], "threshold": [(1, 64, 64)]},
    "keypoints": {
        "yolo-pose": [(5 + 3 * 17, CELLS)],
        "yolov7-pose": [(3 * CELLS, 6 + 3 * 17)],
        "heatmap": [(17, 16, 16)],
        "simcc": [(17, 128), (17, 128)],
        "movenet": [(1, 17, 3)],
        "trt-pose": [(18, 16, 16), (42, 16, 16)],
        "landmarks": [(136,)],
        "keypoint-rcnn": [(30, 4), (30,), (30,), (30, 17, 3), (30, 17)],
    },
    "embed": {name: [(512,)] for name in ("l2", "none")},
    "text": {"ctc": [(16, 97)]},
    "depth": {name: [(1, 64, 64)] for name in ("inverse", "metric", "relative")},
    "image": {name: [(3, 64, 64)] for name in ("unit", "byte", "signed")},
    "anomaly": {"map": [(1, 16, 16), (1,)]},
}


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in SINK_KEYS])
class TestSinks(SinkSuite):
    @pytest.fixture(autouse=True)
    def _chosen(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(self), "name", name, raising=False)
        monkeypatch.setattr(type(self), "keys", SINK_KEYS[name])
        for kind, module in (("rtsp", "gi"), ("webrtc", "aiortc"), ("ros2", "rclpy")):
            if name == kind:
                pytest.importorskip(module, reason=f"{module} is not installed")
        monkeypatch.setattr(viewers, "find_viewer", lambda *_, **__: ("cat", {}))  # no test opens a window
        monkeypatch.setattr(viewers, "command", lambda *_, **__: ["cat"])


DECODER_CASES = [(task, name) for task, shapes in SHAPES.items() for name in shapes]


@pytest.mark.parametrize(("task", "name"), DECODER_CASES)
class TestDecoders(DecoderSuite):
    @pytest.fixture(autouse=True)
    def _chosen(self, task: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in {"task": task, "name": name, "shapes": SHAPES[task][name]}.items():
            monkeypatch.setattr(type(self), key, value, raising=False)


class TestByteTrack(TrackerSuite):
    name = "bytetrack"


class TestBotSort(TrackerSuite):
    name = "botsort"


class TestOrt(BackendSuite):
    name = "ort"


class TestNull(BackendSuite):
    name, exact = "null", False


class TestOpenVino(BackendSuite):
    name = "openvino"

    def backend(self) -> Backend:
        pytest.importorskip("openvino", reason="openvino (extra 'openvino') is not installed")
        return super().backend()


class TestDraw(StageSuite):
    def make(self, folder: Path) -> Stage:
        return Draw("paint", DrawStage.model_validate({"draw": ["boxes", "labels", "stats"], "from": "find"}), REAL)


class TestCropRegion(StageSuite):
    def make(self, folder: Path) -> Stage:
        return CropRegion((0.25, 0.25, 0.75, 0.75))


class TestCropDetections(StageSuite):
    def make(self, folder: Path) -> Stage:
        return CropDetections("crop", CropConfig())


LEFT = {"left": [[0, 0], [0.5, 0], [0.5, 1]]}
STAGE_KEYS: dict[str, dict[str, Any]] = {
    "zones": {"zones": LEFT},
    "events": {"rules": {"crowd": {"count": 2}}},
    "privacy": {"areas": LEFT, "classes": "thing"},
    "motion": {},
    "distance": {},
}


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in STAGE_KEYS])
class TestStages(StageSuite):
    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.keys = {"stage": name, "from": "find", **STAGE_KEYS[name]}

    def make(self, folder: Path) -> Stage:
        stage: Stage = make_stage(PackageStage.model_validate(self.keys), "own", Context())
        return stage


class TestTrack(StageSuite):
    def make(self, folder: Path) -> Stage:
        return Track("track", TrackStage.model_validate({"track": "bytetrack", "from": "find"}), Context())


def test_every_kind_is_asked() -> None:
    """A kind that was added is added above, too; GPU backends are asked by the tests of boards."""
    assert set(SINK_KEYS) == set(SINKS.own)
    assert {task: set(shapes) for task, shapes in SHAPES.items()} == {task: set(r.own) for task, r in DECODERS.items()}
    assert {TestByteTrack.name, TestBotSort.name} == set(TRACKERS.own)
    assert set(STAGES.own) == set(STAGE_KEYS)
    asked = {TestOrt.name, TestNull.name, TestOpenVino.name}
    assert set(BACKENDS.own) - asked == {"auto", "onnxruntime-cuda", "tensorrt"}


def test_nothing_imports_pytest() -> None:
    code = "import sys, edgert.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Scribbler:
    """A stage that paints over what others see."""

    def open(self) -> None: ...

    def process(self, result: Result) -> Result:
        result.frame.planes[0][...] = 0
        return result

    def close(self) -> None: ...


class Forgetful(Tracker):
    """A tracker that numbers every detection afresh."""

    def __init__(self) -> None:
        self.last = 0

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        self.last += len(scores)
        return np.arange(self.last - len(scores) + 1, self.last + 1)


def test_a_stage_that_writes_to_frames_is_found(tmp_path: Path) -> None:
    suite = TestDraw()
    suite.make = lambda folder: Scribbler()  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="pixels were written to"):
        suite.test_frames_are_not_changed(tmp_path)


def test_a_tracker_that_loses_objects_is_found() -> None:
    suite = TrackerSuite()
    suite.tracker = Forgetful  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        suite.test_objects_keep_their_numbers()


def test_a_decoder_that_nothing_would_propose_is_found() -> None:
    suite = DecoderSuite()
    suite.task, suite.name, suite.shapes = "detect", "yolox", [(3, 3)]  # type: ignore[misc]
    with pytest.raises(AssertionError, match="does not know"):
        suite.test_it_is_proposed_for_its_outputs()


def test_a_backend_that_computes_something_else_is_found() -> None:
    suite = BackendSuite()
    suite.name = "null"  # type: ignore[misc]
    with pytest.raises(AssertionError):
        suite.test_it_computes_the_model()
