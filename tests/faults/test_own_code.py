"""Code that a file brings along: named by whatever verb runs it, before it runs, and refused where it is not wanted."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert import Pipeline, cli, custom_op, user_code
from tests.faults.fuzz import seeds
from tests.helpers.command import in_process

CODE = """
import os
from pathlib import Path
import edgert
import numpy as np
Path(__file__).with_name("ran").touch()
if "EDGERT_TEST_RAN" in os.environ: Path(os.environ["EDGERT_TEST_RAN"]).touch()
@edgert.op("brought::Mish")
def mish(x): return x
def work(result): return result
class Images:
    def __init__(self, **_): pass
    def __iter__(self): return iter([np.zeros((48, 64, 3), np.uint8)] * 8)
"""
FILES = {
    "source": """
schema: 1
name: own
models:
  m: {onnx: model.onnx, task: {embed: none}, calibrate: {images: "python:brought:Images", limit: 8}, precision: int8}
stages:
  cam: {source: "python:brought:Images", size: 64x48, limit: 3}
  find: {infer: m, from: cam}
  out: {sink: null, from: find}
""",
    "stage": """
schema: 1
name: own
models: {m: {onnx: model.onnx, task: {embed: none}, calibrate: {images: photos}}}
stages:
  cam: {source: "images:photos/*.png"}
  find: {infer: m, from: cam}
  work: {python: "brought:work", from: find}
  out: {sink: null, from: work}
""",
    "operators": """
schema: 1
name: own
ops: [brought.py]
models: {m: {onnx: model.onnx, task: {embed: none}, calibrate: {images: photos}}}
stages:
  cam: {source: "images:photos/*.png"}
  find: {infer: m, from: cam}
  out: {sink: null, from: find}
""",
}
"""What names the code."""


@pytest.fixture(params=["source", "operators", pytest.param("stage", marks=pytest.mark.slow)])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "brought.py").write_text(f"# of {tmp_path}\n{CODE}")  # operators are known by their text
    (tmp_path / "model.onnx").write_bytes(seeds.plain_model().SerializeToString())
    (tmp_path / "p.yaml").write_text(FILES[request.param])
    (tmp_path / "photos").mkdir()
    for number in range(8):
        cv2.imwrite(str(tmp_path / f"photos/{number}.png"), np.full((48, 64, 3), 20 * number, np.uint8))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_code, "before_import", user_code.before_import)
    monkeypatch.setattr(cli, "_announced", set())
    monkeypatch.setattr(custom_op, "_KNOWN", dict(custom_op._KNOWN))
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
    ("check", "p.yaml", "--images", "photos/0.png"),
    ("inspect", "p.yaml"),
    ("quantize", "p.yaml", "-o", "int8.onnx"),
    ("eval", "p.yaml", "--data", "photos"),
    ("bench", "p.yaml", "--quick"),
    ("new", "model.onnx", "-o", "made.yaml", "--images", "photos/0.png"),
    ("import", "brought:work", "-o", "made.onnx"),
    ("gallery", "p.yaml"),
    ("gallery", "p.yaml", "--add", "anna", "--images", "photos/0.png"),
)
NO_FILE = {"boards", "ctl", "doctor", "explain", "models", "schema", "top"}
"""Verbs that take no file of anybody's."""


def test_every_verb_is_asked() -> None:
    named = {
        info.name or getattr(info.callback, "__name__", "") for info in cli.app.registered_commands if not info.hidden
    }
    assert named == {verb for verb, *_ in VERBS} | NO_FILE | {"replay"}  # below


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_code_runs_none(verb: tuple[str, ...], file: Path) -> None:
    in_process(*verb, "--no-code", cwd=file.parent)
    assert not (file.parent / "ran").exists()


def test_a_recording_runs_no_code_either(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = "sink: mcap, from: work, path: run.mcap"
    text = 'stages: {cam: {source: "images:photos/*.png"}, work: {python: "brought:work", from: cam}, out: {%s}}'
    file.write_text(text % recorded)
    Pipeline(file).run()
    ran = file.parent / "ran"
    for words, is_run in (["--no-code"], False), ([], True):
        ran.unlink(missing_ok=True)
        monkeypatch.delitem(sys.modules, "brought", raising=False)
        in_process("replay", "run.mcap", *words, cwd=file.parent)
        assert ran.exists() == is_run


@pytest.mark.parametrize("place", [0, 1])
def test_no_code_may_stand_before_the_verb(place: int, file: Path) -> None:
    words = ["run", "p.yaml"]
    words.insert(place, "--no-code")
    in_process(*words, cwd=file.parent)
    assert not (file.parent / "ran").exists()


BUNDLED = (
    ("run", "b.edgert"),
    ("inspect", "b.edgert"),
    ("build", "b.edgert"),
    ("export", "b.edgert", "--format", "onnx", "-o", "exported"),
    ("bench", "b.edgert", "--share", "shared.json"),
    ("plan", "p.yaml", "--board", "orin-nx-16gb", "--profile", "b.edgert"),
)


@pytest.mark.slow  # each builds a bundle
@pytest.mark.parametrize("verb", BUNDLED, ids=" ".join)
@pytest.mark.parametrize("refused", [True, False])
def test_code_that_a_bundle_brings(
    verb: tuple[str, ...],
    refused: bool,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = in_process("build", "p.yaml", "-o", "b.edgert", "--board", "orin-nx-16gb", cwd=file.parent)
    assert built.returncode == 0, built.stderr
    (file.parent / "ran").unlink(missing_ok=True)
    ran = file.parent / "code-of-the-bundle-ran"
    monkeypatch.delitem(sys.modules, "brought", raising=False)
    custom_op._KNOWN.clear()
    monkeypatch.setattr(custom_op, "_IMPORTED", {})
    monkeypatch.setattr(cli, "_announced", set())
    monkeypatch.setenv("EDGERT_TEST_RAN", str(ran))
    done = in_process(*verb, *(["--no-code"] if refused else []), cwd=file.parent)
    assert done.stderr.count("runs code of your own: brought") == ran.exists()
    assert not (refused and ran.exists())


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_whatever_runs_it_names_it_first(verb: tuple[str, ...], file: Path) -> None:
    done = in_process(*verb, cwd=file.parent)
    assert done.stderr.count("runs code of your own: brought") == (file.parent / "ran").exists()
