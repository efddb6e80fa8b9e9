"""``sink: collect`` for an hour, through kills, and with the commands that its dataset is for."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgert.config import DetectTask
from edgert.config.stages import SinkStage
from edgert.dataset import open_dataset
from edgert.dataset.labels import GroundTruthBoxes
from edgert.memory import Counter, lend
from edgert.runtime.frame import Frame
from edgert.runtime.records import Detections, Result
from edgert.stages.context import Context
from tests.helpers.command import ROOT, edgert, environment
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.written import opened
from tests.unit.stages.sink.test_collect import settle

HOUR, FPS = 3600, 30
LABELS = ("bolt", "nut", "gear")


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def count(folder: Path) -> int:
    found = open_dataset(folder, DetectTask(detect="yolox"))
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    return len(found.images)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["yolo", "coco"])
def test_an_hour_at_30_frames_a_second_stays_inside_its_bounds(tmp_path: Path, layout: str) -> None:
    """108,000 frames, as fast as the sink takes them; times are those of the hour."""
    count_limit, size_limit, age_s = (1000, 600_000, 600) if layout == "yolo" else (150, 2_000_000, 600)
    keys = {"format": layout, "score": [0.3, 0.5], "gap": "1s", "every": "10m"}
    keep = {"count": count_limit, "size": f"{size_limit}B", "age": f"{age_s}s", "free": "1MB"}
    section: Any = SinkStage.model_validate(
        {"sink": "collect", "from": "x", "path": tmp_path / "set", "keep": keep} | keys
    )
    clock, counter, random_numbers = VirtualClock(), Counter(), np.random.default_rng(0)
    sink = section.make(
        "harvest", Context(clock=clock, starts_over=False, sources={"gate": SimpleNamespace(live=False)})
    )
    pixels = random_numbers.integers(0, 256, (16, 48, 64, 3), np.uint8)
    with opened(sink):
        most_images = most_bytes = 0
        began_s = time.time()
        for index in range(HOUR * FPS):
            at_ns = index * 10**9 // FPS
            planes = (pixels[index % 16],)
            frame = Frame("gate", index, at_ns, at_ns, 64, 48, "bgr", planes, lend(planes, counter))
            scores = np.sort(random_numbers.random(3).astype(np.float32))[::-1]
            boxes = np.tile(np.array([[4, 4, 30, 40]], np.float32), (3, 1))
            sink.process(Result(frame, {"x": Detections(boxes, scores, np.arange(3, dtype=np.int32), LABELS)}))
            if index % (20 * FPS) == 0:
                settle(sink)
                most_images = max(most_images, len(list((tmp_path / "set" / "images").iterdir())))
                most_bytes = max(most_bytes, used_bytes(tmp_path / "set"))
        settle(sink)
    kept = [json.loads(line) for line in (tmp_path / "set" / "collected.jsonl").read_text().splitlines()]
    times = [one["time_s"] for one in kept if "image" in one]
    print(f"{layout}: {most_images} images, {most_bytes} bytes at most, {time.time() - began_s:.0f} s for the hour")
    assert 100 < most_images <= count_limit and most_bytes <= size_limit
    assert max(times) - min(times[-count_limit:]) <= age_s
    assert count(tmp_path / "set") == len(list((tmp_path / "set" / "images").iterdir()))
    if layout == "coco":
        from pycocotools.coco import COCO

        assert len(COCO(str(tmp_path / "set" / "annotations" / "instances_collected.json")).getImgIds()) > 100


PIPELINE = f"""\
models:
  parts:
    onnx: {ROOT}/pipelines/assets/parts.onnx
    task: {{detect: yolox, labels: {ROOT}/pipelines/assets/parts.txt, score: 0.1, iou: 0.5}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}
stages:
  belt: {{source: "python:{ROOT}/pipelines/conveyor:Conveyor", size: 320x240, fps: 30, seed: 7, limit: LIMIT}}
  find: {{infer: parts, from: belt}}
  hide: {{stage: privacy, from: find, areas: {{window: [[0, 0], [0.25, 0], [0.25, 0.25], [0, 0.25]]}}}}
  harvest: {{sink: collect, from: hide, path: set, score: [0.1, 0.9], gap: 0s, keep: {{free: 1MB}}}}
"""


@pytest.mark.slow
def test_what_is_collected_is_evaluated_checked_and_calibrated_with(tmp_path: Path) -> None:
    import cv2

    (tmp_path / "p.yaml").write_text(PIPELINE.replace("LIMIT", "60"))
    done = edgert("run", "p.yaml", cwd=tmp_path, timeout_s=300)
    assert done.returncode == 0, done.stderr
    images = sorted((tmp_path / "set" / "images").iterdir())
    assert len(images) > 10
    for path in images:  # what is hidden is black in what is kept
        assert cv2.imread(str(path))[:56, :76].max() < 40
    judged = edgert("eval", "p.yaml", "--data", "set", "--limit", "20", cwd=tmp_path, timeout_s=300)
    assert judged.returncode == 0 and "5 of 5 categories are labels of the model" in judged.stdout + judged.stderr
    checked = edgert("check", "p.yaml", "--data", "set", cwd=tmp_path, timeout_s=300)
    assert checked.returncode == 0, checked.stderr
    made = edgert("calibrate", "p.yaml", "--images", "set/images", cwd=tmp_path, timeout_s=300)
    assert made.returncode == 0 and (tmp_path / "ranges.json").exists(), made.stderr


@pytest.mark.slow
def test_runs_that_are_killed_leave_a_dataset_and_go_on(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("LIMIT", "100000"))
    left, chance = 0, random.Random(3)
    for _ in range(5):
        run = subprocess.Popen(
            [sys.executable, "-m", "edgert", "run", "p.yaml"],
            cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        images, until = tmp_path / "set" / "images", time.monotonic() + 60
        while not images.exists() or len(list(images.iterdir())) < left + 5:
            assert run.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        time.sleep(chance.random() * 0.3)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        there = len(list(images.iterdir()))
        assert there >= left + 5 and count(tmp_path / "set") == there
        left = there
