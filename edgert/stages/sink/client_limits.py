"""Limits on how many clients a server has, which a client that takes more than its share is the first to feel."""

import resource
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Generic, Protocol, TypeVar

_USUAL_DESCRIPTORS = 1024
"""The default limit of a process; below it the limits of :mod:`edgert.limits` shrink in proportion."""
_LEAST = 4


class Client(Protocol):
    """A connection that is counted.

    Attributes:
        network: what is counted as one client.
    """

    network: str

    def abort(self) -> None:
        """End the connection and remove it from its group."""
        ...


_C = TypeVar("_C", bound=Client)


class FairGroup(Generic[_C]):
    """The clients that are in the same phase, the oldest first. Not thread-safe.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._clients = dict[_C, None]()
        self._counts = Counter[str]()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[_C]:
        return iter(tuple(self._clients))

    def add(self, client: _C) -> None:
        """Add a client; in a full group, abort the oldest one of the network that has most."""
        if len(self._clients) >= self.limit:
            self.first_to_go().abort()
        self._clients[client] = None
        self._counts[client.network] += 1

    def makes_room(self, network: str) -> bool:
        """Return whether a network may add a client that stays for long.

        A full group aborts its first to go, but only one of a network that has at least two clients more.
        """
        if len(self._clients) < self.limit:
            return True
        oldest = self.first_to_go()
        if self._counts[oldest.network] < self._counts[network] + 2:
            return False
        oldest.abort()
        return True

    def remove(self, client: _C) -> None:
        """Remove a client; do nothing where it is not in the group."""
        if client in self._clients:
            del self._clients[client]
            self._counts[client.network] -= 1
            if not self._counts[client.network]:
                del self._counts[client.network]

    def first_to_go(self) -> _C:
        """Return the oldest client of the network that has most. The group must not be empty."""
        busiest = max(self._counts, key=self._counts.__getitem__)
        return next(client for client in self._clients if client.network == busiest)


def network_of(address: str) -> str:
    """Return what is counted as one client: an IPv4 address, or the first 64 bits of an IPv6 address.

    One host may use all IPv6 addresses that begin with the same 64 bits.
    """
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(known) if known.version == 4 else known.exploded[:19]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def affordable(limit: int) -> int:
    """Return a limit of clients, lowered where the process may open fewer descriptors than usual."""
    return max(min(limit, limit * descriptor_limit() // _USUAL_DESCRIPTORS), _LEAST)


def descriptor_limit() -> int:
    """Return how many descriptors this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def reserved_descriptors() -> int:
    """Return how many descriptors clients leave to the rest of the process."""
    return min(descriptor_limit() // 4, _USUAL_DESCRIPTORS // 4)
