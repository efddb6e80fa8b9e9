"""Every recipe of docs/how-to.md is short, and runs: on the shipped model and a drawn video instead of the reader's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import edgert
from pipelines.conveyor import Conveyor
from tests.helpers.clips import write_clip
from tests.helpers.command import ROOT

MOST_WORDS = 80
PAGE = (ROOT / "docs/how-to.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.+?)\n\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
FILE = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WRITTEN = {
    "Count": "out/counts.jsonl",
    "Record": "film/*/*.mp4",
    "Alarm": "out/events.jsonl",
    "Blur faces": "out/*.mp4",
    "Batch a folder": "out/belt.jsonl",
    "Swap a model": "out/people.jsonl",
}
"""What each leaves in the folder; ``Read text`` needs PaddleOCR's models, and is only checked as a file."""


def drawn() -> Iterator[np.ndarray[Any, Any]]:
    belt, image = Conveyor(640, 480, 30.0, 7), np.empty((480, 640, 3), np.uint8)
    for number in range(20):
        belt.render(number, image)
        yield image


def test_the_page_answers_what_people_want() -> None:
    wanted = ["Count", "Record", "Alarm", "Read text", "Blur faces", "Batch a folder", "Swap a model"]
    assert list(RECIPES) == wanted and {*WRITTEN} == {*wanted} - {"Read text"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short(name: str) -> None:
    text = re.sub(r"^```.*?^```$", "", RECIPES[name], flags=re.MULTILINE | re.DOTALL)
    assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize("name", WRITTEN)
def test_a_recipe_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "labels.txt").write_text("person\nnut\nwasher\ngear\nbracket\n")
    (tmp_path / "clips").mkdir()
    clip = write_clip(tmp_path / "clips/belt.mp4", drawn(), size=(640, 480))
    found = FILE.search(RECIPES[name])
    assert found is not None
    file = yaml.safe_load(found[1])
    for model in file.get("models", {}).values():
        task = {"detect": "yolox", "labels": str(tmp_path / "labels.txt"), "score": 0.4}
        model |= {"onnx": str(ROOT / "pipelines/assets/parts.onnx"), "task": task, "input": {"std": 255}}
    for stage in file["stages"].values():
        stage.pop("batch", None)  # the shipped model has a batch of one
        if str(stage.get("source", "")).startswith("rtsp"):
            stage["source"] = str(clip)
        if "server" in stage:  # no broker is here: what would be sent
            stage |= {"sink": "jsonl", "path": "out/events.jsonl"}
            for key in ("server", "send", "attach"):
                del stage[key]
    file.pop("budgets", None)  # a machine may have no meter
    if name == "Batch a folder":
        assert [one.state for one in edgert.run_videos(file)] == ["ok"]
    else:
        with edgert.Pipeline(file) as pipeline:
            assert pipeline.run().frames_in == 20
    (written,) = tmp_path.glob(WRITTEN[name])
    assert written.stat().st_size
