"""Threads connected by channels, as :mod:`edgert.runtime.edge` connects nodes."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.simulate.camera import Camera
from edgert.simulate.thread import KEPT, Channel, Gather, Thread
from edgert.simulate.token import Join


def connected(cameras: Sequence[Camera], threads: Sequence[Thread]) -> None:
    """Gives every thread its channels, its join and its gather.

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
        ways = [under_way[edge.producer] + 1 + edge.capacity for edge in node.inputs]
        is_join = node.joins and len(ways) > 1
        under_way[node.name] = 2 * max(ways) if is_join else max(ways) if node.joins else sum(ways)
        carried = [streams[edge.producer] for edge in node.inputs]
        streams[node.name] = frozenset().union(*carried)
        if is_join:
            thread.join = Join(carried, under_way[node.name] + KEPT)
        dealer = senders.get(node.gathers)
        if isinstance(dealer, Thread) and dealer.dealer is not None:
            thread.gather = Gather(dealer.dealer)
        senders[node.name] = thread
