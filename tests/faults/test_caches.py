"""A cache that cannot be written, as of a read-only root file system: the work goes on, with one warning."""

import logging
from pathlib import Path

import numpy as np
import pytest

import edgert
from edgert.backend import base
from edgert.files import FileStore
from tests.helpers.command import ROOT


def test_a_cache_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_LOGGED", set())
    (tmp_path / "file").touch()
    store = FileStore(tmp_path / "file" / "cache")
    with caplog.at_level(logging.DEBUG, "edgert"):
        for key in "abc":
            base.cache_content(store, key, b"content")
    assert [one.levelno for one in caplog.records] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert "point EDGERT_CACHE at a folder that can be written" in caplog.text


def test_a_model_runs_and_is_cached_where_no_temporary_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with edgert.Model(ROOT / "pipelines/assets/parts.onnx", labels=list("abcde")) as model:
        assert model(np.zeros((64, 64, 3), np.uint8)) is not None
    (optimized,) = (tmp_path / "ort").glob("*.bin")
    assert optimized.stat().st_size


def test_a_run_with_int8_goes_on_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "file" / "cache"))
    with edgert.Pipeline("hello", overrides=["stages.belt.limit=5", "models.parts.calibrate.limit=8"]) as pipeline:
        assert pipeline.run().frames_out == 5
