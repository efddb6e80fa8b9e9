"""How many frames a model works on at a time, and on how many threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.assemble import MOST_REPLICAS, models as model, replicas_of, threads_of
from edgert.config import PipelineConfig, load_pipeline
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
