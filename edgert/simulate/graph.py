"""Threads connected by channels, as :mod:`edgert.runtime.edge` connects nodes."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.policy import ReorderBuffer, join_of, most_under_way
from edgert.simulate.camera import Camera
from edgert.simulate.thread import Channel, Thread, Token


def connected(cameras: Sequence[Camera], threads: Sequence[Thread]) -> None:
    """Gives every thread its channels, its join and its reorder buffer.

    Args:
        threads: each after those it listens to.
    """
    senders: dict[str, Camera | Thread] = {camera.source.name: camera for camera in cameras}
    streams = {name: frozenset({name}) for name in senders}
    under_way = dict.fromkeys(senders, 0)
    for thread in threads:
        node = thread.node
        for number, edge in enumerate(node.inputs):
            channel = Channel(edge, thread, number)
            thread.inlets.append(channel)
            senders[edge.producer].outlets.append(channel)
        edges = [(under_way[edge.producer], edge.capacity) for edge in node.inputs]
        under_way[node.name] = most_under_way(edges, node.joins)
        carried = [streams[edge.producer] for edge in node.inputs]
        streams[node.name] = frozenset().union(*carried)
        thread.join = join_of(carried, under_way[node.name], _merged) if node.joins else None
        before = senders.get(node.reorders)
        if isinstance(before, Thread) and before.dispatcher is not None:
            thread.reorder = ReorderBuffer(before.dispatcher)
        senders[node.name] = thread


def _merged(_: Token, last: Token) -> Token:
    """Of two parts of a frame: they are alike."""
    return last
