"""Video files: whole, looped, damaged, cut off, or none at all."""

import threading
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.stream import Stream
from av.video.stream import VideoStream

from edgert.clock import REAL, Clock
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counter
from edgert.runtime.frame import Color, Frame
from edgert.stages.context import Context
from edgert.stages.source.kinds import source_for
from tests.helpers.clips import flip_bytes, numbered, write_clip
from tests.helpers.counter import read_counter
from tests.helpers.errors import Exactly, raises
from tests.helpers.virtual_clock import VirtualClock


def read(path: Path, counter: Counter | None = None, clock: Clock = REAL, **options: object) -> list[Frame]:
    config = SourceStage.model_validate({"source": path.name, **options})
    source = source_for("cam", config, Context(path.parent, clock=clock, counter=counter or Counter()))
    frames = list(source.frames(threading.Event()))
    source.close()
    return frames


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", 60)


def test_every_frame_comes_once_in_order_uncopied(clip: Path) -> None:
    counter = Counter()
    frames = read(clip, counter)
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(60))
    assert [frame.index for frame in frames] == list(range(60))
    assert frames[30].media_ns == pytest.approx(1e9, abs=2)
    assert counter.read().copies == 0


def test_planes_have_the_documented_shapes_and_may_not_be_painted_on(clip: Path) -> None:
    frame = read(clip, limit=1)[0]
    assert frame.format == "i420"
    assert [plane.shape for plane in frame.planes] == [(240, 320), (120, 160), (120, 160)]
    with pytest.raises(ValueError, match="read-only"):
        frame.planes[0][0, 0] = 1


def test_frames_outlive_the_file(clip: Path) -> None:
    frames = read(clip, limit=5)
    read(clip)
    assert [read_counter(frame.planes[0]) for frame in frames] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("suffix", "codec", "pix_fmt", "format"),
    [
        ("mp4", "libx264", "yuv420p", "i420"),
        ("avi", "rawvideo", "yuyv422", "yuyv"),
        ("avi", "rawvideo", "bgr24", "bgr"),
        ("nut", "rawvideo", "rgb24", "rgb"),
        ("nut", "rawvideo", "nv12", "nv12"),
        ("nut", "rawvideo", "gray", "gray"),
    ],
)
def test_known_formats_are_lent_as_they_lie(tmp_path: Path, suffix: str, codec: str, pix_fmt: str, format: str) -> None:
    counter = Counter()
    frame = read(write_clip(tmp_path / f"a.{suffix}", 3, codec=codec, pix_fmt=pix_fmt), counter)[2]
    assert frame.format == format
    assert counter.read().copies == 0
    shown = frame.planes[0][..., 0] if format == "yuyv" else frame.planes[0]
    assert read_counter(shown) == 2
    assert np.abs(frame.to_bgr()[16:].astype(int) - list(numbered(3))[2][16:]).mean() < (
        100 if format == "gray" else 30
    )


@pytest.mark.parametrize(
    ("pix_fmt", "codec", "format"),
    [("yuv444p", "libx264", "i420"), ("yuv422p10le", "rawvideo", "i420"), ("bgra", "rawvideo", "bgr")],
)
def test_other_formats_are_converted_and_counted(tmp_path: Path, pix_fmt: str, codec: str, format: str) -> None:
    counter = Counter()
    frames = read(write_clip(tmp_path / "a.nut", 3, codec=codec, pix_fmt=pix_fmt), counter)
    assert [frame.format for frame in frames] == [format] * 3
    assert counter.read().copies == 3
    assert [read_counter(frame.planes[0]) for frame in frames] == [0, 1, 2]
    assert frames[2].media_ns > 0


@pytest.mark.parametrize("size", [(320, 240), (322, 242), (318, 180)])
def test_odd_strides_and_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    frame = read(write_clip(tmp_path / "a.mp4", 2, size=size))[1]
    width, height = size
    assert [plane.shape for plane in frame.planes] == [(height, width)] + [(height // 2, width // 2)] * 2
    assert read_counter(frame.planes[0]) == 1


def test_odd_width_rounds_chroma_up(tmp_path: Path) -> None:
    frame = read(write_clip(tmp_path / "a.nut", 1, size=(321, 241), codec="ffv1"))[0]
    assert [plane.shape for plane in frame.planes] == [(241, 321), (121, 161), (121, 161)]


@pytest.mark.parametrize(
    ("colorspace", "color_range", "color"),
    [
        (2, 0, Color("bt601", False)),
        (1, 1, Color("bt709", False)),
        (5, 2, Color("bt601", True)),
        (6, 1, Color("bt601", False)),
        (9, 1, Color("bt709", False)),
    ],
)
def test_color_is_what_the_stream_says(tmp_path: Path, colorspace: int, color_range: int, color: Color) -> None:
    clip = write_clip(tmp_path / "a.mp4", 2, colorspace=colorspace, color_range=color_range)
    assert read(clip)[0].color == color


def test_mjpeg_is_full_range(tmp_path: Path) -> None:
    frame = read(write_clip(tmp_path / "a.avi", 2, codec="mjpeg", pix_fmt="yuvj420p"))[0]
    assert (frame.format, frame.color.full_range) == ("i420", True)


@pytest.mark.skipif(
    not hasattr(VideoStream, "set_display_rotation"), reason="this PyAV is too old to write a rotated clip"
)
@pytest.mark.parametrize("rotation", [90, -90, 180])
def test_video_filmed_upright_is_turned_as_opencv_does(tmp_path: Path, rotation: int) -> None:
    counter = Counter()
    clip = write_clip(tmp_path / "phone.mp4", 3, rotation=rotation)
    frame = read(clip, counter)[0]
    good, peer = cv2.VideoCapture(str(clip)).read()
    assert good
    assert peer.shape == (frame.height, frame.width, 3)
    assert np.abs(frame.to_bgr().astype(int) - peer).mean() < 3
    assert counter.read().copies == 4, "three frames turned, one shown"


def test_loop_goes_on_counting(clip: Path) -> None:
    frames = read(clip, loop=True, limit=150)
    assert [frame.index for frame in frames] == list(range(150))
    media = [frame.media_ns for frame in frames]
    steps = np.diff(media)
    assert steps.min() > 30_000_000
    assert steps.max() < 40_000_000
    assert [read_counter(frame.planes[0]) for frame in frames[58:62]] == [58, 59, 0, 1]


def test_fps_leaves_frames_out_evenly(clip: Path) -> None:
    frames = read(clip, fps=10)
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(0, 60, 3))
    assert [frame.index for frame in frames] == list(range(20))


def test_realtime_holds_frames_back(clip: Path) -> None:
    clock = VirtualClock()
    frames = read(clip, clock=clock, realtime=True, limit=31)
    assert clock.now_ns() == pytest.approx(1e9, abs=10)
    assert frames[15].timestamp_ns == pytest.approx(0.5e9, abs=10)


def test_damaged_frames_are_skipped_and_counted(tmp_path: Path) -> None:
    clip = flip_bytes(write_clip(tmp_path / "a.mp4", 90), 60)
    source = source_for("cam", SourceStage(source=str(clip)), Context(tmp_path))
    frames = list(source.frames(threading.Event()))
    skipped = source.stats().skipped
    source.close()
    assert 0 < skipped < 60
    assert len(frames) + skipped == pytest.approx(90, abs=2)
    assert source.stats().skipped == skipped, "closing does not count twice"


@pytest.mark.parametrize("name", ["faststart.mp4", "plain.mp4", "a.mkv", "a.avi"])
def test_a_cut_off_recording_is_an_error(tmp_path: Path, name: str) -> None:
    container = {"movflags": "faststart"} if name == "faststart.mp4" else {}
    codec = "mpeg4" if name.endswith("avi") else "libx264"
    clip = write_clip(tmp_path / name, 90, container=container, codec=codec)
    clip.write_bytes(clip.read_bytes()[: clip.stat().st_size * 6 // 10])
    with raises(StageError, what=name, why=True, where=Exactly("stages.cam"), fix=True):
        read(clip)


@pytest.mark.skipif(not hasattr(Stream, "index_entries"), reason="this PyAV is too old to show a file's index")
def test_a_cut_off_recording_with_an_index_is_refused_before_it_starts(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", 60, container={"movflags": "faststart"})
    clip.write_bytes(clip.read_bytes()[: clip.stat().st_size * 6 // 10])
    with pytest.raises(StageError, match="cut off"):
        source_for("cam", SourceStage(source=str(clip)), Context(tmp_path))


def _text(path: Path) -> None:
    path.write_text("schema: 1\n" * 200)


def _empty(path: Path) -> None:
    path.touch()


def _sound(path: Path) -> None:
    with av.open(str(path), "w", format="wav") as out:
        stream = out.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))


@pytest.mark.parametrize(
    ("make", "what", "why"),
    [
        (_text, "cannot open", "not a video"),
        (_empty, "cannot open", "not a video"),
        (_sound, "cannot play", "it holds no video, only audio"),
        (Path.mkdir, "no image", "the folder holds none"),
    ],
)
def test_what_is_no_video_is_refused(tmp_path: Path, make: object, what: str, why: str) -> None:
    path = tmp_path / "clip.mp4"
    make(path)  # type: ignore[operator]
    with raises(StageError, what=what, why=why, fix=True):
        read(path)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "dock.mp4").touch()
    with raises(StageError, why="did you mean 'dock.mp4'?"):
        read(tmp_path / "dok.mp4")


def test_a_file_without_one_good_frame_is_an_error(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.avi", 10, codec="mjpeg", pix_fmt="yuvj420p")
    data = bytearray(clip.read_bytes())
    start = data.find(b"movi")
    end = data.find(b"idx1")
    for place in range(start + 12, end):
        if data[place - 1] == 0xFF or data[place] == 0xFF:
            data[place] = 0  # no marker, no JPEG
    clip.write_bytes(data)
    with pytest.raises(StageError, match=r"gave no frame|cannot continue|cannot open"):
        read(clip)


def test_stop_is_honored_between_two_frames(clip: Path) -> None:
    stop = threading.Event()
    source = source_for("cam", SourceStage(source=str(clip), loop=True), Context(clip.parent))
    seen = 0
    for frame in source.frames(stop):
        frame.lease.release()
        seen += 1
        if seen == 5:
            stop.set()
    assert seen == 5
    source.close()
