"""The board of a pipeline file: a name, a file beside it, or this machine."""

from pathlib import Path

import pytest

from edgert.assemble.engines import board_of
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import ConfigError
from edgert.installation import shipped
from edgert.validation import validate

STAGES = "stages:\n  cam: {source: 'synthetic:bars'}\n  out: {sink: null, from: cam}\n"


def _pipeline(folder: Path, board: str) -> PipelineFile:
    path = folder / "p.yaml"
    path.write_text(f"name: p\n{board}{STAGES}", encoding="utf-8")
    return load_pipeline(path)


@pytest.mark.parametrize("line", ["", "board: auto\n", "board: host\n"])
def test_this_machine_needs_no_record(tmp_path: Path, line: str) -> None:
    assert board_of(_pipeline(tmp_path, line)) is None


def test_a_board_by_name(tmp_path: Path) -> None:
    found = board_of(_pipeline(tmp_path, "board: orin-nx-16gb\n"))
    assert found is not None and found.name == "orin-nx-16gb"


def test_a_board_file_is_found_beside_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shipped("configs/boards/orin-nx-16gb.yaml").read_text(encoding="utf-8")
    (tmp_path / "rover.yaml").write_text(text.replace("name: orin-nx-16gb", "name: rover"), encoding="utf-8")
    monkeypatch.chdir("/")
    found = board_of(_pipeline(tmp_path, "board: rover.yaml\n"))
    assert found is not None and found.name == "rover"


def test_an_unknown_board_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    file = _pipeline(tmp_path, "board: orin-nx-16g\n")
    with pytest.raises(ConfigError) as caught:
        validate(file.document.path)
    assert caught.value.what == "no board 'orin-nx-16g'; did you mean 'orin-nx-16gb'?"
    assert caught.value.where == f"{file.document.path}:2 board"
    assert "auto or host" in caught.value.fix and "thor-t5000" in caught.value.fix


def test_a_mistake_in_a_board_file_is_told_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "rover.yaml").write_text("name: rover\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        board_of(_pipeline(tmp_path, "board: ./rover.yaml\n"))
    assert caught.value.where.startswith(f"{tmp_path / 'rover.yaml'}:1") and len(caught.value.others) > 5


def test_a_board_file_that_is_not_there_is_told_with_the_line_that_wants_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        board_of(_pipeline(tmp_path, "board: none.yaml\n"))
    assert caught.value.where == f"{tmp_path / 'p.yaml'}:2 board"
