import errno
import itertools
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.runtime.frame import U8, Color, PixelFormat
from edgert.runtime.records import Result
from edgert.stages.sink import encoders
from edgert.stages.sink.muxed_file import DurableFile
from edgert.stages.sink.output_file import OutputFile
from edgert.stages.sink.video import VideoSink
from tests.helpers.frames import frame_of
from tests.helpers.kill import kill_when_it_says_go
from tests.helpers.written import opened

STEP_NS = 33_366_667  # 29.97 Hz


def scene(index: int, width: int, height: int) -> U8:
    """A smooth BGR image that differs from frame to frame and can be told apart by its mean."""
    across = np.linspace(40, 120, width)[None, :, None] + np.linspace(0, 40, height)[:, None, None]
    return (across + np.array([0, 20, 40]) + index % 40).astype(np.uint8)


def results(count: int, width: int = 160, height: int = 120, stream: str = "camera") -> Iterator[Result]:
    for index in range(count):
        pixels = (scene(index, width, height),)
        yield Result(frame_of(width, height, pixels=pixels, index=index, media_ns=index * STEP_NS, stream=stream))


def write(sink: VideoSink, items: Iterator[Result] | list[Result]) -> None:
    with opened(sink):
        for item in items:
            sink.process(item)


def read(path: Path) -> list[tuple[float, U8]]:
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        return [(float(f.pts * stream.time_base), f.to_ndarray(format="bgr24")) for f in file.decode(stream)]


def shown(path: Path) -> list[tuple[float, float]]:
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        return [(float(one.pts * stream.time_base), float(one.to_ndarray()[30, 40])) for one in file.decode(stream)]


def decodable(path: Path) -> int:
    with av.open(str(path)) as file:
        return sum(1 for _ in file.decode(video=0))


@pytest.mark.parametrize(("codec", "name", "tag"), [("h264", "h264", "avc1"), ("h265", "hevc", "hvc1")])
def test_every_frame_comes_back_at_its_time(tmp_path: Path, codec: encoders.Codec, name: str, tag: str) -> None:
    path = tmp_path / "new" / "out.mp4"
    write(VideoSink("video", path, codec=codec), results(45))
    frames = read(path)
    assert len(frames) == 45
    assert np.allclose([at for at, _ in frames], np.arange(45) * STEP_NS / 1e9, atol=2e-4)
    assert max(np.abs(p.astype(int) - scene(n, 160, 120)).mean() for n, (_, p) in enumerate(frames)) < 3
    with av.open(str(path)) as file:
        context = file.streams.video[0].codec_context
        assert (context.name, context.codec_tag, context.pix_fmt) == (name, tag, "yuv420p")
        assert file.streams.video[0].frames == 45
        assert file.duration is not None and abs(file.duration / av.time_base - 45 * STEP_NS / 1e9) < 0.01


def test_gaps_and_repeated_times_play_at_the_right_speed(tmp_path: Path) -> None:
    times = [5_000_000_000 + n for n in (0, 40_000_000, 40_000_000, 1_000_000_000, 1_040_000_000)]
    items = [replace(r, frame=replace(r.frame, media_ns=at)) for r, at in zip(results(5), times, strict=True)]
    write(VideoSink("video", tmp_path / "out.mp4"), items)
    shown = [at for at, _ in read(tmp_path / "out.mp4")]
    assert np.allclose(shown, [0, 0.04, 0.04, 1.0, 1.04], atol=2e-4)
    assert all(later > earlier for earlier, later in itertools.pairwise(shown))


def test_a_fixed_rate(tmp_path: Path) -> None:
    write(VideoSink("video", tmp_path / "out.mp4", fps=12.5), results(10))
    assert np.allclose([at for at, _ in read(tmp_path / "out.mp4")], np.arange(10) / 12.5, atol=1e-4)


@pytest.mark.parametrize("form", ["i420", "nv12", "yuyv", "bgr", "rgb", "gray"])
@pytest.mark.parametrize("size", [(64, 48), (65, 49)])
def test_every_pixel_format_with_its_colors(tmp_path: Path, form: PixelFormat, size: tuple[int, int]) -> None:
    counter = Counter()
    color = Color("bt709", full_range=False)
    levels = {"i420": (120, 90, 180), "nv12": (120, (90, 180)), "yuyv": ((120, 120),)}
    frame = frame_of(*size, form, counter=counter, color=color, padding=10)
    for plane, level in zip(frame.planes, levels.get(form, (100,)), strict=True):
        plane[...] = level
    write(VideoSink("video", tmp_path / "out.mp4", quality=8), [Result(frame)])
    with av.open(str(tmp_path / "out.mp4")) as file:
        codec = file.streams.video[0].codec_context
        (shown,) = file.decode(video=0)
        direct = form in ("i420", "nv12")
        assert (shown.width, shown.height) == (64, 48)
        assert (codec.colorspace, codec.color_range) == ((1, 1) if direct else (6, 1))
        if direct:
            assert np.abs(shown.to_ndarray()[:48].astype(int) - 120).max() <= 2
        image = shown.to_ndarray(format="bgr24", src_colorspace="ITU709" if direct else "ITU601")
    assert np.abs(image.astype(int) - frame.to_bgr()[:48, :64]).max() <= 6
    assert counter.read().bytes_copied >= 64 * 48 * 3 // 2


def test_the_drawn_image_is_preferred(tmp_path: Path) -> None:
    drawn = np.full((40, 60, 3), (200, 40, 90), np.uint8)
    write(VideoSink("video", tmp_path / "out.mkv", quality=5), [replace(r, image=drawn) for r in results(3)])
    assert np.abs(read(tmp_path / "out.mkv")[2][1].astype(int) - drawn).max() <= 6


def test_nothing_is_allocated_per_frame(tmp_path: Path) -> None:
    counter = Counter()
    with opened(VideoSink("video", tmp_path / "out.mp4")) as sink:
        for index in range(120):
            if index == 40:
                before = counter.read().allocations
            sink.process(Result(frame_of(320, 240, "i420", counter=counter, index=index % 7, media_ns=index * STEP_NS)))
    assert counter.read().allocations == before
    assert counter.read().copies == 120


def test_one_file_per_stream(tmp_path: Path) -> None:
    both = [r for pair in zip(results(5, stream="a"), results(5, 80, 60, "b"), strict=True) for r in pair]
    write(VideoSink("video", tmp_path / "{stream}.mp4"), both)
    assert [read(tmp_path / f"{s}.mp4")[4][1].shape for s in "ab"] == [(120, 160, 3), (60, 80, 3)]
    sink = VideoSink("video", tmp_path / "out.mp4")
    with pytest.raises(StageError, match="two streams"):
        write(sink, both)
    sink.close()
    assert decodable(tmp_path / "out.mp4") == 1


def test_another_size_begins_another_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(VideoSink("video", tmp_path / "out.mp4"), [*results(8), *results(3, 200)])
    (earlier,) = (path for path in tmp_path.iterdir() if path.name != "out.mp4")
    assert re.fullmatch(r"out-\d{4}-\d\d-\d\d-\d{6}\.mp4", earlier.name)
    assert [frame.shape for _, frame in read(earlier)] == [(120, 160, 3)] * 8
    assert [frame.shape for _, frame in read(tmp_path / "out.mp4")] == [(120, 200, 3)] * 3
    assert "changed from 160x120 to 200x120" in caplog.text


def test_other_colors_begin_another_file(tmp_path: Path) -> None:
    write(
        VideoSink("video", tmp_path / "out.mkv"),
        [
            Result(frame_of(160, 120, "i420", media_ns=n, color=Color(matrix)))
            for n, matrix in enumerate(("bt601", "bt709"))
        ],
    )
    spaces = []
    for path in sorted(tmp_path.iterdir()):
        with av.open(str(path)) as file:
            spaces.append(file.streams.video[0].codec_context.colorspace)
    assert spaces == [6, 1]


def test_a_size_that_changes_again_and_again_is_an_error(tmp_path: Path) -> None:
    sink = VideoSink("video", tmp_path / "out.mp4")
    with opened(sink), pytest.raises(StageError, match="from 200x120 to 160x120") as caught:
        for _ in range(20):
            for item in (*results(1), *results(1, 200)):
                sink.process(item)
    assert caught.value.fix and len(list(tmp_path.iterdir())) == 10


def test_without_frames_there_is_no_file(tmp_path: Path) -> None:
    write(VideoSink("video", tmp_path / "new" / "out.mp4"), [])
    assert list((tmp_path / "new").iterdir()) == []


def test_an_encoder_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(encoders.ON_CPU, "h264", ("libnowhere", "mpeg4"))
    write(VideoSink("video", tmp_path / "out.mp4"), results(10))
    assert "libnowhere" in caplog.text and len(read(tmp_path / "out.mp4")) == 10
    monkeypatch.setitem(encoders.ON_CPU, "h264", ("libnowhere",))
    with pytest.raises(DeviceError, match="no video encoder") as caught:
        VideoSink("video", tmp_path / "out.mp4").open()
    assert caught.value.fix.endswith("use sink: images")
    monkeypatch.setitem(encoders.ON_CPU, "h265", ("libnowhere",))
    with pytest.raises(DeviceError, match="no video encoder") as caught:
        VideoSink("video", tmp_path / "out.mp4", codec="h265").open()
    assert caught.value.fix.endswith("or codec: h264")


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_full_disk_stops_the_pipeline_and_the_file_plays(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, whole = [400_000], os.write

    def small_disk(file: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = whole(file, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr("edgert.stages.sink.output_file.os.write", small_disk)
    path = tmp_path / f"out.{suffix}"
    with opened(VideoSink("video", path)) as sink, pytest.raises(StageError, match="cannot write") as caught:
        for index in range(2000):
            frame = frame_of(160, 120, "i420", index=index, media_ns=index * STEP_NS)
            sink.process(Result(frame))
    assert "No space left" in caught.value.why and caught.value.where == "stages.video"
    assert path.stat().st_size <= 400_000
    if suffix == "mp4":
        assert decodable(path) >= 20
    else:
        with av.open(str(path)) as file:
            assert sum(1 for packet in file.demux(video=0) if packet.size) >= 20


@pytest.mark.parametrize("room_bytes", [0, 100, 1500])
def test_each_try_on_a_full_disk_leaves_nothing(
    tmp_path: Path, room_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write

    def small_disk(file: int, data: memoryview) -> int:
        room = room_bytes - os.fstat(file).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(file, data[:room])

    monkeypatch.setattr("edgert.stages.sink.output_file.os.write", small_disk)
    for _ in range(3):
        sink = VideoSink("video", tmp_path / "out-{date}-{time}.mp4")
        with opened(sink), pytest.raises(StageError, match="cannot write"):
            for result in results(200):
                sink.process(result)
        assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    sink = VideoSink("video", path)
    sink.open()
    for result in results(70):
        sink.process(result)
    file = sink._files["camera"]._file
    file.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StageError, match="cannot write"):
        sink.close()
    assert decodable(path) >= 25


def test_a_device_without_room() -> None:
    output = OutputFile(Path("/dev/full"), "stages.video")
    file = DurableFile(output)
    assert file.write(b"abc") == 3
    assert file.error is not None and file.error.errno == errno.ENOSPC
    output.close()


WRITER = """
import sys, time
from pathlib import Path
from edgert.stages.sink.video import VideoSink
from tests.integration.test_sink_video import results
sink = VideoSink("video", Path(sys.argv[1]))
sink.open()
for number, result in enumerate(results(100000)):
    sink.process(result)
    if number == 150:
        print("go", flush=True)
"""


@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv"])
def test_a_killed_process_leaves_a_file_that_plays(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    kill_when_it_says_go(WRITER, path)
    assert decodable(path) >= 150 - 2 * 30  # all but the last second, and what the encoder held


@pytest.mark.timing
def test_closing_is_quick(tmp_path: Path) -> None:
    with opened(VideoSink("video", tmp_path / "out.mp4")) as sink:
        for result in results(60, 1280, 720):
            sink.process(result)
        started = time.monotonic()
    assert time.monotonic() - started < 0.8  # what is left of the 2 s after results have drained
