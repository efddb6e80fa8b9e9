"""``edgert build`` as a user types it, and what is done with its bundle."""

import json
import time
from pathlib import Path

import pytest

from tests.helpers.command import edgert, in_process


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A folder with the demo's bundle in it and the cache it was built with, and the seconds that took."""
    folder = tmp_path_factory.mktemp("home")
    started = time.monotonic()
    done = edgert("build", "hello", "--board", "orin-nx-16gb", "-o", "dock.edgert", cwd=folder, env=env(folder))
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - started
    text = " ".join(done.stdout.split())
    assert "no x86 machine can build an engine for orin-nx-16gb" in text and "On the board:" in text
    for step in ("load", "shapes", "rewrite", "calibrate", "quantize", "survey", "lower", "verify", "place", "compile"):
        assert f" {step} " in done.stderr
    return folder, seconds


@pytest.fixture(scope="module")
def home(built: tuple[Path, float]) -> Path:
    return built[0]


def env(folder: Path) -> dict[str, str]:
    return {"EDGERT_CACHE": str(folder / "cache")}


@pytest.mark.slow
def test_a_board_that_edgert_does_not_run_on_gets_what_can_be_done_there(home: Path) -> None:
    done = edgert("build", "hello", "--board", "xavier-nx-16gb", "-o", "xavier.edgert", cwd=home, env=env(home))
    text = " ".join(done.stdout.split())
    assert done.returncode == 0 and "edgert itself does not run on a Jetson Xavier NX 16GB" in text, done.stderr
    assert "edgert export xavier.edgert --format onnx -o models" in text and "edgert run" not in text
    words = ("export", "xavier.edgert", "--format", "onnx", "-o", "models")
    assert edgert(*words, cwd=home, env=env(home)).returncode == 0 and (home / "models/parts.onnx").is_file()


def test_the_first_build_takes_no_more_than_a_minute(built: tuple[Path, float]) -> None:
    assert built[1] <= 60


def test_a_second_build_does_nothing_and_says_so_line_by_line(built: tuple[Path, float]) -> None:
    home, first_s = built
    before = (home / "dock.edgert").stat()
    options = ("--board", "orin-nx-16gb", "-o", "dock.edgert", "--json", "-")
    done = edgert("build", "hello", *options, cwd=home, env=env(home))
    assert done.returncode == 0 and not done.stderr
    *events, end = map(json.loads, done.stdout.splitlines())
    assert {event["state"] for event in events} == {"started", "cached", "skipped"}
    assert sum(event["seconds"] for event in events if event["state"] == "cached") < first_s / 10
    assert end["bundle"] == "dock.edgert" and not end["written"]
    assert end["size_bytes"] <= 1.3 * end["models_bytes"]
    after = (home / "dock.edgert").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_another_score_rebuilds_nothing_but_the_bundle(home: Path) -> None:
    options = ("--board", "orin-nx-16gb", "--set", "models.parts.task.score=0.3", "-o", "other.edgert", "--json", "-")
    done = edgert("build", "hello", *options, cwd=home, env=env(home))
    assert done.returncode == 0, done.stderr
    *events, end = map(json.loads, done.stdout.splitlines())
    assert [event["step"] for event in events if event["state"] == "done"] == ["bundle"] and end["written"]


def test_inspect_says_what_it_holds(home: Path) -> None:
    done = in_process("inspect", "dock.edgert", "--json", "dock.json", cwd=home)
    assert done.returncode == 0, done.stderr
    for text in (
        "orin-nx-16gb in 15W",
        "tensorrt-dla → tensorrt",
        "calibration.cache",
        "none damaged",
        "relative error",
    ):
        assert text in done.stdout
    report = json.loads((home / "dock.json").read_text())
    assert report["models"]["parts"]["precision"] == "int8"
    assert in_process("inspect", "dock.edgert", "--ops", cwd=home).returncode == 2


def test_it_runs_here_and_says_on_what(home: Path) -> None:
    options = ("--set", "stages.belt.limit=10", "--quiet", "--json", "summary.json")
    done = edgert("run", "dock.edgert", *options, cwd=home, env=env(home))
    assert done.returncode == 0, done.stderr
    assert "tensorrt-dla skipped: host has no DLA" in done.stderr
    report = json.loads((home / "summary.json").read_text())
    assert report["bundle"]["engine"] == "onnxruntime"
    assert [one["engine"] for one in report["bundle"]["skipped"]] == ["tensorrt-dla", "tensorrt", "onnxruntime-cuda"]
    lines = (home / "out/hello.jsonl").read_text().splitlines()
    assert len(lines) == 10


def test_strict_makes_a_skipped_engine_an_error(home: Path) -> None:
    done = in_process("run", "dock.edgert", "--strict", cwd=home, env=env(home))
    assert done.returncode == 1
    assert "tensorrt-dla cannot run this here" in done.stderr and "Traceback" not in done.stderr


def test_a_bundle_is_finished_here(home: Path, tmp_path: Path) -> None:
    bundle = str(home / "dock.edgert")
    options = ("--json", "-", "-o", "here.edgert")
    done = edgert("build", bundle, *options, cwd=tmp_path, env={**env(home), "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    *events, last = (json.loads(line) for line in done.stdout.splitlines())
    assert {event["state"] for event in events} >= {"skipped", "started"} and events[0]["step"] == "compile"
    assert last["bundle"] == "here.edgert" and list(last["engines"]) == ["parts"]
    assert last["skipped"][0]["engine"] == "tensorrt-dla" and (tmp_path / "here.edgert").is_file()
    assert in_process("build", bundle, "--board", "orin-nx-16gb", cwd=tmp_path).returncode == 2
    strict = in_process("build", bundle, "--strict", "--json", "-", cwd=tmp_path, env=env(home))
    assert strict.returncode == 1
    assert json.loads(strict.stdout.splitlines()[-1])["error"]["what"] == "tensorrt-dla cannot run this here"


@pytest.mark.parametrize("verb", ["run", "inspect"])
@pytest.mark.parametrize(("damage", "message"), [("flip", "damaged"), ("cut", "cut short"), ("empty", "empty")])
def test_a_damaged_bundle_is_refused(home: Path, tmp_path: Path, verb: str, damage: str, message: str) -> None:
    content = bytearray((home / "dock.edgert").read_bytes())
    if damage == "flip":
        content[len(content) // 3] ^= 1
    (tmp_path / "bad.edgert").write_bytes(
        content if damage == "flip" else content[: len(content) // 3 * (damage == "cut")]
    )
    done = in_process(verb, "bad.edgert", cwd=tmp_path)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--board", "orin-nx"), "no board 'orin-nx'"),
        (("--board", "orin-nx-16gb", "--mode", "99W"), "no power mode '99W'"),
        (("--board", "orin-nx-16gb", "--trt", "ten"), "no TensorRT version"),
        (("--mode", "15W"), "--mode needs a board"),
    ],
)
def test_what_cannot_be_built_for_is_told(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = in_process("build", "hello", *options, cwd=tmp_path)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.edgert"))
