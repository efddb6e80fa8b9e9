"""A real server of GStreamer's, and real players: ffprobe, GStreamer, PyAV."""

import importlib
import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edgert import limits
from edgert.config import SinkStage
from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.runtime.records import Result
from edgert.stages.context import Context
from edgert.stages.sink.stream import rtsp_server
from edgert.stages.sink.stream.rtsp_server import RtspSink
from edgert.stages.source import gst
from tests.helpers.frames import frame_of
from tests.helpers.waiting import wait_until
from tests.helpers.written import opened

WHY = "gst-rtsp-server for this Python: sudo apt install python3-gi gir1.2-gst-rtsp-server-1.0"
SIZE, FPS = (320, 240), 25


@pytest.fixture
def library() -> None:
    pytest.importorskip("gi", reason=WHY)
    try:
        rtsp_server.library("")
    except DeviceError:
        pytest.skip(WHY)


class Cameras(threading.Thread):
    """Feeds a sink with one or more streams until it ends; each frame's middle gray is its number's."""

    def __init__(self, sink: RtspSink, streams: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self.sink, self.streams, self.size = sink, streams, SIZE
        self.over, self.counter, self.slowest_s, self.shown = threading.Event(), Counter(), 0.0, 0

    def run(self) -> None:
        while not self.over.wait(1 / FPS):
            for stream in self.streams:
                frame = frame_of(*self.size, stream=stream, counter=self.counter, index=self.shown)
                frame.planes[0][...] = np.uint8(40 + self.shown % 180)
                begun_s = time.thread_time()
                self.sink.process(Result(replace(frame, timestamp_ns=time.monotonic_ns())))
                self.slowest_s = max(self.slowest_s, time.thread_time() - begun_s)
                frame.lease.release()
            self.shown += 1


def sink_of(port: int = 0, path: str = "/{stream}", login: tuple[str, str] = ("", "")) -> RtspSink:
    keys = {"sink": "rtsp", "from": "cam", "port": port, "path": path, "encode": "cpu", "bitrate": 2.0}
    section = SinkStage.model_validate({**keys, "user": login[0], "password": login[1]})
    return RtspSink("out", section, Context(rate_hz=FPS))


@contextmanager
def served(*streams: str, login: tuple[str, str] = ("", "")) -> Iterator[Cameras]:
    sink = sink_of(login=login)
    sink.open()
    cameras = Cameras(sink, streams)
    cameras.start()
    try:
        wait_until(lambda: cameras.shown)  # then every stream has its path
        yield cameras
    finally:
        cameras.over.set()
        cameras.join()
        sink.close()


def probed(url: str, transport: str = "tcp") -> tuple[dict[str, Any], str]:
    """What ffprobe says of a second and a half of a stream, and of what is wrong with it."""
    if shutil.which("ffprobe") is None:
        pytest.skip("ffprobe: sudo apt install ffmpeg")
    shown = "stream=codec_name,profile,width,height,nb_read_frames:frame=key_frame"
    command = ["ffprobe", "-v", "error", "-rtsp_transport", transport, "-read_intervals", "%+1.5", "-count_frames"]
    asked = [*command, "-show_entries", shown, "-of", "json", url]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(ran.stdout or "{}"), ran.stderr


def test_a_port_that_is_taken(library: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sink = sink_of(taken.getsockname()[1])
        with pytest.raises(DeviceError, match="cannot listen on") as caught:
            sink.open()
        sink.close()
    assert (
        caught.value.where == "stages.out" and "port: 0" in caught.value.fix and "another program" in caught.value.why
    )


def test_two_streams_under_one_path(library: None) -> None:
    with opened(sink_of(path="/live")) as sink:
        sink.process(Result(frame_of(stream="a")))
        with pytest.raises(StageError, match="/live would show two streams") as caught:
            sink.process(Result(frame_of(stream="b")))
        assert "{stream}" in caught.value.fix
    with opened(sink):  # again, on the port it had
        pass


def asked(port: int, request: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.sendall(request.encode())
    if request.endswith("\r\n\r\n"):
        assert client.recv(4096).startswith(b"RTSP/1.0 ")
    return client


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def request(verb: str, address: str, *headers: str) -> str:
    return "\r\n".join((f"{verb} {address} RTSP/1.0", "CSeq: 1", *headers, "", ""))


@pytest.mark.timing
@pytest.mark.parametrize("login", [("", ""), ("guard", "a-secret-word")], ids=["open", "password"])
def test_half_open_connections_are_counted_and_in_nobodys_way(library: None, login: tuple[str, str]) -> None:
    with opened(sink_of(login=login)) as sink:
        before, own = descriptors(), request("OPTIONS", f"rtsp://127.0.0.1:{sink.port}/yard")
        clients = [asked(sink.port, "OPTI") for _ in range(400)]
        waits = []
        for _ in range(20):
            begun_s = time.monotonic()
            asked(sink.port, own).close()
            waits.append(time.monotonic() - begun_s)
        theirs = descriptors() - before - len(clients)
        clients += [asked(sink.port, own) for _ in range(150)]
        begun_s = time.monotonic()
        asked(sink.port, own).close()
        waits.append(time.monotonic() - begun_s)
        wait_until(lambda: descriptors() - before - len(clients) <= limits.RTSP_CONNECTIONS / 3 + 8)
    for client in clients:
        client.close()
    assert max(waits) < 1 and theirs <= limits.RTSP_CONNECTIONS / 6 + 8


@pytest.mark.parametrize("sent", [b"\0\0\r\n\r\n", b"\xff\xfe\r\n\r\n", b"$" * 20_000, b"nonsense\r\n\r\n"])
def test_what_is_no_request_ends_and_the_next_is_answered(library: None, sent: bytes) -> None:
    with opened(sink_of()) as sink:
        with socket.create_connection(("127.0.0.1", sink.port), timeout=5) as client, suppress(ConnectionError):
            client.sendall(sent)
            while answer := client.recv(4096):
                assert b" 400 " in answer
                break
        asked(sink.port, request("OPTIONS", f"rtsp://127.0.0.1:{sink.port}/yard")).close()


def test_who_plays_nothing_ends_and_who_plays_stays(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RTSP_IDLE_S", 1.0)
    with served("yard") as cameras:
        port, address = cameras.sink.port, cameras.sink.url("yard")
        setup = request("SETUP", f"{address}/stream=0", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
        waiting = [asked(port, "OPTI"), asked(port, request("OPTIONS", address)), asked(port, setup)]
        player = socket.create_connection(("127.0.0.1", port), timeout=5)
        player.sendall(setup.encode())
        session = re.search(rb"Session: ([^;\r]+)", player.recv(4096))
        assert session is not None
        player.sendall(request("PLAY", address, f"Session: {session[1].decode()}").encode())
        for client in waiting:
            client.settimeout(10)
            with suppress(ConnectionError):
                while client.recv(4096):
                    pass
            client.close()
        assert len(cameras.sink._clients.playing) == 1 and player.recv(4096)
        player.sendall(request("TEARDOWN", address, f"Session: {session[1].decode()}").encode())
        with suppress(ConnectionError):
            while player.recv(65536):
                pass
        player.close()
        wait_until(lambda: not cameras.sink._clients.playing and not cameras.sink._clients.asking)


@pytest.mark.parametrize("broken", ["gi", "gi.repository.GstRtspServer"])
def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    real = importlib.import_module

    def load(name: str) -> Any:
        if name == broken:
            raise ImportError(f"No module named {name!r}")
        return real(name)

    if broken != "gi":
        pytest.importorskip("gi", reason=WHY)
    gst._modules.cache_clear()
    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(DeviceError) as caught:
        sink_of().open()
    assert "No module named" in caught.value.why and "sudo apt install python3-gi" in caught.value.fix


@pytest.mark.slow
def test_players_read_it_over_both_transports_and_nothing_is_encoded_for_nobody(library: None) -> None:
    with served("yard", "gate") as cameras:
        time.sleep(0.5)
        mounts = cameras.sink._mounts
        assert [mounts[name].encoded for name in ("yard", "gate")] == [0, 0]
        for transport in ("tcp", "udp"):
            found, errors = probed(cameras.sink.url("yard"), transport)
            (stream,) = found["streams"]
            assert (stream["codec_name"], stream["width"], stream["height"]) == ("h264", *SIZE)
            assert "Baseline" in stream["profile"] and int(stream["nb_read_frames"]) > 4 and errors == ""
            assert found["frames"][0]["key_frame"] == 1
        assert mounts["gate"].encoded == 0
        wait_until(lambda: mounts["yard"]._encoder is None and not mounts["yard"].viewers)
        _, errors = probed(f"rtsp://127.0.0.1:{cameras.sink.port}/nowhere")
        assert "404" in errors


@pytest.mark.timing
@pytest.mark.slow
def test_gstreamer_plays_it_and_ends_with_it(library: None) -> None:
    with served("yard") as cameras:
        source = f"rtspsrc location={cameras.sink.url('yard')} latency=0 protocols=tcp"
        play = f"gst-launch-1.0 -q {source} ! rtph264depay ! h264parse ! avdec_h264 ! fakesink sync=false"
        few = subprocess.run([*play.split(), "num-buffers=50"], timeout=60, check=False)
        assert few.returncode == 0
        player = subprocess.Popen(play.split(), stderr=subprocess.DEVNULL)
        wait_until(lambda: cameras.sink._mounts["yard"].viewers)
        time.sleep(1)
        assert player.poll() is None
        cameras.over.set()
        cameras.join()
        begun_s = time.monotonic()
        cameras.sink.close()
        assert time.monotonic() - begun_s < 3
        assert player.wait(30) is not None


@pytest.mark.slow
def test_only_who_knows_the_password_watches_and_it_is_logged_nowhere(
    library: None, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with served("yard", login=("guard", "a-secret-word")) as cameras:
        address = cameras.sink.url("yard")
        for given in ("", "guard:wrong@"):
            found, errors = probed(address.replace("//", f"//{given}"))
            assert not found.get("streams") and "401" in errors
        assert cameras.sink._mounts["yard"].encoded == 0
        found, errors = probed(address.replace("//", "//guard:a-secret-word@"))
        assert found["streams"] and errors == ""
    said = capfd.readouterr()
    assert "a-secret-word" not in caplog.text + said.out + said.err


@pytest.mark.timing
@pytest.mark.slow
def test_a_viewer_who_does_not_read_and_one_who_comes_later_disturb_nobody(library: None) -> None:
    with served("yard") as cameras:
        url, broadcast = cameras.sink.url("yard"), cameras.sink._mounts["yard"]
        stuck = av.open(url, options={"rtsp_transport": "tcp"})  # and never reads
        first, errors = probed(url)
        wait_until(lambda: broadcast.viewers == 1)
        assert errors == "" and int(first["streams"][0]["nb_read_frames"]) > 4
        before, shown = broadcast.encoded, cameras.shown
        time.sleep(2)
        rate = (broadcast.encoded - before) / (cameras.shown - shown)
        assert 0.8 <= rate <= 1.1, "one pipeline, and one encoding, for all"
        assert cameras.slowest_s < 0.05
        stuck.close()
        wait_until(lambda: not broadcast.viewers)


@pytest.mark.slow
def test_images_of_another_size_reach_who_watches(library: None) -> None:
    with served("yard") as cameras, av.open(cameras.sink.url("yard"), options={"rtsp_transport": "tcp"}) as file:
        found = list[tuple[int, int]]()
        for image in file.decode(video=0):
            found.append((image.width, image.height))
            if len(found) == 10:
                cameras.size = (480, 272)
            if len(found) > 10 and found[-1] != SIZE:
                break
            assert len(found) < 500
        assert found[-1] == (480, 272)


@pytest.mark.slow
def test_onnx_runtime_throws_beside_gstreamer(library: None) -> None:
    """libunwind, which GStreamer brings, has a function of libgcc's name."""
    program = (
        "from edgert.stages.source import gst; gst.gstreamer()\n"
        "import ctypes\n"
        "mine = ctypes.cast(ctypes.CDLL(None)._Unwind_Resume, ctypes.c_void_p).value\n"
        "gcc = ctypes.cast(ctypes.CDLL('libgcc_s.so.1')._Unwind_Resume, ctypes.c_void_p).value\n"
        "assert mine == gcc\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
