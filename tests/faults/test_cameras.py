"""Cameras that are absent, killed, frozen, silent or changed, beside others that are not."""

import gc
import logging
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

import edgert
from edgert.cli import run_view
from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.runtime.stage import SourceStats
from edgert.stages.context import Context
from edgert.stages.source import live
from edgert.stages.source.kinds import source_for
from edgert.stages.source.live import Connection, LiveSource, LoginError
from edgert.stages.source.rtsp import Stream
from edgert.stages.source.timeline import MediaClock, Timeline
from tests.bench.bench_reconnect import RATE, measure
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.command import ROOT, free_port
from tests.helpers.http_request import answer_of, serving
from tests.helpers.rtsp_server import RtspProgram, RtspServer, save
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.waiting import wait_until

ASSETS = ROOT / "pipelines" / "assets"
SIZE = (256, 64)


@pytest.fixture(scope="module")
def units() -> list[bytes]:
    return h264_units(30, size=SIZE)


@pytest.fixture
def programs(units: list[bytes], tmp_path: Path) -> Iterator[list[RtspProgram]]:
    file = save(units, tmp_path / "units")
    made = [RtspProgram(file, 15), RtspProgram(file, 15)]
    yield made
    for program in made:
        program.kill()


def pipeline(folder: Path, stages: dict[str, str], more: str = "") -> edgert.Pipeline:
    lines = [f"  {name}: {text}" for name, text in stages.items()]
    (folder / "p.yaml").write_text("\n".join([more, "stages:", *lines]) + "\n")
    return edgert.Pipeline(folder / "p.yaml")


def camera(url: str, more: str = "timeout: 1s") -> str:
    return f"{{source: '{url}', {more}}}"


def state(running: edgert.Pipeline, name: str = "cam") -> SourceStats:
    found = running.summary().stages[name].source
    assert found is not None
    return found


def frames(running: edgert.Pipeline, name: str) -> int:
    return running.summary().stages[name].results_out


wait = partial(wait_until, timeout_s=15.0)


def ask(port: int, path: str) -> tuple[int, str]:
    status, _, body = answer_of(f"http://127.0.0.1:{port}", path)
    return status, body.decode()


@pytest.mark.timing  # it compares the times until cameras are back
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_every_kill_is_a_reconnect(kills: int, tmp_path: Path) -> None:
    few = kills < 20
    apart_s = (0.3, 1.0) if few else (1.0, 3.0)
    outcome = measure(cameras=3, kills=kills, absent_s=1 if few else 4, folder=tmp_path, apart_s=apart_s)
    faults = [text for text in outcome.faults() if "of its rate" not in text]
    assert not faults, outcome
    if not few:  # of shorter times a frame or two is many percent
        assert outcome.rate > RATE - 0.08, outcome


def test_the_others_run_while_one_is_absent_and_the_page_says_which(
    programs: list[RtspProgram], tmp_path: Path
) -> None:
    there, absent = programs
    there.start()
    port = free_port()
    stages = {
        "there": camera(there.url),
        "absent": camera(absent.url),
        "spare": camera("rtsp://127.0.0.1:9/x", "required: false"),
        "page": f"{{sink: http, port: {port}, from: [there, absent, spare]}}",
    }
    with pipeline(tmp_path, stages) as running:
        running.start()
        wait(lambda: frames(running, "there"), timeout_s=3.0)
        wait(lambda: state(running, "absent").reason)
        assert ask(port, "/readyz") == (503, "absent: nothing listens on that port\n")
        assert ask(port, "/healthz")[0] == 200
        metrics = ask(port, "/metrics")[1]
        assert 'edgert_source_up{stream="there"} 1' in metrics and 'edgert_source_up{stream="absent"} 0' in metrics
        why = 'reason="nothing listens on that port"', 'stream="absent"'
        down = [line for line in metrics.splitlines() if line.startswith("edgert_source_down_info{")]
        assert any(all(part in line for part in why) for line in down)
        assert state(running, "absent").up is False and state(running, "absent").frame_age_s is None
        time.sleep(1)
        before = frames(running, "there")
        absent.start()
        assert wait(lambda: state(running, "absent").up) <= 2.0
        wait(lambda: ask(port, "/readyz") == (200, "ok\n"))
        assert state(running, "absent").reconnects == 0 and state(running, "absent").reason == ""
        wait(lambda: frames(running, "there") > before)
        assert (state(running, "there").frame_age_s or 0) < 1


def test_a_frozen_camera_is_down_until_it_thaws(programs: list[RtspProgram], tmp_path: Path) -> None:
    frozen, other = programs
    frozen.start()
    other.start()
    stages = {"cam": camera(frozen.url), "other": camera(other.url), "end": "{sink: null, from: [cam, other]}"}
    with pipeline(tmp_path, stages) as running:
        running.start()
        wait(lambda: state(running).up and state(running, "other").up)
        frozen.freeze()
        wait(lambda: state(running).up is False)
        assert "nothing came for 1 s" in state(running).reason and (state(running).frame_age_s or 0) >= 1
        before = frames(running, "other")
        time.sleep(1.5)
        assert frames(running, "other") - before >= 0.9 * 1.5 * 15
        frozen.thaw()
        wait(lambda: state(running).up)
        assert state(running).reconnects == 1


def test_a_refused_password_is_reported_and_tried_slowly(
    units: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FIRST_LOGIN_WAIT_S", 3.0)
    with RtspServer(units, user="bob", password="right") as server:
        wrong = server.url.replace("right", "wr0ng")
        with pipeline(tmp_path, {"cam": camera(wrong), "end": "{sink: null, from: cam}"}) as running:
            running.start()
            wait(lambda: state(running).reason)
            assert state(running).reason == "it refuses this user or password"
            time.sleep(1.5)
            assert server.connections <= 2, "a camera locks an account after a few tries"
            server.password = "wr0ng"
            wait(lambda: state(running).up)
            server.password = "right"
            server.drop()
            wait(lambda: "password" in state(running).reason)
    warned = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert ["password" in line for line in warned if line.startswith("cam: ")] == [True, False, False, True]
    assert "rtsp://***@" in warned[0] and "wr0ng" not in caplog.text


@pytest.mark.parametrize("first", [b"", b"RTSP/1.0 200 OK\r\nCSeq: 1\r\n\r\n"])
def test_a_camera_that_accepts_and_says_nothing_is_called_that(first: bytes, tmp_path: Path) -> None:
    over, clients = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while not over.is_set():
                clients.append(listener.accept()[0])
                clients[-1].sendall(first)

        thread = threading.Thread(target=accept)
        thread.start()
        port = listener.getsockname()[1]
        stages = {"cam": camera(f"rtsp://127.0.0.1:{port}/x"), "end": "{sink: null, from: cam}"}
        with pipeline(tmp_path, stages) as running:
            running.start()
            wait(lambda: state(running).reason)
            assert state(running).reason == "nothing came for 1 s"
        over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
    for client in clients:
        client.close()


@pytest.mark.timing
@pytest.mark.parametrize("says", ["nothing", "reports", "frames"])
def test_a_camera_that_opens_and_stays_silent_was_waited_for_while_it_opened(says: str, units: list[bytes]) -> None:
    """So it is reported after its time-out, not after twice that; and one that gives frames late is not."""
    with RtspServer(units) as server:
        server.is_stalled, server.is_reporting = says != "frames", says == "reports"
        timeout = "30s" if says == "frames" else "400ms"
        config = SourceStage(source=server.url, timeout=timeout)  # type: ignore[arg-type]
        stream = Stream("cam", config, Counter(), REAL)
        opened_ns, packets = REAL.now_ns(), stream._packets()
        if says == "frames":
            next(packets)
            assert stream.waiting_since_ns is None
        else:
            # Reports keep the connection alive, so that FFmpeg waits on; whoever watches the source ends that.
            reader = threading.Thread(target=next, args=(packets, None))
            reader.start()
            wait(lambda: stream.waiting_since_ns is not None)
            waiting_since_ns = stream.waiting_since_ns or opened_ns
            server.refuse()
            reader.join(60)
            assert not reader.is_alive() and opened_ns - waiting_since_ns >= 0.8 * 0.4e9
        stream.close()


def test_a_path_that_is_gone_later_is_waited_for(units: list[bytes], tmp_path: Path) -> None:
    """As of a server that is up again before what it relays; at the start it is an error."""
    with RtspServer(units) as server:
        with pipeline(tmp_path, {"cam": camera(server.url), "end": "{sink: null, from: cam}"}) as running:
            running.start()
            wait(lambda: state(running).up)
            server.status = 404
            server.drop()
            wait(lambda: "no stream at that path" in state(running).reason)
            server.status = 200
            wait(lambda: state(running).up)
        server.status = 404
        stages = {"cam": camera(server.url), "end": "{sink: null, from: cam}"}
        with pytest.raises(DeviceError, match="cannot open rtsp") as caught, pipeline(tmp_path, stages) as running:
            running.run()
        assert "no stream at that path" in caught.value.why


@pytest.mark.parametrize("address", ["rtsp://cam:99999/x", "rtsp://cam:port/x", "udp://239.1.1.1", "rtsp:///x"])
@pytest.mark.parametrize("start", ["wait", "fail"])
def test_a_malformed_address_is_an_error_at_once(address: str, start: str) -> None:
    config = SourceStage.model_validate({"source": address, "start": start})
    with pytest.raises(ConfigError, match="is no network address"):
        source_for("cam", config, Context(clock=VirtualClock()))


def test_size_and_rate_may_change_in_the_middle(units: list[bytes], tmp_path: Path) -> None:
    """For the model, the tracker and the drawing behind the camera, too; it is no new connection."""
    models = (
        f"models:\n  parts: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox, labels: {ASSETS}/parts.txt}}, "
        "input: {std: 255}}"
    )
    stages = {
        "cam": "",
        "find": "{infer: parts, from: cam}",
        "track": "{track: bytetrack, from: find}",
        "paint": "{draw: [boxes, labels, trails, stats], from: track}",
    }
    other = h264_units(30, size=(640, 480))
    with RtspServer([*units, *other], fps=60) as server:
        stages["cam"] = camera(server.url, "timeout: 8s")  # a busy machine may not encode or read for a second
        with pipeline(tmp_path, stages, models) as running:
            seen: list[tuple[int, int]] = []
            for result in running.results("paint", timeout=20):
                size = (result.frame.width, result.frame.height)
                assert result.image is not None and result.image.shape[1::-1] == size
                if not seen or seen[-1] != size:
                    seen.append(size)
                    server.fps = 90 - server.fps
                if len(seen) == 4:
                    break
            assert state(running).reconnects == 0 and state(running).up
    assert seen in ([SIZE, (640, 480)] * 2, [(640, 480), SIZE] * 2)


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in log.records if one.levelno == logging.WARNING]


def test_reminders_come_every_few_minutes_and_new_reasons_at_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, over = VirtualClock(), threading.Event()
    way = Connection("cam", "rtsp://x", clock)
    way.record_image()
    while clock.now_ns() < 1000e9:
        why = "the cable is out" if clock.now_ns() < 600e9 else "it is locked"
        clock.wait(over, way.record_loss(DeviceError("lost", why=why)))
    warned = warnings(caplog)
    assert [line.split(": ")[1].split(" rtsp")[0] for line in warned] == ["lost", "still no", "still no", "still no"]
    assert ["the cable is out" in line for line in warned] == [True, True, False, False]
    assert ["it is locked" in line for line in warned] == [False, False, True, True]
    assert all(f" for {minutes}" in line for line, minutes in zip(warned[1:], ("30", "60", "90"), strict=True))
    assert way.stats(0, 0).reason == "it is locked" and (way.stats(0, 0).state_s or 0) >= 999
    way.record_image()
    assert "is back after 100" in warnings(caplog)[-1]


def test_reasons_that_are_always_others_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock, over = VirtualClock(), threading.Event()
    way = Connection("cam", "rtsp://x", clock)
    for number in range(5000):
        clock.wait(over, way.record_loss(DeviceError("lost", why=f"buffer {number} is late")))
    minutes = clock.now_ns() / 60e9
    assert len(warnings(caplog)) <= live.MOST_LINES * (minutes / 5 + 1)


def test_one_that_comes_and_goes_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock, over = VirtualClock(), threading.Event()
    way = Connection("cam", "rtsp://x", clock)
    way.record_image()
    for _ in range(500):
        clock.wait(over, way.record_loss(DeviceError("lost", why="too many clients")))
        way.record_image()
        clock.wait(over, 1.0)
    warned = warnings(caplog)
    assert len(warned) <= 30 and any("lost rtsp://x 10 times in" in line for line in warned)
    assert way.reconnects == 500


def test_waits_after_a_refused_password_are_minutes() -> None:
    way = Connection("cam", "rtsp://x", VirtualClock())
    waits = [way.record_loss(LoginError("refused", why="it refuses this user or password")) for _ in range(6)]
    assert all(45 <= one <= 240 for one in waits) and min(waits[3:]) >= 180
    assert way.record_loss(DeviceError("lost", why="away")) <= 0.25, "of another kind, it is asked soon"


def test_another_codec_after_a_reconnect_is_decoded(tmp_path: Path) -> None:
    """As of an encoder that was set up anew: for what is behind the camera it is one stream."""
    clips = [
        write_clip(tmp_path / f"{number}.ts", 30, size=size, codec=codec)
        for number, (codec, size) in enumerate([("libx264", SIZE), ("mpeg2video", (640, 480)), ("mpeg4", (320, 240))])
    ]
    turns, seen = iter([*clips, clips[0]]), list[tuple[int, int]]()

    class Encoder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            before = len(seen)
            self.wfile.write(next(turns, clips[0]).read_bytes())
            wait(lambda: len(seen) > before or before == 4)  # a busy machine skips frames

        def log_message(self, format: str, *args: object) -> None: ...

    with serving(Encoder) as url:
        stages = {"cam": camera(f"{url}/live"), "paint": "{draw: [stats], from: cam}"}
        with pipeline(tmp_path, stages) as running:
            for result in running.results("paint", timeout=20):
                size = (result.frame.width, result.frame.height)
                seen += [size] if not seen or seen[-1] != size else []
                if len(seen) == 4:
                    break
            assert state(running).reconnects == 3
    assert seen == [SIZE, (640, 480), (320, 240), SIZE]


def test_a_lost_connection_leaves_nothing_that_only_the_collector_finds(units: list[bytes], tmp_path: Path) -> None:
    """Each holds a decoder with its images: a pipeline's memory rose by 0.2 MB with each of the first 800."""
    made: list[weakref.ref[Stream]] = []
    config = SourceStage.model_validate({"source": "rtsp://x", "timeout": "2s"})

    def connect(device: object) -> Stream:
        stream = Stream("cam", config.model_copy(update={"source": server.url}), Counter(), REAL)
        made.append(weakref.ref(stream))
        return stream

    timeline = Timeline("cam", config, REAL, MediaClock(live=True), fps=None, paced=False)
    source = LiveSource("cam", "cam", connect, timeline, REAL, live=True, reconnect=True)
    gc.collect()
    gc.disable()
    try:
        with RtspServer(units) as server:
            stop = threading.Event()
            for frame in source.frames(stop):
                frame.lease.release()
                if len(made) == 4:
                    stop.set()
                elif source.stats().reconnects == len(made) - 1:
                    server.drop()
            del frame
            source.close()
            wait(lambda: [one() for one in made] == [None] * 4, timeout_s=5)
    finally:
        gc.enable()


def test_the_terminal_says_which_cameras_are_down(programs: list[RtspProgram], tmp_path: Path) -> None:
    there, absent = programs
    there.start()
    stages = {"there": camera(there.url), "absent": camera(absent.url), "end": "{sink: null, from: [there, absent]}"}
    with pipeline(tmp_path, stages) as running:
        running.start()
        wait(lambda: state(running, "there").up and state(running, "absent").reason)
        assert run_view._progress_line(running.summary(), "").endswith("down: absent")
        running.stop()
        assert running.wait(5)
        warned = list(run_view._stage_troubles(running.summary()))
    assert len(warned) == 1 and warned[0].startswith("absent: down for the last ")
    assert warned[0].endswith(" s: nothing listens on that port")
