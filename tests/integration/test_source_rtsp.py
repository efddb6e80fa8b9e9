"""Network cameras that drop, stall, refuse and ask for passwords; the server is real, on loopback."""

import contextlib
import logging
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.runtime import Result
from edgert.runtime.frame import Frame
from edgert.runtime.json_form import plain_result
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import live
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.gst_decoder import DecoderRefusedError
from edgert.stages.source.kinds import source_for
from edgert.stages.source.rtsp import Stream, why_refused
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.counter import read_counter
from tests.helpers.errors import Exactly, raises
from tests.helpers.gst_decoder import instead_of_a_jetsons
from tests.helpers.http_request import serving
from tests.helpers.rtsp_server import RtspServer

SECRET = "s3cret"  # a constant, since tracebacks show the lines of this file


@pytest.fixture(scope="module")
def units() -> list[bytes]:
    return h264_units(60)


@pytest.fixture(autouse=True, params=["ffmpeg", "gstreamer"])
def _hasty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FIRST_WAIT_S", 0.05)
    if request.param == "gstreamer":
        instead_of_a_jetsons(monkeypatch)


def source(url: str, counter: Counter | None = None, **options: object) -> Source:
    config = SourceStage.model_validate({"source": url, "timeout": "2s", **options})
    return source_for("cam", config, Context(counter=counter or Counter()))


@contextlib.contextmanager
def filming(
    units: list[bytes], counter: Counter | None = None, timeout: str = "2s", reconnect: bool = True, **options: Any
) -> Iterator[tuple[RtspServer, Source, Iterator[Frame]]]:
    with RtspServer(units, **options) as server:
        camera = source(server.url, counter, timeout=timeout, reconnect=reconnect)
        yield server, camera, camera.frames(threading.Event())
        camera.close()


def take(frames: Iterator[Frame], count: int) -> list[Frame]:
    """``count`` frames, each released but still known by number, time and content."""
    taken = []
    for _ in range(count):
        frame = next(frames)
        assert frame.lease.alive
        taken.append(frame)
    return taken


def text_of(error: BaseException) -> str:
    """Everything a log or a screen could show of an error, with its causes and contexts."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.__cause__) + repr(error.__context__)


def test_frames_arrive_whole_and_uncopied(units: list[bytes]) -> None:
    counter = Counter()
    with filming(units, counter) as (_, camera, frames):
        assert camera.live
        taken = take(frames, 30)
    numbers = [read_counter(frame.planes[0]) for frame in taken]
    assert numbers == list(range(numbers[0], numbers[0] + 30))
    assert [frame.index for frame in taken] == list(range(30))
    # FFmpeg gives the first frame of a connection no time of its own.
    assert np.diff([frame.media_ns for frame in taken])[1:] == pytest.approx(1e9 / 30, rel=0.01)
    assert counter.read().copies == 0


def test_frames_have_the_time_of_day_that_the_camera_reports(units: list[bytes]) -> None:
    epoch_s = 1_800_000_000
    with filming(units) as (server, _, frames):
        server.clock_s = epoch_s
        taken = take(frames, 30)
    by_number = {read_counter(frame.planes[0]): frame.extra.sender_ns for frame in taken[1:]}
    for number, sender_ns in by_number.items():  # but for the first frame, to which FFmpeg gives no time of its own
        assert sender_ns is not None and abs(sender_ns - epoch_s * 10**9 - number * 1e9 / 30) < 2e6
    data = plain_result(Result(taken[-1]))
    assert data["sender_time_ns"] == taken[-1].extra.sender_ns and data["sender_time"].startswith("2027-01-15T08:00:0")
    assert abs(data["time_ns"] - time.time_ns()) < 60e9


def test_a_camera_without_a_time_of_day_is_named_and_its_frames_have_this_machine_s(
    units: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with filming(units) as (server, _, frames), caplog.at_level(logging.WARNING):
        server.clock_s = 86_400.0  # it was switched on without a network, a day after 1970 began
        taken = take(frames, 30)
    assert all(frame.extra.sender_ns is None for frame in taken)
    assert "sender_time" not in plain_result(Result(taken[-1]))
    (line,) = [record.getMessage() for record in caplog.records if "clock is not set" in record.getMessage()]
    assert "it says 1970-01-02T00:00:0" in line and "NTP" in line


def test_it_begins_at_a_key_frame(units: list[bytes]) -> None:
    with filming(units, first=4) as (_, _, frames):
        first = read_counter(take(frames, 1)[0].planes[0])
    assert first % 10 == 0, "every tenth image is a key frame"


def test_a_lost_connection_is_opened_again_and_the_clock_goes_on(
    units: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with filming(units, user="bob", password=SECRET) as (server, camera, frames), caplog.at_level(logging.DEBUG):
        before = take(frames, 10)
        server.drop()
        after = take(frames, 40)
        assert camera.stats().reconnects == 1
    both = before + after
    assert [frame.index for frame in both] == list(range(50))
    media = [frame.media_ns for frame in both]
    assert media == sorted(media)
    passed_ns = both[-1].timestamp_ns - both[0].timestamp_ns
    assert media[-1] == pytest.approx(passed_ns, abs=1.5e9), "the gap is as long as it really was"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["lost" in line for line in warned] == [True, False]
    assert all("rtsp://***@127.0.0.1" in line and SECRET not in line for line in warned)
    assert SECRET not in caplog.text


def test_a_server_that_is_away_for_a_while_is_tried_again(units: list[bytes]) -> None:
    with filming(units) as (server, camera, frames):
        take(frames, 5)
        server.refuse()
        threading.Timer(0.6, server.listen).start()
        after = take(frames, 20)
    assert after[-1].index == 24
    assert camera.stats().reconnects == 1


def test_a_stalled_stream_times_out_and_is_opened_again(units: list[bytes]) -> None:
    with filming(units, timeout="300ms") as (server, camera, frames):
        take(frames, 5)
        server.is_stalled = True
        threading.Timer(0.8, lambda: setattr(server, "is_stalled", False)).start()
        take(frames, 25)
        camera.close()
        assert server.plays >= 2
    assert camera.stats().reconnects >= 1


@pytest.mark.parametrize("reconnect", [True, False])
def test_a_camera_that_only_reports_is_opened_again(
    units: list[bytes], reconnect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with filming(units, timeout="300ms", reconnect=reconnect) as (server, camera, frames):
        take(frames, 5)
        server.is_stalled = server.is_reporting = True
        if reconnect:
            threading.Timer(1.0, lambda: setattr(server, "is_stalled", False)).start()
            after = take(frames, 25)
            assert after[-1].index == 29 and server.plays >= 2 and camera.stats().reconnects >= 1
            assert "nothing came for 0.3 s; trying again" in caplog.text
        else:
            with raises(DeviceError, "lost", why=Exactly("nothing came for 0.3 s")):
                take(frames, 25)


def test_a_camera_that_goes_on_reporting_is_not_connected_to_for_ever(units: list[bytes]) -> None:
    with filming(units, timeout="200ms") as (server, _, frames):
        take(frames, 5)
        server.is_stalled = server.is_reporting = True
        threading.Timer(4.0, lambda: setattr(server, "is_stalled", False)).start()
        take(frames, 20)
    assert 3 <= server.plays <= 2 + live.MOST_ABANDONED + 1


class Waiting:
    """A decoder that takes packets by a thread of its own, and gives up."""

    title = "waiting"

    def images(self, packets: Iterator[object]) -> Iterator[object]:
        self.feeder = threading.Thread(target=self._take, args=(packets,), daemon=True)
        self.feeder.start()
        time.sleep(1.0)
        raise DecoderRefusedError("the board cannot decode this video", why="it gave no image")
        yield

    def close(self) -> None:
        self.feeder.join()

    @staticmethod
    def _take(packets: Iterator[object]) -> None:
        with contextlib.suppress(DeviceError):
            deque(packets, 0)


@pytest.mark.parametrize("is_stalled", [True, False])
def test_a_decoder_is_not_given_up_for_a_camera_that_is_silent(units: list[bytes], is_stalled: bool) -> None:
    config = SourceStage.model_validate({"source": "rtsp://x", "timeout": "300ms"})
    with RtspServer(units) as server:
        stream = Stream("cam", config.model_copy(update={"source": server.url}), Counter(), REAL)
        choice = DecoderChoice("stages.cam", "auto")
        stream._hardware, stream._choice = cast("Any", Waiting()), choice
        server.is_stalled = server.is_reporting = is_stalled
        threading.Timer(1.5, server.drop).start()  # ends the thread that reads
        with pytest.raises(DecoderRefusedError if is_stalled else DeviceError):
            next(stream.images())
        stream.close()
    assert choice.refused == ("" if is_stalled else "it gave no image")


def test_without_reconnect_a_stall_is_an_error(units: list[bytes]) -> None:
    with filming(units, timeout="300ms", reconnect=False) as (server, _, frames):
        take(frames, 3)
        server.is_stalled = True
        with pytest.raises(DeviceError) as caught:
            take(frames, 25)
    assert "0.3 s" in caught.value.why


def test_without_reconnect_the_first_loss_is_an_error(units: list[bytes]) -> None:
    with RtspServer(units, user="bob", password=SECRET) as server:
        frames = source(server.url, reconnect=False).frames(threading.Event())
        take(frames, 3)
        server.drop()
        with pytest.raises(DeviceError, match=r"lost|cannot continue") as caught:
            take(frames, 25)
    assert SECRET not in text_of(caught.value)


@pytest.mark.parametrize("auth", ["basic", "digest"])
def test_passwords_are_sent_and_never_shown(units: list[bytes], auth: str) -> None:
    with filming(units, user="bob", password=SECRET, auth=auth) as (server, camera, frames):
        assert len(take(frames, 3)) == 3
        camera.close()
        wrong = server.url.replace(SECRET, "wr0ng")
        with pytest.raises(DeviceError) as caught:
            next(iter(source(wrong, start="fail").frames(threading.Event())))
    assert "user or password" in caught.value.why
    assert "wr0ng" not in text_of(caught.value)
    assert "rtsp://***@" in caught.value.what


def test_of_two_digests_the_one_that_ffmpeg_has_is_taken(units: list[bytes]) -> None:
    """In the order that RFC 7616 (3.7) asks for: the strongest first."""
    with RtspServer(units, user="bob", password=SECRET, algorithms=("SHA-256", "MD5")) as server:
        camera = source(server.url)
        assert len(take(camera.frames(threading.Event()), 3)) == 3
        camera.close()


@pytest.mark.parametrize(
    ("algorithms", "said"),
    [
        (("SHA-256",), "Digest with SHA-256 only"),
        (("SHA-512-256",), "Digest with SHA-512-256 only"),
        (("MD5", "SHA-256"), "it offers Digest with MD5, Digest with SHA-256; FFmpeg tries the last"),
    ],
)
def test_a_way_to_log_in_that_ffmpeg_has_not_is_named(
    units: list[bytes], algorithms: tuple[str, ...], said: str
) -> None:
    server = RtspServer(units, user="bob", password=SECRET, algorithms=algorithms)
    with server, raises(DeviceError, why=said, fix="MD5") as caught:
        next(iter(source(server.url, start="fail").frames(threading.Event())))
    assert SECRET not in text_of(caught.value)


def test_a_camera_that_does_not_say_how_to_log_in_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rtsp://bob:{SECRET}@127.0.0.1:{silent.getsockname()[1]}/live"
        assert why_refused(url, 0.05, REAL) == why_refused("rtsp://[::1", 0.05, REAL) == ""


def test_a_wrong_path_and_a_closed_port_say_so(units: list[bytes]) -> None:
    with RtspServer(units) as server:
        server.status = 404
        with raises(DeviceError, why="no stream at that path"):
            next(iter(source(server.url).frames(threading.Event())))
        url = server.url.replace("rtsp://", f"rtsp://bob:{SECRET}@")
        server.refuse()
        with pytest.raises(DeviceError) as caught:
            next(iter(source(url, start="fail").frames(threading.Event())))
    assert "nothing listens" in caught.value.why
    assert SECRET not in text_of(caught.value)


@pytest.mark.timing
@pytest.mark.parametrize("moment", ["reading", "opening", "waiting"])
def test_stop_takes_effect_within_half_a_second(
    units: list[bytes], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FIRST_WAIT_S", 30)
    with RtspServer(units) as server:
        camera = source(server.url, timeout="3s")
        stop = threading.Event()
        frames = camera.frames(stop)
        if moment == "opening":
            server.is_silent = True
        else:
            take(frames, 3)
            if moment == "reading":
                server.is_stalled = True
            else:
                server.refuse()
        threading.Timer(0.4, stop.set).start()
        began_s = time.monotonic()
        for _ in frames:
            pass
        assert stop.is_set()
        camera.close()
        assert time.monotonic() - began_s < 0.4 + 0.5


def test_the_reader_ends_soon_after_its_source(units: list[bytes]) -> None:
    with filming(units) as (_, camera, frames):
        take(frames, 3)
        camera.close()
        camera.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "edgert-cam-reader"]


def test_a_stream_of_known_length_ends(units: list[bytes]) -> None:
    with RtspServer(units, once=True, fps=120) as server:
        frames = list(source(server.url, realtime=False).frames(threading.Event()))
        assert server.plays == 1
    assert len(frames) >= 55
    assert frames[-1].index == len(frames) - 1


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stream_that_ends_before_its_announced_length_is_lost_and_opened_again(
    units: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with filming(units, once=True) as (server, camera, frames), caplog.at_level(logging.WARNING):
        taken = take(frames, 10)
        server.drop()
        taken += take(frames, 30)
        server.units = units[:50]  # and it announces another length from now on
        server.drop()
        taken += list(frames)
        state = camera.stats()
    assert server.plays == 3 and state.reconnects == 2 and state.ended
    assert [frame.index for frame in taken] == list(range(len(taken)))
    assert len(taken) > 10 + 30 + 40 and state.reason.endswith(" of 1.7 s")
    lines = lines_of(caplog)
    assert ["cam: lost rtsp" in line and "before the end of its 2.0 s" in line for line in lines] == [1, 0, 1, 0, 0]


def test_without_reconnect_an_early_end_is_an_error(units: list[bytes]) -> None:
    with RtspServer(units, once=True) as server:
        frames = source(server.url, reconnect=False).frames(threading.Event())
        take(frames, 10)
        server.drop()
        with pytest.raises(DeviceError, match="lost") as caught:
            list(frames)
    assert "before the end of its 2.0 s" in caught.value.why


@pytest.mark.parametrize("stays", [False, True])
def test_the_real_end_of_a_stream_is_one_line_in_the_log(
    units: list[bytes], stays: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filming(units, once=True, fps=60, timeout="700ms") as (server, camera, frames), caplog.at_level(logging.INFO):
        server.stays = stays
        list(frames)
        assert server.plays == 1
    state = camera.stats()
    assert lines_of(caplog) == ["cam: its stream ended after 1.0 s of 1.0 s"]
    assert (state.up, state.ended, state.reason) == (False, True, "its stream ended after 1.0 s of 1.0 s")
    monkeypatch.setattr(type(REAL), "now_ns", lambda _: time.monotonic_ns() + 9 * 10**9)
    assert (camera.stats().state_s or 0) - (state.state_s or 0) > 8, "its clock goes on while others run"


def test_a_stream_that_goes_on_beyond_its_announced_length_is_a_camera(units: list[bytes]) -> None:
    with RtspServer(units) as server:
        server.once = True
        sdp = server._sdp().replace("npt=0-2.000", "npt=0-0.500")
        server.once = False
        server._sdp = lambda: sdp  # type: ignore[method-assign]
        camera = source(server.url)
        frames = camera.frames(threading.Event())
        take(frames, 45)
        server.drop()
        take(frames, 40)
        assert camera.stats().reconnects == 1
        camera.close()


def test_a_recording_that_is_cut_over_http_says_so(tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mp4", 60, container={"movflags": "faststart"})
    whole = (tmp_path / "clip.mp4").read_bytes()

    class Cut(_Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[: len(whole) * 2 // 3])
            self.close_connection = True

    with serving(Cut) as url:
        frames = source(f"{url}/clip.mp4").frames(threading.Event())
        with pytest.raises(DeviceError) as caught:
            list(frames)
    assert "the other side closed the connection early" in caught.value.why


def test_a_recording_over_http_keeps_every_frame_and_ends(tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mp4", 30, container={"movflags": "faststart"})  # this server cannot seek
    with serving(partial(_Quiet, directory=str(tmp_path))) as address:
        recording = source(f"{address}/clip.mp4")
        frames = list(recording.frames(threading.Event()))
        missing = f"{address}/other.mp4?token={SECRET}"
        with pytest.raises(DeviceError) as caught:
            next(iter(source(missing).frames(threading.Event())))
    assert not recording.live
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(30))
    assert SECRET not in text_of(caught.value)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...
