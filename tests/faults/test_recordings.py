"""Two writers of one file, processes that are killed again and again, full disks, memory."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import av
import cv2
import pytest

from edgert.errors import StageError
from edgert.runtime.records import Result
from edgert.stages.sink import retention
from edgert.stages.sink.image_files import ImagesSink
from edgert.stages.sink.results import JsonlSink
from edgert.stages.sink.retention import Rules
from edgert.stages.sink.video import VideoSink
from tests.helpers.command import ROOT, environment, in_process, start
from tests.helpers.frames import frame_of, result_of
from tests.helpers.waiting import wait_until
from tests.helpers.written import opened
from tests.integration.test_sink_video import STEP_NS, decodable, results

KEEPS = Rules(keeps=True, endless=True)
PIPELINE = """
schema: 1
name: live
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 30, realtime: true}
  video: {sink: video, from: cam, path: out.mp4}
  events: {sink: jsonl, from: cam, path: out.jsonl}
  pictures: {sink: images, from: cam, path: images}
"""


def python(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "live.yaml").write_text(PIPELINE)
    with start("run", "live.yaml", cwd=tmp_path) as process:
        try:
            made = tmp_path / "out.mp4", tmp_path / "images" / "cam_000000.jpg"
            wait_until(lambda: all(path.exists() for path in made) or process.poll() is not None)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("stage", "others"), [("video", "events pictures"), ("events", "video pictures"), ("pictures", "video events")]
)
def test_a_second_process_is_told_who_writes_the_file(
    live: subprocess.Popen[str], tmp_path: Path, stage: str, others: str
) -> None:
    elsewhere = [f"--set=stages.{name}.path=else/{name}" + ".mp4" * (name == "video") for name in others.split()]
    with start("run", "live.yaml", *elsewhere, cwd=tmp_path) as second:
        _, error = second.communicate(timeout=60)
    assert second.returncode == 1, error
    assert f"another process writes it: python3, process {live.pid}" in error.replace("python,", "python3,")
    assert f"stages.{stage}" in error
    assert live.poll() is None


def test_a_camera_s_restart_erases_nothing(tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(PIPELINE)
    counts = []
    for _ in range(2):
        assert in_process("run", "live.yaml", "--duration", "1", cwd=tmp_path).returncode == 0
        counts.append(len((tmp_path / "out.jsonl").read_text().splitlines()))
    assert counts[1] > counts[0] > 0
    videos = list(tmp_path.glob("out*.mp4"))
    assert len(videos) == 2 and min(decodable(path) for path in videos) >= 10  # a camera's frames may be dropped
    assert len(list((tmp_path / "images").glob("cam_000000*.jpg"))) == 2


def test_a_recording_that_is_worked_on_again_gives_the_same_files(tmp_path: Path) -> None:
    """As the demo does: who runs it twice finds the newest under the name that is printed, and nothing else."""
    (tmp_path / "live.yaml").write_text(PIPELINE.replace("realtime: true", "limit: 20"))
    for _ in range(2):
        assert in_process("run", "live.yaml", cwd=tmp_path).returncode == 0
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20
        assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "live.yaml", "out.jsonl", "out.mp4"]
        assert len(list((tmp_path / "images").iterdir())) == 20


@pytest.mark.slow
def test_killed_again_and_again_nothing_is_lost(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from edgert.stages.sink import retention
from edgert.stages.sink.image_files import ImagesSink
from edgert.stages.sink.results import JsonlSink
from edgert.stages.sink.video import VideoSink
from tests.faults.test_recordings import KEEPS
from tests.integration.test_sink_video import results
folder = Path(sys.argv[1])
sinks = [
    JsonlSink("lines", folder / "out.jsonl", KEEPS),
    VideoSink("video", folder / "out.mp4", rules=KEEPS),
    ImagesSink("images", folder / "{frame:06d}.png", rules=KEEPS),
]
for sink in sinks:
    sink.open()
for number, result in enumerate(results(10**9)):
    for sink in sinks:
        sink.process(result)
    if number == 40:
        print("go", flush=True)
"""
    chance, total = random.Random(3), 0
    for _ in range(8):
        with python(program, str(tmp_path)) as process:
            assert process.stdout is not None and process.stdout.readline() == b"go\n"
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
        data = (tmp_path / "out.jsonl").read_bytes()
        whole = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        assert len(whole) >= total + 41 and data.endswith(b"\n")
        total = len(whole)
    videos = list(tmp_path.glob("out*.mp4"))
    assert len(videos) == 8 and min(decodable(path) for path in videos) >= 15
    images = list(tmp_path.glob("*.png"))
    assert len(images) >= 8 and all(cv2.imread(str(path)) is not None for path in images)


@pytest.mark.box
@pytest.mark.parametrize("free_bytes", [0, 1_500_000])
def test_a_full_disk(tmp_path: Path, free_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one of 3 MB: without ``keep`` the sinks stop and say so, with it they go on for as long as they like."""
    monkeypatch.setattr(retention, "_REMOVAL_PERIOD_S", 0.01)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], check=True)
    rules = Rules(keeps=True, rotate_bytes=200_000, free_bytes=free_bytes)
    sinks: list[VideoSink | JsonlSink | ImagesSink] = [
        VideoSink("video", disk / "{stream}-{time}.mp4", quality=0, rules=rules),
        JsonlSink("lines", disk / "{time}.jsonl", rules),
        ImagesSink("images", disk / "{frame:06d}.png", rules=rules),
    ]
    failed = set[object]()
    try:
        for sink in sinks:
            sink.open()
        for result in results(600):
            for sink in sinks:
                try:
                    if sink not in failed:
                        sink.process(result)
                except StageError as error:
                    assert "No space left" in error.why
                    failed.add(sink)
        for sink in sinks:
            try:
                sink.close()
            except StageError as error:
                assert "No space left" in error.why
        for path in disk.glob("*.jsonl"):
            assert all(json.loads(line) for line in path.read_text().splitlines())
        assert all(cv2.imread(str(path)) is not None for path in disk.glob("*.png"))
        for path in disk.glob("*.mp4"):
            assert not path.stat().st_size or decodable(path) >= 0
        assert bool(failed) == (not free_bytes)
        if free_bytes:
            assert any("000599" in path.name for path in disk.glob("*.png"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


GROWTH = """
import sys
from pathlib import Path
from tests.faults.test_recordings import growth
print(growth(sys.argv[1], Path(sys.argv[2])))
"""
FRAMES = 100_000


def growth(kind: str, folder: Path) -> float:
    """Bytes of memory that each of 100,000 tiny frames leaves behind in a sink of a camera."""
    sink: VideoSink | JsonlSink | ImagesSink
    if kind == "jsonl":
        sink = JsonlSink("lines", folder / "out.jsonl", KEEPS)
    elif kind == "images":
        sink = ImagesSink("images", folder / "latest.png", rules=KEEPS)
    elif kind == "rotates":
        sink = VideoSink(
            "video", folder / "{time}.mp4", rules=Rules(True, True, rotate_bytes=100_000, keep_bytes=200_000)
        )
    else:
        sink = VideoSink("video", folder / f"out.{kind}", rules=KEEPS)
    with opened(sink):
        results = [result_of(frame_of(16, 16, "i420", index=index)) for index in range(7)]
        sizes = []
        for number in range(FRAMES + 1):
            if number % (FRAMES // 20) == 0:
                sizes.append(resident())
            result = results[number % 7]
            object.__setattr__(result.frame, "media_ns", number * STEP_NS)
            sink.process(result)
    # What grows with every frame does so in every part of them; a pool that became larger once does not.
    return statistics.median(after - before for before, after in pairwise(sizes)) / (FRAMES // 20)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mp4", "mov", "mkv", "rotates", "jsonl", "images"])
def test_frames_leave_nothing_in_memory(tmp_path: Path, kind: str) -> None:
    """An mp4 with an index would keep 75 bytes of each."""
    with python(GROWTH, kind, str(tmp_path)) as process:
        assert process.stdout is not None
        per_frame = float(process.stdout.read())
    print(f"{kind}: {per_frame:.2f} bytes a frame")
    assert per_frame <= 4.0


def test_a_camera_s_mp4_plays_and_can_be_searched(tmp_path: Path) -> None:
    """It stays in fragments: its length is known, and a player finds any place in it."""
    with opened(VideoSink("video", tmp_path / "out.mp4", rules=KEEPS)) as sink:
        for result in results(300):
            sink.process(result)
    with av.open(str(tmp_path / "out.mp4")) as file:
        assert file.duration == pytest.approx(300 * STEP_NS / 1e3, rel=0.01)
        file.seek(5_000_000)
        assert float(next(file.decode(video=0)).time or 0) == pytest.approx(5.0, abs=2.1)
    assert decodable(tmp_path / "out.mp4") == 300


def test_a_recording_rotates(tmp_path: Path) -> None:
    with opened(VideoSink("video", tmp_path / "{stream}.mp4", rules=Rules(True, True, rotate_bytes=30_000))) as sink:
        for result in results(400):
            sink.process(result)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) >= 3 and sum(decodable(path) for path in paths) == 400
    assert max(path.stat().st_size for path in paths) < 60_000
    for path in paths:
        with av.open(str(path)) as file:
            assert next(file.demux(video=0)).is_keyframe


@pytest.mark.parametrize("rules", [KEEPS, Rules(keeps=True, endless=True, rotate_bytes=10_000_000)])
@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv"])
def test_a_file_is_empty_or_plays_after_each_frame(tmp_path: Path, suffix: str, rules: Rules) -> None:
    """A head without images, of which a muxer writes the first half a second early, would stay after a power cut."""
    path = tmp_path / f"out.{suffix}"
    with opened(VideoSink("video", path, rules=rules)) as sink:
        played = []
        for result in results(70):
            sink.process(result)
            played.append(decodable(path) if path.stat().st_size else 0)
    assert played == sorted(played) and played[0] == 0 < played[-1]
    assert decodable(path) == 70


def test_a_pipe_is_no_place_for_a_video(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.mp4")
    with pytest.raises(StageError, match="cannot write") as caught:
        VideoSink("video", tmp_path / "out.mp4").open()
    assert "needs seeking back" in caught.value.why


def test_another_size_of_one_camera_leaves_the_others_alone(tmp_path: Path) -> None:
    with opened(VideoSink("video", tmp_path / "{stream}.mp4", rules=KEEPS)) as sink:
        for north, south in zip([*results(20), *results(20, 200)], results(40, 80, 60, "south"), strict=True):
            sink.process(north)
            sink.process(south)
    assert decodable(tmp_path / "south.mp4") == 40
    assert sum(decodable(path) for path in tmp_path.glob("camera*")) == 40


def test_the_newest_image_is_there_at_once(tmp_path: Path) -> None:
    with opened(ImagesSink("images", tmp_path / "latest.png")) as sink:
        sink.process(Result(frame_of(6, 4)))
        assert cv2.imread(str(tmp_path / "latest.png")).shape == (4, 6, 3)
