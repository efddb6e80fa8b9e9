"""Many videos through one pipeline: a result for each, interrupted, killed and started again."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert.assemble import Environment
from edgert.config import load_pipeline
from edgert.engine import build_engine
from edgert.errors import DeviceError, StageError
from edgert.graph import to_bytes
from edgert.runtime import Result
from edgert.video_player import Players, VideoResult
from edgert.video_runs import VideoRuns
from tests.helpers import models
from tests.helpers.clips import write_clip
from tests.helpers.command import environment, in_process
from tests.helpers.waiting import wait_until

TEXT = """
models: {net: {onnx: net.onnx, task: {embed: none}}}
stages:
  cam: {source: "videos:vids/*.mp4"}
  find: {infer: net, from: cam}
  film: {sink: video, from: cam, path: "FOLDER/out/{file}.mp4"}
  lines: {sink: jsonl, from: find, path: "FOLDER/out/{file}.jsonl"}
"""
COUNT, FRAMES, LONG = 6, 8, 100


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "vids").mkdir()
    for number in range(COUNT):
        write_clip(tmp_path / "vids" / f"clip{number}.mp4", FRAMES)
    (tmp_path / "net.onnx").write_bytes(to_bytes(models.means((1, 3, 8, 8))))
    (tmp_path / "p.yaml").write_text(TEXT.replace("FOLDER", str(tmp_path)))
    return tmp_path / "p.yaml"


def damage(folder: Path, number: int) -> None:
    path = folder / "vids" / f"clip{number}.mp4"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lines_of(folder: Path) -> dict[str, int]:
    return {path.stem: len(path.read_text().splitlines()) for path in (folder / "out").glob("*.jsonl")}


def test_one_damaged_video_is_named_and_all_others_have_their_results(file: Path, tmp_path: Path) -> None:
    damage(tmp_path, 3)
    (tmp_path / "vids/clip3.mp4").rename(tmp_path / "vids/clip3\n.mp4")
    ran = in_process("run", "p.yaml", "--json", "r.json", cwd=tmp_path)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    (named,) = [line for line in ran.stdout.splitlines() if "damaged" in line]
    assert "clip3\\n.mp4" in named and "damaged" in named and f"{COUNT - 1} of {COUNT} videos are done" in ran.stdout
    assert f"2 of {COUNT}  clip1.mp4  ok, {FRAMES} frames" in ran.stderr
    assert lines_of(tmp_path) == {f"clip{number}": FRAMES for number in range(COUNT) if number != 3}
    assert len(list((tmp_path / "out").glob("*.mp4"))) == COUNT - 1
    states = [one["state"] for one in json.loads((tmp_path / "r.json").read_text())["videos"]]
    assert states == ["ok", "ok", "ok", "damaged", "ok", "ok"]
    write_clip(tmp_path / "vids/clip3\n.mp4", FRAMES)
    again = in_process("run", "p.yaml", "--json", "r.json", cwd=tmp_path)
    assert again.returncode == 0 and f"{COUNT - 1} of {COUNT} videos were done before" in again.stderr
    states = [one["state"] for one in json.loads((tmp_path / "r.json").read_text())["videos"]]
    assert states == ["before", "before", "before", "ok", "before", "before"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_model_is_loaded_once_for_each_job(
    file: Path, tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def counted(*arguments: Any, **options: Any) -> Any:
        built.append(build_engine(*arguments, **options))
        return built[-1]

    monkeypatch.setattr("edgert.assemble.engines.build_engine", counted)
    monkeypatch.setattr("edgert.assemble.models.build_engine", counted)
    seen: list[tuple[str, str]] = []

    def look(result: Result) -> None:
        seen.append((result.frame.extra.file, result.frame.stream))

    results = edgert.run_videos(file, jobs=jobs, callbacks={"find": look})
    assert [result.state for result in results] == ["ok"] * COUNT
    assert [result.frames for result in results] == [FRAMES] * COUNT
    assert sorted(seen) == sorted((f"clip{number}.mp4", "cam") for number in range(COUNT) for _ in range(FRAMES))
    assert 1 <= len(built) <= jobs


def test_stopped_in_the_middle_of_a_video_it_goes_on_with_that_one(file: Path, tmp_path: Path) -> None:
    played: list[str] = []

    def first(result: Result) -> None:
        if result.frame.index == 0:
            played.append(result.frame.extra.file)
        if result.frame.extra.file == "clip2.mp4" and result.frame.index == 3:
            runs.stop()

    callbacks = {"find": first}
    runs = VideoRuns(load_pipeline(file), Environment(callbacks=callbacks))
    assert [result.path.name for result in runs.run()] == ["clip0.mp4", "clip1.mp4"]
    assert runs.is_stopped and lines_of(tmp_path) == {"clip0": FRAMES, "clip1": FRAMES}
    assert sorted(path.name for path in (tmp_path / "out").glob("*.mp4")) == ["clip0.mp4", "clip1.mp4"]
    again: list[str] = []
    here = Environment(callbacks={"find": lambda result: again.append(result.frame.extra.file)})
    results = VideoRuns(load_pipeline(file), here).run()
    assert [result.state for result in results] == ["before", "before", "ok", "ok", "ok", "ok"]
    assert set(again) == {f"clip{number}.mp4" for number in range(2, COUNT)}
    assert lines_of(tmp_path) == {f"clip{number}": FRAMES for number in range(COUNT)}


def test_an_error_that_is_no_video_s_ends_the_run(file: Path, tmp_path: Path) -> None:
    results: list[VideoResult] = []

    def fails(result: Result) -> None:
        if result.frame.extra.file == "clip2.mp4":
            raise ValueError("my own mistake")

    with pytest.raises(StageError, match="my own mistake"):
        edgert.run_videos(file, callbacks={"find": fails}, on_result=lambda result, *_: results.append(result))
    assert [result.state for result in results] == ["ok", "ok"]
    assert lines_of(tmp_path) == {"clip0": FRAMES, "clip1": FRAMES}
    assert [result.state for result in edgert.run_videos(file)] == ["before", "before", "ok", "ok", "ok", "ok"]


def test_an_engine_that_fails_as_it_is_closed_ends_the_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Players) -> None:
        raise DeviceError("the GPU does not answer")

    monkeypatch.setattr(Players, "close", fails)
    with pytest.raises(DeviceError, match="does not answer"):
        edgert.run_videos(file, jobs=2)


def test_a_job_whose_thread_cannot_start_ends_the_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, started, real = list[VideoResult](), list[threading.Thread](), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("edgert:videos"):
            started.append(thread)
        if len(started) > 1:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        edgert.run_videos(file, jobs=2, on_result=lambda result, *_: results.append(result))
    started[0].join(10)
    assert len(results) < COUNT and not started[0].is_alive()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_started_again_no_video_is_played_twice(
    file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    frames = {f"clip{one}": LONG if one == 2 else FRAMES for one in range(COUNT)}
    write_clip(tmp_path / "vids" / "clip2.mp4", LONG)  # time enough for the signal, on a busy machine too
    slow = ["--set", "stages.cam.realtime=true"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgert", "run", "p.yaml", *slow],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while f"2 of {COUNT}" not in (line := process.stderr.readline()):
        assert line, "it ended before"
    wait_until((tmp_path / "out" / "clip2.jsonl").exists)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    done = {name for name in lines_of(tmp_path) if number == signal.SIGINT or name != "clip2"}
    assert done >= {"clip0", "clip1"} and len(done) < COUNT
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl") if path.stem in done}
    again = in_process("run", "p.yaml", *slow, cwd=tmp_path)
    assert again.returncode == 0 and f"{len(done)} of {COUNT} videos were done before" in again.stderr
    assert lines_of(tmp_path) == frames
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--duration", "5"], "limit:"),
        (["--jobs", "0"], "--jobs"),
        (["--set", "stages.cam.source=vids/clip0.mp4", "--jobs", "2"], "videos: source"),
        (["--set", "stages.cam.loop=true"], "played once"),
        (["--set", "stages.lines.path=out.jsonl"], "does not name the video"),
    ],
)
def test_what_does_not_go_with_videos_says_so(file: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    ran = in_process("run", "p.yaml", *arguments, cwd=tmp_path)
    assert ran.returncode in (1, 2) and words in " ".join(ran.stderr.split()) and "Traceback" not in ran.stderr
