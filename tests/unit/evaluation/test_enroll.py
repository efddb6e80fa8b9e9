"""Vectors of images put into a gallery, by ``edgert.enroll`` and ``edgert gallery``: all or none."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from edgert import Gallery, enroll
from edgert.cli import app
from edgert.errors import ConfigError
from edgert.graph import to_bytes
from tests.helpers.models import means


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A model whose vector is the mean color, with a gallery; and a red, a darker red, and a blue photo."""
    (tmp_path / "mean.onnx").write_bytes(to_bytes(means((1, 3, 8, 8))))
    for name, color in {"red": (0, 0, 200), "dark red": (10, 0, 120), "blue": (200, 10, 0)}.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.full((16, 16, 3), color, np.uint8))
    path = tmp_path / "p.yaml"
    path.write_text(
        "models:\n  who:\n    onnx: mean.onnx\n    task: {embed: l2, match: who.npz}\n    input: {resize: stretch}\n"
        "stages:\n  cam: {source: api}\n  see: {infer: who, from: cam}\n  out: {sink: 'null', from: see}\n"
    )
    return path


def test_photos_are_added_and_say_whom_they_look_like(pipeline: Path) -> None:
    folder = pipeline.parent
    (first,) = enroll(pipeline, "Rose", folder / "red.png")
    assert first.nearest == "" and Gallery(folder / "who.npz").names == ("Rose",)
    like, unlike = enroll(pipeline, "Rose", [folder / "dark red.png", folder / "blue.png"], model="who")
    assert like.nearest == "Rose" and like.similarity > 0.99 and unlike.similarity < 0.1
    assert unlike.image.endswith("blue.png") and len(Gallery(folder / "who.npz")) == 3


def test_what_cannot_be_read_adds_nothing(pipeline: Path) -> None:
    folder = pipeline.parent
    (folder / "broken.png").write_bytes(b"no image")
    with pytest.raises(ConfigError):
        enroll(pipeline, "Rose", [folder / "red.png", folder / "broken.png"])
    with pytest.raises(ConfigError, match="is not a name"):
        enroll(pipeline, " ", folder / "red.png")
    with pytest.raises(ConfigError, match="no model 'wo' with a gallery; did you mean 'who'"):
        enroll(pipeline, "Rose", folder / "red.png", model="wo")
    with pytest.raises(ConfigError, match="no gallery"):
        enroll("hello", "Rose", folder / "red.png")
    assert not (folder / "who.npz").exists()
    Gallery(folder / "who.npz").add("other model", [1, 2])
    with pytest.raises(ConfigError, match="of another model"):
        enroll(pipeline, "Rose", folder / "red.png")
    (folder / "who.npz").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="cannot read the gallery"):
        enroll(pipeline, "Rose", folder / "red.png")
    assert (folder / "who.npz").read_bytes() == b"damaged"


def test_the_command_lists_adds_and_removes(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pipeline.parent)
    command = CliRunner()
    done = command.invoke(app, ["gallery", "p.yaml", "--add", "Rose", "--images", "red.png", "--json", "g.json"])
    assert done.exit_code == 0 and "red.png: the first vector" in done.output, done.output
    assert json.loads(Path("g.json").read_text()) == {"gallery": "who.npz", "names": {"Rose": 1}}
    done = command.invoke(app, ["gallery", "p.yaml", "--add", "Violet", "--images", "dark red.png"])
    assert "most like Rose, 1.00" in done.output
    done = command.invoke(app, ["gallery", "who.npz", "--remove", "Rose"])
    assert "removed 1 vector of Rose" in done.output and "1 names, 1 vectors" in done.output
    wrong = command.invoke(app, ["gallery", "who.npz", "--remove", "Violett"])
    assert isinstance(wrong.exception, ConfigError) and "did you mean 'Violet'" in str(wrong.exception)
    for words in (["--add", "A"], ["--images", "red.png"], ["--add", "A", "--remove", "B", "--images", "red.png"]):
        assert command.invoke(app, ["gallery", "p.yaml", *words]).exit_code == 2
    assert command.invoke(app, ["gallery", "who.npz", "--add", "A", "--images", "red.png"]).exit_code == 2
