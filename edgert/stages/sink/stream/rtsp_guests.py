"""The connections that an RTSP server of GStreamer's has: how many, and for how long those that play nothing.

One that plays no stream ends after a while, whatever it asks or knows, and sooner where its address has more than its
share. Those who ask and those who play each have a room of their own.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from edgert import limits
from edgert.stages.sink.rooms import Room, affordable, network_of

log = logging.getLogger("edgert.sink")


class Guests:
    """The connections that GStreamer has, in two rooms. Called in its threads.

    Args:
        sessions: the server's, whose old ones it does not end by itself.
        played: called when one begins to play.
    """

    def __init__(self, sessions: Any, played: Callable[[], None]) -> None:
        self._sessions, self._played, self.lock = sessions, played, threading.RLock()
        self._ended = deque[Any]()
        each = affordable(limits.RTSP_CONNECTIONS // 6)
        self.asking, self.playing = (Room[Guest](each) for _ in range(2))

    def came(self, _: Any, client: Any) -> None:
        """Count a connection."""
        guest = Guest(client, self)
        client.connect("play-request", guest.plays)
        client.connect("teardown-request", guest.rests)
        client.connect("closed", guest.left)
        guest.enter(self.asking)
        self._close()

    def looked(self, *_: Any) -> bool:
        """End those that have played nothing for long, and what is left of sessions."""
        with self.lock:
            latest_s = time.monotonic() - limits.RTSP_IDLE_S
            for guest in self.asking:
                if guest.idle_s < latest_s:
                    guest.end()
        self._close()
        self._sessions.cleanup()
        return True  # call it again

    def ended(self, client: Any) -> None:
        """Have a connection closed, soon and in the thread that accepts: never within a call of GStreamer's, nor with
        the lock held, which those calls wait for."""
        self._ended.append(client)

    def play(self, guest: "Guest") -> None:
        """Let one play, where there is room for it."""
        with self.lock:
            if guest.room is not self.playing and not self.playing.takes(guest.network):
                log.warning("%d players are watching; another is turned away", len(self.playing))
                guest.end()
                return
            guest.enter(self.playing)
        self._played()

    def _close(self) -> None:
        while self._ended:
            self._ended.popleft().close()


class Guest:
    """One connection.

    Attributes:
        idle_s: since when it plays nothing, on the monotonic clock.
    """

    def __init__(self, client: Any, guests: Guests) -> None:
        self._client, self._guests = client, guests
        self.network = network_of(client.get_connection().get_ip() or "")
        self.room: Room[Guest] | None = None
        self.idle_s = time.monotonic()

    def enter(self, room: "Room[Guest]") -> None:
        """Go on to the next step."""
        with self._guests.lock:
            if self._client is not None:
                if self.room is not None:
                    self.room.remove(self)
                self.room = room
                room.add(self)

    def plays(self, *_: Any) -> None:
        """It plays a stream."""
        self._guests.play(self)

    def rests(self, *_: Any) -> None:
        """It plays nothing any more."""
        self.idle_s = time.monotonic()
        self.enter(self._guests.asking)

    def end(self) -> None:
        """Have the connection closed."""
        with self._guests.lock:
            if self._client is not None:
                self._guests.ended(self._client)
            self.left()

    def left(self, *_: Any) -> None:
        """The connection is gone."""
        with self._guests.lock:
            self._client = None
            if self.room is not None:
                self.room.remove(self)
