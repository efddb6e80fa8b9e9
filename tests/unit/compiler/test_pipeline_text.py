"""The pipeline file inside a bundle."""

import os
from pathlib import Path

import pytest

from edgert.board.record import board
from edgert.compiler.build_pipeline import code_files, pipeline_text
from edgert.compiler.build_target import BuildTarget
from edgert.config import PipelineFile, load_pipeline
from edgert.config.pipeline_file import read_pipeline
from edgert.errors import ConfigError

HOST, JETSON = BuildTarget(None), BuildTarget(board("orin-nx-16gb"), "orin-nx-16gb")
TEXT = """\
name: "dock: yes 🦆\\x85b"
board: orin-nx-16gb
models:
  parts:
    onnx: ${WHERE}/parts.onnx
    task: {detect: yolox, labels: parts.txt, score: 0.25, options: {strides: [8, 16], "no": .5}}
    precision: int8
    calibrate: {images: photos}
    quantize: {keep: '*'}
    accuracy: {dataset: val.json, metric: map50, max_drop: 0.01}
    placement: {"*": gpu, "/head/*": dla0}
stages:
  cam: {source: "rtsp://user:${PASSWORD}@10.0.0.1/live", size: 1280x720}
  find: {infer: parts, from: [cam]}
  own: {python: "mine:Own", from: find, args: {text: "a\\u2028b"}}
  out: {sink: jsonl, from: own, path: out/dock.jsonl}
"""


@pytest.fixture
def file(tmp_path: Path) -> PipelineFile:
    (tmp_path / "dock.yaml").write_text(TEXT, encoding="utf-8")
    return read_pipeline(tmp_path / "dock.yaml", env={"WHERE": "/models", "PASSWORD": "geheim42"})


def again(text: str, folder: Path) -> PipelineFile:
    (folder / "again.yaml").write_text(text, encoding="utf-8")
    return read_pipeline(folder / "again.yaml", env={"PASSWORD": "geheim42"})


def test_models_are_those_of_the_bundle_and_everything_else_is_as_it_was(file: PipelineFile, tmp_path: Path) -> None:
    text = pipeline_text(file, {"parts": "models/parts/ort.onnx"}, {"parts": "models/parts/labels.txt"}, JETSON)
    found = again(text, tmp_path).config
    model = found.models["parts"]
    assert (
        model.onnx == tmp_path / "models/parts/ort.onnx" and model.task.labels == tmp_path / "models/parts/labels.txt"
    )
    assert (found.board, model.precision, model.calibrate, model.accuracy, model.placement) == (
        "auto",
        "auto",
        None,
        None,
        "auto",
    )
    assert found.stages == file.config.stages and found.name == file.config.name
    assert model.input == file.config.models["parts"].input
    assert model.task.model_dump(exclude={"labels"}) == file.config.models["parts"].task.model_dump(exclude={"labels"})


def test_a_bundle_keeps_the_name_that_its_file_gave_it(tmp_path: Path) -> None:
    (tmp_path / "yard.yaml").write_text("stages:\n  cam: {source: a.mp4}\n  out: {sink: 'null', from: cam}\n")
    text = pipeline_text(load_pipeline(tmp_path / "yard.yaml"), {}, {}, HOST)
    assert again(text, tmp_path).config.name == "yard"


def test_what_came_from_the_environment_is_not_packed(file: PipelineFile) -> None:
    text = pipeline_text(file, {"parts": "m.onnx"}, {}, JETSON)
    assert "geheim42" not in text and "${PASSWORD}" in text and "/models" not in text


def test_on_this_machine_placement_stays(file: PipelineFile) -> None:
    assert "dla0" in pipeline_text(file, {"parts": "m.onnx"}, {}, HOST)


def test_the_same_file_gives_the_same_text(file: PipelineFile) -> None:
    before = repr(file.document.data)
    texts = {pipeline_text(file, {"parts": "m.onnx"}, {}, JETSON) for _ in range(3)}
    assert len(texts) == 1 and repr(file.document.data) == before


def test_code_beside_the_file_is_packed_and_installed_code_is_not(file: PipelineFile, tmp_path: Path) -> None:
    assert code_files(file.config, tmp_path) == {}
    (tmp_path / "mine.py").write_text("class Own: ...")
    (tmp_path / "other.py").write_text("secret = 1")
    assert code_files(file.config, tmp_path) == {"mine.py": b"class Own: ..."}
    (tmp_path / "mine.py").unlink()
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    for name in ("__init__.py", "deep/x.py", "deep/data.bin"):
        (tmp_path / "mine" / name).write_text("")
    assert set(code_files(file.config, tmp_path)) == {"mine/__init__.py", "mine/deep/x.py"}


def test_code_in_another_folder_is_packed_beside_the_pipeline_and_named_so(tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "edgert_test_scene.py").write_text("def images(): ...")
    (tmp_path / "p.yaml").write_text(
        "stages:\n  cam: {source: 'python:scenes/edgert_test_scene:images'}\n"
        "  count: {python: 'scenes/edgert_test_scene:images', from: cam}\n  out: {sink: 'null', from: count}\n"
    )
    file = load_pipeline(tmp_path / "p.yaml")
    assert code_files(file.config, tmp_path) == {"edgert_test_scene.py": b"def images(): ..."}
    text = pipeline_text(file, {}, {}, HOST)
    assert "source: python:edgert_test_scene:images" in text and "scenes/" not in text


def test_a_name_that_is_no_text_is_refused_by_name(file: PipelineFile) -> None:
    """YAML has no way to write such bytes, and a bundle that nobody can read is none."""
    path = file.document.path
    source = os.fsdecode(b"stages.cam.source=caf\xe9.mp4")
    given = read_pipeline(path, [source], env={"WHERE": "/models", "PASSWORD": "geheim42"})
    with pytest.raises(ConfigError, match="a bundle cannot contain"):
        pipeline_text(given, {"parts": "models/parts/ort.onnx"}, {}, JETSON)
