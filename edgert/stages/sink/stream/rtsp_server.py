"""Sink that serves RTSP over UDP or TCP, by gst-rtsp-server, with a path for every stream.

:mod:`~edgert.stages.sink.tcp_server` accepts connections, and passes each to GStreamer with its first complete request.
From then on, :class:`RtspClients` limits them.

Players of one path share one GStreamer pipeline, whose source is a
:class:`~edgert.stages.sink.stream.broadcast.Broadcast`. GStreamer 1.16 is enough, which comes with JetPack 5.
"""

from __future__ import annotations

import importlib
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import Field, model_validator

from edgert import limits
from edgert.config import stages as section
from edgert.config.flow import Where, sources_of
from edgert.errors import ConfigError, DeviceError, StageError, raised_as
from edgert.runtime.records import Result
from edgert.stages.context import Context
from edgert.stages.sink.client_limits import FairGroup, affordable_limit, client_network, is_loopback
from edgert.stages.sink.encoders import Unit
from edgert.stages.sink.stream.broadcast import Broadcast, Streams
from edgert.stages.sink.tcp_connection import Connection
from edgert.stages.sink.tcp_server import LoopThread, TcpServer, listen
from edgert.stages.source import gst


class RtspClients:
    """The connections of GStreamer's server, in a group that plays and one that does not. GStreamer's threads call it.

    A connection that plays no stream ends after :data:`~edgert.limits.RTSP_IDLE_S`, or sooner where there are too many.

    Args:
        sessions: session pool of the server, which only removes old sessions on request.
        on_play: function that is called when a client begins to play.
    """

    def __init__(self, sessions: Any, on_play: Callable[[], None]) -> None:
        self._sessions, self._on_play, self.lock = sessions, on_play, threading.RLock()
        self._aborted = deque[Any]()
        limit = affordable_limit(limits.RTSP_CONNECTIONS // 6)
        self.asking, self.playing = (FairGroup[RtspClient](limit) for _ in range(2))

    def connected(self, _: Any, connection: Any) -> None:
        """Add a new connection."""
        client = RtspClient(connection, self)
        connection.connect("play-request", client.play)
        connection.connect("teardown-request", client.tear_down)
        connection.connect("closed", client.closed)
        client.move_to(self.asking)
        self._close_aborted()

    def clean_up(self, *_: Any) -> bool:
        """End idle connections and old sessions. Return True, so that GLib calls it again."""
        with self.lock:
            latest_s = time.monotonic() - limits.RTSP_IDLE_S
            for client in self.asking:
                if client.idle_s < latest_s:
                    client.abort()
        self._close_aborted()
        self._sessions.cleanup()
        return True

    def close_soon(self, connection: Any) -> None:
        """Queue a connection for closing in the server's thread.

        Closing must not happen within a call of GStreamer's, nor with the lock held, which such calls wait for.
        """
        self._aborted.append(connection)

    def play(self, client: RtspClient) -> None:
        """Move a client to those that play, or end it where there are too many."""
        with self.lock:
            if client.group is not self.playing and not self.playing.make_room(client.network):
                log.warning("%d players are watching; another is turned away", len(self.playing))
                client.abort()
                return
            client.move_to(self.playing)
        self._on_play()

    def _close_aborted(self) -> None:
        while self._aborted:
            self._aborted.popleft().close()


class RtspClient:
    """One connection of a player.

    Attributes:
        idle_s: time since which it plays nothing, by the monotonic clock.
    """

    def __init__(self, connection: Any, clients: RtspClients) -> None:
        self._connection, self._clients = connection, clients
        self.network = client_network(connection.get_connection().get_ip() or "")
        self.group: FairGroup[RtspClient] | None = None
        self.idle_s = time.monotonic()

    def move_to(self, group: FairGroup[RtspClient]) -> None:
        """Move the client to another group, unless it is closed."""
        with self._clients.lock:
            if self._connection is not None:
                if self.group is not None:
                    self.group.remove(self)
                self.group = group
                group.add(self)

    def play(self, *_: Any) -> None:
        """Handle a request to play."""
        self._clients.play(self)

    def tear_down(self, *_: Any) -> None:
        """Handle the end of playing."""
        self.idle_s = time.monotonic()
        self.move_to(self._clients.asking)

    def abort(self) -> None:
        """Close the connection."""
        with self._clients.lock:
            if self._connection is not None:
                self._clients.close_soon(self._connection)
            self.closed()

    def closed(self, *_: Any) -> None:
        """Remove the closed connection from its group."""
        with self._clients.lock:
            self._connection = None
            if self.group is not None:
                self.group.remove(self)


log = logging.getLogger("edgert.sink")

_PATH = re.compile(r"(/([A-Za-z0-9._~-]|\{stream\})+)+")
_CAPS = "video/x-h264,stream-format=byte-stream,alignment=au"
_LAUNCH = (
    f'( appsrc name=units is-live=true format=time do-timestamp=true caps="{_CAPS}" '
    "! h264parse ! rtph264pay name=pay0 pt=96 )"
)
_MOST_BEHIND_BYTES = 4 << 20
"""Maximum size of the video that waits for slow players: some seconds."""
_ROLE = "viewer"
_JOIN_S = 0.5
_CLEAN_UP_MS = 500
_APT = "sudo apt install python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good gstreamer1.0-plugins-bad"


def library(where: str) -> Any:
    """Return the module GstRtspServer. Raises DeviceError where it or GStreamer is not installed."""
    gst.gstreamer(where)
    what = "sink: rtsp needs gst-rtsp-server"
    with raised_as(DeviceError, what, of=(ImportError, ValueError), where=where, fix=_APT):
        importlib.import_module("gi").require_version("GstRtspServer", "1.0")
        return importlib.import_module("gi.repository.GstRtspServer")


class Rtsp(Streams):
    """An RTSP server for players and recorders: see [streaming](streaming.md)."""

    port: int = Field(default=8554, ge=0, le=65535, description="0 picks a free one, which is logged")
    path: str = Field(default="/{stream}", description="path of the address; `{stream}` makes one per stream")
    user: str = Field(default="", description="user name of viewers; default: anyone")
    password: str = Field(default="", repr=False, description="${VAR} from the environment; never printed")

    @model_validator(mode="after")
    def _check_keys(self) -> Rtsp:
        if not _PATH.fullmatch(self.path):
            raise ValueError("path: expected letters, digits and {stream} behind a slash, like /cameras/{stream}")
        if bool(self.user) != bool(self.password):
            raise ValueError("user: and password: must be given together")
        if not self.user and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} can be reached from the network; add user: and password:, or host: 127.0.0.1"
            )
        return self

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for several streams at one path."""
        several = sorted(sources_of(stages)[name])
        if len(several) > 1 and "{stream}" not in self.path:
            what = f"{self.path} would show {len(several)} streams: {', '.join(several)}"
            fix = f"path: {self.path}/{{stream}}, or give each stream a sink of its own"
            raise ConfigError(what, where=where(("stages", name, "path")), fix=fix)

    def make(self, name: str, context: Context) -> RtspSink:
        """Return the sink."""
        return RtspSink(name, self, context)


class RtspSink:
    """Sink that serves RTSP, with a path for each stream.

    Attributes:
        port: port that it listens on.
    """

    def __init__(self, name: str, config: Rtsp, context: Context) -> None:
        self.name, self._where, self._config, self.port = name, f"stages.{name}", config, config.port
        self._login, self._choice, self._wanted = (
            (config.user, config.password),
            config.choice(name),
            config.wanted(context),
        )
        self._mounts: dict[str, Broadcast] = {}
        self._server: Any = None
        self._rtsp: Any = None
        self._context: Any = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._acceptor: LoopThread | None = None

    def url(self, stream: str) -> str:
        """Return the URL of a stream, without user and password."""
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        return f"rtsp://{host}:{self.port}{self._config.path.replace('{stream}', stream)}"

    def open(self) -> None:
        """Start listening.

        Raises:
            DeviceError: gst-rtsp-server is missing, nothing can encode, or the address is in use.
        """
        self._rtsp = library(self._where)
        self._choice.check()
        glib = importlib.import_module("gi.repository.GLib")
        own = listen(self._config.host, self.port, self._where)
        server = self._server = self._rtsp.RTSPServer()
        if any(self._login):
            server.set_auth(self._auth())
        clients = self._clients = RtspClients(server.get_session_pool(), self._refresh)
        server.connect("client-connected", clients.connected)
        context = self._context = glib.MainContext()
        timer = glib.timeout_source_new(_CLEAN_UP_MS)
        timer.set_callback(clients.clean_up)
        timer.attach(context)
        self.port = own.getsockname()[1]
        self._stopped.clear()
        self._thread = threading.Thread(target=self._serve, args=(context,), name=f"edgert:{self.name}", daemon=True)
        self._thread.start()
        server = TcpServer(own, None, self, limits.RTSP_CONNECTIONS)
        self._acceptor = LoopThread(f"edgert:{self.name}-accept", server.run())

    async def read(self, client: Connection) -> bytes:
        """Return the first request of a connection, with any bytes behind it. Raises OSError for anything else."""
        request = b""
        while b"\r\n\r\n" not in request:
            more = await client.receive()
            request += more
            if not more or len(request) > limits.PAGE_HEAD_BYTES or not request.isascii() or b"\0" in request:
                raise ConnectionAbortedError("the client sent no RTSP request")
        return request

    async def answer(self, client: Connection, request: bytes) -> None:
        """Pass a connection to GStreamer."""
        gio, glib = (importlib.import_module(f"gi.repository.{name}") for name in ("Gio", "GLib"))
        server, address, port = self._server, client.address, client.port
        own = gio.Socket.new_from_fd(client.detach())

        def transfer(*_: Any) -> bool:
            server.transfer_connection(own, address, port, request.decode())
            return False  # GLib calls it once

        idle = glib.idle_source_new()
        idle.set_priority(glib.PRIORITY_DEFAULT)
        idle.set_callback(transfer)
        idle.attach(self._context)

    def process(self, result: Result) -> None:
        """Show the result to all viewers, without waiting. Raises StageError for a second stream at one path."""
        stream = result.frame.stream
        if stream not in self._mounts:
            self._mount(stream)
        self._mounts[stream].show(result)

    def close(self) -> None:
        """End every player's stream, then the connections, within a second."""
        for broadcast in self._mounts.values():
            broadcast.close()
        self._mounts.clear()
        if self._server is None or self._thread is None:
            return
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        self._server.client_filter(lambda *_: self._rtsp.RTSPFilterResult.REMOVE)
        self._stopped.set()
        self._context.wakeup()
        self._thread.join(_JOIN_S)
        self._server = self._thread = self._context = None

    def _serve(self, context: Any) -> None:
        context.push_thread_default()
        while not self._stopped.is_set():
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
        path = self._config.path.replace("{stream}", stream)
        if self._mounts and path == self._config.path:
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
        factory.connect("media-configure", partial(_on_configure, broadcast))
        self._server.get_mount_points().add_factory(path, factory)
        log.info("%s: %s at %s", self.name, stream, self.url(stream))

    def _refresh(self) -> None:
        """Request a key frame of every stream, because the stream of a new player is not known here."""
        for broadcast in list(self._mounts.values()):
            broadcast.refresh()


def _on_configure(broadcast: Broadcast, _: Any, media: Any) -> None:
    """Connect the new pipeline of a path to its broadcast."""
    players = _Players(broadcast, media.get_element().get_by_name_recurse_up("units"))
    media.connect("unprepared", lambda _: broadcast.leave(players))
    broadcast.join(players)


class _Players:
    """The players of one path, as a viewer. When their pipeline is full, they wait for the next key frame."""

    def __init__(self, broadcast: Broadcast, appsrc: Any) -> None:
        self._broadcast, self._appsrc, self._lost = broadcast, appsrc, False
        self._gst, _ = gst.gstreamer()
        appsrc.set_property("max-bytes", 2 * _MOST_BEHIND_BYTES)

    def give(self, unit: Unit) -> None:
        """Pass on the next encoded image."""
        if self._appsrc.get_property("current-level-bytes") > _MOST_BEHIND_BYTES or (self._lost and not unit.is_key):
            self._lost = True
            self._broadcast.refresh()
            return
        self._lost = False
        self._appsrc.push_buffer(self._gst.Buffer.new_wrapped(unit.data))

    def end(self) -> None:
        """End the stream."""
        self._appsrc.end_of_stream()
