"""The connections of GStreamer's RTSP server: how many there may be, and for how long those that play nothing stay.

A connection that plays no stream ends after a while, whatever it asks or knows; it ends sooner where its network has
too many. Connections that ask and those that play are limited apart.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from edgert import limits
from edgert.stages.sink.client_limits import FairGroup, affordable, network_of

log = logging.getLogger("edgert.sink")


class RtspClients:
    """The connections of a server, in two groups. Its methods run in GStreamer's threads.

    Args:
        sessions: the server's session pool, which does not remove old ones unasked.
        on_play: called when a client begins to play.
    """

    def __init__(self, sessions: Any, on_play: Callable[[], None]) -> None:
        self._sessions, self._on_play, self.lock = sessions, on_play, threading.RLock()
        self._aborted = deque[Any]()
        limit = affordable(limits.RTSP_CONNECTIONS // 6)
        self.asking, self.playing = (FairGroup[RtspClient](limit) for _ in range(2))

    def connected(self, _: Any, connection: Any) -> None:
        """Count a connection."""
        client = RtspClient(connection, self)
        connection.connect("play-request", client.play)
        connection.connect("teardown-request", client.tear_down)
        connection.connect("closed", client.closed)
        client.move_to(self.asking)
        self._close_aborted()

    def clean_up(self, *_: Any) -> bool:
        """End connections that have played nothing for long, and old sessions. Return True: GLib calls it again."""
        with self.lock:
            latest_s = time.monotonic() - limits.RTSP_IDLE_S
            for client in self.asking:
                if client.idle_s < latest_s:
                    client.abort()
        self._close_aborted()
        self._sessions.cleanup()
        return True

    def close_soon(self, connection: Any) -> None:
        """Queue a connection for closing in the thread that accepts.

        That is never done within a call of GStreamer's, nor with the lock held, which such calls wait for.
        """
        self._aborted.append(connection)

    def play(self, client: "RtspClient") -> None:
        """Count a client among those that play, or end it where they are too many."""
        with self.lock:
            if client.group is not self.playing and not self.playing.makes_room(client.network):
                log.warning("%d players are watching; another is turned away", len(self.playing))
                client.abort()
                return
            client.move_to(self.playing)
        self._on_play()

    def _close_aborted(self) -> None:
        while self._aborted:
            self._aborted.popleft().close()


class RtspClient:
    """One connection.

    Attributes:
        idle_s: since when it plays nothing, on the monotonic clock.
    """

    def __init__(self, connection: Any, clients: RtspClients) -> None:
        self._connection, self._clients = connection, clients
        self.network = network_of(connection.get_connection().get_ip() or "")
        self.group: FairGroup[RtspClient] | None = None
        self.idle_s = time.monotonic()

    def move_to(self, group: "FairGroup[RtspClient]") -> None:
        """Enter the next phase."""
        with self._clients.lock:
            if self._connection is not None:
                if self.group is not None:
                    self.group.remove(self)
                self.group = group
                group.add(self)

    def play(self, *_: Any) -> None:
        """Begin to play a stream."""
        self._clients.play(self)

    def tear_down(self, *_: Any) -> None:
        """Stop playing."""
        self.idle_s = time.monotonic()
        self.move_to(self._clients.asking)

    def abort(self) -> None:
        """Close the connection."""
        with self._clients.lock:
            if self._connection is not None:
                self._clients.close_soon(self._connection)
            self.closed()

    def closed(self, *_: Any) -> None:
        """Remove the connection, which is closed."""
        with self._clients.lock:
            self._connection = None
            if self.group is not None:
                self.group.remove(self)
