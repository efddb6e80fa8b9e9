"""Limits on the number of a server's clients. Where one is reached, the network with the most clients loses one."""

import resource
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Generic, Protocol, TypeVar

_DEFAULT_DESCRIPTORS = 1024
"""Usual limit of a process; below it, the limits of :mod:`edgert.limits` shrink in proportion."""
_MIN_LIMIT = 4


class Client(Protocol):
    """A connection that counts against a limit.

    Attributes:
        network: its network, from :func:`client_network`.
    """

    network: str

    def abort(self) -> None:
        """End the connection and remove it from its group."""


_C = TypeVar("_C", bound=Client)


class FairGroup(Generic[_C]):
    """The clients in one phase of a connection, oldest first. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._clients = dict[_C, None]()
        self._counts = Counter[str]()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[_C]:
        return iter(tuple(self._clients))

    def add(self, client: _C) -> None:
        """Add a client; where the group is full, first abort the oldest client of the busiest network."""
        if len(self._clients) >= self.limit:
            self.oldest_of_busiest().abort()
        self._clients[client] = None
        self._counts[client.network] += 1

    def make_room(self, network: str) -> bool:
        """Return whether a network may add a client that stays for long.

        A full group aborts the oldest client of its busiest network, if that has at least two clients more.
        """
        if len(self._clients) < self.limit:
            return True
        oldest = self.oldest_of_busiest()
        if self._counts[oldest.network] < self._counts[network] + 2:
            return False
        oldest.abort()
        return True

    def remove(self, client: _C) -> None:
        """Remove a client, if it is in the group."""
        if client in self._clients:
            del self._clients[client]
            self._counts[client.network] -= 1
            if not self._counts[client.network]:
                del self._counts[client.network]

    def oldest_of_busiest(self) -> _C:
        """Return the oldest client of the network with the most clients. The group must not be empty."""
        busiest = max(self._counts, key=self._counts.__getitem__)
        return next(client for client in self._clients if client.network == busiest)


def client_network(address: str) -> str:
    """Return the network of a client: its IPv4 address, or the first 64 bits of its IPv6 address.

    One host may use all IPv6 addresses that begin with the same 64 bits.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed) if parsed.version == 4 else parsed.exploded[:19]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def affordable_limit(limit: int) -> int:
    """Return a limit on clients, lowered where the process may open fewer descriptors than usual."""
    return max(min(limit, limit * descriptor_limit() // _DEFAULT_DESCRIPTORS), _MIN_LIMIT)


def descriptor_limit() -> int:
    """Return the maximum number of descriptors that this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def reserved_descriptors() -> int:
    """Return the number of descriptors that are kept for the rest of the process."""
    return min(descriptor_limit() // 4, _DEFAULT_DESCRIPTORS // 4)
