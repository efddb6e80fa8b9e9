"""What exporters write beside the graph: names of classes, read without loading the model."""

import json
import logging
import os
from pathlib import Path

import pytest
from onnx.helper import make_node
from pydantic import TypeAdapter

from edgert.config import ModelConfig, TaskConfig
from edgert.errors import ConfigError
from edgert.graph import load, metadata
from edgert.graph.metadata import class_names, metadata_of
from edgert.stages.decode.kinds import fitting_decoder, labels_of
from tests.helpers.models import save


def saved(path: Path, **metadata: str) -> Path:
    """A classifier of three classes with metadata."""
    return save(path, [make_node("Relu", ["x"], ["y"])], {"x": (1, 3, 1, 1)}, {"y": (1, 3, 1, 1)}, **metadata)


def config(path: Path, **task: str) -> ModelConfig:
    made: TaskConfig = TypeAdapter(TaskConfig).validate_python(task or {"classify": "auto"})
    return ModelConfig(onnx=path, task=made)


def test_metadata_are_read_as_they_were_written(tmp_path: Path) -> None:
    props = {"author": "Ultralytics", "names": "{0: 'a b', 1: 'ü'}", "empty": "", "long": "x" * 100_000}
    path = saved(tmp_path / "m.onnx", **props)
    assert metadata_of(path) == props
    assert {item.key: item.value for item in load(path).proto.metadata_props} == props


@pytest.mark.parametrize("damage", [b"", b"\x72", b"\x72\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 40])
def test_what_is_no_model_has_no_metadata(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(damage)
    assert metadata_of(tmp_path / "m.onnx") == {} == metadata_of(tmp_path / "absent.onnx")


def test_a_pipe_and_endless_fields_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert metadata_of(tmp_path / "pipe") == {}
    path = saved(tmp_path / "m.onnx", names="a b c")
    monkeypatch.setattr(metadata, "_MOST_FIELDS", 2)
    assert metadata_of(path) == {}


@pytest.mark.parametrize(
    ("key", "text", "names"),
    [
        ("names", "{0: 'person', 1: 'traffic light'}", ("person", "traffic light")),
        ("names", "['a', 'b']", ("a", "b")),
        ("names", json.dumps({"1": "b", "0": "a"}), ("a", "b")),
        ("model_info labels", "cat dog", ("cat", "dog")),
        ("names", "{0: 'a', 2: 'c'}", ()),
        ("names", "{0: 'a', 1: ''}", ()),
        ("names", "[[" * 5000, ()),
        ("names", "{0: 'a'", ()),
        ("names", "['a', '\\x1b[2J']", ()),
        ("title", "['a']", ()),
        ("names", "{[]: 1}", ()),
        ("names", "-" * 6000 + "1", ("-" * 6000 + "1",)),
        ("names", "+".join(["1"] * 3000) + "j", ("+".join(["1"] * 3000) + "j",)),
        ("names", "{" + "9" * 5000 + ": 'a'}", ()),
        ("names", "{'" + "9" * 5000 + "': 'a'}", ()),
        ("names", "{0x" + "f" * 5000 + ": 'a'}", ()),
        ("names", "[0x" + "f" * 5000 + "]", ()),
        ("names", "{'²': 'a'}", ()),
    ],
)
def test_names_in_every_spelling(key: str, text: str, names: tuple[str, ...]) -> None:
    assert class_names({key: text}) == names


def test_names_in_the_model_are_its_labels_unless_the_task_has_its_own(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", names="{0: 'a', 1: 'b', 2: 'c'}")
    (tmp_path / "own.txt").write_text("x\ny\nz\n")
    assert labels_of(config(path)) == ("a", "b", "c")
    assert labels_of(config(path, classify="auto", labels=str(tmp_path / "own.txt"))) == ("x", "y", "z")
    assert labels_of(config(path, keypoints="heatmap")) == ()  # names of classes are not those of points


def test_names_that_contradict_the_outputs_are_left_out_and_labels_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "m.onnx", names="{0: 'a', 1: 'b'}")
    with caplog.at_level(logging.WARNING):
        fitting_decoder(config(path), labels_of(config(path)), ((3, 1, 1),), (1, 1), "p.yaml:3 models.net")
    assert "p.yaml:3 models.net: the names in the model file are ignored: 2 labels for 3 classes" in caplog.text
    (tmp_path / "few.txt").write_text("a\nb\n")
    written = config(path, classify="auto", labels=str(tmp_path / "few.txt"))
    with pytest.raises(ConfigError, match="2 labels for 3 classes"):
        fitting_decoder(written, labels_of(written), ((3, 1, 1),), (1, 1))


@pytest.mark.parametrize(("name", "count"), [("coco", 80), ("coco91", 91), ("imagenet", 1000), ("voc21", 21)])
def test_lists_that_are_shipped_go_by_their_names(name: str, count: int, tmp_path: Path) -> None:
    found = labels_of(config(tmp_path / "m.onnx", classify="auto", labels=name))
    assert len(found) == count
    with pytest.raises(ConfigError, match="did you mean 'coco'") as caught:
        labels_of(config(tmp_path / "m.onnx", classify="auto", labels="cocoo"))
    assert "imagenet" in caught.value.fix
