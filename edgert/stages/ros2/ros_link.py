"""Connection of sources and sinks to a ROS 2 network, over rclpy or Zenoh."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

Take = Callable[[bytes | memoryview, int], None]
"""Function that gets a message, and the number of messages lost just before it."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of service of one side of a topic.

    Attributes:
        reliable: whether a lost message is sent again; False is best effort.
        latched: whether a subscriber that joins later gets the last message (transient local).
        depth: number of messages that are kept.
    """

    reliable: bool
    latched: bool = False
    depth: int = 1

    def __str__(self) -> str:
        return f"{'reliable' if self.reliable else 'best effort'}, {'transient local' if self.latched else 'volatile'}"


class Subscription(Protocol):
    """Subscription, whose messages come in a thread of the network."""

    @property
    def trouble(self) -> str:
        """Reason why no message can come; empty while one can."""

    def close(self) -> None:
        """End the subscription."""


class Publisher(Protocol):
    """Publisher of one topic."""

    def publish(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send a message that consists of these pieces."""

    def close(self) -> None:
        """End the publication."""


class Link(Protocol):
    """Connection to a ROS 2 network, shared by the stages of a pipeline: the first opens it, the last closes it."""

    shared: ClassVar[dict[Hashable, Link]] = {}
    """Open connections of this process."""
    turn: ClassVar[threading.Lock] = threading.Lock()
    users: int = 0

    @classmethod
    def share(cls, key: Hashable, connect: Callable[[], Link]) -> Link:
        """Return the open connection for a key; the first user makes it. Raises what ``connect`` raises."""
        with cls.turn:
            link = cls.shared.get(key)
            if link is None:
                link = cls.shared[key] = connect()
            link.users += 1
            return link

    def close(self) -> None:
        """Release the connection, which ends with its last user."""
        with self.turn:
            self.users -= 1
            if self.users:
                return
            for key in [key for key, one in self.shared.items() if one is self]:
                del self.shared[key]
        self.disconnect()

    @property
    def trouble(self) -> str:
        """Reason why no message can come or go; empty while one can."""
        return ""

    def now_ns(self) -> int:
        """Return the time of ROS: of this machine, or of ``/clock``; 0 before the first message on ``/clock``."""

    def topics(self) -> Mapping[str, Sequence[str]]:
        """Return the types of every published topic, by topic."""

    def subscribe(self, topic: str, kind: str, quality: Quality, take: Take) -> Subscription:
        """Subscribe to a topic. Raises DeviceError."""

    def publisher(self, topic: str, kind: str, quality: Quality) -> Publisher:
        """Return a new publisher of a topic. Raises DeviceError."""

    def disconnect(self) -> None:
        """End the connection."""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BYTES, _LARGE_BYTES = 128 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Configure glibc to keep up to 128 MiB of freed memory; do nothing with other C libraries.

    By default the kernel maps and clears new memory for each image of 6 MB, which costs more than copying it. An image
    then takes 5 ms to publish instead of 1.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
