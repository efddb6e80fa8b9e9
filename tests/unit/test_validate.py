"""A check of a pipeline looks at models, images and code, and runs none of it."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx import TensorProto

from edgert import Pipeline
from edgert.board import detect
from edgert.errors import CalibrationError, ConfigError, ModelError
from edgert.graph import to_bytes
from edgert.validation import validate
from tests.helpers.errors import Exactly, raises
from tests.helpers.models import constant, node, save
from tests.helpers.small_pipeline import TEXT, small_pipeline

STRANGE = "node 'odd' is demo.Strange, outside the ONNX standard"
RAISES = "raise SystemExit('this must not be run')\n"


def with_strange(folder: Path, text: str = TEXT) -> Path:
    """The small pipeline with a node that no engine has an operator for."""
    path = small_pipeline(folder, text.replace("precision: int8", "precision: fp32"))
    odd = node("Strange", ["x"], ["y"], name="odd", domain="demo")
    save(folder / "parts.onnx", [odd], {"x": (1, 3, 16, 16)}, {"y": (1, 4)})
    return path


def test_a_pipeline_without_code(tmp_path: Path) -> None:
    assert str(validate(small_pipeline(tmp_path))) == "3 stages, 1 model"


def test_a_node_that_no_engine_has_an_operator_for_is_named(tmp_path: Path) -> None:
    with raises(ModelError, "no engine can run model 'parts'", why=Exactly(STRANGE), fix="edgert.op") as caught:
        validate(with_strange(tmp_path))
    assert caught.value.where.endswith("small.yaml:4 models.parts.onnx")


@pytest.mark.parametrize("change", ["models.parts.backend=tensorrt", "engines=[tensorrt, onnxruntime]"])
def test_plugins_of_tensorrt_are_not_known_here(tmp_path: Path, change: str) -> None:
    assert str(validate(with_strange(tmp_path), overrides=[change])) == "3 stages, 1 model"


@pytest.mark.parametrize("name", ['"demo::Strange"', "NAME"])
def test_operators_of_ones_own_are_read_and_not_run(tmp_path: Path, name: str) -> None:
    path = with_strange(tmp_path, f"ops: [own.py]\n{TEXT}")
    (tmp_path / "own.py").write_text(f"{RAISES}@edgert.op({name})\ndef strange(x): ...\n")
    assert str(validate(path)) == "3 stages, 1 model; code of your own was read, not run"


def test_a_file_of_operators_that_lacks_the_one_of_the_model(tmp_path: Path) -> None:
    path = with_strange(tmp_path, f"ops: [own.py]\n{TEXT}")
    (tmp_path / "own.py").write_text(f'{RAISES}@edgert.op("demo::Other")\ndef other(x): ...\n')
    with raises(ModelError, "no engine can run", why=Exactly(STRANGE)):
        validate(path)


def test_stages_decoders_and_callbacks_are_read_and_not_run(tmp_path: Path) -> None:
    text = TEXT.replace("task: {embed: none, labels: parts.txt}", 'task: {python: "never_run:decode"}')
    text = text.replace(
        'out: {sink: "null", from: find}', 'mine: {python: "never_run:Stage", args: {a: 1}, from: find}'
    )
    path = small_pipeline(tmp_path, text + '  out: {sink: callback, python: "never_run:told", from: mine}\n')
    module = tmp_path / "never_run.py"
    module.write_text(f"{RAISES}class Stage: ...\ndef decode(outputs, geometry): ...\ndef told(result): ...\n")
    assert str(validate(path)).endswith("code of your own was read, not run")
    module.write_text(f"{RAISES}class Stage: ...\ndef decode(outputs, geometry): ...\n")
    with pytest.raises(ConfigError, match="'never_run:told' does not exist") as caught:
        validate(path)
    assert caught.value.where.endswith("stages.out.python")


@pytest.mark.parametrize("precision", ["int8", "fp32", "auto"])
def test_images_that_are_not_there(tmp_path: Path, precision: str) -> None:
    path = small_pipeline(tmp_path)
    with pytest.raises(ConfigError, match="no images at") as caught:
        validate(path, overrides=[f"models.parts.precision={precision}", "models.parts.calibrate.images=phtoos"])
    assert "did you mean 'photos'" in caught.value.why and caught.value.where.endswith("models.parts.calibrate")


def test_labeled_images_that_are_not_there(tmp_path: Path) -> None:
    change = "models.parts.accuracy={dataset: absent.json, metric: top1, max_drop: 0.01}"
    with pytest.raises(ConfigError, match=r"absent\.json"):
        validate(small_pipeline(tmp_path), overrides=["models.parts.task={classify: auto}", change])


def test_int8_without_images(tmp_path: Path) -> None:
    with raises(CalibrationError, "needs images", fix="calibrate: {images: FOLDER}"):
        validate(small_pipeline(tmp_path), overrides=["models.parts.calibrate=null"])


CAMERA = """\
stages:
  camera: {source: "SOURCE"OPTIONS}
  out: {sink: "null", from: camera}
"""


def camera(folder: Path, source: str, options: str = "") -> Path:
    path = folder / "camera.yaml"
    path.write_text(CAMERA.replace("SOURCE", source).replace("OPTIONS", options))
    return path


def test_a_csi_camera_on_a_thor_is_noted_and_elsewhere_not(tmp_path: Path) -> None:
    path = camera(tmp_path, "csi://0")
    (note,) = validate(path, board="thor-t5000").notes
    assert "camera.yaml:2 stages.camera.source: csi://0 on a Jetson T5000" in note and "SIPL" in note
    assert "USB or network camera" in note
    assert validate(path).notes == validate(path, board="orin-nx-16gb").notes == ()
    with pytest.raises(ConfigError, match="thor-t500"):
        validate(path, board="thor-t500")


def test_on_a_thor_without_argus_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(detect(), name="thor-t5000", soc="tegra264", l4t="38.4.0")
    monkeypatch.setattr("edgert.validation.detect", lambda: here)
    with pytest.raises(ConfigError, match="does not work on this board") as caught:
        validate(camera(tmp_path, "csi://0"))
    assert "38.4.0 has no Argus" in caught.value.why and caught.value.where.endswith(
        "camera.yaml:2 stages.camera.source"
    )


def test_mjpeg_that_must_be_decoded_by_a_thor_is_an_error(tmp_path: Path) -> None:
    path = camera(tmp_path, "usb:0", ", format: mjpeg, decode: gpu")
    with raises(ConfigError, "is not possible on a Jetson T5000", why="does not support MJPEG", fix="the CPU decodes"):
        validate(path, board="thor-t5000")
    assert validate(camera(tmp_path, "usb:0", ", format: mjpeg"), board="thor-t5000").notes == ()


def test_an_input_of_integers_that_is_scaled_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, kind in (("parts", TensorProto.UINT8), ("signed", TensorProto.INT8)):
        model = constant({"y": [[0.1, 0.9]]}, (1, 64, 64, 3), kind, "x")
        (tmp_path / f"{name}.onnx").write_bytes(to_bytes(model))
    (tmp_path / "p.yaml").write_text(
        "models:\n  m: {onnx: parts.onnx, task: {classify: auto}, input: {std: 255}}\n"
        "stages:\n  s: {source: 'images:*.png'}\n  i: {infer: m, from: s}\n"
        "  o: {sink: jsonl, from: i, path: o.jsonl}\n"
    )
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((64, 64, 3), np.uint8))
    for scaled in (validate, Pipeline):
        with pytest.raises(ModelError, match="leave 2 of 256 gray levels") as caught:
            scaled(tmp_path / "p.yaml")
        assert caught.value.where.endswith("p.yaml:2 models.m.input") and "mean: 0, std: 1" in caught.value.fix
    validate(tmp_path / "p.yaml", overrides=["models.m.input={}"])
    assert not caplog.records
    validate(tmp_path / "p.yaml", overrides=["models.m.input={}", "models.m.onnx=signed.onnx"])
    assert [one.getMessage().startswith("model m: input: mean and std put 50%") for one in caplog.records] == [True]
