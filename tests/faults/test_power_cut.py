"""Power cuts: what is on a disk at a moment when everything stops, and the start after it.

A recorder writes video, lines and images to an ext4 of its own, on a loop device. At random moments the bytes of that
device are copied as they are, without what the page cache still holds; each copy is mounted as after a power cut.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import av
import cv2
import pytest

from edgert.stages.sink.image_files import ImagesSink
from edgert.stages.sink.results import JsonlSink
from edgert.stages.sink.retention import Rules
from edgert.stages.sink.video import VideoSink
from tests.helpers.command import ROOT, environment
from tests.helpers.frames import result_of
from tests.helpers.waiting import wait_until
from tests.helpers.written import opened
from tests.integration.test_sink_video import results

MOMENTS = 200
FRAMES = 2400  # of one disk, which has room for twice as many
LOST_S = 1.0
RATE_HZ = 60  # so that the 11 frames inside libx264 are a fifth of a second
RULES = (Rules(keeps=True, endless=True, rotate_bytes=400_000), Rules(keeps=True, endless=True))

RECORDER = """
import sys, time
from pathlib import Path
from tests.faults.test_power_cut import record
record(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
"""


Written = list[tuple[int, float]]  # what was logged before a power cut, and last the time of the cut


def record(folder: Path, log: Path, rules: int) -> None:
    """Writes a frame of everything, and then its number and time to the log, until it is killed."""
    video = VideoSink("video", folder / "video.mp4", rules=RULES[rules])
    lines = JsonlSink("lines", folder / "lines.jsonl", Rules(keeps=True, rotate_bytes=100_000))
    images = ImagesSink("images", folder / "{stream}_{frame:06d}.png", rules=Rules(keeps=True))
    for sink in (video, lines, images):
        sink.open()
    begun = time.monotonic()
    with log.open("w") as written:
        for number, result in enumerate(results(10**9)):
            time.sleep(max(0.0, begun + number / RATE_HZ - time.monotonic()))
            for sink in (video, lines, images):
                sink.process(result)
            print(number, time.monotonic(), file=written, flush=True)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    run("mount", "-o", "loop,data=ordered,commit=300", str(image), str(folder))
    try:
        yield folder
    finally:
        run("umount", str(folder))


def cut(process: subprocess.Popen[bytes], image: Path, copy: Path, log: Path) -> Written:
    """The device as it is, while nobody writes to it, and what had been logged."""
    device = run("losetup", "-j", str(image)).partition(":")[0]
    state = Path("/sys/block", Path(device).name)
    process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        while True:
            before = (state / "stat").read_text(), (state / "inflight").read_text().split()
            shutil.copyfile(image, copy)
            after = (state / "stat").read_text(), (state / "inflight").read_text().split()
            if after == before and before[1] == ["0", "0"]:
                break
        rows = [line.split() for line in log.read_text().splitlines()]
        return [*((int(number), float(at)) for number, at in rows), (-1, stopped)]
    finally:
        process.send_signal(signal.SIGCONT)


def cuts(program: str, folder: Path, most: int, arguments: Sequence[Sequence[object]], each: int) -> Iterator[Written]:
    """Cut the power ``most`` times, ``each`` times for a disk, whose image is then ``folder / "copy.img"``.

    The recorder gets the folder, the log, and the next of ``arguments``.
    """
    shared = Path("/dev/shm", f"edgert-{os.getpid()}")
    image, copy, log = (shared.with_suffix(f".{one}") for one in ("disk", "copy", "log"))
    (folder / "copy.img").symlink_to(copy)
    chance, disks = random.Random(1), itertools.cycle(arguments)
    try:
        while most > 0:
            with image.open("wb") as file:
                file.truncate(64 << 20)
            run("mkfs.ext4", "-q", "-F", str(image))
            with mounted(image, folder / "disk") as disk:
                command = [sys.executable, "-c", program, str(disk), str(log), *map(str, next(disks))]
                with subprocess.Popen(command, cwd=ROOT, env=environment()) as process:
                    try:
                        wait_until(lambda: log.exists() and log.stat().st_size >= 1000)
                        for _ in range(min(each, most)):
                            time.sleep(chance.uniform(0.0, 1.0))
                            yield (written := cut(process, image, copy, log))
                            most -= 1
                            if len(written) >= FRAMES:
                                break
                    finally:
                        process.kill()
            log.unlink()
    finally:
        for one in (image, copy, log):
            one.unlink(missing_ok=True)


@pytest.mark.box
@pytest.mark.timeout(1200)
def test_at_most_a_second_is_lost_and_the_next_start_goes_on(tmp_path: Path) -> None:
    found = cuts(RECORDER, tmp_path, MOMENTS, [[0], [1]], MOMENTS)
    moments = [check(tmp_path / "copy.img", tmp_path / "copy", written) for written in found]
    worst_s = {name: max(lost[name] for lost in moments) for name in moments[0]}
    late = sum(max(lost.values()) > LOST_S for lost in moments)
    print(f"{len(moments)} power cuts, {late} lost more than {LOST_S} s, at worst in seconds: {worst_s}")
    assert late == 0


def check(copy: Path, folder: Path, written: Written) -> dict[str, float]:
    """Every file is readable, the next start adds to them; returns the seconds that were lost of each kind."""
    with mounted(copy, folder) as disk:
        *rows, (_, stopped) = written
        torn = sum(not path.read_bytes().endswith(b"\n") for path in disk.glob("lines*.jsonl") if path.stat().st_size)
        assert torn <= 1
        for path in disk.glob("*.png"):
            assert cv2.imread(str(path)) is not None, path
        saved = {
            "lines": sum(path.read_bytes().count(b"\n") for path in disk.glob("lines*")),
            "images": len(list(disk.glob("*.png"))),
            "video": sum(frames_of(path) for path in disk.glob("video*")),
        }
        later = JsonlSink("lines", disk / "lines.jsonl", Rules(keeps=True))
        again = ImagesSink("images", disk / "{stream}_{frame:06d}.png", rules=Rules(keeps=True))
        video = VideoSink("video", disk / "video.mp4", rules=RULES[0])
        for sink in (later, again, video):
            with opened(sink):
                sink.process(result_of(next(results(1)).frame))
        found = [json.loads(line)["frame"] for path in disk.glob("lines*") for line in path.read_text().splitlines()]
        assert sorted(found) == sorted([0, *range(saved["lines"])])
        assert sum(frames_of(path) for path in disk.glob("video*")) == saved["video"] + 1
        assert not list(disk.glob(".*.part"))
        return {name: stopped - rows[count][1] if count < len(rows) else 0.0 for name, count in saved.items()}


def frames_of(path: Path) -> int:
    if not path.stat().st_size:  # its first piece was not written yet
        return 0
    with av.open(str(path)) as file:
        return sum(1 for _ in file.decode(video=0))
