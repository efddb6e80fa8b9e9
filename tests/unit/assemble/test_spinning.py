"""How threads of a model wait for more work, by what its pipeline's frames come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgert.assemble.models import Models, spinning_of
from edgert.config import PipelineFile, load_pipeline
from edgert.graph import to_bytes
from tests.helpers import models

TEXT = """
name: spinning
{budgets}
models: {{net: {{onnx: net.onnx, task: {{embed: none}}, threads: 2{tuning}}}}}
stages:
  cam: {{source: {source}}}
  find: {{infer: net, from: cam}}
  last: {{sink: callback, from: find}}
"""
CPU = "budgets: {cpu: 0.5, when_exceeded: degrade}"


def written(folder: Path, source: str, tuning: str = "", budgets: str = "") -> PipelineFile:
    (folder / "net.onnx").write_bytes(to_bytes(models.means(("n", 3, 8, 8))))
    path = folder / "spinning.yaml"
    path.write_text(TEXT.format(source=source, tuning=tuning and f", tuning: {{{tuning}}}", budgets=budgets))
    return load_pipeline(path)


@pytest.mark.parametrize(
    ("source", "tuning", "budgets", "spinning"),
    [
        ("film.mp4", "", "", True),
        ("api", "", "", True),
        ("rtsp://camera/stream", "", "", "runs"),
        ("film.mp4, realtime: true", "", "", "runs"),
        ("rtsp://camera/stream", "", CPU, False),
        ("film.mp4", "", CPU, False),
        ("rtsp://camera/stream", "spinning: true", CPU, True),
        ("film.mp4", "spinning: runs", "", "runs"),
        ("film.mp4", "spinning: false", "", False),
        ("rtsp://camera/stream", "spinning: auto", "", "runs"),
    ],
)
def test_between_a_cameras_frames_threads_sleep(
    tmp_path: Path, source: str, tuning: str, budgets: str, spinning: Any
) -> None:
    file = written(tmp_path, source, tuning, budgets)
    assert spinning_of(file, file.config.models["net"]) == spinning
    assert Models(file, None, None)._section("net").tuning.spinning == spinning
