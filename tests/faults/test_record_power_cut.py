"""Power cuts while a camera is recorded: as :mod:`tests.faults.test_power_cut`, with packets instead of images."""

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
from tests.faults.test_power_cut import FRAMES, LOST_S, RATE_HZ, Written, cuts, frames_of, mounted
from tests.helpers.clips import write_clip
from tests.helpers.frames import frame_of, result_of

MOMENTS = 60
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
    clip = write_clip(tmp_path / "clip.mp4", FRAMES, fps=RATE_HZ, size=(256, 64))
    found = cuts(RECORDER, tmp_path, MOMENTS, [(clip, way) for way in range(len(WAYS))], 7)
    lost_s = [check(tmp_path / "copy.img", tmp_path, clip, written) for written in found]
    late = sum(lost > LOST_S for lost in lost_s)
    print(f"{len(lost_s)} power cuts, {late} lost more than {LOST_S} s, at worst {max(lost_s):.2f} s")
    assert late == 0


def check(copy: Path, folder: Path, clip: Path, written: Written) -> float:
    """What was written plays, and the next start adds to it; returns the seconds that were lost."""
    with mounted(copy, folder / "copy") as disk:
        *rows, (_, stopped) = written
        saved = sum(frames_of(path) for path in disk.glob("film*.mp4"))
        record(disk, folder / "later", clip, 0, most=5)
        assert sum(frames_of(path) for path in disk.glob("film*.mp4")) == saved + 5
        assert threading.active_count() < 10
        return stopped - rows[saved][1] if saved < len(rows) else 0.0
