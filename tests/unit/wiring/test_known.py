"""``edgert models``: a family is found by what people call it; recipes are sections of a pipeline file."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from edgert import models
from edgert.cli import app
from edgert.config import ModelConfig
from edgert.errors import ConfigError
from edgert.wiring.known import FAMILIES, Measured, measurements


@pytest.mark.parametrize("known", models(), ids=lambda known: known.family.name)
def test_every_recipe_is_a_section_of_a_pipeline_file(known) -> None:  # type: ignore[no-untyped-def]
    (section,) = yaml.safe_load(known.recipe)["models"].values()
    config = ModelConfig.model_validate(section)
    assert config.input.model_dump(include=set(known.family.input)) == dict(known.family.input)


def test_facts_are_of_families_and_make_sense() -> None:
    assert measurements().keys() <= {"", *(family.name for family in FAMILIES)}
    every = [one for some in measurements().values() for one in some]
    assert len({one.model for one in every}) == len(every) >= 2
    for one in every:
        assert one.loss is None or (one.images >= 24 and one.low <= one.loss <= one.high)  # type: ignore[operator]
        assert one.refused or one.layers >= one.kept
        assert all(0 <= share.share <= 1 and number in (1, 2) for number, share in (one.dla or {}).items())


@pytest.mark.parametrize(
    ("word", "family"),
    [
        ("yolox", "YOLOX"),
        ("RF-DETR", "RF-DETR"),
        ("rfdetr", "RF-DETR"),
        ("yolov8-seg", "Ultralytics YOLO"),
        ("osnet", "T"),
    ],
)
def test_a_family_is_found_by_its_name_or_decoder(word: str, family: str) -> None:
    assert any(one.family.name.startswith(family) for one in models(word))


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'nanodett'; did you mean 'nanodet'"):
        models("nanodett")
    with pytest.raises(ConfigError):
        models("  ")


def test_what_int8_costs_in_words() -> None:
    one = Measured("m", "t", "map", 64, 0.3, 0.29, 1.0, -1, 3, 20, 8, 100)
    assert one.int8_text == "−1.0 points map (n=64), 8 of 100 layers in FP32"
    assert Measured("m", "t", "cosine", 24, 1, 0.99, 1.0, 0, 2, 20, 0, 9).int8_text == "cosine 0.990 (n=24)"
    assert Measured("m", "t", signal_db=21.4, layers=9, kept=2).int8_text == "21 dB, 2 of 9 layers in FP32"
    assert Measured("m", "t", refused="it is INT8").int8_text == Measured("m", "t").int8_text == ""


def test_the_command_lists_shows_and_writes(tmp_path: Path) -> None:
    command, path = CliRunner(), tmp_path / "m.json"
    every = command.invoke(app, ["models"])
    assert every.exit_code == 0 and "FastestDet" in every.output and "coco, coco17" in every.output
    one = command.invoke(app, ["models", "rf-detr", "--json", str(path)])
    assert "RFDETRNano().export()" in one.output and "task: {detect: detr}" in one.output
    assert json.loads(path.read_text())[0]["name"] == "RF-DETR"
