import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert import limits
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink.web import http_sink
from edgert.stages.sink.web.http_sink import HttpSink
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.growth import is_freed
from tests.helpers.http_request import answer_of, live_page
from tests.helpers.written import opened

STATS = {"fps": 24.5, "frames_out": 7, "dropped": 2, "latency_ms": {"p50": float("nan")}, "stages": {}}


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    with opened(live_page(lambda: STATS)) as sink:
        yield sink


def port_of(sink: HttpSink) -> int:
    return int(sink.url.rstrip("/").rpartition(":")[2])


def ask(
    sink: HttpSink, path: str, method: str = "GET", host: str | None = None, accept: str = "*/*"
) -> tuple[int, http.client.HTTPMessage, bytes]:
    return answer_of(sink.url, path, method, Accept=accept, **({} if host is None else {"Host": host}))


def shown(index: int = 0) -> Result:
    image = np.full((48, 64, 3), 20 + 40 * index, np.uint8)
    return replace(result_of(frame_of(index=index), {"find": detections((1, 1, 9, 9))}), image=image)


class Viewer:
    def __init__(self, sink: HttpSink, path: str = "/stream.mjpg", address: str = "127.0.0.1") -> None:
        there = "127.0.0.1", port_of(sink)
        self.socket = socket.create_connection(there, timeout=5, source_address=(address, 0))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self.file = http.client.HTTPResponse(self.socket)
        self.file.begin()
        self.status, self.headers = self.file.status, self.file.headers

    def image(self) -> np.ndarray:
        while not self.file.readline().startswith(b"Content-Type: image/jpeg"):
            pass
        length = int(self.file.readline().split(b":")[1])
        assert self.file.readline() == b"\r\n"
        return cv2.imdecode(np.frombuffer(self.file.read(length), np.uint8), cv2.IMREAD_COLOR)

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_the_page_holds_everything_it_needs(sink: HttpSink) -> None:
    status, headers, body = ask(sink, "/")
    text = body.decode()
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert not re.search(r'(src|href)="(?!data:)', text) and "//cdn" not in text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert "Access-Control-Allow-Origin" not in headers and "Python" not in headers["Server"]


def test_stats_are_strict_json(sink: HttpSink) -> None:
    sink.process(shown(3))
    status, headers, body = ask(sink, "/stats.json")
    data = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert status == 200 and headers["Content-Type"] == "application/json"
    assert data["stats"]["fps"] == 24.5 and data["stats"]["latency_ms"]["p50"] is None
    assert data["latest"]["frame"] == 3 and data["latest"]["objects"][0]["label"] == "bolt"


def test_metrics_are_prometheus_text(sink: HttpSink) -> None:
    status, headers, body = ask(sink, "/metrics")
    assert status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"\n# TYPE edgert_finished_frames_total counter\nedgert_finished_frames_total 7.0\n" in body
    status, headers, body = ask(sink, "/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert b"\n# TYPE edgert_finished_frames counter\n" in body and body.endswith(b"\n# EOF\n")


def test_a_page_closed_during_a_stream_is_freed_at_once() -> None:
    def closed() -> HttpSink:
        with opened(live_page(lambda: STATS)) as sink:
            viewer = Viewer(sink)
            sink.process(shown())
            viewer.image()
        viewer.close()
        return sink

    assert is_freed(closed)


def test_a_snapshot_is_the_newest_image(sink: HttpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sink, "_REPEAT_S", 0.05)
    assert ask(sink, "/snapshot.jpg")[0] == 503
    for index in range(3):
        sink.process(shown(index))
    status, headers, body = ask(sink, "/snapshot.jpg")
    assert status == 200 and headers["Content-Type"] == "image/jpeg"
    assert abs(float(cv2.imdecode(np.frombuffer(body, np.uint8), 1).mean()) - 100) < 3


def test_viewers_see_new_images(sink: HttpSink) -> None:
    viewer = Viewer(sink)
    assert viewer.status == 200 and viewer.headers["Content-Type"].startswith("multipart/x-mixed-replace; boundary=")
    for index in range(3):
        sink.process(shown(index))
        assert abs(float(viewer.image().mean()) - (20 + 40 * index)) < 3
    viewer.close()


@pytest.mark.timing
def test_a_viewer_who_does_not_read_stalls_nobody(sink: HttpSink) -> None:
    idle = socket.create_connection(("127.0.0.1", port_of(sink)))
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    idle.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
    noise = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    viewer, slowest = Viewer(sink), 0.0
    for index in range(20):
        started = time.monotonic()
        sink.process(replace(result_of(frame_of(index=index)), image=noise))
        slowest = max(slowest, time.monotonic() - started)
        assert viewer.image().shape == (480, 640, 3)
    assert slowest < 0.2
    idle.close()
    viewer.close()


def test_only_so_many_viewers(sink: HttpSink) -> None:
    sink.process(shown())
    viewers = [Viewer(sink) for _ in range(9)]
    assert [viewer.status for viewer in viewers] == [200] * 8 + [503]
    for viewer in viewers:
        viewer.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::1", "", "192.168.0.1", "localhost.evil"]
)
def test_a_strangers_name_for_this_machine_gets_nothing(sink: HttpSink, host: str) -> None:
    sink.process(shown())
    for path in ("/", "/stats.json", "/metrics", "/snapshot.jpg", "/stream.mjpg"):
        status, _, body = ask(sink, path, host=host)
        assert status == 403 and len(body) < 100


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:8080"])
def test_tunnels_and_loopback_names_are_welcome(sink: HttpSink, host: str) -> None:
    assert ask(sink, "/healthz", host=host)[::2] == (200, b"ok\n")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../../etc/passwd", "/%2e%2e/page.html", "/page.html", "/stream.mjpg/..", "/.git/config"]
)
def test_nothing_is_read_from_the_disk(sink: HttpSink, path: str) -> None:
    assert ask(sink, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(sink: HttpSink, method: str) -> None:
    assert ask(sink, "/", method)[0] == 501


def test_head_has_no_body(sink: HttpSink) -> None:
    status, headers, body = ask(sink, "/", "HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 1000 and body == b""
    assert ask(sink, "/stream.mjpg", "HEAD")[0] == 200


def test_a_failing_state_is_an_answer_not_a_crash(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sink, "_SHARED_S", 0.0)
    with opened(live_page(lambda: {"bad": object()} if caplog.records else {"bug": 1 / 0})) as sink:
        assert ask(sink, "/stats.json")[::2] == (500, b"a bug in edgert; its log has the traceback\n")
        assert "ZeroDivisionError" in caplog.text and caplog.records[-1].levelname == "ERROR"
        assert ask(sink, "/stats.json")[0] == 500 and ask(sink, "/healthz")[0] == 200
        monkeypatch.setattr(sink.images, "table", lambda stream: Path("/none").read_text())
        assert ask(sink, "/stats.json")[::2] == (500, b"the answer cannot be made\n") and "No such file" in caplog.text


@pytest.mark.timing
def test_close_ends_every_thread_at_once() -> None:
    before = set(threading.enumerate())
    with opened(live_page(lambda: STATS)) as sink:
        result = shown()
        sink.process(result)
        viewers = [Viewer(sink) for _ in range(4)]
        halfway = socket.create_connection(("127.0.0.1", port_of(sink)))  # says nothing at all
        for viewer in viewers:
            viewer.image()
        result.frame.lease.release()
        started = time.monotonic()
    assert time.monotonic() - started < 0.5
    assert sink.url == "" and not result.frame.lease.alive
    deadline = started + 0.5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert set(threading.enumerate()) - before == set()
    halfway.close()
    for viewer in viewers:
        viewer.close()


def test_a_port_in_use(sink: HttpSink) -> None:
    other = live_page(name="second", port=port_of(sink))
    with pytest.raises(DeviceError, match=f"cannot listen on 127.0.0.1:{port_of(sink)}") as caught:
        other.open()
    other.close()
    assert "port: 0" in caught.value.fix and caught.value.where == "stages.second"


def test_an_address_of_another_machine() -> None:
    with pytest.raises(DeviceError) as caught:
        live_page(host="192.0.2.1").open()  # TEST-NET-1, RFC 5737
    assert "127.0.0.1" in caught.value.fix


def test_ipv6_loopback() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    sink = live_page(host="::1")
    try:
        sink.open()
    except DeviceError as error:
        pytest.skip(f"no IPv6 loopback on this machine: {error.why}")
    connection = http.client.HTTPConnection("::1", port_of(sink), timeout=5)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    sink.close()
    assert sink.url == ""


def test_it_is_ready_when_every_required_source_has_given_a_frame() -> None:
    cameras: dict[str, Any] = {
        "front": {"results_out": 0, "source": {"reason": "nothing listens on that port"}},
        "back": {"results_out": 0, "source": {"reason": ""}},
        "yard": {"results_out": 0, "source": {"reason": "away"}},
    }
    with opened(live_page(lambda: {"required": ["front", "back"], "stages": cameras})) as sink:
        status, _, body = ask(sink, "/readyz")
        assert (status, body) == (503, b"front: nothing listens on that port\nback: no frame yet\n")
        cameras["back"]["results_out"] = 1
        assert ask(sink, "/readyz")[::2] == (503, b"front: nothing listens on that port\n")
        cameras["front"]["results_out"] = 1
        assert ask(sink, "/readyz")[::2] == (200, b"ok\n"), "the yard is not required"
        assert ask(sink, "/healthz")[0] == 200


def of_camera(stream: str, shade: int) -> Result:
    image = np.full((48, 64, 3), shade, np.uint8)
    return replace(result_of(frame_of(stream=stream)), image=image)


def test_every_camera_has_a_stream_and_a_snapshot_of_its_own(sink: HttpSink) -> None:
    for stream, shade in (("front", 40), ("back", 200)):
        sink.process(of_camera(stream, shade))
    for stream, shade in (("front", 40), ("back", 200)):
        body = ask(sink, f"/snapshot.jpg?stream={stream}")[2]
        assert abs(float(cv2.imdecode(np.frombuffer(body, np.uint8), 1).mean()) - shade) < 3
        viewer = Viewer(sink, f"/stream.mjpg?stream={stream}")
        assert abs(float(viewer.image().mean()) - shade) < 3
        viewer.close()
        assert json.loads(ask(sink, f"/stats.json?stream={stream}")[2])["latest"]["stream"] == stream
    state = json.loads(ask(sink, "/stats.json")[2])
    assert list(state["streams"]) == ["back", "front"] and state["events"] == 0


@pytest.mark.parametrize(
    ("asked", "width_px"),
    [("", 1280), ("&tile=360", 640), ("&tile=1200", 1280), ("&tile=x", 1280), ("&tile=999999", 1280)],
)
def test_a_phone_gets_an_image_whose_letters_it_can_show(sink: HttpSink, asked: str, width_px: int) -> None:
    sink.process(result_of(frame_of(1280, 720), {"find": detections((1, 1, 90, 90))}))
    viewer = Viewer(sink, f"/stream.mjpg?stream=camera{asked}")
    assert viewer.image().shape[1] == width_px
    viewer.close()


def test_the_wall_brings_every_camera_by_one_connection(sink: HttpSink) -> None:
    shades = {f"camera_{number}": 20 * number + 10 for number in range(9)}
    for stream, shade in shades.items():
        sink.process(of_camera(stream, shade))
    viewer, found = Viewer(sink, "/wall"), dict[str, float]()
    while len(found) < len(shades):
        about = json.loads(viewer.file.readline())
        image = cv2.imdecode(np.frombuffer(viewer.file.read(about["bytes"]), np.uint8), cv2.IMREAD_COLOR)
        found[about["stream"]] = float(image.mean())
    assert all(abs(found[stream] - shade) < 3 for stream, shade in shades.items())
    viewer.close()


def test_the_address_with_most_viewers_makes_room_for_others(sink: HttpSink) -> None:
    sink.process(shown())
    viewers = [Viewer(sink) for _ in range(8)]
    other = Viewer(sink, address="127.0.0.2")
    assert other.status == 200 and other.image().shape == (48, 64, 3)
    with contextlib.suppress(ConnectionError, http.client.IncompleteRead):
        while viewers[0].file.read(1 << 12):  # the oldest gave way: what was sent is all there is
            continue
    for viewer in (*viewers, other):
        viewer.close()


def test_viewers_that_leave_are_forgotten(sink: HttpSink) -> None:
    for _ in range(3 * limits.PAGE_CONNECTIONS):
        with socket.create_connection(("127.0.0.1", port_of(sink)), timeout=5) as client:
            client.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(sink, "/healthz")[0] == 200
