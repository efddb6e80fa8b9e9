from pathlib import Path

import pytest

from edgert.config import load_pipeline
from edgert.config.flow import users_of, variants_of
from edgert.errors import ConfigError

MODELS = """\
models:
  large: {onnx: l.onnx, task: {detect: yolox}, degrade_to: medium}
  medium: {onnx: m.onnx, task: {detect: ssd}, degrade_to: small}
  small: {onnx: s.onnx, task: {detect: yolox}}
  other: {onnx: o.onnx, task: {classify: auto}}
stages:
  cam: {source: api}
  find: {infer: large, from: cam}
  sort: {infer: small, from: cam}
  out: {sink: "null", from: [find, sort]}
"""


def write(folder: Path, text: str = MODELS) -> Path:
    path = folder / "p.yaml"
    path.write_text(text)
    return path


def test_stand_ins_are_followed_to_the_smallest(tmp_path: Path) -> None:
    config = load_pipeline(write(tmp_path)).config
    assert variants_of(config.models, "large") == ("large", "medium", "small")
    assert variants_of(config.models, "other") == ("other",)
    assert [stage.infer for stage in users_of(config.stages, config.models, "small")] == ["large", "small"]


def error_of(folder: Path, before: str, after: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(write(folder, MODELS.replace(before, after)))
    return str(caught.value)


def test_a_stand_in_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    text = error_of(tmp_path, "degrade_to: medium", "degrade_to: mediun")
    assert "degrades to 'mediun', which is not among models" in text and "'medium'" in text
    assert "p.yaml:2 models.large.degrade_to" in text
    assert "other models here: medium, small, other" in text


def test_a_stand_in_for_another_task_is_refused(tmp_path: Path) -> None:
    text = error_of(tmp_path, "degrade_to: small", "degrade_to: other")
    assert "model 'medium' cannot degrade to 'other'" in text
    assert "one is for detect, the other for classify" in text


def test_a_circle_is_told_as_one(tmp_path: Path) -> None:
    text = error_of(tmp_path, "s.onnx, task: {detect: yolox}", "s.onnx, task: {detect: yolox}, degrade_to: large")
    assert "degrade_to forms a cycle: large -> medium -> small -> large" in text
    assert "leave it out at the smallest model" in text


def test_a_placed_model_may_stand_in_and_be_stood_in_for(tmp_path: Path) -> None:
    text = MODELS.replace("s.onnx, task: {detect: yolox}", "s.onnx, task: {detect: yolox}, placement: cpu1")
    config = load_pipeline(write(tmp_path, text)).config
    assert variants_of(config.models, "medium") == ("medium", "small")
    assert config.models["small"].placement == "cpu1"
