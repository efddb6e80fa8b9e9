"""What recording a camera costs, and whether recordings are the camera's own packets.

    python tests/bench/bench_record.py [--cameras 8] [--seconds 10] [--rounds 5] [--json FILE]

Cameras of 1080p30 H.264 at 4 Mbit/s with a keyframe every second are RTSP streams from a process of their own. One
process reads them in three ways, by turns: without recording, recording everything, and recording clips of an event
every five seconds, with two seconds before it and one after. Its processor time beyond that without recording is what
recording costs. Nothing is decoded in any of them, as that would take twenty times as much and hide the difference:
each packet becomes a small gray image at once.

The recordings of all rounds are then compared with what the cameras sent, image by image, and the first image of each
clip with the one that was asked for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import av
from report import main

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config import load_pipeline
from edgert.pipeline import Pipeline
from edgert.runtime import Result
from edgert.stages.source.ffmpeg import Video
from edgert.stages.zones.rules import Event, Events
from tests.helpers.clips import h264_units
from tests.helpers.rtsp_server import RtspProgram, nals, save

FPS, GOP, UNITS = 30, 30, 90
SIZE, BITS_PER_S = (1920, 1080), 4_000_000
EVERY, BEFORE = 157, 2 * FPS  # no multiple of a group of pictures
WAYS = {
    "none": "",
    "everything": 'sink: record, path: "{folder}/{{stream}}-{{date}}-{{time}}.mp4", rotate: {{every: 5s}}',
    "clips": 'sink: record, path: "{folder}/{{stream}}-{{date}}-{{time}}.mp4", clips: {{before: 2s, after: 1s}}',
}


def undecoded(video: Video, packets: Iterator[Any]) -> Iterator[av.VideoFrame]:
    """An image for each packet, in the place of :meth:`Video._frames`."""
    for packet in packets:
        if packet.size:
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts, frame.time_base = packet.pts, packet.time_base
            yield frame


class Alarm:
    """An event at every 157th image of a camera, with the number of that image in its name."""

    def __call__(self, result: Result) -> Result:
        frame = result.frame
        if frame.index % EVERY:
            return result
        crossing = Event(f"{frame.stream} {frame.index}", "line", "begin", frame.stream, result.time_ns, way="in")
        return result.with_output("alarm", Events((crossing,)))


def run(url: str, cameras: int, seconds: float, way: str, folder: Path) -> float:
    """Processor time of the run, in seconds per camera and second."""
    names = [f"cam{number}" for number in range(cameras)]
    lines = [f'  {name}: {{source: "{url}"}}' for name in names]
    lines += [f'  alarm: {{python: "bench_record:Alarm", from: [{", ".join(names)}], queue: 64, drop: never}}']
    lines += ["  out: {sink: null, from: alarm}"]
    lines += [f"  film: {{from: alarm, {WAYS[way].format(folder=folder)}}}"] if WAYS[way] else []
    file = folder / "pipeline.yaml"
    file.write_text("\n".join(["schema: 1", "name: p", "stages:", *lines]) + "\n")
    with Pipeline(load_pipeline(file)) as pipeline:
        pipeline.start()
        threading.Event().wait(1.0)  # connected
        begun, begun_cpu = time.monotonic(), time.process_time()
        threading.Event().wait(seconds)
        spent = time.process_time() - begun_cpu, time.monotonic() - begun
        pipeline.stop()
    return spent[0] / spent[1] / cameras


def images_in(path: Path) -> list[bytes]:
    """Coded slices of a file, each behind its length of four bytes (ISO/IEC 14496-15)."""
    found = []
    with av.open(str(path)) as file:
        for packet in file.demux(video=0):
            data = bytes(packet)
            while data:
                end = 4 + int.from_bytes(data[:4], "big")
                found += [data[4:end]] if data[4] & 31 in (1, 5) else []
                data = data[end:]
    return found


def compared(folder: Path, sent: list[bytes]) -> Iterator[tuple[int, int, int | None]]:
    """Of each recording: its images, those that are not what the camera sent then, and by how many images it begins
    before what was asked for, of clips whose pre-roll lies behind the camera's beginning."""
    places = {image: number for number, image in enumerate(sent)}
    for line in (folder / "film.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found = images_in(folder / entry["path"])
        first = places.get(found[0], 0)
        wrong = sum(image != sent[(first + number) % len(sent)] for number, image in enumerate(found))
        early = None
        for event in entry.get("events", ())[:1]:
            asked = int(event["id"].split()[1]) - BEFORE
            early = (asked * (len(sent) // UNITS) - first) % len(sent) if asked >= 0 else None
        yield len(found), wrong, early


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """Cost first, then what was recorded."""
    Video._frames = undecoded  # type: ignore[assignment]
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    rows = list[tuple[int, int, int | None]]()
    with tempfile.TemporaryDirectory() as temporary:
        units = h264_units(UNITS, size=SIZE, gop=GOP, bit_rate=BITS_PER_S)
        sent = [nal for unit in units for nal in nals(unit) if nal[0] & 31 in (1, 5)]
        assert len(sent) % UNITS == 0
        server = RtspProgram(save(units, Path(temporary) / "units"), FPS)
        server.start()
        try:
            for number, way in chain.from_iterable(
                ((number, way) for way in WAYS) for number in range(arguments.rounds)
            ):
                folder = Path(temporary) / f"{way}-{number}"
                folder.mkdir()
                spent[way].append(run(server.url, arguments.cameras, arguments.seconds, way, folder))
                if WAYS[way]:
                    rows += compared(folder, sent)
        finally:
            server.kill()
    bits = sum(map(len, units)) * 8 * FPS / UNITS
    detail = {"cameras": arguments.cameras, "Mbit/s": bits / 1e6, "without, %": 100 * statistics.median(spent["none"])}
    for way in ("everything", "clips"):
        more = [100 * (own - none) for own, none in zip(spent[way], spent["none"], strict=True)]
        spread = {**detail, "least": min(more), "most": max(more)}
        yield Figure(
            f"processor time to record {way}", statistics.median(more), "% of a core", 1.0, "lower", len(more), spread
        )
    slices = len(sent) // UNITS
    images, wrong = sum(row[0] for row in rows) // slices, sum(row[1] for row in rows)
    yield Figure("recorded images that are not the camera's", wrong, "", 0, "lower", images, {"files": len(rows)})
    early = [row[2] / slices / GOP for row in rows if row[2] is not None]
    yield Figure(
        "first image before what was asked for", max(early), "GOP", 1.0, "lower", len(early), {"least": min(early)}
    )


def options(parser: argparse.ArgumentParser) -> None:
    """How long."""
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)


if __name__ == "__main__":
    main("What recording a camera costs, and whether it is the camera's", measure, options)
