"""``edgert`` alone: what is here, and the next step."""

from pathlib import Path
from typing import NoReturn

import pytest

from edgert.cli import start_page
from edgert.control import client
from edgert.control.client import RunningPipeline
from edgert.errors import DeviceError
from tests.helpers.command import in_process


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "running_pipelines", tuple)


def step(folder: Path) -> str:
    (line,) = (line for line in start_page.start_page(folder) if line.startswith("next: "))
    return " ".join(line.split("  ")[0].split()[1:])


def test_the_next_step_follows_from_what_is_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert step(tmp_path) == "edgert run hello"
    (tmp_path / "yolo.onnx").write_bytes(b"")
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    assert step(tmp_path) == "edgert new yolo.onnx"
    for name in ("gate.yaml", "gate.live.yaml"):
        (tmp_path / name).write_text("name: gate\nstages:\n  camera: {source: a.mp4}\n")
    assert step(tmp_path) == "edgert run gate.yaml"
    assert [file.name for file in start_page.pipelines_in(tmp_path)] == ["gate.yaml"]
    monkeypatch.setattr(client, "running_pipelines", lambda: (RunningPipeline("k", 7, {"pipeline": "gate"}),))
    assert step(tmp_path) == "edgert top" and "  runs here: gate, process 7" in [*start_page.start_page(tmp_path)]


def test_many_files_are_counted(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.onnx").write_bytes(b"")
    assert "  models in this folder: 0.onnx, 1.onnx, 2.onnx, 3.onnx and 2 more" in [*start_page.start_page(tmp_path)]


def test_it_is_what_edgert_says_without_a_verb(tmp_path: Path) -> None:
    done = in_process(cwd=tmp_path)
    assert done.returncode == 0 and "next: edgert" in done.stdout and "edgert --help" in done.stdout


def test_what_cannot_be_read_does_not_prevent_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    def refuse_folder() -> NoReturn:
        raise DeviceError("the folder of sockets belongs to another user")

    (tmp_path / "secret.yaml").write_text("stages: {}\n")
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(client, "running_pipelines", refuse_folder)
    assert step(tmp_path) == "edgert run hello"
