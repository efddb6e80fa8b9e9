"""The limits of the RTSP server's connections, with doubles of GStreamer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgert import limits
from edgert.stages.sink.stream.rtsp_server import RtspClients


class Client:
    """A double of a connection of gst-rtsp-server."""

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
def clients(monkeypatch: pytest.MonkeyPatch) -> RtspClients:
    monkeypatch.setattr(limits, "RTSP_CONNECTIONS", 24)
    return RtspClients(Sessions(), lambda: None)


def connected(clients: RtspClients, address: str = "10.0.0.1") -> Client:
    client = Client(address)
    clients.connected(None, client)
    return client


def test_a_group_holds_so_many_and_the_oldest_is_closed_first(clients: RtspClients) -> None:
    friend = connected(clients, "10.0.0.9")
    many = [connected(clients) for _ in range(20)]
    assert len(clients.asking) == 4 and not friend.closed
    assert [client.closed for client in many] == [True] * 17 + [False] * 3
    friend.does("play")
    assert len(clients.asking) == 3 and len(clients.playing) == 1


def test_a_client_that_plays_nothing_for_long_is_closed(clients: RtspClients, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("edgert.stages.sink.stream.rtsp_server.time.monotonic", lambda: now_s[0])
    asking, playing = connected(clients), connected(clients)
    playing.does("play")
    now_s[0] += limits.RTSP_IDLE_S - 1
    clients.clean_up()
    assert not asking.closed
    now_s[0] += 2
    clients.clean_up()
    assert asking.closed and not playing.closed
    playing.does("teardown")
    clients.clean_up()
    assert not playing.closed, "its time begins anew"
    now_s[0] += limits.RTSP_IDLE_S + 1
    clients.clean_up()
    assert playing.closed
    assert [len(group) for group in (clients.asking, clients.playing)] == [0, 0]
    sessions: Any = clients._sessions
    assert sessions.cleaned == 4


def test_players_stay_unless_their_address_has_two_more(clients: RtspClients) -> None:
    players = [connected(clients, f"10.0.0.{number}") for number in (1, 1, 2, 3)]
    for player in players:
        player.does("play")
    late = connected(clients, "10.0.0.4")
    late.does("play")
    clients.clean_up()
    assert not late.closed and [player.closed for player in players] == [True, False, False, False]
    later = connected(clients, "10.0.0.4")
    later.does("play")
    clients.clean_up()
    assert later.closed and not late.closed
    assert len(clients.playing) == 4
