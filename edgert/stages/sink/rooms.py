"""Room for so many clients, and who gives way where it is full."""

import resource
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Generic, Protocol, TypeVar

_USUAL_DESCRIPTORS = 1024
"""The limit of a process that nobody raised or lowered; rooms are as large as :mod:`edgert.limits` says from there."""
_LEAST = 4


class Guest(Protocol):
    """What is in a room.

    Attributes:
        network: what is counted as one client.
    """

    network: str

    def end(self) -> None:
        """End it, and take it out of its room."""
        ...


_G = TypeVar("_G", bound=Guest)


class Room(Generic[_G]):
    """Clients that are at the same step, the oldest first. For one thread at a time.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._inside = dict[_G, None]()
        self._counts = Counter[str]()

    def __len__(self) -> int:
        return len(self._inside)

    def __iter__(self) -> Iterator[_G]:
        return iter(tuple(self._inside))

    def add(self, one: _G) -> None:
        """Let a client in; end the oldest of the address that has most where there is no place left."""
        if len(self._inside) >= self.most:
            self.gives_way().end()
        self._inside[one] = None
        self._counts[one.network] += 1

    def takes(self, network: str) -> bool:
        """Whether another of an address may stay for long. The oldest gives way, of an address with two more."""
        if len(self._inside) < self.most:
            return True
        oldest = self.gives_way()
        if self._counts[oldest.network] < self._counts[network] + 2:
            return False
        oldest.end()
        return True

    def remove(self, one: _G) -> None:
        """Forget a client; it need not be inside."""
        if one in self._inside:
            del self._inside[one]
            self._counts[one.network] -= 1
            if not self._counts[one.network]:
                del self._counts[one.network]

    def gives_way(self) -> _G:
        """Return the oldest of the address that has most of them. The room must not be empty."""
        most = max(self._counts, key=self._counts.__getitem__)
        return next(one for one in self._inside if one.network == most)


def network_of(address: str) -> str:
    """Return what is counted as one client: the address itself; of IPv6, its first 64 bits, as one host has all of
    the others."""
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(known) if known.version == 4 else known.exploded[:19]


def affordable(most: int) -> int:
    """Return how many clients there may be of ``most``, where the process may open fewer descriptors than usual."""
    return max(min(most, most * most_descriptors() // _USUAL_DESCRIPTORS), _LEAST)


def most_descriptors() -> int:
    """Return how many descriptors this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def reserved() -> int:
    """Return how many descriptors clients leave to the rest of the process."""
    return min(most_descriptors() // 4, _USUAL_DESCRIPTORS // 4)
