"""Live video in a browser, and the addresses of WHEP: of the sink for it and of the live page, in headless Chromium."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from edgert import limits
from edgert.config import SinkStage
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.context import Context
from edgert.stages.sink import encoders
from edgert.stages.sink.stream import whep
from edgert.stages.sink.stream.webrtc_sink import WebrtcSink
from edgert.stages.sink.web import http_sink
from edgert.stages.sink.web.http_sink import HttpSink
from tests.helpers.browser import Page, browser
from tests.helpers.clock_in_frames import BITS, READ_IN_A_PAGE, SIDE, Camera
from tests.helpers.frames import frame_of
from tests.helpers.http_request import answer_of, live_page
from tests.helpers.waiting import wait_until

TOKEN = "a-token-of-sixteen"
SIZE = (BITS * SIDE, 288)
PLAYS = "document.querySelector('#view video').classList.contains('plays')"
IMAGE = "document.querySelector('#view img').getAttribute('src')"
pytest.importorskip("aiortc", reason="aiortc (extra 'webrtc') is not installed")


def sink_of(port: int = 0, token: str = "") -> WebrtcSink:
    keys = {"sink": "webrtc", "from": "cam", "port": port, "encode": "cpu", **({"token": token} if token else {})}
    return WebrtcSink("out", SinkStage.model_validate(keys), Context())


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
            wait_until(lambda: len(sink.whep._streams) == len(streams))
            yield sink, camera
        finally:
            camera.end()


def sessions_of(sink: WebrtcSink) -> dict[str, Any]:
    return sink.whep._sessions._all if sink.whep._thread is not None else {}


def ask(
    sink: WebrtcSink | HttpSink, method: str, path: str, body: str = "", **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    status, found, text = answer_of(sink.url, path, method, body, **headers)
    return status, found, text.decode()


def test_what_the_addresses_give_and_refuse() -> None:
    with opened() as sink:
        sink.process(Result(frame_of(stream="yard")))
        sdp = {"Content_Type": "application/sdp"}
        status, headers, page = ask(sink, "GET", "/")
        assert status == 200 and "script-src 'sha256-" in headers["Content-Security-Policy"] and "<script>" in page
        assert json.loads(ask(sink, "GET", "/streams.json")[2]) == ["yard"]
        status, _, text = ask(sink, "POST", "/whep/barn", "v=0", **sdp)
        assert status == 404 and "known: yard" in text
        assert ask(sink, "POST", "/whep/yard", "v=0")[0] == 415
        for nonsense in ("", "v=0\r\n", "hello", "v=0\r\nm=video x\r\n"):
            status, _, text = ask(sink, "POST", "/whep/yard", nonsense, **sdp)
            assert status == 406 and "no H.264 video for this offer" in text
        status, _, text = ask(sink, "POST", "/whep/yard", "x", Content_Length=str(limits.WHEP_BYTES + 1), **sdp)
        assert status == 413
        assert ask(sink, "GET", "/whep/yard")[0] == 405 and ask(sink, "PATCH", "/whep/yard/1", "a")[0] == 405
        assert ask(sink, "DELETE", "/whep/yard/1")[0] == ask(sink, "GET", "/../etc/passwd")[0] == 404
        assert ask(sink, "POST", "/")[0] == 501 and ask(sink, "GET", "/", Host="evil.example")[0] == 403
        assert not sessions_of(sink) and sink.whep._streams["yard"].encoded == 0


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
        assert not sessions_of(sink)


class Ears:
    """UDP sockets on addresses of this machine, which count what they hear."""

    def __init__(self, *addresses: str) -> None:
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in addresses]
        for one, address in zip(self.sockets, addresses, strict=True):
            one.bind((address, 0))
            one.setblocking(False)

    def candidates(self) -> list[str]:
        """Their addresses, as an offer names them."""
        names = [one.getsockname() for one in self.sockets]
        return [f"a=candidate:{n} 1 udp 2122252543 {name[0]} {name[1]} typ host" for n, name in enumerate(names)]

    def heard(self) -> int:
        count = 0
        for one in self.sockets:
            with suppress(BlockingIOError):
                while one.recv(2048):
                    count += 1
        return count


async def _offer_of(candidates: list[str], *others: str) -> str:
    import aiortc

    peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration([]))
    peer.addTransceiver("video", "recvonly")
    await peer.setLocalDescription(await peer.createOffer())
    lines = [line for line in str(peer.localDescription.sdp).splitlines() if "candidate" not in line]
    await peer.close()
    return "\r\n".join([*lines, *candidates, *others, ""])


def test_no_packet_goes_to_others_than_who_asks_whatever_an_offer_names() -> None:
    others = Ears(*["127.0.0.2"] * 30, *["127.0.0.3"] * 30)
    own = Ears(*["127.0.0.1"] * 60)
    with opened() as sink:
        sink.process(Result(frame_of(stream="yard")))
        named = f"a=rtcp:{others.sockets[0].getsockname()[1]} IN IP4 127.0.0.2"
        sdp = asyncio.run(_offer_of(others.candidates() + own.candidates(), named))
        sdp = sdp.replace("c=IN IP4 0.0.0.0", "c=IN IP4 127.0.0.2")
        began_s, sent = time.monotonic(), len(sdp)
        assert ask(sink, "POST", "/whep/yard", sdp, Content_Type="application/sdp")[0] == 201
        strange = heard = 0
        while time.monotonic() - began_s < 6:
            strange, heard = strange + others.heard(), heard + own.heard()
            time.sleep(0.05)
    assert strange == 0, f"{strange} packets to others for an offer of {sent} bytes"
    assert 0 < heard <= 8 * limits.WHEP_CANDIDATES


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


@pytest.mark.timing
@pytest.mark.slow
def test_a_player_of_whep_gets_the_video_and_nothing_is_encoded_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    _by_another_address(monkeypatch)
    with filmed("yard", "gate") as (sink, camera):
        time.sleep(0.3)
        assert sink.whep._streams["yard"].encoded == 0
        assert asyncio.run(_played(sink, "yard", 20)) == [SIZE] * 20
        wait_until(lambda: not sink.whep._streams["yard"].viewers and sink.whep._streams["yard"]._encoder is None)
        assert sink.whep._streams["gate"].encoded == 0 and not sessions_of(sink)
        assert camera.slowest_s < 0.05


@pytest.mark.slow
def test_viewers_are_counted_and_too_many_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _by_another_address(monkeypatch)
    monkeypatch.setattr(limits, "WEBRTC_VIEWERS", 0)
    with filmed("yard") as (sink, _), pytest.raises(AssertionError):
        asyncio.run(_played(sink, "yard", 1))
    assert not sessions_of(sink)


def show(page: Page, sink: WebrtcSink) -> None:
    """The sink's page in a window that holds all its videos: those outside are not drawn."""
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url=sink.url)


def frames(page: Page, stream: str, count: int) -> list[int]:
    """Latencies of frames that a page shows, in ms."""
    found: list[int] = page.evaluate(f"({READ_IN_A_PAGE})({json.dumps(stream)}, {count})")
    return found


@pytest.mark.timing
@pytest.mark.slow
def test_a_browser_plays_every_stream_goes_on_with_another_size_and_is_let_go(tmp_path: Path) -> None:
    with filmed("yard", "gate") as (sink, camera), browser(tmp_path) as page:
        show(page, sink)
        wait_until(lambda: page.evaluate("document.querySelectorAll('video').length") == 2)
        for stream in ("yard", "gate"):
            late_ms = sorted(frames(page, stream, 20))
            assert late_ms[10] < 5000, "what the video shows is the clock, not long ago"
        assert page.evaluate("document.querySelector('video').videoWidth") == SIZE[0]
        camera.size = (640, 360)
        wait_until(lambda: page.evaluate("document.querySelector('[data-stream=yard]').videoWidth") == 640)
        assert frames(page, "yard", 5)
        assert [sink.whep._streams[name].viewers for name in ("yard", "gate")] == [1, 1]
        assert not page.errors
        page.call("Page.navigate", url="about:blank")
        wait_until(lambda: not any(one.viewers for one in sink.whep._streams.values()))
        wait_until(lambda: not sessions_of(sink))


@pytest.mark.timing
@pytest.mark.slow
def test_a_stream_that_ends_ends_in_the_browser_and_a_new_one_is_found(tmp_path: Path) -> None:
    with filmed("yard") as (sink, camera), browser(tmp_path) as page:
        show(page, sink)
        wait_until(lambda: page.evaluate("document.querySelectorAll('video').length") == 1)
        frames(page, "yard", 5)
        camera.end()
        begun_s = time.monotonic()
        sink.close()
        assert time.monotonic() - begun_s < 3
        wait_until(lambda: page.evaluate("document.querySelector('video').className") == "lost")
        sink.open()  # on the port that it had
        again = Camera(sink.process, 30, SIZE, ("yard",))
        again.start()
        assert frames(page, "yard", 5)
        again.end()


@contextmanager
def page_of(*streams: str, **keys: Any) -> Iterator[HttpSink]:
    sink = live_page(lambda: {"name": "north", "frames_out": 9, "dropped": 0, "stages": {}}, **keys)
    sink.whep = whep.page_video("page", 30.0)
    sink.open()
    camera = Camera(sink.process, 15, SIZE, streams)
    camera.start()
    try:
        yield sink
    finally:
        camera.end()
        sink.close()


def watchers(sink: HttpSink) -> dict[str, int]:
    assert sink.whep is not None
    return {name: one.viewers for name, one in sink.whep._streams.items() if one.viewers}


def test_what_the_live_page_gives_and_refuses() -> None:
    sdp = {"Content_Type": "application/sdp"}
    with page_of("yard") as sink:
        wait_until(lambda: json.loads(ask(sink, "GET", "/stats.json")[2])["streams"])
        assert json.loads(ask(sink, "GET", "/stats.json")[2])["video"] is True
        status, _, text = ask(sink, "POST", "/whep/barn", "v=0", **sdp)
        assert status == 404 and "known: yard" in text
        assert ask(sink, "POST", "/whep/yard", "v=0")[0] == 415
        status, _, text = ask(sink, "POST", "/whep/yard", "v=0\r\nm=video x\r\n", **sdp)
        assert status == 406 and "no H.264 video for this offer" in text
        assert ask(sink, "POST", "/whep/yard", "x", Content_Length=str(limits.WHEP_BYTES + 1), **sdp)[0] == 413
        assert ask(sink, "POST", "/whep/yard", "x", Content_Length="many", **sdp)[0] == 400
        assert ask(sink, "GET", "/whep/yard")[0] == 405 and ask(sink, "DELETE", "/whep/yard/1")[0] == 404
        assert ask(sink, "POST", "/whep/yard", "v=0", Host="evil.example", **sdp)[0] == 403
        assert ask(sink, "POST", "/", "v=0", **sdp)[0] == ask(sink, "DELETE", "/stats.json")[0] == 501
        assert sink.whep is not None and sink.whep._streams["yard"].encoded == 0


def test_an_offer_that_does_not_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_HEAD_S", 0.2)
    with page_of("yard") as sink:
        assert ask(sink, "POST", "/whep/yard", "v=0", Content_Length="9", Content_Type="application/sdp")[0] == 408


def test_only_who_knows_the_token_of_the_live_page_may_watch() -> None:
    with page_of("yard", token=TOKEN) as sink:
        for given in ({}, {"Authorization": "Bearer wrong"}):
            assert ask(sink, "POST", "/whep/yard", "v=0", **given)[0] == 401
            assert ask(sink, "DELETE", "/whep/yard/1", **given)[0] == 401
        assert ask(sink, "DELETE", "/whep/yard/1", Authorization=f"Bearer {TOKEN}")[0] == 404


def test_there_are_images_only_without_aiortc_and_without_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whep, "find_spec", lambda name: None)
    assert whep.page_video("page", 30.0) is None
    with page_of("yard") as sink:
        assert json.loads(ask(sink, "GET", "/stats.json")[2])["video"] is False
        assert ask(sink, "POST", "/whep/yard", "v=0", Content_Type="application/sdp")[0] == 501
    monkeypatch.undo()
    monkeypatch.setattr(encoders, "has_encoder", lambda name: False)
    assert whep.page_video("page", 30.0) is None


def test_no_more_cameras_than_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_STREAMS", 1)
    with page_of("yard", "gate") as sink:
        wait_until(lambda: json.loads(ask(sink, "GET", "/stats.json")[2])["streams"])
        assert sink.whep is not None and list(sink.whep._streams) == ["yard"]


def test_scripts_of_one_page_name_nothing_twice() -> None:
    folder = Path(http_sink.__file__).parent / "page"
    for html in ("page.html", "player.html"):
        scripts = re.findall(r'<script src="([\w.]+)">', (folder / html).read_text())
        text = "\n".join((folder / name).read_text() for name in scripts)
        names = re.findall(r"^(?:async )?function (\w+)", text, re.MULTILINE)
        assert len(scripts) > 1 and len(names) == len(set(names)), "the last one would take the place of the first"


def enter(page: Page, address: str) -> None:
    given = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    page.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {given}"})
    page.open(address, 1200)


@pytest.mark.slow
def test_one_camera_alone_plays_as_video_and_is_let_go_when_it_is_left(tmp_path: Path) -> None:
    with page_of("yard", "gate") as sink, browser(tmp_path) as page:
        page.open(sink.url, 1200)
        wait_until(lambda: page.evaluate("document.querySelectorAll('.tile').length") == 2)
        assert watchers(sink) == {}, "the wall is images"
        page.evaluate("enlarge('yard')")
        wait_until(lambda: page.evaluate(PLAYS))
        assert page.evaluate("document.querySelector('#view video').videoWidth") == SIZE[0]
        wait_until(lambda: page.evaluate(IMAGE) is None)
        assert watchers(sink) == {"yard": 1}
        page.press("ArrowRight")
        wait_until(lambda: page.evaluate(PLAYS) and watchers(sink) == {"gate": 1})
        page.press("Escape")
        wait_until(lambda: watchers(sink) == {} and not sink.whep._sessions._all)  # type: ignore[union-attr]
        assert not page.evaluate(PLAYS) and page.evaluate("!document.querySelector('#wall').hidden")
        wait_until(lambda: not any(one._encoder for one in sink.whep._streams.values()))  # type: ignore[union-attr]
        counts = [one.encoded for one in sink.whep._streams.values()]  # type: ignore[union-attr]
        time.sleep(0.5)
        assert counts == [one.encoded for one in sink.whep._streams.values()]  # type: ignore[union-attr]
        assert page.errors == []


@pytest.mark.slow
def test_images_are_shown_where_video_does_not_connect(tmp_path: Path) -> None:
    with page_of("yard") as sink, browser(tmp_path) as page:
        nowhere = "RTCPeerConnection.prototype.setRemoteDescription = () => new Promise(() => undefined)"
        page.call("Page.addScriptToEvaluateOnNewDocument", source=nowhere)
        page.open(sink.url, 1200)
        wait_until(lambda: page.evaluate("document.querySelector('#view img').naturalWidth") == SIZE[0])
        wait_until(lambda: sink.whep._thread and sink.whep._sessions._all)  # type: ignore[union-attr]
        time.sleep(1)
        assert not page.evaluate(PLAYS) and page.evaluate(IMAGE) and watchers(sink) == {}


@pytest.mark.slow
def test_images_are_shown_where_as_many_watch_as_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBRTC_VIEWERS", 0)
    with page_of("yard") as sink, browser(tmp_path) as page:
        page.open(sink.url, 1200)
        wait_until(lambda: page.evaluate("document.querySelector('#view img').naturalWidth") == SIZE[0])
        wait_until(lambda: page.evaluate("refused") == "yard")
        asked = sum("/whep/" in one for one in page.requests)
        time.sleep(1.5)
        assert asked == sum("/whep/" in one for one in page.requests) == 1, "it asks once, until another is looked at"
        assert page.evaluate(IMAGE)


@pytest.mark.slow
def test_it_plays_for_who_gave_the_token(tmp_path: Path) -> None:
    with page_of("yard", token=TOKEN) as sink, browser(tmp_path) as page:
        enter(page, sink.url)
        wait_until(lambda: page.evaluate(PLAYS))
        assert watchers(sink) == {"yard": 1}
        page.call("Page.navigate", url="about:blank")
        wait_until(lambda: watchers(sink) == {})
    assert not [one for one in threading.enumerate() if one.name in ("edgert:http-video", "edgert:page:yard")]
