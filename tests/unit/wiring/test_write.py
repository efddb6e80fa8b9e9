"""A starter or a stub of a decoder is written whole, loads, and replaces nothing by accident."""

import runpy
from pathlib import Path

import pytest

from edgert import load_pipeline
from edgert.errors import ConfigError
from edgert.wiring.starter import _shape_comment, refuse_existing, starter, write_pipeline
from tests.unit.wiring.test_prior import saved

TEXT = 'stages:\n  camera: {source: "rtsp://${USER_AND_PASSWORD}@host"}\n  out: {sink: "null", from: camera}\n'


def test_a_file_is_written_although_its_variables_are_not_set_here(tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.yaml"
    write_pipeline(TEXT, path, force=False)
    assert path.read_text() == TEXT
    assert [item.name for item in path.parent.iterdir()] == ["p.yaml"]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path, other = tmp_path / "p.yaml", tmp_path / "p.yaml.part"
    path.write_text("mine")
    other.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_pipeline(TEXT, path, force=False)
    assert path.read_text() == "mine"
    write_pipeline(TEXT, path, force=True)
    assert path.read_text() == TEXT and other.read_text() == "mine"
    with pytest.raises(ConfigError, match="exists already"):
        refuse_existing(tmp_path, force=True)


def test_text_that_is_no_pipeline_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stages") as caught:
        write_pipeline("stages: {}", tmp_path / "p.yaml", force=False)
    assert f"{tmp_path}/p.yaml:1" in caught.value.where
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_head_gets_a_decoder_and_a_test_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = saved(tmp_path / '7 odd"""heads.onnx', (1, 3, 64, 64), (1, 84, 2, 3, 5), names="{0: 'cat'}")
    written = starter(onnx, directory=tmp_path).write(tmp_path / "p.yaml", force=False)
    assert [path.name for path in written[1:]] == ["net_7_odd___heads_decoder.py", "test_net_7_odd___heads_decoder.py"]
    task = load_pipeline(tmp_path / "p.yaml").config.models["net"].task
    assert task.model_dump()["python"] == "net_7_odd___heads_decoder:decode"
    monkeypatch.syspath_prepend(tmp_path)
    made = runpy.run_path(str(written[2]))
    made["TestDecode"]().test_it_reads_any_numbers_as_a_record()
    made["test_it_reads_what_the_model_writes"]()

    mine = written[1].read_text() + "# mine\n"
    written[1].write_text(mine)
    (tmp_path / "p.yaml").unlink()
    with pytest.raises(ConfigError, match="exists already") as caught:
        starter(onnx, directory=tmp_path).write(tmp_path / "p.yaml", force=False)
    assert "--force keeps it" in caught.value.fix and not (tmp_path / "p.yaml").exists()
    (tmp_path / "p.yaml").write_text("old")
    assert starter(onnx, directory=tmp_path).write(tmp_path / "p.yaml", force=True) == (tmp_path / "p.yaml",)
    assert written[1].read_text() == mine and "decoder:decode" in (tmp_path / "p.yaml").read_text()


def test_a_known_head_gets_one_where_it_is_asked_for(tmp_path: Path) -> None:
    onnx = saved(tmp_path / "net.onnx", (1, 3, 64, 64), (1, 84, 84))
    assert starter(onnx, directory=tmp_path).stub is None
    made = starter(onnx, directory=tmp_path, is_own=True)
    assert made.stub is not None and "84 is every cell of strides 8, 16, 32" in made.stub.files["net_decoder.py"]
    assert "task: {python: net_decoder:decode, args: {score: 0.25}}" in made.text and "as requested" in made.notes[0]


def test_hints_are_of_the_shapes() -> None:
    network = (640, 640)
    assert _shape_comment((6400, 4), network) == "  # 6400 is every cell of stride 8; 4 may be a box"
    assert _shape_comment((25200, 7), network) == "  # 25200 is three anchors for every cell of strides 8, 16, 32"
    assert _shape_comment((5, 160, 160), network) == "  # a map of stride 4" and _shape_comment((7,), network) == ""
