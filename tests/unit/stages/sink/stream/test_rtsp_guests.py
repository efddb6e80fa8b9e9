"""The connections of the RTSP server: who is counted where, who ends and when; with clients in place of GStreamer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgert import limits
from edgert.stages.sink.stream.rtsp_guests import Guests


class Client:
    """A connection of gst-rtsp-server's, as far as it is asked."""

    def __init__(self, address: str) -> None:
        self.address, self.closed = address, False
        self.signals: dict[str, Callable[..., object]] = {}

    def connect(self, signal: str, called: Callable[..., object]) -> None:
        self.signals[signal] = called

    def get_connection(self) -> Client:
        return self

    def get_ip(self) -> str:
        return self.address

    def close(self) -> None:
        self.closed = True
        self.signals["closed"](self)

    def does(self, what: str) -> None:
        self.signals[f"{what}-request"](self, None)


class Sessions:
    cleaned = 0

    def cleanup(self) -> None:
        self.cleaned += 1


@pytest.fixture
def guests(monkeypatch: pytest.MonkeyPatch) -> Guests:
    monkeypatch.setattr(limits, "RTSP_CONNECTIONS", 24)
    return Guests(Sessions(), lambda: None)


def came(guests: Guests, address: str = "10.0.0.1") -> Client:
    client = Client(address)
    guests.came(None, client)
    return client


def test_no_more_than_a_room_has_places_and_the_oldest_gives_way(guests: Guests) -> None:
    friend = came(guests, "10.0.0.9")
    clients = [came(guests) for _ in range(20)]
    assert len(guests.asking) == 4 and not friend.closed
    assert [client.closed for client in clients] == [True] * 17 + [False] * 3
    friend.does("play")
    assert len(guests.asking) == 3 and len(guests.playing) == 1


def test_who_plays_nothing_for_long_ends(guests: Guests, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("edgert.stages.sink.stream.rtsp_guests.time.monotonic", lambda: now_s[0])
    asking, playing = came(guests), came(guests)
    playing.does("play")
    now_s[0] += limits.RTSP_IDLE_S - 1
    guests.looked()
    assert not asking.closed
    now_s[0] += 2
    guests.looked()
    assert asking.closed and not playing.closed
    playing.does("teardown")
    guests.looked()
    assert not playing.closed, "it has as long again"
    now_s[0] += limits.RTSP_IDLE_S + 1
    guests.looked()
    assert playing.closed
    assert [len(room) for room in (guests.asking, guests.playing)] == [0, 0]
    sessions: Any = guests._sessions
    assert sessions.cleaned == 4


def test_those_who_play_stay_unless_their_address_has_two_more(guests: Guests) -> None:
    players = [came(guests, f"10.0.0.{number}") for number in (1, 1, 2, 3)]
    for player in players:
        player.does("play")
    late = came(guests, "10.0.0.4")
    late.does("play")
    guests.looked()
    assert not late.closed and [player.closed for player in players] == [True, False, False, False]
    later = came(guests, "10.0.0.4")
    later.does("play")
    guests.looked()
    assert later.closed and not late.closed
    assert len(guests.playing) == 4
