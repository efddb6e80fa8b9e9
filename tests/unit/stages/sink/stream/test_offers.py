"""What is left of the addresses that an offer of WebRTC names: those of who makes it."""

import asyncio
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from edgert import limits
from edgert.stages.sink.stream import webrtc_sessions
from edgert.stages.sink.stream.webrtc_sessions import RefusedError, harmless


def offer(*candidates: str, media: int = 1) -> str:
    lines = ["v=0", "c=IN IP4 0.0.0.0", *["m=video 9 UDP/TLS/RTP/SAVPF 96"] * media]
    return "\r\n".join([*lines, *candidates, "a=end-of-candidates", ""])


def candidate(address: str, protocol: str = "udp", port: int = 4000) -> str:
    return f"a=candidate:1 1 {protocol} 2130706431 {address} {port} typ host generation 0"


def left(found: str) -> list[str]:
    return [line.split()[4] for line in found.splitlines() if line.startswith("a=candidate")]


@pytest.mark.parametrize(
    ("address", "peer", "stays"),
    [
        ("10.0.0.5", "10.0.0.5", True),
        ("2001:db8::5", "2001:db8:0:0::5", True),
        ("10.0.0.5", "::ffff:10.0.0.5", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("8.8.8.8", "10.0.0.5", False),
        ("127.0.0.1", "10.0.0.5", False),
        ("127.0.0.2", "127.0.0.1", False),
        ("192.168.1.7", "127.0.0.1", False),
        ("169.254.1.1", "169.254.1.1", False),
        ("fe80::1", "fe80::1%eth0", False),
        ("224.0.0.251", "224.0.0.251", False),
        ("0.0.0.0", "0.0.0.0", False),
        ("255.255.255.255", "10.0.0.5", False),
        ("0a1b2c3d.local", "10.0.0.5", False),
        ("printer", "10.0.0.5", False),
        ("010.0.0.5", "10.0.0.5", False),
        ("10.0.0.5", "", False),
    ],
)
def test_only_addresses_of_who_asks_stay(address: str, peer: str, stays: bool) -> None:
    assert left(harmless(offer(candidate(address)), peer)) == [address] * stays


def test_so_many_at_most_over_all_media_and_no_end_of_them() -> None:
    many = [candidate("10.0.0.5", port=1024 + number) for number in range(400)]
    found = harmless(offer(*many, "m=audio 9 UDP/TLS/RTP/SAVPF 0", *many), "10.0.0.5")
    assert len(left(found)) == limits.WHEP_CANDIDATES and "end-of-candidates" not in found


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r", "\n"])
def test_no_sign_that_ends_a_line_for_some_hides_a_candidate(separator: str) -> None:
    found = harmless(offer(f"a=x{separator}{candidate('10.0.0.6')}"), "10.0.0.5")
    assert left(found) == [] and "10.0.0.6" not in found


@pytest.mark.parametrize("line", ["a=candidate", "a=candidate:", "a=candidate:1 1 udp", "a=candidate: tcp"])
def test_candidates_that_are_none(line: str) -> None:
    assert line not in harmless(offer(line), "10.0.0.5")


def test_other_transports_and_more_media_than_a_viewer_needs() -> None:
    assert left(harmless(offer(candidate("10.0.0.5", "tcp")), "10.0.0.5")) == []
    with pytest.raises(RefusedError, match="5 media"):
        harmless(offer(media=5), "10.0.0.5")


def test_a_session_whose_request_is_canceled_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close() -> None:
        pass

    async def offers() -> None:
        sessions = webrtc_sessions.Sessions("127.0.0.1")
        request = asyncio.create_task(sessions.begin(MagicMock(), offer(), "10.0.0.5"))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.sleep(0.05)
        assert request.cancelled() and not sessions._all
        assert "connectionstatechange" in handlers, "a viewer that connects all the same ends with its connection"

    handlers = dict[str, object]()
    connection = SimpleNamespace(connectionState="new", close=close, on=handlers.__setitem__)
    fake = SimpleNamespace(RTCPeerConnection=lambda _: connection, RTCConfiguration=list)
    monkeypatch.setitem(sys.modules, "aiortc", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(webrtc_sessions.Sessions, "_answer", lambda *_: asyncio.Event().wait())
    monkeypatch.setattr(webrtc_sessions, "_CONNECT_S", 0.0)
    asyncio.run(offers())
