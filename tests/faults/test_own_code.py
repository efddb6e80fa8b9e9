"""Code that a file brings along: named by whatever verb runs it, before it runs, and refused where it is not wanted."""

import sys
from pathlib import Path

import pytest

from edgert import cli, user_code
from tests.helpers import models

CODE = """
from pathlib import Path
import numpy as np
Path(__file__).with_name("ran").touch()
class Images:
    def __init__(self, **_): pass
    def __iter__(self): return iter([np.zeros((48, 64, 3), np.uint8)] * 3)
"""
FILE = """
schema: 1
name: own
models: {m: {onnx: model.onnx, task: {embed: none}, calibrate: {images: "python:brought:Images"}, precision: int8}}
stages:
  cam: {source: "python:brought:Images", size: 64x48, limit: 3}
  find: {infer: m, from: cam}
  out: {sink: null, from: find}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from edgert.graph import to_bytes

    (tmp_path / "brought.py").write_text(CODE)
    (tmp_path / "model.onnx").write_bytes(to_bytes(models.means(models.IMAGE)))
    (tmp_path / "p.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_code, "before", user_code.before)
    monkeypatch.setattr(cli, "_shown", set())
    monkeypatch.delitem(sys.modules, "brought", raising=False)
    return tmp_path / "p.yaml"


VERBS = (
    ("run", "p.yaml"),
    ("run", "p.yaml", "--dry-run"),
    ("validate", "p.yaml"),
    ("plan", "p.yaml", "--board", "orin-nx-16gb"),
    ("simulate", "p.yaml", "--board", "orin-nx-16gb", "--duration", "1"),
    ("calibrate", "p.yaml", "-o", "ranges.json"),
    ("build", "p.yaml", "-o", "b.edgert", "--board", "orin-nx-16gb"),
    ("export", "p.yaml", "-o", "exported"),
    ("check", "p.yaml"),
    ("inspect", "p.yaml"),
)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("place", [1, 2, -1])
def test_no_code_runs_none(verb: tuple[str, ...], place: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["edgert", *verb]
    words.insert(place if place > 0 else len(words), "--no-code")
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        cli.main()
    assert not (file.parent / "ran").exists()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_whatever_runs_it_names_it_first(
    verb: tuple[str, ...], file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["edgert", *verb])
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr().err.count("runs code of your own: brought")
    assert shown == (file.parent / "ran").exists()
