"""Mistakes: what the command line says of each, how it is repaired, and where --debug shows that it comes from."""

from pathlib import Path
from typing import Any

import pytest
import typer

from edgert.cli import app
from tests.helpers.command import in_process


@pytest.mark.parametrize("content", [b"PK\x03\x04\x00\xff" + bytes(60), b"\x80\x02}q\x00."])
@pytest.mark.parametrize("verb", ["run", "validate", "new", "import", "inspect"])
def test_a_checkpoint_is_exported_first(tmp_path: Path, verb: str, content: bytes) -> None:
    (tmp_path / "best.pt").write_bytes(content)
    done = in_process(verb, "best.pt", cwd=tmp_path)
    assert done.returncode == 1 and "yolo export model=best.pt format=onnx" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("verb", "example"),
    [("run", "edgert run hello"), ("plan", "edgert plan pipeline.yaml"), ("new", "edgert new parts")],
)
def test_a_verb_without_anything_names_an_example(tmp_path: Path, verb: str, example: str) -> None:
    done = in_process(verb, cwd=tmp_path)
    assert done.returncode == 2 and f"For example: {example}" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("models: {net: {onnx: m.onnx, task: {detect: yolov8, conf: 0.4}}}", "conf is models.net.task.score"),
        ("models: {net: {onnx: m.onnx, task: {detect: yolov8}, confidence: 0}}", "models.net.task.score"),
        ("models: {net: {onnx: m.onnx, task: {detect: yolov8}, imgsz: 640}}", "imgsz is models.net.input.size"),
        ("models: {net: {onnx: m.onnx, task: {detect: yolov8}, classes: 80}}", "models.net.task.labels"),
        ("models: {net: {onnx: m.onnx, task: {detect: yolov8}, iou: 0.5}}", "models.net.task.iou"),
        ("  see: {infer: net, from: cam, threshold: 0.5}", "threshold is models.NAME.task.score"),
        ("imgsz: 640", "models.NAME.input.size"),
        ("gpus: [0, 1]", "gpus is the environment variable CUDA_VISIBLE_DEVICES (one edgert for each GPU)"),
        ("device: 1", "device is engines, or the environment variable CUDA_VISIBLE_DEVICES"),
        ("engines: [tensorrt:1]", "write tensorrt, and start edgert with CUDA_VISIBLE_DEVICES=1"),
        ("  both: {source: [a.mp4, b.mp4]}", "one stage for each camera or video; videos:FOLDER/*.mp4"),
        ("  rec: {sink: record, from: cam, path: {date}}", 'a value with { needs quotes: path: "..."'),
    ],
)
def test_a_word_of_another_tool_is_answered_with_its_place(tmp_path: Path, line: str, fix: str) -> None:
    (tmp_path / "p.yaml").write_text(f"stages:\n  cam: {{source: a.mp4}}\n{line}\n")
    done = in_process("validate", "p.yaml", cwd=tmp_path)
    assert done.returncode == 1 and fix in done.stderr, done.stderr


GROUP: Any = typer.main.get_command(app)
MISTAKES = {
    "bench": ("gone.onnx",),
    "boards": ("gone",),
    "build": ("gone.yaml",),
    "calibrate": ("gone.yaml",),
    "check": ("gone.yaml",),
    "ctl": ("show", "--name", "gone"),
    "eval": ("gone.yaml",),
    "explain": ("E999",),
    "export": ("gone.yaml", "--format", "onnx", "-o", "x"),
    "gallery": ("gone.yaml",),
    "import": ("gone.pt2",),
    "inspect": ("gone.onnx",),
    "models": ("no such family",),
    "new": ("gone.onnx",),
    "plan": ("gone.yaml", "--board", "host"),
    "quantize": ("gone.yaml",),
    "replay": ("gone.mcap",),
    "run": ("gone.yaml",),
    "simulate": ("gone.yaml", "--board", "host"),
    "validate": ("gone.yaml",),
}
"""Verb → arguments with which it fails."""
NEVER_FAILS = {"doctor", "schema", "top"}


def test_every_verb_has_a_mistake_here() -> None:
    verbs = {name for name, one in GROUP.commands.items() if not one.hidden}
    assert verbs == set(MISTAKES) | NEVER_FAILS


@pytest.mark.parametrize("verb", sorted(MISTAKES))
def test_a_traceback_is_shown_where_it_was_asked_for(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgert.control.client.socket_folders", tuple)  # other tests' pipelines come and go
    plain = in_process(verb, *MISTAKES[verb], cwd=tmp_path)
    assert plain.returncode == 1 and "error: " in plain.stderr and "Traceback" not in plain.stderr, plain.stderr
    debug = in_process(verb, *MISTAKES[verb], "--debug", cwd=tmp_path)
    assert debug.returncode == 1 and "Traceback" in debug.stderr, debug.stderr
    assert plain.stderr.splitlines()[-1] in debug.stderr
    assert not list(tmp_path.iterdir())
