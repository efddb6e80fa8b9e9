"""Power cuts while a camera is recorded: as :mod:`tests.faults.test_power_cut`, with packets instead of images."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import av
import pytest

from edgert.clock import REAL
from edgert.config import SinkStage
from edgert.stages.context import Context, make_stage
from edgert.stages.sink.record.sink import RecordSink
from edgert.stages.source.packets import Tap
from edgert.stages.source.timeline import MediaClock
from edgert.stages.zones.rules import Event, Events
from tests.faults.test_power_cut import LOST_S, RATE_HZ, cut, frames_of, mounted, run
from tests.helpers.clips import write_clip
from tests.helpers.command import ROOT, environment
from tests.helpers.frames import frame_of, result_of
from tests.helpers.waiting import wait_until

MOMENTS, FRAMES = 60, 2400
WAYS: tuple[dict[str, Any], ...] = ({"rotate": {"size": "256KiB"}}, {}, {"clips": {"before": "0s", "longest": "1h"}})
RECORDER = """
import sys
from pathlib import Path
from tests.faults.test_record_power_cut import record
record(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
"""


class Camera:
    """A source without a network, whose packets come at their time."""

    live = True

    def __init__(self, clip: Path) -> None:
        self._clip, self.media = clip, MediaClock(True)
        self.tap = Tap(REAL, self.media, live=True, waits=False)

    def positions(self, most: int) -> Iterator[int]:
        """The position of each packet, once recorders have it."""
        with av.open(str(self._clip)) as file:
            stream = file.streams.video[0]
            begun = time.monotonic()
            for number, packet in enumerate(self.tap.passing(islice(file.demux(stream), most), stream)):
                if packet.pts is None or packet.time_base is None:
                    return
                time.sleep(max(0.0, begun + number / RATE_HZ - time.monotonic()))
                yield self.media.at(int(packet.pts * packet.time_base * 10**9), time.monotonic_ns())


def recording(camera: Camera, folder: Path, way: int) -> RecordSink:
    section = SinkStage.model_validate({"sink": "record", "from": "a", "path": folder / "film.mp4", **WAYS[way]})
    source: Any = camera
    sink = make_stage(section, "film", Context(sources={"camera": source}, starts_over=False))
    assert isinstance(sink, RecordSink)
    sink.open()
    return sink


def record(folder: Path, log: Path, clip: Path, way: int, most: int = FRAMES) -> None:
    """Records, and writes the number and time of each packet to the log, until it is killed."""
    camera = Camera(clip)
    sink = recording(camera, folder, way)
    begin = Events((Event("a", "rule", "begin", "camera", time.time_ns()),))
    with log.open("w") as written:
        for number, media_ns in enumerate(camera.positions(most)):
            frame = frame_of(index=number, media_ns=media_ns, timestamp_ns=time.monotonic_ns())
            sink.process(result_of(frame, {} if number else {"alarm": begin}))
            print(number, time.monotonic(), file=written, flush=True)
    sink.close()


@pytest.mark.box
@pytest.mark.timeout(1200)
def test_at_most_a_second_of_a_recording_is_lost_and_the_next_start_goes_on(tmp_path: Path) -> None:
    image, copy, log = (Path("/dev/shm") / f"edgert-film-{os.getpid()}.{one}" for one in ("disk", "copy", "log"))
    chance, lost_s = random.Random(1), list[float]()
    clip = write_clip(tmp_path / "clip.mp4", FRAMES, fps=RATE_HZ, size=(256, 64))
    try:
        for number in range(MOMENTS):
            if len(lost_s) >= MOMENTS:
                break
            with image.open("wb") as file:
                file.truncate(64 << 20)
            run("mkfs.ext4", "-q", "-F", str(image))
            with mounted(image, tmp_path / "disk") as disk:
                command = [sys.executable, "-c", RECORDER, str(disk), str(log), str(clip), str(number % len(WAYS))]
                with subprocess.Popen(command, cwd=ROOT, env=environment()) as process:
                    try:
                        wait_until(lambda log=log: log.exists() and log.stat().st_size >= 1000)
                        written = [(0, 0.0)]
                        for _ in range(7):
                            time.sleep(chance.uniform(0.0, 1.0))
                            written = cut(process, image, copy, log)
                            lost_s.append(check(copy, tmp_path, clip, written))
                    finally:
                        process.kill()
            log.unlink()
    finally:
        for one in (image, copy, log):
            one.unlink(missing_ok=True)
    late = sum(lost > LOST_S for lost in lost_s)
    print(f"{len(lost_s)} power cuts, {late} lost more than {LOST_S} s, at worst {max(lost_s):.2f} s")
    assert late == 0


def check(copy: Path, folder: Path, clip: Path, written: list[tuple[int, float]]) -> float:
    """What was written plays, and the next start adds to it; returns the seconds that were lost."""
    with mounted(copy, folder / "copy") as disk:
        *rows, (_, stopped) = written
        saved = sum(frames_of(path) for path in disk.glob("film*.mp4"))
        record(disk, folder / "later", clip, 0, most=5)
        assert sum(frames_of(path) for path in disk.glob("film*.mp4")) == saved + 5
        assert threading.active_count() < 10
        return stopped - rows[saved][1] if saved < len(rows) else 0.0
