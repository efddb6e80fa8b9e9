"""GStreamer pipelines that really run; skipped where PyGObject is not installed."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.runtime.frame import Frame
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import gst, gst as gst_map
from edgert.stages.source.kinds import source_for
from tests.helpers.errors import raises

pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi gir1.2-gstreamer-1.0")

SIZE = "width=322,height=242"


def source(pipeline: str, counter: Counter | None = None, **options: object) -> Source:
    config = SourceStage.model_validate({"source": f"gst:{pipeline}", "timeout": "2s", **options})
    return source_for("cam", config, Context(counter=counter or Counter()))


def frames_of(pipeline: str, counter: Counter | None = None, **options: object) -> list[Frame]:
    made = source(pipeline, counter, **options)
    frames = list(made.frames(threading.Event()))
    made.close()
    return frames


def test_every_frame_comes_in_order_and_ends_with_the_stream() -> None:
    counter = Counter()
    frames = frames_of(f"videotestsrc num-buffers=25 ! video/x-raw,format=NV12,{SIZE},framerate=25/1", counter)
    assert [frame.index for frame in frames] == list(range(25))
    assert [frame.media_ns for frame in frames] == [n * 40_000_000 for n in range(25)]
    assert counter.read().copies == 0


@pytest.mark.parametrize(
    ("name", "format", "shapes"),
    [
        ("NV12", "nv12", [(242, 322), (121, 161, 2)]),
        ("I420", "i420", [(242, 322), (121, 161), (121, 161)]),
        ("YUY2", "yuyv", [(242, 322, 2)]),
        ("BGR", "bgr", [(242, 322, 3)]),
        ("RGB", "rgb", [(242, 322, 3)]),
        ("GRAY8", "gray", [(242, 322)]),
    ],
)
def test_planes_lie_where_the_format_says(name: str, format: str, shapes: list[tuple[int, ...]]) -> None:
    frame = frames_of(f"videotestsrc num-buffers=1 pattern=red ! video/x-raw,format={name},{SIZE}")[0]
    assert frame.format == format
    assert [plane.shape for plane in frame.planes] == shapes
    assert frame.planes[0].strides[0] % 4 == 0, "GStreamer pads rows to four bytes"
    assert not frame.planes[0].flags.writeable
    for plane in frame.planes:
        first = np.atleast_1d(plane[0, 0])
        assert (np.abs(plane[:, ::2].astype(int) - first).max()) <= 2, "one color, without a byte of padding in it"


def test_red_is_red() -> None:
    frame = frames_of(f"videotestsrc num-buffers=1 pattern=red ! video/x-raw,format=BGR,{SIZE}")[0]
    assert frame.planes[0][100, 100].tolist() == [0, 0, 255]


def test_color_is_what_the_caps_say() -> None:
    caps = f"video/x-raw,format=NV12,{SIZE},colorimetry="
    hd = frames_of(f"videotestsrc num-buffers=1 ! {caps}bt709")[0]
    sd = frames_of(f"videotestsrc num-buffers=1 ! {caps}bt601")[0]
    full = frames_of(f"videotestsrc num-buffers=1 ! {caps}1:4:0:0")[0]
    assert (hd.color.matrix, sd.color.matrix) == ("bt709", "bt601")
    assert (hd.color.full_range, full.color.full_range) == (False, True)


def test_a_buffer_goes_back_when_its_lease_ends_and_never_earlier() -> None:
    unmapped: list[int] = []

    class Watched(gst_map.Mapping):
        def __del__(self) -> None:
            unmapped.append(id(self))
            super().__del__()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gst, "Mapping", Watched)
        frames = frames_of(f"videotestsrc num-buffers=3 ! video/x-raw,format=GRAY8,{SIZE}")
        assert unmapped == []
        kept = frames[0].planes[0]
        before = kept.copy()
        for frame in frames:
            frame.lease.release()
        del frame, frames
        gc.collect()
        assert len(unmapped) == 2, "the third has an array on it"
        assert (kept == before).all()
        del kept
        assert len(unmapped) == 3


def test_a_wrong_element_says_what_gstreamer_says() -> None:
    with raises(DeviceError, why="nosuchsrc", fix="gst-inspect-1.0"):
        frames_of("nosuchsrc ! videoconvert")


def test_a_missing_file_says_which_element_and_hides_passwords() -> None:
    with raises(DeviceError, why="/nowhere/a.raw"):
        frames_of("filesrc location=/nowhere/a.raw ! rawvideoparse width=8 height=8")
    with pytest.raises(DeviceError) as caught:
        frames_of("nosuchsrc location=rtsp://bob:s3cret@cam/live")
    assert "s3cret" not in str(caught.value)


def test_a_format_that_frames_cannot_have_names_the_way_out() -> None:
    with raises(DeviceError, fix="videoconvert"):
        frames_of(f"videotestsrc num-buffers=3 ! video/x-raw,format=v210,{SIZE}")


@pytest.mark.timing
def test_live_drops_and_stop_is_honored() -> None:
    made = source(f"videotestsrc is-live=true ! video/x-raw,format=NV12,{SIZE},framerate=30/1")
    assert made.live
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began_s = time.monotonic()
    frames = 0
    for frame in made.frames(stop):
        frame.lease.release()
        frames += 1
    made.close()
    assert frames > 3
    assert time.monotonic() - began_s < 1.0


def test_the_end_of_a_live_pipeline_is_a_loss_unless_it_is_asked_for(tmp_path: Path) -> None:
    """As of a server that is gone, of which no element complains."""
    assert frames_of(f"videotestsrc is-live=true num-buffers=5 ! video/x-raw,format=NV12,{SIZE}")
    raw = tmp_path / "raw"
    raw.write_bytes(b"\x80" * (322 * 242 * 5))
    played = f"filesrc location={raw} ! rawvideoparse width=322 height=242 format=gray8 ! identity name=is-live=true"
    made = source(played, reconnect=True)
    stop, seen = threading.Event(), []
    for frame in made.frames(stop):
        seen.append(frame.index)
        if len(seen) == 12:
            stop.set()
    made.close()
    assert made.stats().reconnects >= 2


def test_a_silent_pipeline_times_out() -> None:
    silent = "appsrc is-live=true ! video/x-raw,format=NV12,width=8,height=8,framerate=1/1"
    with raises(DeviceError, why="no frame for 0.3 s"):
        frames_of(silent, timeout="300ms", reconnect=False)


def test_an_own_appsink_is_used() -> None:
    frames = frames_of(f"videotestsrc num-buffers=4 ! video/x-raw,format=RGB,{SIZE} ! appsink name=edgert sync=false")
    assert len(frames) == 4


def test_nothing_inside_the_source_holds_on_to_a_released_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    living: set[int] = set()

    class Watched(gst_map.Mapping):
        def __init__(self, buffer: object) -> None:
            super().__init__(buffer)
            living.add(id(self))

        def __del__(self) -> None:
            living.discard(id(self))
            super().__del__()

    monkeypatch.setattr(gst, "Mapping", Watched)
    made = source(f"videotestsrc is-live=true ! video/x-raw,format=GRAY8,{SIZE},framerate=2/1", timeout="5s")
    stop, released = threading.Event(), threading.Event()
    left: list[int] = []

    def take() -> None:
        for frame in made.frames(stop):
            frame.lease.release()
            del frame
            released.set()

    taker = threading.Thread(target=take)
    taker.start()
    assert released.wait(5)
    time.sleep(0.15)
    left.append(len(living))
    stop.set()
    taker.join(5)
    made.close()
    assert left == [0], "while the next frame is awaited, the last one's buffer is back with its camera"
