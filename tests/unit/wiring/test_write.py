"""A starter is written whole, loads, and replaces nothing by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.errors import ConfigError
from edgert.wiring.starter import refuse_existing, write_pipeline

TEXT = 'stages:\n  camera: {source: "rtsp://${USER_AND_PASSWORD}@host"}\n  out: {sink: "null", from: camera}\n'


def test_a_file_is_written_although_its_variables_are_not_set_here(tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.yaml"
    write_pipeline(TEXT, path, force=False)
    assert path.read_text() == TEXT
    assert [item.name for item in path.parent.iterdir()] == ["p.yaml"]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_pipeline(TEXT, path, force=False)
    assert path.read_text() == "mine"
    write_pipeline(TEXT, path, force=True)
    assert path.read_text() == TEXT
    with pytest.raises(ConfigError, match="exists already"):
        refuse_existing(tmp_path, force=True)


def test_text_that_is_no_pipeline_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write_pipeline("stages: {}", tmp_path / "p.yaml", force=False)
    assert list(tmp_path.iterdir()) == []
