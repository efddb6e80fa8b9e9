"""What sources and sinks need of a ROS 2 network, over rclpy or over Zenoh."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Take = Callable[[bytes | memoryview, int], None]
"""Called with a message and how many were lost just before it."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of service of one side of a topic.

    Attributes:
        reliable: whether a lost message is sent again; else best effort.
        latched: whether a subscriber that joins later gets the last message (transient local).
        depth: messages that are kept.
    """

    reliable: bool
    latched: bool = False
    depth: int = 1

    def __str__(self) -> str:
        return f"{'reliable' if self.reliable else 'best effort'}, {'transient local' if self.latched else 'volatile'}"


class Subscription(Protocol):
    """A subscription; its messages come in a thread of the network."""

    @property
    def trouble(self) -> str:
        """Why no message can come, in words; empty while one can."""

    def close(self) -> None:
        """End it."""


class Publisher(Protocol):
    """One topic that is published."""

    def publish(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send a message, given as pieces."""

    def close(self) -> None:
        """End it."""


class Link(Protocol):
    """A connection to a ROS 2 network, shared by the stages of a pipeline."""

    def now_ns(self) -> int:
        """Return the time of ROS: this machine's, or that of ``/clock``; 0 before the first ``/clock``."""

    def topics(self) -> Mapping[str, Sequence[str]]:
        """Return every topic that somebody publishes → its types."""

    def subscribe(self, topic: str, kind: str, quality: Quality, take: Take) -> Subscription:
        """Subscribe to a topic. Raises DeviceError."""

    def publisher(self, topic: str, kind: str, quality: Quality) -> Publisher:
        """Publish a topic. Raises DeviceError."""

    def close(self) -> None:
        """Give up this user's hold; the last one ends the connection."""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BYTES, _LARGE_BYTES = 128 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Configure glibc to keep up to 128 MiB of freed memory; do nothing for other C libraries.

    By default each image of 6 MB is in memory that the kernel has to give and clear anew, which costs more than copying
    it: 5 ms of an image out instead of 1.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
