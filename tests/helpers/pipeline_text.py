"""Pipeline files for tests, as small as they can be."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import jsonschema
import pytest
from jsonschema.protocols import Validator

from edgert.config import PipelineFile, json_schema
from edgert.config.pipeline_file import read_pipeline
from edgert.errors import ConfigError
from tests.helpers.command import ROOT

ASSETS = ROOT / "pipelines" / "assets"
MINIMAL = """\
stages:
  cam: {source: a.mp4}
  out: {sink: jsonl, from: cam, path: o.jsonl}
"""
WHOLE = """\
schema: 1
name: dock-watch
board: auto
budgets: {power: 15W, memory: 1.5GiB, latency: 60ms, when_exceeded: degrade}
models:
  parts:
    onnx: assets/parts.onnx
    task: {detect: yolox, labels: assets/parts.txt, score: 0.4, iou: 0.5}
    input: {resize: letterbox, color: rgb, mean: 0, std: 255}
    precision: int8
    calibrate: {images: assets/calib, method: mse, limit: 256}
    accuracy: {dataset: assets/val.json, metric: map50, max_drop: 0.01}
    placement: auto
  plates:
    onnx: /models/plates.onnx
    task: {python: "decode:plate", args: {alphabet: abc}}
    input: {mean: [123.7, 116.3, 103.5], std: [58.4, 57.1, 57.4], size: 94x24}
    placement: {"*conv*": gpu}
    profiles: {small: {x: [1, 3, 24, 94]}}
stages:
  camera: {source: "v4l2:///dev/video0", size: 1280x720, fps: 30}
  find: {infer: parts, from: camera}
  track: {track: bytetrack, from: find}
  read: {infer: plates, from: track, crop: {classes: [car, 3], limit: 8}}
  paint: {draw: boxes, from: read}
  part: {crop: [0, 0, 0.5, 1], from: camera}
  mine: {python: "my.module:f", from: [read, track], queue: 8, drop: oldest}
  video: {sink: video, from: paint, path: out/dock.mp4}
  events: {sink: jsonl, from: read, path: out/dock.jsonl}
  call: {sink: callback, from: mine, python: "my.module:g"}
  nothing: {sink: null, from: part}
"""


def pipeline(
    folder: Path, text: str | bytes = MINIMAL, *overrides: str, env: Mapping[str, str] | None = None
) -> PipelineFile:
    file = folder / "p.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_pipeline(file, overrides, env=env or {})


def refused(
    folder: Path, text: str | bytes = MINIMAL, *overrides: str, env: Mapping[str, str] | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        pipeline(folder, text, *overrides, env=env)
    return caught.value


def parts_pipeline(
    folder: Path, source: str, more: str = "", *, model: str = "", find: str = "", top: str = ""
) -> Path:
    """Write a pipeline in which ``find`` runs the shipped detector on frames of ``belt``, and return its path.

    ``more`` are further stages; ``model``, ``find`` and ``top`` are further keys of the model, the stage and the file.
    """
    path = folder / "p.yaml"
    path.write_text(
        f"{top}models:\n  parts: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox, labels: {ASSETS}/parts.txt}},"
        f" input: {{std: 255}}{model}}}\nstages:\n  belt: {source}\n  find: {{infer: parts, from: belt{find}}}\n{more}"
    )
    return path


@lru_cache(maxsize=1)
def schema_validator() -> Validator:
    """The schema of pipeline files as editors use it, made once, which takes longer than a file's validation."""
    return jsonschema.Draft202012Validator(json_schema())
