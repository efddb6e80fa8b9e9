"""Times of frames, as the containers of real recordings have them: with B frames, gaps, edits, and seams."""

import itertools
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.runtime.frame import Frame
from edgert.stages.context import Context
from edgert.stages.source.kinds import source_for
from edgert.stages.source.packets import Sample
from tests.helpers.clips import U8, numbered, trimmed, write_clip
from tests.helpers.counter import read_counter

FPS = 10
X264 = {"preset": "ultrafast", "g": "12", "bf": "2", "crf": "18"}
OPTIONS = {"libx264": X264, "libx265": {"x265-params": "bframes=2:keyint=12:log-level=none", "preset": "ultrafast"}}


def frames_of(path: Path, **options: object) -> list[Frame]:
    config = SourceStage.model_validate({"source": path.name, **options})
    source = source_for("cam", config, Context(path.parent))
    frames = list(source.frames(threading.Event()))
    source.close()
    return frames


def seconds(frames: Iterable[Frame]) -> list[float]:
    return [round(frame.media_ns / 1e9, 3) for frame in frames]


def even(count: int) -> list[float]:
    return [round(number / FPS, 3) for number in range(count)]


def clip_of(path: Path, images: int | Iterable[U8] = 30, codec: str = "libx264", **muxer: str) -> Path:
    options = OPTIONS.get(codec, {"bf": "2"} if codec == "mpeg4" else {})
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    return write_clip(path, images, fps=FPS, codec=codec, options=options, pix_fmt=pix_fmt, container=muxer)


def with_gaps(path: Path, numbers: Iterable[int], codec: str = "libx264") -> Path:
    """Frames of these numbers only, each at its own time."""
    wanted = set(numbers)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=FPS, options=OPTIONS.get(codec, {}))
        stream.width, stream.height = 320, 240
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number, image in enumerate(numbered(max(wanted) + 1)):
            if number in wanted:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), "bgr24")
                frame.pts, frame.time_base = number, 1 / stream.codec_context.framerate
                out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *((f"a.{suffix}", "libx264") for suffix in ("avi", "mp4", "mov", "mkv", "ts", "flv", "h264")),
        *((f"a.{suffix}", "libx265") for suffix in ("mp4", "mkv", "ts", "hevc")),
        *((f"a.{suffix}", "mpeg4") for suffix in ("avi", "mp4", "mkv", "ts")),
    ],
)
def test_images_that_are_stored_in_another_order_have_their_own_times(tmp_path: Path, name: str, codec: str) -> None:
    """AVI knows times of decoding only, and files of nothing but images none: their own header has the rate."""
    frames = frames_of(clip_of(tmp_path / name, codec=codec))
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(30))
    assert seconds(frames) == even(30)


@pytest.mark.parametrize(
    ("name", "codec"), [("a.avi", "mjpeg"), ("a.avi", "libx264"), ("a.mp4", "libx264"), ("a.mkv", "libx264")]
)
@pytest.mark.parametrize("gap", [range(10, 26), range(20, 29)])
def test_a_recording_of_which_frames_were_dropped_is_whole(tmp_path: Path, name: str, codec: str, gap: range) -> None:
    numbers = [number for number in range(30) if number not in gap]
    found = seconds(frames_of(with_gaps(tmp_path / name, numbers, codec)))
    assert len(found) == len(numbers) and found[:8] == even(8)
    if (name, codec) != ("a.avi", "libx264") or gap.stop < 28:  # AVI has no times for the last ones of these
        assert found == [number / FPS for number in numbers]


def test_an_avi_whose_last_frames_were_dropped_is_whole(tmp_path: Path) -> None:
    """An index that counts more frames than were stored, and a length that is not reached."""
    clip = with_gaps(tmp_path / "a.avi", range(10), "mjpeg")
    data = bytearray(clip.read_bytes())
    for place in (data.index(b"avih") + 8 + 16, data.index(b"strh") + 8 + 32):
        struct.pack_into("<I", data, place, 30)
    clip.write_bytes(data)
    assert seconds(frames_of(clip)) == even(10)


def test_an_avi_is_cut_off_where_bytes_are_missing(tmp_path: Path) -> None:
    clip = with_gaps(tmp_path / "a.avi", range(30), "mjpeg")
    size = clip.stat().st_size
    clip.write_bytes(clip.read_bytes()[: size * 6 // 10])
    with pytest.raises(StageError, match=f"it ends after {size * 6 // 10} of {size} bytes"):
        frames_of(clip)


def test_a_video_that_was_trimmed_by_an_edit_list_is_whole(tmp_path: Path) -> None:
    """As phones trim: the file keeps all frames, and says which of them count."""
    frames = frames_of(trimmed(clip_of(tmp_path / "a.mp4", 60), 3.55))
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(36, 51))
    assert seconds(frames) == even(15)


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param((0, 0, 0), id="begins anew"),
        pytest.param((0, 1000), id="leaps forward"),
        pytest.param((1000, 0), id="leaps back"),
        pytest.param((5, 0), id="goes back a little"),
        pytest.param((95_441,), id="runs over within a second"),
        pytest.param((95_300, 95_441.5, 30), id="runs over from one to the next"),
    ],
)
@pytest.mark.parametrize("suffix", ["ts", "mkv"])
@pytest.mark.parametrize("count", [6, 30])
def test_joined_recordings_go_on(tmp_path: Path, offsets: tuple[float, ...], suffix: str, count: int) -> None:
    offsets = offsets[:2] if suffix == "mkv" else offsets  # FFmpeg reads no third
    if suffix == "mkv" and offsets[0] < offsets[-1]:
        pytest.skip("a gap in a Matroska file is a gap")
    parts = [
        clip_of(tmp_path / f"{number}.{suffix}", count, output_ts_offset=str(offset)).read_bytes()
        for number, offset in enumerate(offsets)
    ]
    (tmp_path / f"joined.{suffix}").write_bytes(b"".join(parts))
    frames = frames_of(tmp_path / f"joined.{suffix}")
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(count)) * len(offsets)
    assert seconds(frames) == even(count * len(offsets))


def test_a_gap_of_some_seconds_in_a_transport_stream_is_a_gap(tmp_path: Path) -> None:
    parts = [clip_of(tmp_path / f"{at}.ts", 10, output_ts_offset=str(at)).read_bytes() for at in (1, 7)]
    (tmp_path / "joined.ts").write_bytes(b"".join(parts))
    found = seconds(frames_of(tmp_path / "joined.ts"))
    assert found == [*even(10), *(round(6 + at, 3) for at in even(10))]


def test_a_recorder_is_given_the_same_times(tmp_path: Path) -> None:
    """Packets are recorded as they are, by times that go on over the seam as those of the frames do."""
    part = clip_of(tmp_path / "a.ts", 20).read_bytes()
    (tmp_path / "joined.ts").write_bytes(part + part)
    source = source_for("cam", SourceStage(source="joined.ts"), Context(tmp_path))
    inbox = source.tap.listen(1 << 24, threading.Event())  # type: ignore[attr-defined]
    frames = list(source.frames(threading.Event()))
    samples: list[Sample] = list(inbox.take())
    source.close()
    shown = sorted(sample.at_ns for sample in samples)
    assert [round((at_ns - shown[0]) / 1e9, 3) for at_ns in shown] == seconds(frames) == even(40)
    assert all(one.dts < other.dts for one, other in itertools.pairwise(samples))
