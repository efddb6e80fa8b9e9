"""Which client ends when there are too many."""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable

import pytest

from edgert.stages.sink.client_limits import FairGroup, affordable_limit, client_network
from edgert.stages.sink.tcp_connection import Connection


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def begun() -> None:
        await work()

    asyncio.run(begun())


def client(address: str, group: FairGroup[Connection]) -> Connection:
    ours, theirs = socket.socketpair()
    theirs.close()
    return Connection(ours, (address, 1), group)


def test_the_oldest_of_the_address_that_has_most_is_aborted() -> None:
    async def work() -> None:
        group = FairGroup[Connection](4)
        friend = client("10.0.0.1", group)
        many = [client("10.0.0.2", group) for _ in range(5)]
        assert set(group) == {friend, *many[2:]}
        other = client("10.0.0.3", group)
        assert set(group) == {friend, *many[3:], other}
        for one in (friend, other, *many):
            one.close()
        assert len(group) == 0

    run(work)


def test_a_phase_takes_no_place_of_another() -> None:
    async def work() -> None:
        silent, asking = FairGroup[Connection](2), FairGroup[Connection](2)
        friend = client("10.0.0.1", silent)
        friend.move_to(asking)
        many = [client("10.0.0.1", silent) for _ in range(9)]
        assert set(asking) == {friend} and set(silent) == set(many[-2:])
        for one in (friend, *many):
            one.close()

    run(work)


def test_a_client_that_stays_for_long_ends_for_an_address_with_two_fewer() -> None:
    async def work() -> None:
        group = FairGroup[Connection](3)
        own, *many = client("10.0.0.1", group), client("10.0.0.2", group), client("10.0.0.2", group)
        assert not group.make_room("10.0.0.2") and not group.make_room("10.0.0.1") and len(group) == 3
        assert group.make_room("10.0.0.3") and set(group) == {own, many[1]}
        for one in (own, *many):
            one.close()

    run(work)


def test_a_host_of_ipv6_is_one_client_at_whichever_of_its_addresses() -> None:
    one, same, other = map(client_network, ("2001:db8:1:2::5", "2001:db8:1:2:ffff::1%eth0", "2001:db8:1:3::5"))
    assert one == same != other
    assert client_network("10.0.0.1") == "10.0.0.1" and client_network("") == ""


@pytest.mark.parametrize(
    ("descriptors", "most", "found"), [(64, 64, 4), (512, 64, 32), (1024, 64, 64), (1 << 20, 64, 64), (-1, 64, 64)]
)
def test_fewer_clients_where_the_process_may_open_less(
    descriptors: int, most: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))
    assert affordable_limit(most) == found
