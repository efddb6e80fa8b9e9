"""HOTA and IDF1 of a MOT sequence, by TrackEval; worked out by hand where that is possible."""

from pathlib import Path

import numpy as np
import pytest

from edgert.config import DetectTask
from edgert.dataset import open_dataset
from edgert.dataset.labels import GroundTruthBoxes
from edgert.errors import ConfigError
from edgert.evaluation import evaluate_model, task_scores, track_metric
from edgert.evaluation.compare import compare
from edgert.quantization.section import model_section
from edgert.runtime import Detections
from tests.unit.test_layouts import image, text

FRAMES = 10
PIPELINE = """
schema: 1
name: walk
models:
  people: {onnx: people.onnx, task: {detect: yolov8}, input: {resize: letterbox}}
stages:
  cam: {source: walk.mp4}
  find: {infer: people, from: cam}
  track: {track: botsort, from: find}
  out: {sink: null, from: find}
"""


def sequence(root: Path) -> GroundTruthBoxes:
    """Two people who walk; in every frame a reflection, which may be found or not."""
    rows = []
    for frame in range(1, FRAMES + 1):
        image(root / "img1" / f"{frame:06d}.jpg")
        rows += [
            f"{frame},1,{frame},1,10,20,1,1,1",
            f"{frame},2,60,{frame},10,20,1,1,1",
            f"{frame},9,30,1,10,20,0,12,1",
        ]
    text(root / "gt" / "gt.txt", "\n".join(rows))
    found = open_dataset(root, DetectTask(detect="yolov8"))
    assert [found.images.name(n) for n in range(3)] == ["000001.jpg", "000002.jpg", "000003.jpg"], "not in time"
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    return found.ground_truth


def seen(truth: GroundTruthBoxes, frame: int) -> Detections:
    boxes = truth.images[frame].corners.astype(np.float32)
    return Detections(boxes, np.full(len(boxes), 0.9, np.float32), np.zeros(len(boxes), np.int32))


@pytest.fixture(autouse=True)
def installed() -> None:
    pytest.importorskip("trackeval")


def test_exchanged_numbers_cost_what_they_should(tmp_path: Path) -> None:
    """All boxes are right, and both people change their number after 6 of 10 frames. IDF1 keeps the longer part."""
    truth = sequence(tmp_path)
    tracks = []
    for frame, one in enumerate(truth.images):
        rows = ~one.crowds
        ids = np.array([1, 2] if frame < 6 else [3, 4])
        record = seen(truth, frame)[rows]
        tracks.append(Detections(record.boxes, record.scores, record.classes, ids=ids))
    found = track_metric.scores(truth, tracks)
    association = 0.6 * 6 / 10 + 0.4 * 4 / 10  # of a frame: shared frames over those of either track
    assert found["hota"].value == pytest.approx(np.sqrt(association)) and found["idf1"].value == pytest.approx(0.6)


def test_a_perfect_detector_is_tracked(tmp_path: Path) -> None:
    truth = sequence(tmp_path)
    scorer = task_scores.scorer_for(truth, DetectTask(detect="yolov8", score=0.5))
    assert scorer.metrics == ("map", "map50", "hota", "idf1")
    notes = [scorer.note(n, seen(truth, n)) for n in range(FRAMES)]
    found = scorer.scores(notes, None)
    assert found["hota"].value > 0.99 and found["idf1"].value > 0.99, "what is found on a reflection counts"
    values = {name: one.value for name, one in found.items()}
    one = evaluate_model.Accuracy("a", FRAMES, values, found, 1.0, 1.0, 1, ())
    drop = compare(one, one, "hota", max_drop=0.1)
    assert drop.drop == 0 and np.isnan(drop.low) and drop.verdict == "probably within"


def test_the_pipeline_s_own_settings_track(tmp_path: Path) -> None:
    """Detections that are surer than any score that there is start no tracks."""
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE)
    tracking = model_section(file, overrides=["stages.track.activate=1"]).tracking
    assert tracking is not None and tracking.activate == 1
    truth = sequence(tmp_path / "walk")
    for settings, most in ((tracking, 0.0), (None, 1.0)):
        scorer = task_scores.scorer_for(truth, DetectTask(detect="yolov8", score=0.5), settings)
        found = scorer.scores([scorer.note(n, seen(truth, n)) for n in range(FRAMES)], None)
        assert found["hota"].value == pytest.approx(most, abs=0.01)
    file.write_text("".join(line for line in PIPELINE.splitlines(keepends=True) if "track" not in line))
    assert model_section(file).tracking is None


def test_tracks_without_trackeval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.evaluation.track_metric.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="need TrackEval"):
        track_metric.needs_trackeval()
