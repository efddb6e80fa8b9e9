"""What a user types, and what comes back when it is wrong."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest

from edgert.installation import demo_images
from tests.helpers.command import ROOT, edgert, environment, in_process, start
from tests.helpers.waiting import wait_until

PIPELINE = """
models:
  parts: {{onnx: {assets}/parts.onnx, task: {{detect: yolox}}, input: {{std: 255}}}}
stages:
  belt: {{source: "{belt}", size: 320x240, realtime: true, fps: 30}}
  find: {{infer: parts, from: belt}}
  paint: {{draw: [boxes], from: find}}
  video: {{sink: video, from: paint, path: v.mp4}}
  events: {{sink: jsonl, from: find, path: e.jsonl}}
"""


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    path = tmp_path / "endless.yaml"
    path.write_text(PIPELINE.format(belt=demo_images(), assets=ROOT / "pipelines" / "assets"))
    return path


def test_usage_errors_exit_2(tmp_path: Path) -> None:
    assert edgert("rnu", cwd=tmp_path).returncode == 2
    assert in_process("run", cwd=tmp_path).returncode == 2
    assert in_process("run", "hello", "--no-such-option", cwd=tmp_path).returncode == 2


def test_version(tmp_path: Path) -> None:
    assert edgert("--version", cwd=tmp_path).stdout.startswith("edgert 0.")


def test_output_cut_short_by_a_reader_is_no_bug(tmp_path: Path) -> None:
    command = f"{sys.executable} -m edgert schema | head -1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.stdout == "{\n"
    assert "bug" not in done.stderr


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_whole_files(endless: Path, number: signal.Signals) -> None:
    folder = endless.parent
    process = start("run", str(endless), "--quiet", "--json", "s.json", cwd=folder)
    _wait_for(folder / "e.jsonl", lines=10, process=process)
    process.send_signal(number)
    began_s = time.monotonic()
    process.communicate(timeout=30)
    took_s = time.monotonic() - began_s

    assert process.returncode == 0
    assert took_s <= 2.0 + 1.0  # 2 s for the pipeline; the rest is this machine ending a Python process under load
    lines = [json.loads(line) for line in (folder / "e.jsonl").read_text().splitlines()]
    frames = json.loads((folder / "s.json").read_text())["frames_in"]
    assert 10 <= len(lines) <= frames
    with av.open(str(folder / "v.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) >= 10


def test_duration_ends_it_too(endless: Path) -> None:
    done = in_process("run", str(endless), "--duration", "1", "--json", "-", cwd=endless.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seconds"] < 10


def test_a_full_disk_stops_a_recording_and_what_was_written_stays(endless: Path) -> None:
    recording = ("--set=stages.belt.realtime=false", "--set=stages.belt.limit=300")
    done = in_process("run", str(endless), "--set=stages.events.path=/dev/full", *recording, cwd=endless.parent)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "endless.yaml:" in done.stderr
    with av.open(str(endless.parent / "v.mp4")) as container:
        assert 1 <= sum(1 for _ in container.decode(video=0)) < 300


def test_a_full_disk_stops_no_camera_and_the_others_write_everything(endless: Path) -> None:
    options = ("--set=stages.events.path=/dev/full", "--duration", "3", "--json", "s.json")
    done = in_process("run", str(endless), *options, cwd=endless.parent)
    assert done.returncode == 1  # one was down at the end
    assert done.stderr.count("No space left") == 1, done.stderr
    assert "stage 'events'" in done.stderr and "the other stages continue" in done.stderr
    stages = json.loads((endless.parent / "s.json").read_text())["stages"]
    events, video = stages["events"], stages["video"]
    assert events["results_in"] == 0 < events["losses"]["belt"]["error"] and "No space left" in events["failing"]
    assert events["errors"] > events["restarts"] >= 1
    assert video["errors"] == 0 and video["results_in"] >= 10
    with av.open(str(endless.parent / "v.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == video["results_in"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("models.parts.onnx=nope.onnx", "does not exist"),
        ("models.parts.onnx=endless.yaml", "not an ONNX model"),
        ("models.parts.task.detct=yolox", "did you mean 'detect'"),
        ("models.parts.task.labels=short.txt", "label"),
        ("models.parts.input.color=gray", "does not fit"),
        ("stages.belt.size=12", "WIDTHxHEIGHT"),
        ("stages.find.from=blet", "did you mean 'belt'"),
        ("stages.find.from=paint", "cycle"),
        ("stages.find.infer=part", "did you mean 'parts'"),
        ("budgets.power=15", "no unit"),
        ("stages.belt.source=nope.mp4", "there is no such file"),
        ("stages.belt.source=synthetic:noize", "did you mean"),
        ("stages.belt.source=${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE"),
    ],
)
def test_mistakes_are_explained(endless: Path, change: str, says: str) -> None:
    (endless.parent / "short.txt").write_text("bolt\n")
    done = in_process("validate", str(endless), "--set", change, cwd=endless.parent)
    assert done.returncode == 1, done.stdout
    assert "error: " in done.stderr
    assert says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def _wait_for(path: Path, lines: int, process: subprocess.Popen[str]) -> None:
    def are_there() -> bool:
        return path.exists() and path.read_text().count("\n") >= lines

    wait_until(lambda: are_there() or process.poll() is not None)
    assert are_there(), process.communicate(timeout=5)
