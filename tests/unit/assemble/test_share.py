"""How many frames a model works on at a time, on how many threads, and how these wait for more."""

from pathlib import Path
from typing import Any

import pytest

from edgert.assemble import MOST_REPLICAS, models as model, replicas_of, threads_of
from edgert.assemble.models import Models, spinning_of
from edgert.config import PipelineConfig, PipelineFile, load_pipeline
from edgert.graph import to_bytes
from tests.helpers import models
from tests.helpers.small_pipeline import small_pipeline


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "core_count", lambda: 8)


def config(folder: Path, *overrides: str) -> PipelineConfig:
    return load_pipeline(small_pipeline(folder), overrides).config


def test_files_are_worked_on_side_by_side_and_cameras_are_not(tmp_path: Path) -> None:
    plain = config(tmp_path)
    assert threads_of(plain, "parts") == 8
    assert replicas_of(plain, "parts", live=False) == MOST_REPLICAS
    assert replicas_of(plain, "parts", live=True) == 1


def test_crops_are_not_either(tmp_path: Path) -> None:
    read = "stages.read={infer: parts, from: find, crop: {limit: 4}}"
    crops = config(tmp_path, "models.parts.task={detect: yolox}", read)
    assert replicas_of(crops, "parts", live=False) == 1


def test_the_section_decides_as_far_as_there_are_threads(tmp_path: Path) -> None:
    asked = config(tmp_path, "models.parts.replicas=3", "models.parts.threads=6")
    assert [replicas_of(asked, "parts", live) for live in (False, True)] == [3, 3]
    assert replicas_of(config(tmp_path, "models.parts.replicas=3", "models.parts.threads=2"), "parts", False) == 2


def test_stages_that_run_models_share_the_cores(tmp_path: Path) -> None:
    two = config(tmp_path, "stages.more={infer: parts, from: cam}")
    assert threads_of(two, "parts") == 4


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
    assert Models(file, None)._model_section("net").tuning.spinning == spinning
