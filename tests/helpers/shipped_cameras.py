"""Shipped pipelines as they would run on a board, made to run anywhere: drawn frames in place of cameras, and a model
that computes nothing and finds four parts on every frame."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.config import PipelineFile, SourceStage, load_pipeline

BOARDS = {"orin-nano-8gb": "15W", "orin-nx-16gb": "15W", "agx-orin-64gb": "MODE_30W"}
CAMERAS = {"csi": "1920x1080", "rtsp": "1920x1080", "usb-camera": "1280x720"}
PIPELINES = ("hello", "cascade", "multi-camera", *CAMERAS)
_CODE = """
import numpy as np
from edgert.runtime import Detections

def four(outputs, *_, **__):
    places = np.array([[20, 20, 180, 150], [300, 40, 460, 170], [60, 250, 220, 380], [400, 300, 560, 430]], np.float32)
    return Detections(places, np.full(4, 0.9, np.float32), np.zeros(4, np.int32))
"""


def shipped(name: str, folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch, fps: float = 30.0) -> PipelineFile:
    """The pipeline, whose sources end after so many frames and whose files go into a folder."""
    (folder / "boxes.py").write_text(_CODE, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CAMERA_PASSWORD", "none")
    monkeypatch.setenv("CAMERA_HOST", "none")
    model = 'backend="null"', "precision=fp32", f"task={{python: '{folder}/boxes:four'}}"
    overrides = [f"models.parts.{one}" for one in model]
    stages = load_pipeline(name).config.stages
    for source in (one for one, stage in stages.items() if isinstance(stage, SourceStage)):
        overrides += [f"stages.{source}.limit={limit}", f"stages.{source}.fps={fps}"]
        if name in CAMERAS:
            drawn = 'source="python:conveyor:Conveyor"', f"size={CAMERAS[name]}"
            overrides += [f"stages.{source}.{one}" for one in drawn]
    if "page" in stages:
        overrides.append("stages.page.port=0")
    return load_pipeline(name, overrides)
