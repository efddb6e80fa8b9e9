"""Nodes connected by channels."""

from __future__ import annotations

from edgert.policy import Drop
from edgert.runtime.worker import Node


def connect(producer: Node, consumer: Node, streams: frozenset[str], capacity: int, drop: Drop) -> None:
    """Lets ``consumer`` listen to ``producer``, also while the producer already runs.

    Args:
        streams: the sources whose frames come this way.
        capacity, drop: bound of the new edge; see :class:`~edgert.runtime.channel.Channel`.
    """
    channel = consumer.inlet.connect(capacity, drop)
    consumer.carried.append(streams)
    consumer.producers.append(producer)
    producer.outlets = (*producer.outlets, channel)


def disconnect(producer: Node, consumer: Node) -> None:
    """Undoes :func:`connect`, also while the producer runs: it no longer waits for this consumer."""
    gone = consumer.inlet.channels
    producer.outlets = tuple(outlet for outlet in producer.outlets if outlet not in gone)
    consumer.inlet.abandon()
