"""What it costs to record a run: four cameras of 1080p at 30 frames a second, as ``sink: mcap`` records them.

The packets of four H.264 streams, a result of ten tracked objects for each frame, and the decisions of eight stages are
given to the sink at the cameras' pace; nothing is decoded and no model runs. The figure is the processor time of the
whole process, part of one core, less that of the same loop without a recorder. Bar: 5 % of a core. The second figure is
that of ``keep: 10s``, with an event in the middle, whose seconds become a file.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from report import main

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.clock import NotedClock
from edgert.config import SinkStage
from edgert.memory import Counter
from edgert.memory.buffer import EndedLease
from edgert.recording.mcap_file import Damage, read_messages
from edgert.runtime import Detections, Frame, Result
from edgert.runtime.decisions import Journal, TaskJournal
from edgert.stages.context import Context, make_stage
from edgert.stages.sink.mcap.mcap_sink import McapSink
from edgert.stages.source.packets import Tap
from edgert.stages.source.timeline import MediaClock
from tests.helpers.clips import h264_units

CAMERAS, FPS, SIZE, STAGES, OBJECTS = 4, 30, (1920, 1080), 8, 10
BAR_PERCENT = 5.0


class Camera:
    """Packets of one stream, round and round, at their times."""

    live = True

    def __init__(self, name: str, units: list[bytes], clock: NotedClock) -> None:
        self.name, self._units = name, units
        media = MediaClock(live=True)
        media.at(0, clock.now_ns())
        self.tap = Tap(clock, media, live=True, waits=False)
        self._container = av.open(io.BytesIO(b"".join(units)), format="h264")
        self.packets = self.tap.passing(self._packets(), self._container.streams.video[0])

    def _packets(self) -> Iterator[Any]:
        number = 0
        while True:
            packet = av.Packet(self._units[number % len(self._units)])
            packet.pts = packet.dts = number * 3000
            packet.time_base, packet.duration = Fraction(1, 90_000), 3000
            packet.is_keyframe = number % FPS == 0
            number += 1
            yield packet


def result_of(frame: Frame, random: np.random.Generator) -> Result:
    boxes = random.uniform(0, 1000, (OBJECTS, 4)).astype(np.float32)
    found = Detections(boxes, np.full(OBJECTS, 0.5, np.float32), np.zeros(OBJECTS, np.int32), ("part",))
    tracked = Detections(boxes, found.scores, found.classes, ("part",), ids=np.arange(OBJECTS, dtype=np.int64))
    return Result(frame, {"find": found, "track": tracked})


def cpu_s(seconds: float, units: list[bytes], folder: Path, *, records: bool, keeps: bool = False) -> float:
    """Return the processor time of this process while cameras are recorded, or their packets only given out."""
    clock = NotedClock()
    cameras = [Camera(f"cam{number}", units, clock) for number in range(CAMERAS)]
    journal, random = Journal(lambda: (0, clock.offset_ns)), np.random.default_rng(0)
    tasks = [TaskJournal(journal, f"stage{number}") for number in range(STAGES)]
    lease = EndedLease(Counter())

    sink: McapSink | None = None
    if records:
        sources = {camera.name: camera for camera in cameras}
        context = Context(clock=clock, sources=sources, journal=journal, about=lambda: {"run": "bench"})
        keys = {"from": "cam", "path": folder / "run.mcap", **({"keep": "10s"} if keeps else {})}
        sink = make_stage(SinkStage.model_validate({"sink": "mcap", **keys}), "rec", context)
    if sink is not None:
        sink.open()
    began_s, used_s = time.monotonic(), time.process_time()
    for tick in range(round(seconds * FPS)):
        for camera in cameras:
            next(camera.packets)
            media_ns = tick * 10**9 // FPS
            frame = Frame(camera.name, tick, clock.now_ns(), media_ns, *SIZE, "i420", (), lease)
            result = result_of(frame, random)
            if sink is not None:
                tasks[0].give((frame,), clock.now_ns())
                for task in tasks[1:]:
                    task.work("step", task, (result,), clock.now_ns())
                sink.process(result)
        if sink is not None and sink._last is not None and tick == round(seconds * FPS) // 2:
            sink._last.take_event("seen")
        time.sleep(max(began_s + (tick + 1) / FPS - time.monotonic(), 0))
    used_s = time.process_time() - used_s
    if sink is not None:
        sink.close()
    return used_s


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    units = h264_units(FPS, size=SIZE, gop=FPS, bit_rate=round(arguments.mbit * 1e6))
    with tempfile.TemporaryDirectory() as folder:
        without = cpu_s(arguments.seconds, units, Path(folder), records=False)
        used = cpu_s(arguments.seconds, units, Path(folder), records=True)
        path, damage = Path(folder) / "run.mcap", Damage()
        count = sum(message.topic.endswith("/video") for message in read_messages(path, damage))
        assert count == CAMERAS * round(arguments.seconds * FPS), f"{count} packets were recorded"
        assert not str(damage)
        rate = path.stat().st_size / arguments.seconds / 1e6
        path.unlink()
        kept = cpu_s(arguments.seconds, units, Path(folder), records=True, keeps=True)
        moments = sorted(Path(folder).glob("*.mcap"))
        assert len(moments) == 2, moments  # one of the event, one of the end
        size_mb = moments[0].stat().st_size / 1e6
    percent = 100 * (used - without) / arguments.seconds
    detail = {"without_percent": 100 * without / arguments.seconds, "mb_per_s": rate}
    yield Figure(f"record {CAMERAS} cameras of {SIZE[1]}p{FPS}", percent, "% of a core", BAR_PERCENT,
                 n=round(arguments.seconds * FPS), detail=detail)  # fmt: skip
    percent, detail = 100 * (kept - without) / arguments.seconds, {"mb": size_mb}
    yield Figure(f"keep the last 10 s of them, with one event in {arguments.seconds:g} s", percent, "% of a core",
                 BAR_PERCENT, n=round(arguments.seconds * FPS), detail=detail)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default: 20)")
    parser.add_argument("--mbit", type=float, default=4.0, help="of each camera, a second (default: 4)")


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure, options)
