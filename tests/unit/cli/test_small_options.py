"""Options of verbs that have few: ``top``, ``bench``, ``gallery``, ``plan``."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgert.stages.gallery import Gallery
from tests.helpers.command import ROOT, in_process, start
from tests.helpers.small_pipeline import small_pipeline

PARTS = str(ROOT / "pipelines" / "assets" / "parts.onnx")
BOARD = ("--board", "orin-nx-16gb", "--mode", "15W")


@pytest.mark.timing
def test_top_gives_a_sample_as_often_as_it_is_asked_to(tmp_path: Path) -> None:
    running = start("top", "--every", "0.2", "--json", "-", cwd=tmp_path)
    with running:
        assert running.stdout is not None
        times = [json.loads(running.stdout.readline())["time"] for _ in range(6)]
        running.terminate()
    assert np.median(np.diff(times)) == pytest.approx(0.2, rel=0.5)


def test_top_refuses_more_samples_than_sensors_give(tmp_path: Path) -> None:
    done = in_process("top", "--every", "0.01", "--once", cwd=tmp_path)
    assert done.returncode == 2 and "--every" in done.stderr


def test_a_quick_bench_measures_the_same_figures(tmp_path: Path) -> None:
    done = in_process("bench", PARTS, "--quick", "--json", "b.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "b.json").read_text())
    assert {one["unit"] for one in found["figures"]} == {"ms"} and all(one["value"] > 0 for one in found["figures"])
    assert "engine alone, parts" in done.stderr and found["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("p.json", "--units"), 2, "one at a time"),
        ((PARTS, "--run", "run.json"), 2, "it is for --share"),
        (("p.json", "--run", "run.json"), 2, "it is for --share"),
        (("hello", "--units"), 1, "a profile has the times of one ONNX model"),
        ((PARTS, "--peer", "onnxruntim"), 1, "onnxruntime"),
    ],
)
def test_a_bench_is_of_one_kind(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = in_process("bench", *arguments, cwd=tmp_path)
    assert done.returncode == code and says in done.stderr, done.stderr


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """A folder with a pipeline whose model has a gallery."""
    path = small_pipeline(tmp_path / "p")
    path.write_text(path.read_text().replace("{embed: none, labels: parts.txt}", "{embed: l2, match: staff.npz}"))
    return path.parent


def test_names_are_added_listed_and_removed(door: Path) -> None:
    added = in_process("gallery", "small.yaml", "--add", "Anna", "--images", "photos/0.png", cwd=door)
    assert added.returncode == 0 and "the first vector" in added.stdout, added.stderr
    more = ("--model", "parts", "--images", "photos/1.png", "--images", "photos/2.png")
    again = in_process("gallery", "small.yaml", "--add", "Ben", *more, cwd=door)
    assert again.returncode == 0 and "most like" in again.stdout, again.stderr
    listed = in_process("gallery", "small.yaml", "--json", "g.json", cwd=door)
    assert "2 names, 3 vectors" in listed.stdout
    assert json.loads((door / "g.json").read_text())["names"] == {"Anna": 1, "Ben": 2}
    removed = in_process("gallery", "staff.npz", "--remove", "Ben", cwd=door)
    assert removed.returncode == 0 and "removed 2 vectors of Ben" in removed.stdout
    assert set(Gallery(door / "staff.npz").names) == {"Anna"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("small.yaml", "--add", "Anna"), 2, "--images"),
        (("small.yaml", "--images", "photos"), 2, "--add NAME and --images go together"),
        (("small.yaml", "--add", "A", "--images", "photos", "--remove", "B"), 2, "one at a time"),
        (("staff.npz", "--model", "parts"), 2, "name a pipeline"),
        (("staff.npz", "--remove", "Nobody"), 1, "no 'Nobody'"),
        (("small.yaml", "--model", "prats"), 1, "no model 'prats' with a gallery"),
    ],
)
def test_mistakes_of_a_gallery(door: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = in_process("gallery", *arguments, cwd=door)
    assert done.returncode == code and says in " ".join(done.stderr.split()), done.stderr


def test_a_chart_has_the_letters_of_its_rows(tmp_path: Path) -> None:
    plain = in_process("plan", "hello", *BOARD, cwd=tmp_path).stdout
    done = in_process("plan", "hello", *BOARD, "--chart", cwd=tmp_path)
    assert done.returncode == 0 and "p99 " in done.stdout
    legend = next(line for line in done.stdout.splitlines() if line.startswith("p99 "))
    letters = legend.rpartition(":")[2].split()
    assert letters and all(any(line.startswith(letter) for line in done.stdout.splitlines()) for letter in letters)
    assert len(done.stdout.splitlines()) > len(plain.splitlines()) + 10
