"""Live video in a browser, and the addresses of WHEP: a real server, aiortc's peer, headless Chromium."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgert import limits
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.http_request import Access
from edgert.stages.sink.stream.broadcast import Wanted
from edgert.stages.sink.stream.whep import WebrtcSink
from tests.helpers.browser import Page, browser
from tests.helpers.clock_in_frames import BITS, READ_IN_A_PAGE, SIDE, Camera
from tests.helpers.frames import frame_of

TOKEN = "a-token-of-sixteen"
SIZE = (BITS * SIDE, 288)
pytest.importorskip("aiortc", reason="aiortc (extra 'webrtc') is not installed")


def sink_of(port: int = 0, token: str = "") -> WebrtcSink:
    choice = Choice("stages.out", "h264", "cpu", live=True)
    return WebrtcSink("out", ("127.0.0.1", port), Access(token), choice, Wanted(1280, None, 4_000_000, 30.0))


@contextmanager
def opened(token: str = "") -> Iterator[WebrtcSink]:
    sink = sink_of(token=token)
    sink.open()
    try:
        yield sink
    finally:
        sink.close()


@contextmanager
def filmed(*streams: str) -> Iterator[tuple[WebrtcSink, Camera]]:
    with opened() as sink:
        camera = Camera(sink.process, 30, SIZE, streams)
        camera.start()
        try:
            wait(lambda: len(sink._streams) == len(streams))
            yield sink, camera
        finally:
            camera.end()


def wait(until: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.01)


def ask(sink: WebrtcSink, method: str, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", sink._port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    connection.close()
    return found


def test_what_the_addresses_give_and_refuse() -> None:
    with opened() as sink:
        sink.process(Result(frame_of(stream="yard")))
        sdp = {"Content_Type": "application/sdp"}
        assert (
            ask(sink, "GET", "/")[0] == ask(sink, "GET", "/player.js")[0] == ask(sink, "GET", "/player.css")[0] == 200
        )
        assert json.loads(ask(sink, "GET", "/streams.json")[2]) == ["yard"]
        status, _, text = ask(sink, "POST", "/whep/barn", "v=0", **sdp)
        assert status == 404 and "known: yard" in text
        assert ask(sink, "POST", "/whep/yard", "v=0")[0] == 415
        for nonsense in ("", "v=0\r\n", "hello", "v=0\r\nm=video x\r\n"):
            status, _, text = ask(sink, "POST", "/whep/yard", nonsense, **sdp)
            assert status == 406 and "cannot be agreed upon" in text
        status, _, text = ask(sink, "POST", "/whep/yard", "x", Content_Length=str(limits.WHEP_BYTES + 1), **sdp)
        assert status == 413
        assert ask(sink, "GET", "/whep/yard")[0] == 405 and ask(sink, "PATCH", "/whep/yard/1", "a")[0] == 405
        assert ask(sink, "DELETE", "/whep/yard/1")[0] == ask(sink, "GET", "/../etc/passwd")[0] == 404
        assert ask(sink, "POST", "/")[0] == 501 and ask(sink, "GET", "/", Host="evil.example")[0] == 403
        assert not sink._sessions._all and sink._streams["yard"].encoded == 0


def test_only_who_knows_the_token_is_answered_and_it_is_logged_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with opened(TOKEN) as sink:
        for path in ("/", "/streams.json", "/whep/yard"):
            assert ask(sink, "GET", path)[0] == ask(sink, "GET", path, Authorization="Bearer wrong")[0] == 401
        assert ask(sink, "GET", "/", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert TOKEN not in caplog.text + repr(sink._access)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sink = sink_of(taken.getsockname()[1])
        with pytest.raises(DeviceError, match="cannot listen on") as caught:
            sink.open()
        sink.close()
    assert "port: 0" in caught.value.fix and caught.value.where == "stages.out"


def test_offers_without_what_can_be_sent() -> None:
    async def offer(kind: str, direction: Any) -> str:
        import aiortc

        peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration([]))
        peer.addTransceiver(kind, direction)
        await peer.setLocalDescription(await peer.createOffer())
        sdp = str(peer.localDescription.sdp)
        await peer.close()
        return sdp

    with opened() as sink:
        sink.process(Result(frame_of(stream="yard")))
        audio, video = asyncio.run(offer("audio", "recvonly")), asyncio.run(offer("video", "recvonly"))
        only_vp8 = "\r\n".join(line for line in video.split("\r\n") if "H264" not in line)
        for sdp in (audio, only_vp8):
            status, _, text = ask(sink, "POST", "/whep/yard", sdp, Content_Type="application/sdp")
            assert status == 406 and "H.264" in text
        assert not sink._sessions._all


async def _played(sink: WebrtcSink, stream: str, count: int) -> list[tuple[int, int]]:
    """The sizes of so many images that aiortc's peer gets, which then leaves as WHEP says."""
    import aiortc

    peer, got = aiortc.RTCPeerConnection(aiortc.RTCConfiguration([])), asyncio.get_running_loop().create_future()
    peer.on("track", lambda track: got.set_result(track))
    peer.addTransceiver("video", "recvonly")
    await peer.setLocalDescription(await peer.createOffer())
    sdp = {"Content_Type": "application/sdp"}
    status, headers, answer = await asyncio.to_thread(
        ask, sink, "POST", f"/whep/{stream}", peer.localDescription.sdp, **sdp
    )
    assert status == 201 and headers["content-type"] == "application/sdp"
    hosts = {line.split()[4] for line in answer.splitlines() if line.startswith("a=candidate")}
    assert hosts == {"127.0.0.1"}, "video leaves the machine by no other address than the one that it listens on"
    await peer.setRemoteDescription(aiortc.RTCSessionDescription(answer, "answer"))
    track = await asyncio.wait_for(got, 30)
    images = [await asyncio.wait_for(track.recv(), 30) for _ in range(count)]
    assert (await asyncio.to_thread(ask, sink, "DELETE", headers["location"]))[0] == 200
    await peer.close()
    return [(one.width, one.height) for one in images]


def _by_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioice has no loopback address of its own: the peer of these tests gets it, too."""
    ice = pytest.importorskip("aioice.ice")
    monkeypatch.setattr(ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])


@pytest.mark.slow
def test_a_player_of_whep_gets_the_video_and_nothing_is_encoded_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    _by_another_address(monkeypatch)
    with filmed("yard", "gate") as (sink, camera):
        time.sleep(0.3)
        assert sink._streams["yard"].encoded == 0
        assert asyncio.run(_played(sink, "yard", 20)) == [SIZE] * 20
        wait(lambda: not sink._streams["yard"].viewers and sink._streams["yard"]._encoder is None)
        assert sink._streams["gate"].encoded == 0 and not sink._sessions._all
        assert camera.slowest_s < 0.05


@pytest.mark.slow
def test_viewers_are_counted_and_too_many_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _by_another_address(monkeypatch)
    monkeypatch.setattr(limits, "WEBRTC_VIEWERS", 0)
    with filmed("yard") as (sink, _), pytest.raises(AssertionError):
        asyncio.run(_played(sink, "yard", 1))
    assert not sink._sessions._all


def show(page: Page, sink: WebrtcSink) -> None:
    """The sink's page in a window that holds all its videos: those outside are not drawn."""
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url=sink.url)


def frames(page: Page, stream: str, count: int) -> list[int]:
    """Latencies of frames that a page shows, in ms."""
    found: list[int] = page.evaluate(f"({READ_IN_A_PAGE})({json.dumps(stream)}, {count})")
    return found


@pytest.mark.slow
def test_a_browser_plays_every_stream_goes_on_with_another_size_and_is_let_go(tmp_path: Path) -> None:
    with filmed("yard", "gate") as (sink, camera), browser(tmp_path) as page:
        show(page, sink)
        wait(lambda: page.evaluate("document.querySelectorAll('video').length") == 2)
        for stream in ("yard", "gate"):
            late_ms = sorted(frames(page, stream, 20))
            assert late_ms[10] < 5000, "what the video shows is the clock, not long ago"
        assert page.evaluate("document.querySelector('video').videoWidth") == SIZE[0]
        camera.size = (640, 360)
        wait(lambda: page.evaluate("document.querySelector('[data-stream=yard]').videoWidth") == 640)
        assert frames(page, "yard", 5)
        assert [sink._streams[name].viewers for name in ("yard", "gate")] == [1, 1]
        assert not page.errors
        page.call("Page.navigate", url="about:blank")
        wait(lambda: not any(one.viewers for one in sink._streams.values()))
        wait(lambda: not sink._sessions._all)


@pytest.mark.slow
def test_a_stream_that_ends_ends_in_the_browser_and_a_new_one_is_found(tmp_path: Path) -> None:
    with filmed("yard") as (sink, camera), browser(tmp_path) as page:
        show(page, sink)
        wait(lambda: page.evaluate("document.querySelectorAll('video').length") == 1)
        frames(page, "yard", 5)
        camera.end()
        begun_s = time.monotonic()
        sink.close()
        assert time.monotonic() - begun_s < 3
        wait(lambda: page.evaluate("document.querySelector('video').className") == "lost")
        sink.open()  # on the port that it had
        again = Camera(sink.process, 30, SIZE, ("yard",))
        again.start()
        assert frames(page, "yard", 5)
        again.end()
