"""Shipped pipelines as they would run on a board, made to run anywhere: gray frames in place of cameras, and a model
that computes nothing and finds four parts on every frame. And what is said of them in three ways."""

from pathlib import Path

import pytest

from edgert.config import PipelineFile, SourceStage, load_pipeline
from edgert.emulation import emulate
from edgert.pipeline import pipeline_in
from edgert.placement.plan_record import Row
from edgert.planner import plan

BOARDS = {"orin-nano-8gb": "15W", "orin-nx-16gb": "15W", "agx-orin-64gb": "MODE_30W"}
CAMERAS = {"csi": "1920x1080", "rtsp": "1920x1080", "usb-camera": "1280x720"}
PIPELINES = ("hello", "cascade", "multi-camera", *CAMERAS)
Figures = tuple[float, float, float, float | None]
"""Frames a second, p50 and p99 in milliseconds, watts."""
_CODE = """
import time
import numpy as np
from edgert.runtime import Detections

def four(outputs, *_, slow_s=0.0, **__):
    time.sleep(slow_s)
    places = np.array([[20, 20, 180, 150], [300, 40, 460, 170], [60, 250, 220, 380], [400, 300, 560, 430]], np.float32)
    return Detections(places, np.full(4, 0.9, np.float32), np.zeros(4, np.int32))
"""


def shipped(
    name: str, folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch, fps: float = 30.0, slow_s: float = 0.0
) -> PipelineFile:
    """The pipeline, whose sources end after so many frames and whose files go into a folder."""
    (folder / "four_parts.py").write_text(_CODE, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CAMERA_PASSWORD", "none")
    monkeypatch.setenv("CAMERA_HOST", "none")
    task = f"{{python: '{folder}/four_parts:four', args: {{slow_s: {slow_s}}}}}"
    model = 'backend="null"', "precision=fp32", f"task={task}"
    overrides = [f"models.parts.{one}" for one in model]
    stages = load_pipeline(name).config.stages
    for source in (one for one, stage in stages.items() if isinstance(stage, SourceStage)):
        keys = 'source="synthetic:blank"', f"limit={limit}", f"fps={fps}"
        overrides += [f"stages.{source}.{one}" for one in keys]
        if name in CAMERAS:
            overrides.append(f"stages.{source}.size={CAMERAS[name]}")
    if "page" in stages:
        overrides.append("stages.page.port=0")
    return load_pipeline(name, overrides)


def planned(file: PipelineFile, board: str) -> Row:
    row = plan(file, board=board, mode=BOARDS[board]).boards[0].best
    assert row is not None
    return row


def figures_of(row: Row) -> Figures:
    return row.fps, row.p50_ms, row.p99_ms, row.power_w


def emulated(file: PipelineFile, board: str, pace: float = 0.0) -> tuple[Figures, float]:
    """Of ``edgert run --as``, and how many times slower than the board this machine was."""
    place = emulate(file, board, BOARDS[board], pace=pace)
    with pipeline_in(place.environment, place.file) as running:
        run = running.run()
    report = place.report(run)
    figures = report["figures"]
    return (figures["fps"], figures["p50_ms"], figures["p99_ms"], figures["power_w"]), report["slower"]
