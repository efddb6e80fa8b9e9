"""``edgert run``: options, how they go together, and what is on which stream."""

import json
from pathlib import Path

import pytest

from tests.helpers.command import in_process
from tests.helpers.workstation import bundle_for_any

PIPELINE = """
stages:
  cam: {source: "synthetic:counter", size: 256x48, fps: 30, limit: 20}
  out: {sink: jsonl, from: cam, path: out.jsonl}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    return tmp_path


def test_json_on_standard_output_is_alone_there(place: Path) -> None:
    done = in_process("run", "p.yaml", "--json", "-", cwd=place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames_in"] == 20 and "20" in done.stderr


def test_the_last_of_two_settings_of_a_key_holds(place: Path) -> None:
    sets = ("--set", "stages.cam.limit=3", "--set", "stages.cam.limit=5")
    assert in_process("run", "p.yaml", *sets, "-q", cwd=place).returncode == 0
    assert (place / "out.jsonl").read_text().count("\n") == 5


def test_a_setting_that_does_not_fit_names_itself(place: Path) -> None:
    done = in_process("run", "p.yaml", "--set", "stages.cam.limt=3", cwd=place)
    assert done.returncode == 1 and "did you mean 'limit'" in done.stderr and "--set" in done.stderr
    done = in_process("run", "p.yaml", "--set", "stages.cam.limit", cwd=place)
    assert done.returncode == 1 and "write --set key.path=value" in done.stderr
    assert not (place / "out.jsonl").exists()


@pytest.mark.parametrize("way", ["text", "json"])
def test_the_log_is_text_or_a_json_object_a_line(place: Path, way: str) -> None:
    done = in_process("run", "p.yaml", "--log", way, "--set", "stages.cam.size=64x48", cwd=place)
    assert done.returncode == 1 and "cannot make images" in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    are_json = [line.startswith("{") and bool(json.loads(line)) for line in lines]
    assert lines and (all(are_json) if way == "json" else not any(are_json))
    wrong = in_process("run", "p.yaml", "--log", "xml", cwd=place)
    assert wrong.returncode == 2 and "neither text nor json" in wrong.stderr


def test_another_board_is_emulated_from_a_file_not_from_a_bundle(place: Path) -> None:
    bundle_for_any(place / "any.edgert", {})
    done = in_process("run", "any.edgert", "--as", "orin-nx-16gb", cwd=place)
    assert done.returncode == 2 and "--as" in done.stderr and "bundle" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--mode", "15W"), 2, "it goes with --as"),
        (("--profile", "p.json"), 2, "it goes with --as"),
        (("--as", "orin-nx-16gb", "--jobs", "2"), 2, "it is for runs on this machine"),
        (("--as", "orin-nx-16gb", "--dry-run"), 2, "edgert plan --board"),
        (("--as", "orin-nx"), 1, "orin-nx-16gb"),
        (("--jobs", "0"), 2, "--jobs"),
        (("--duration", "0"), 2, "--duration"),
    ],
)
def test_options_that_do_not_go_together(place: Path, options: tuple[str, ...], code: int, says: str) -> None:
    done = in_process("run", "p.yaml", *options, cwd=place)
    assert done.returncode == code and says in " ".join(done.stderr.split()), done.stderr
    assert not (place / "out.jsonl").exists()
