"""Who gives way in a room that is full."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable

import pytest

from edgert.stages.sink.connections import Connection
from edgert.stages.sink.rooms import Room, affordable, network_of


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def begun() -> None:
        await work()

    asyncio.run(begun())


def client(address: str, room: Room[Connection]) -> Connection:
    ours, theirs = socket.socketpair()
    theirs.close()
    return Connection(ours, (address, 1), room)


def test_the_oldest_of_the_address_that_has_most_gives_way() -> None:
    async def work() -> None:
        room = Room[Connection](4)
        friend = client("10.0.0.1", room)
        many = [client("10.0.0.2", room) for _ in range(5)]
        assert set(room) == {friend, *many[2:]}
        other = client("10.0.0.3", room)
        assert set(room) == {friend, *many[3:], other}
        for one in (friend, other, *many):
            one.close()
        assert len(room) == 0

    run(work)


def test_one_step_takes_no_place_of_another() -> None:
    async def work() -> None:
        silent, asking = Room[Connection](2), Room[Connection](2)
        friend = client("10.0.0.1", silent)
        friend.enter(asking)
        many = [client("10.0.0.1", silent) for _ in range(9)]
        assert set(asking) == {friend} and set(silent) == set(many[-2:])
        for one in (friend, *many):
            one.close()

    run(work)


def test_who_stays_for_long_gives_way_to_an_address_with_two_fewer() -> None:
    async def work() -> None:
        room = Room[Connection](3)
        own, *many = client("10.0.0.1", room), client("10.0.0.2", room), client("10.0.0.2", room)
        assert not room.takes("10.0.0.2") and not room.takes("10.0.0.1") and len(room) == 3
        assert room.takes("10.0.0.3") and set(room) == {own, many[1]}
        for one in (own, *many):
            one.close()

    run(work)


def test_a_host_of_ipv6_has_one_share_whatever_it_calls_itself() -> None:
    assert network_of("2001:db8:1:2::5") == network_of("2001:db8:1:2:ffff::1%eth0") != network_of("2001:db8:1:3::5")
    assert network_of("10.0.0.1") == "10.0.0.1" and network_of("") == ""


@pytest.mark.parametrize(
    ("descriptors", "most", "found"), [(64, 64, 4), (512, 64, 32), (1024, 64, 64), (1 << 20, 64, 64), (-1, 64, 64)]
)
def test_fewer_clients_where_the_process_may_open_less(
    descriptors: int, most: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))
    assert affordable(most) == found


@pytest.mark.parametrize("sent", [b"", b"ab", b"abcd"])
def test_what_comes_is_read_to_a_mark_and_no_further(sent: bytes) -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        one = Connection(ours, ("10.0.0.1", 1), Room[Connection](1))
        theirs.sendall(sent + b"|rest")
        await one.speak()
        assert await one.until(b"|", 9) == sent + b"|"
        assert await one.exactly(4) == b"rest"
        theirs.sendall(b"x" * 10 + b"|")
        with pytest.raises(ValueError, match="more than 9"):
            await one.until(b"|", 9)
        theirs.close()
        with pytest.raises(asyncio.IncompleteReadError):
            await one.exactly(40)
        one.close()

    run(work)
