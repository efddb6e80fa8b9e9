"""Recordings: the camera's own packets, bit by bit, in files one after another or around events."""

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import pytest

from edgert.config import SinkStage
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.runtime import Frame, Source
from edgert.stages.context import Context, make_stage
from edgert.stages.sink.output_file import OutputFile
from edgert.stages.sink.record.sink import RecordSink
from edgert.stages.source import live
from edgert.stages.source.kinds import source_for
from edgert.stages.zones.rules import Event, Events, Phase
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.frames import result_of
from tests.helpers.pipeline_text import pipeline, refused
from tests.helpers.rtsp_server import RtspServer, nals

GOP, FPS, COUNT = 15, 30, 180
Said = Callable[[Frame], list[Event]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_clip(path, COUNT, options={"preset": "ultrafast", "g": str(GOP), "bf": "2"})


def event(name: str, phase: Phase = "begin", seconds: float = 0.0, way: str = "") -> Event:
    return Event(name, "intruder", phase, "cam", 0, seconds, "yard", way, 7, "person")


def source_of(address: str, **options: object) -> Source:
    config = SourceStage.model_validate({"source": address, "timeout": "5s", **options})
    return source_for("cam", config)


def sink_of(source: Source, folder: Path, starts_over: bool = True, **keys: object) -> RecordSink:
    section = SinkStage.model_validate({"sink": "record", "from": "alarm", "path": folder / "{stream}.mp4", **keys})
    sink = make_stage(section, "film", Context(sources={"cam": source}, starts_over=starts_over))
    assert isinstance(sink, RecordSink)
    return sink


def recorded(source: Source, sink: RecordSink, said: Said = lambda frame: [], most: int = 10**9) -> None:
    """Every frame goes to the sink, with what is said of it."""
    stop = threading.Event()
    sink.open()
    try:
        with closing(source.frames(stop)) as frames:  # type: ignore[type-var]
            for frame in frames:
                events = said(frame)
                sink.process(result_of(frame, {"alarm": Events(tuple(events))} if events else {}))
                frame.lease.release()
                if frame.index >= most:
                    stop.set()
    finally:
        source.close()
        sink.close()


def packets(path: Path) -> list[bytes]:
    with av.open(str(path)) as file:
        return [bytes(packet) for packet in file.demux(video=0) if packet.size]


def decoded(path: Path) -> int:
    with av.open(str(path)) as file:
        return sum(1 for _ in file.decode(video=0))


def index(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "film.jsonl").read_text().splitlines()]


def test_everything_is_recorded_bit_by_bit(clip: Path, tmp_path: Path) -> None:
    """In files that begin with a keyframe and are as large as they may be."""
    source = source_of(str(clip))
    recorded(source, sink_of(source, tmp_path, starts_over=False, rotate={"size": "64KiB"}))
    lines = index(tmp_path)
    files = sorted(tmp_path.glob("cam*.mp4"), key=lambda path: path.stat().st_mtime_ns)
    assert len(lines) == len(files) > 3 and {line["stream"] for line in lines} == {"cam"}
    assert [one for file in files for one in packets(file)] == packets(clip)
    assert sum(decoded(file) for file in files) == COUNT
    assert all(line["images"] == GOP and line["bytes"] <= 1 << 16 for line in lines[:-1])
    assert sum(line["seconds"] for line in lines) == pytest.approx(COUNT / FPS, abs=0.1)


def test_a_clip_has_its_pre_roll_from_a_keyframe_and_its_post_roll(clip: Path, tmp_path: Path) -> None:
    """Of a file that is read faster than it plays, so that packets are far ahead of what is known of frames."""

    def said(frame: Frame) -> list[Event]:
        found = {70: [event("a", seconds=0.5)], 100: [event("a", "end", seconds=1.0)], 150: [event("b", way="in")]}
        return found.get(frame.index, [])

    source, asked = source_of(str(clip)), {"before": "1s", "after": "500ms"}
    recorded(source, sink_of(source, tmp_path, path=tmp_path / "{stream}-{date}-{time}.mkv", clips=asked), said)
    own, (first, second) = packets(clip), index(tmp_path)
    assert [one["id"] for one in first["events"]] == ["a"] and [one["id"] for one in second["events"]] == ["b"]
    assert first["events"][0]["place"] == "yard" and first["events"][0]["rule"] == "intruder"
    # a began at 55 (70 - 0.5 s) and ended at 85; b was at 150
    for line, begin, end in ((first, 55 - 30, 85 + 15), (second, 150 - 30, 150 + 15)):
        found = packets(tmp_path / line["path"])
        start = begin // GOP * GOP
        assert found == own[start : start + len(found)], line
        assert abs(start + len(found) - 1 - end) <= 3, line  # B frames are behind those that they need
        assert line["images"] == len(found) == decoded(tmp_path / line["path"])
        assert line["bytes"] == (tmp_path / line["path"]).stat().st_size
        assert line["begin_ns"] < line["end_ns"] and re.fullmatch(r"\d{4}-.*T.*\.\d{6}Z", line["begin"])


def test_the_twin_shows_the_images_of_the_results(clip: Path, tmp_path: Path) -> None:
    def said(frame: Frame) -> list[Event]:
        return [event("a", way="in")] if frame.index == 100 else []

    source = source_of(str(clip))
    recorded(source, sink_of(source, tmp_path, clips={"before": "1s", "after": "1s"}, annotated=True), said)
    twin, own = sorted(index(tmp_path), key=lambda line: not line["annotated"])
    assert twin["path"] == "cam-annotated.mp4" and own["path"] == "cam.mp4" and twin["events"] == own["events"]
    assert packets(tmp_path / "cam.mp4") == packets(clip)[60:][: own["images"]]
    assert decoded(tmp_path / "cam-annotated.mp4") == twin["images"] == 71  # from 60 on, as keyframes are every 60


def test_code_without_packets_has_the_twin_alone(tmp_path: Path) -> None:
    source = source_of("synthetic:noise", size="64x48", limit=30)
    recorded(source, sink_of(source, tmp_path, annotated=True))
    assert decoded(tmp_path / "cam-annotated.mp4") == 30 and not (tmp_path / "cam.mp4").exists()


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FIRST_WAIT_S", 0.05)


def images_in(path: Path) -> list[bytes]:
    """The images of an mp4: coded slices, each behind its length of four bytes (ISO/IEC 14496-15)."""
    found = []
    for data in packets(path):
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            found += [data[4:end]] if data[4] & 31 in (1, 5) else []
            data = data[end:]
    return found


def slices(units: list[bytes]) -> list[bytes]:
    return [nal for unit in units for nal in nals(unit) if nal[0] & 31 in (1, 5)]


@pytest.mark.usefixtures("_hasty")
def test_a_camera_that_comes_back_and_one_that_changes_its_size(tmp_path: Path) -> None:
    """Another connection begins another file, as does another size in the middle of one."""
    small, large = h264_units(30, size=(256, 32)), h264_units(30, size=(320, 48))
    with RtspServer([*small, *large], fps=200) as server:
        source = source_of(server.url)
        dropped = list[int]()

        def said(frame: Frame) -> list[Event]:
            if frame.index == 80 and not dropped:
                dropped.append(1)
                server.drop()
            return []

        recorded(source, sink_of(source, tmp_path, path=tmp_path / "{date}-{time}.mp4"), said, most=150)
    files = [tmp_path / line["path"] for line in index(tmp_path)]
    sizes = []
    for file in files:
        with av.open(str(file)) as video:
            sizes.append((video.streams.video[0].width, video.streams.video[0].height))
        assert decoded(file) == len(packets(file))
    assert len(sizes) >= 4 and sizes[:3] == [(256, 32), (320, 48), (256, 32)], sizes
    assert images_in(files[0]) == slices(small) and images_in(files[1]) == slices(large)
    assert images_in(files[0])[:5] == images_in(files[3 if sizes[3] == (256, 32) else 2])[:5]


@pytest.mark.usefixtures("_hasty")
def test_an_event_on_a_camera(tmp_path: Path) -> None:
    units = h264_units(40, size=(256, 32), gop=10)
    with RtspServer(units, fps=200) as server:
        source = source_of(server.url)
        at = dict[int, int]()

        def said(frame: Frame) -> list[Event]:
            at[frame.index] = time.time_ns()
            return [event("a", way="in")] if frame.index == 100 else []

        sink = sink_of(source, tmp_path, starts_over=False, clips={"before": "150ms", "after": "150ms"})
        recorded(source, sink, said, most=180)
    (line,) = index(tmp_path)
    found, own = images_in(tmp_path / line["path"]), slices(units * 6)
    assert 60 <= len(found) <= 60 + 10 + 2 and found == own[70 - 70 % 10 :][: len(found)]
    assert abs(line["begin_ns"] - at[60]) < 4e9 and abs(line["end_ns"] - at[130]) < 4e9


def test_a_full_disk_stops_the_recording_and_says_so(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written plays, and the source is not held up."""
    room, write = [100_000], os.write

    def limited(descriptor: int, data: bytes) -> int:
        room[0] -= len(data)
        if room[0] < 0 and os.path.realpath(f"/proc/self/fd/{descriptor}").endswith(".mp4"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    source = source_of(str(clip), loop=True, limit=20 * COUNT)
    with pytest.raises(StageError, match=r"cannot write .*cam.mp4.*\n?.*No space left") as caught:
        recorded(source, sink_of(source, tmp_path, starts_over=False, memory="1MiB"))
    assert "what was written so far plays" in caught.value.why
    assert 0 < decoded(tmp_path / "cam.mp4") < COUNT
    room[0] = 10**9  # and the stage is opened again, when it is tried again
    source = source_of(str(clip))
    recorded(source, sink_of(source, tmp_path, starts_over=False))
    assert decoded(tmp_path / "cam.mp4") == COUNT


def test_a_full_disk_makes_room_by_its_rule(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = OutputFile.write

    def limited(self: OutputFile, data: bytes, make_room: Callable[[], bool] = lambda: False) -> None:
        while sum(path.stat().st_size for path in tmp_path.glob("*.mp4")) + len(data) > 300_000:
            if not make_room():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, data, make_room)

    monkeypatch.setattr(OutputFile, "write", limited)
    source = source_of(str(clip), loop=True, limit=2 * COUNT)
    keys: dict[str, object] = {"rotate": {"size": "64KiB"}, "keep": {"age": "1h"}}
    recorded(source, sink_of(source, tmp_path, starts_over=False, **keys))
    kept = sorted(tmp_path.glob("*.mp4"), key=lambda path: path.stat().st_mtime_ns)
    assert len(index(tmp_path)) > len(kept) > 2 and sum(path.stat().st_size for path in kept) <= 300_000


FILE = """
schema: 1
name: p
stages:
  cam: {source: %s}
  alarm: {stage: events, from: cam, rules: {crowd: {count: 2}}}
  film: {sink: record, from: alarm, path: "%s", %s}
"""


@pytest.mark.parametrize(
    ("source", "path", "more", "said"),
    [
        ("synthetic:noise", "a.mp4", "", "records packets, and source 'cam' has none"),
        ("csi://0", "a.mp4", "", "annotated: only encodes what results show; or use sink: video"),
        ("a.mp4", "a.webm", "", "cannot write a.webm; end it in .mp4"),
        ("rtsp://x/y", "a.mp4", "clips: {}, rotate: {every: 1h}", "rotate: has no meaning with clips:"),
        ("rtsp://x/y", "a.mp4", "clips: {rules: [crowds]}", "rule 'crowds', which no stage before it has"),
        ("rtsp://x/y", "a.mp4", "memory: 5kB", "memory: at least 1MiB"),
        ("rtsp://x/y", "a.mp4", "rotate: {size: 3GB}, keep: {size: 1GB}", "leaves no room for one file"),
        ("rtsp://x/y", "a.mp4", "on_error: log", "on_error: log is not possible here"),
    ],
)
def test_what_cannot_be_recorded_is_refused(source: str, path: str, more: str, said: str, tmp_path: Path) -> None:
    assert said in str(refused(tmp_path, FILE % (source, path, more)))


def test_streams_do_not_share_a_file_and_clips_need_events(tmp_path: Path) -> None:
    two = 'stages:\n  a: {source: "rtsp://x/a"}\n  b: {source: "rtsp://x/b"}\n'
    head = "schema: 1\nname: p\n"
    shared = f"{head}{two}  film: {{sink: record, from: [a, b], path: a.mp4}}\n"
    assert "put {stream} into path" in str(refused(tmp_path, shared))
    hidden = "  hide: {stage: privacy, classes: person, from: a}\n  film: {sink: record, from: hide, path: a.mp4%s}\n"
    assert "everything is seen that 'hide' hides" in str(refused(tmp_path, head + two + hidden % ", annotated: true"))
    pipeline(tmp_path, head + two + hidden % ", annotated: only")
    unsaid = f"{head}{two}  film: {{sink: record, from: a, path: a.mp4, clips: {{}}}}\n"
    assert "no stage before it makes any" in str(refused(tmp_path, unsaid))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("hevc.mp4", "libx265"),
        ("hevc.mkv", "libx265"),
        ("vp9.webm", "libvpx-vp9"),
        ("mjpeg.avi", "mjpeg"),
        ("mpeg4.avi", "mpeg4"),
        ("h264.flv", "libx264"),
        ("h264.ts", "libx264"),
        ("raw.h264", ""),
    ],
)
def test_every_codec_in_every_container(name: str, codec: str, suffix: str, tmp_path: Path) -> None:
    """Also of a file without any times, and of those whose units are between start codes."""
    origin, size = tmp_path / name, (256, 64)
    if codec:
        options = {"x265-params": "log-level=error"} if codec == "libx265" else {}
        pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        write_clip(origin, 100, size=size, codec=codec, pix_fmt=pixels, options=options)
    else:
        origin.write_bytes(b"".join(h264_units(100, size=size)))
    source = source_of(str(origin))
    recorded(source, sink_of(source, tmp_path, path=tmp_path / f"film.{suffix}"))
    (line,) = index(tmp_path)
    assert line["images"] == decoded(tmp_path / f"film.{suffix}") == 100
    assert line["seconds"] == pytest.approx(100 / 30, abs=0.05)
    same = packets(tmp_path / f"film.{suffix}") == packets(origin)
    assert same is (name not in ("h264.ts", "raw.h264"))
