"""An RTSP server of GStreamer's (gst-rtsp-server) with a path for every stream, over UDP or inside its connection.

A connection is counted from ``accept()`` on. Without a stream that it plays it ends after a while, whatever it says or
knows, and sooner where its address has more than its share: those who say nothing, who ask and who play each have a
room of their own (:class:`~edgert.stages.sink.connections.Room`).

Players of one path share one GStreamer pipeline, which begins with what :class:`~.broadcast.Broadcast` has encoded.
What is used here is there from GStreamer 1.16 on, which comes with JetPack 5.
"""

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from edgert import limits
from edgert.errors import DeviceError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink.connections import BACKLOG, Room, affordable, network_of
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.encoders import Unit
from edgert.stages.sink.stream.broadcast import Broadcast, Wanted
from edgert.stages.source import gst

log = logging.getLogger("edgert.sink")

_CAPS = "video/x-h264,stream-format=byte-stream,alignment=au"
_LAUNCH = (
    f'( appsrc name=units is-live=true format=time do-timestamp=true caps="{_CAPS}" '
    "! h264parse ! rtph264pay name=pay0 pt=96 )"
)
_MOST_BEHIND_BYTES = 4 << 20
"""What waits in front of a pipeline whose players take nothing; seconds of video."""
_ROLE = "viewer"
_GOODBYE_S = 0.5
_LOOKED_MS = 500
_APT = "sudo apt install python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good gstreamer1.0-plugins-bad"


def library(where: str) -> Any:
    """The module GstRtspServer. Raises DeviceError when it, or GStreamer, is not installed."""
    gst.gstreamer(where)
    try:
        importlib.import_module("gi").require_version("GstRtspServer", "1.0")
        return importlib.import_module("gi.repository.GstRtspServer")
    except (ImportError, ValueError) as error:
        raise DeviceError("sink: rtsp needs gst-rtsp-server", why=str(error), where=where, fix=_APT) from error


class RtspSink:
    """Serves every stream under a path of its own.

    Args:
        address: host and port to listen on; port 0 picks a free one, see :attr:`port`.
        path: with ``{stream}`` in it.
        login: user and password that players give; empty: anybody who reaches the address may watch.
    """

    def __init__(
        self, name: str, address: tuple[str, int], path: str, login: tuple[str, str], choice: Choice, wanted: Wanted
    ) -> None:
        self.name, self._where = name, f"stages.{name}"
        self._host, self.port = address
        self._path, self._login, self._choice, self._wanted = path, login, choice, wanted
        self._mounts: dict[str, Broadcast] = {}
        self._server: Any = None
        self._rtsp: Any = None
        self._context: Any = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def url(self, stream: str) -> str:
        """Where a stream is, without user and password."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"rtsp://{host}:{self.port}{self._path.replace('{stream}', stream)}"

    def open(self) -> None:
        """Starts listening. Raises DeviceError when gst-rtsp-server is missing, nothing can encode, or the address is
        taken."""
        self._rtsp = library(self._where)
        self._choice.check()
        glib = importlib.import_module("gi.repository.GLib")
        server = self._server = self._rtsp.RTSPServer(address=self._host, service=str(self.port))
        if any(self._login):
            server.set_auth(self._auth())
        server.set_backlog(BACKLOG)
        self._guests = _Guests(server.get_session_pool(), self._refresh)
        server.connect("client-connected", self._guests.came)
        context = self._context = glib.MainContext()
        try:
            source = server.create_source(None)
        except glib.Error as error:
            why = str(error.message)
            self._server = None
            raise DeviceError(
                f"cannot listen on {self._host}:{self.port}",
                why=why,
                where=self._where,
                fix="choose another port, or port: 0 for any free one; host: 127.0.0.1 always works",
            ) from error
        source.attach(context)
        every_second = glib.timeout_source_new(_LOOKED_MS)
        every_second.set_callback(self._guests.looked)
        every_second.attach(context)
        self.port = server.get_bound_port()
        self._over.clear()
        self._thread = threading.Thread(target=self._serve, args=(context,), name=f"edgert:{self.name}", daemon=True)
        self._thread.start()

    def process(self, result: Result) -> None:
        """Shows the result to whoever watches; never waits. Raises StageError for a second stream under one path."""
        stream = result.frame.stream
        if stream not in self._mounts:
            self._mount(stream)
        self._mounts[stream].show(result)

    def close(self) -> None:
        """Ends every player's stream, then the connections; within a second."""
        for broadcast in self._mounts.values():
            broadcast.close()
        self._mounts.clear()
        if self._server is None or self._thread is None:
            return
        self._server.client_filter(lambda *_: self._rtsp.RTSPFilterResult.REMOVE)
        self._over.set()
        self._context.wakeup()
        self._thread.join(_GOODBYE_S)
        self._server = self._thread = self._context = None

    def _serve(self, context: Any) -> None:
        context.push_thread_default()
        while not self._over.is_set():
            context.iteration(True)
        context.pop_thread_default()

    def _auth(self) -> Any:
        gst_rtsp = importlib.import_module("gi.repository.GstRtsp")
        auth, token = self._rtsp.RTSPAuth(), self._rtsp.RTSPToken()
        auth.set_supported_methods(gst_rtsp.RTSPAuthMethod.DIGEST)
        token.set_string(self._rtsp.RTSP_TOKEN_MEDIA_FACTORY_ROLE, _ROLE)
        auth.add_digest(*self._login, token)
        return auth

    def _mount(self, stream: str) -> None:
        path = self._path.replace("{stream}", stream)
        if self._mounts and path == self._path:
            raise StageError(
                f"{path} would show two streams",
                why=f"{next(iter(self._mounts))} and {stream} arrive at one sink",
                where=self._where,
                fix="put {stream} into path, or give each stream a sink of its own",
            )
        broadcast = self._mounts[stream] = Broadcast(self.name, stream, self._choice, self._wanted)
        factory = self._rtsp.RTSPMediaFactory()
        factory.set_launch(_LAUNCH)
        factory.set_shared(True)
        if any(self._login):
            allowed = self._rtsp.RTSPPermissions()
            for what in ("media.factory.access", "media.factory.construct"):
                allowed.add_permission_for_role(_ROLE, what, True)
            factory.set_permissions(allowed)
        factory.connect("media-configure", partial(_configured, broadcast))
        self._server.get_mount_points().add_factory(path, factory)
        log.info("%s: %s at %s", self.name, stream, self.url(stream))

    def _refresh(self) -> None:
        """Give who joins others an image to begin with; which path was asked for is not worth finding out."""
        for broadcast in list(self._mounts.values()):
            broadcast.refresh()


class _Guests:
    """The connections of one server, in three rooms. Called in the threads of GStreamer's.

    Args:
        sessions: the server's, whose old ones it does not end by itself.
        played: called when one begins to play.
    """

    def __init__(self, sessions: Any, played: Callable[[], None]) -> None:
        self._sessions, self._played, self._lock = sessions, played, threading.RLock()
        self._ended = deque[Any]()
        each = affordable(limits.RTSP_CONNECTIONS // 3)
        self.silent, self.asking, self.playing = (Room[_Guest](each) for _ in range(3))

    def came(self, _: Any, client: Any) -> None:
        """Count a connection that was accepted."""
        guest = _Guest(client, self)
        for name in ("options", "describe", "setup"):
            client.connect(f"{name}-request", guest.asks)
        client.connect("teardown-request", guest.rests)
        client.connect("play-request", guest.plays)
        client.connect("closed", guest.left)
        guest.enter(self.silent)
        self._close()

    def looked(self, *_: Any) -> bool:
        """End those that have played nothing for long, and what is left of sessions."""
        with self._lock:
            latest_s = time.monotonic() - limits.RTSP_IDLE_S
            for guest in (*self.silent, *self.asking):
                if guest.idle_s < latest_s:
                    guest.end()
        self._close()
        self._sessions.cleanup()
        return True  # call it again

    def ended(self, client: Any) -> None:
        """Have a connection closed, soon and in the thread that accepts: never within a call of GStreamer's, nor with
        the lock held, which those calls wait for."""
        self._ended.append(client)

    def _close(self) -> None:
        while self._ended:
            self._ended.popleft().close()

    def play(self, guest: "_Guest") -> None:
        """Let one play, where there is room for it."""
        with self._lock:
            if guest.room is not self.playing and not self.playing.takes(guest.network):
                log.warning("%d players are watching; another is turned away", len(self.playing))
                guest.end()
                return
            guest.enter(self.playing)
        self._played()


class _Guest:
    """One connection.

    Attributes:
        idle_s: since when it plays nothing, on the monotonic clock.
    """

    def __init__(self, client: Any, guests: _Guests) -> None:
        self._client, self._guests, self._lock = client, guests, guests._lock
        self.network = network_of(client.get_connection().get_ip() or "")
        self.room: Room[_Guest] | None = None
        self.idle_s = time.monotonic()

    def enter(self, room: "Room[_Guest]") -> None:
        """Go on to the next step."""
        with self._lock:
            if self._client is not None:
                if self.room is not None:
                    self.room.remove(self)
                self.room = room
                room.add(self)

    def asks(self, *_: Any) -> None:
        """It sent a request, whole, which is no reason to wait longer for it to play."""
        if self.room is self._guests.silent:
            self.enter(self._guests.asking)

    def rests(self, *_: Any) -> None:
        """It plays nothing any more."""
        self.idle_s = time.monotonic()
        self.enter(self._guests.asking)

    def plays(self, *_: Any) -> None:
        """It plays a stream."""
        self._guests.play(self)

    def end(self) -> None:
        """Have the connection closed."""
        with self._lock:
            if self._client is not None:
                self._guests.ended(self._client)
            self.left()

    def left(self, *_: Any) -> None:
        """The connection is gone."""
        with self._lock:
            self._client = None
            if self.room is not None:
                self.room.remove(self)


def _configured(broadcast: Broadcast, _: Any, media: Any) -> None:
    """The first player of a path has come."""
    players = _Players(broadcast, media.get_element().get_by_name_recurse_up("units"))
    media.connect("unprepared", lambda _: broadcast.leave(players))
    broadcast.join(players)


class _Players:
    """Those of one path: what is encoded goes into their pipeline. When that is full, they have to begin again."""

    def __init__(self, broadcast: Broadcast, appsrc: Any) -> None:
        self._broadcast, self._appsrc, self._lost = broadcast, appsrc, False
        self._gst, _ = gst.gstreamer()
        appsrc.set_property("max-bytes", 2 * _MOST_BEHIND_BYTES)

    def give(self, unit: Unit) -> None:
        if self._appsrc.get_property("current-level-bytes") > _MOST_BEHIND_BYTES or (self._lost and not unit.is_key):
            self._lost = True
            self._broadcast.refresh()
            return
        self._lost = False
        self._appsrc.push_buffer(self._gst.Buffer.new_wrapped(unit.data))

    def end(self) -> None:
        self._appsrc.end_of_stream()
