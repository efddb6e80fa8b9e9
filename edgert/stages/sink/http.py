"""A live page in the browser: the image with its boxes, and how the pipeline is doing.

A small HTTP server of a few addresses, read only, that gives nothing from the disk.
"""

import base64
import errno
import hashlib
import importlib.resources
import io
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import cv2

from edgert import limits
from edgert.errors import DeviceError, EdgertError, StageError, cause
from edgert.runtime import health
from edgert.runtime.json_form import plain
from edgert.runtime.records import Classification, Detections, Result
from edgert.stages.draw import Images, Overlay, current_outputs
from edgert.stages.sink.prometheus import CONTENT_TYPE, metrics_text

_LOG = logging.getLogger(__name__)


class HttpSink:
    """Serves ``/`` (the page), ``/stream.mjpg``, ``/snapshot.jpg``, ``/stats.json``, ``/metrics``, ``/healthz`` and
    ``/readyz``.

    Images are encoded only while somebody looks, in his thread, and only the newest. Without a draw stage before
    it, boxes, labels, masks and keypoints are painted here. It holds on to one frame, the newest.

    Args:
        host: on a loopback address only this machine may ask, by a loopback name. Any other address opens the page
            to the network; it has no password.
        port: 0 picks a free one; see :attr:`url`.
        stats: the state of the run, as :meth:`edgert.runtime.summary.Summary.to_json` gives it, with its budgets as
            ``promised``, the sources whose frames it cannot do without as ``required``, and, for ``/metrics`` alone,
            ``totals`` and ``folders``; the page shows ``name fps frames_out dropped recent stages{name: {source}}``.
    """

    def __init__(self, name: str, host: str, port: int, stats: Callable[[], Mapping[str, object]]) -> None:
        self.name, self._host, self._port, self._stats = name, host, port, stats
        self._live = Live()
        self._server: LiveServer | None = None

    @property
    def url(self) -> str:
        """Where the page is; empty before :meth:`open` and after :meth:`close`."""
        if self._server is None:
            return ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.server_port}/"

    def open(self) -> None:
        """Starts listening. Raises DeviceError when the address is taken or not this machine's."""
        self._live.begin()
        try:
            self._server = LiveServer(self._host, self._port, self._live, self._stats)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise DeviceError(
                f"cannot listen on {self._host}:{self._port}",
                why="another program is listening there" if taken else cause(error),
                where=f"stages.{self.name}",
                fix="choose another port, or port: 0 for any free one" if taken else "host: 127.0.0.1 always works",
            ) from error
        _LOG.info("%s: live page at %s", self.name, self.url)

    def process(self, result: Result) -> None:
        """Shows the result to whoever looks; never waits for anybody."""
        self._live.show(result)

    def close(self) -> None:
        """Ends all connections and threads, within half a second."""
        self._live.close()
        if self._server is not None:
            self._server.stop()
            self._server = None


@lru_cache(maxsize=1)
def page() -> tuple[bytes, str]:
    """The page and its Content-Security-Policy, which lets it run its own script and style and fetch from its own
    origin, and nothing else."""
    text = importlib.resources.files("edgert.stages.sink").joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    for tag in ("script", "style"):  # by the hash of its content, a hash source of Content Security Policy Level 3
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return text.encode(), policy


# The newest result, for any number of viewers, none of whom can hold up the pipeline.

_ELEMENTS = ("boxes", "labels", "masks", "keypoints")  # drawn here when no draw stage did
_MAX_WIDTH = 1280
_JPEG_QUALITY = 80
_TABLE_ROWS = 50


class Live:
    """Holds the newest result. Its image is made and encoded by the viewer who asks first, and only then."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._encoding = threading.Lock()
        self._newest: Result | None = None
        self._number = 0
        self._closed = False
        self._jpeg: tuple[int, bytes] = (0, b"")
        self._overlay, self._images = Overlay(_ELEMENTS), Images()

    def begin(self) -> None:
        """Viewers may come, also after it was closed."""
        self._closed = False

    def show(self, result: Result) -> None:
        """Replaces the newest result; a few microseconds whether or not anybody looks."""
        result.frame.lease.retain()
        self._replace(result)

    def close(self) -> None:
        """Wakes every viewer for good and lets the frame go."""
        self._closed = True
        self._replace(None)
        with self._encoding:
            self._images.close()

    def _replace(self, result: Result | None) -> None:
        with self._changed:
            before, self._newest = self._newest, result
            self._number += result is not None
            self._changed.notify_all()
        if before is not None:
            before.frame.lease.release()

    def jpeg_after(self, number: int, timeout_s: float) -> tuple[int, bytes] | None:
        """The newest image as JPEG and its number, once that is above ``number``; None when none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._closed, timeout_s)
            result, newest = self._newest, self._number
            if result is None or newest <= number:
                return None
            result.frame.lease.retain()
        try:
            with self._encoding:
                if self._jpeg[0] < newest:
                    self._jpeg = (newest, self._encode(result))
                return self._jpeg
        finally:
            result.frame.lease.release()

    def table(self) -> Mapping[str, Any]:
        """What the newest result holds: ``stream``, ``frame`` and ``objects`` (stage, label, score, id)."""
        with self._changed:
            result = self._newest
        if result is None:
            return {"stream": None, "frame": None, "objects": []}
        rows, shown = [], ("label", "class", "score", "id")
        for stage, record in current_outputs(result).items():
            if isinstance(record, (Detections, Classification)):
                entries = plain(record)
                for row in entries.get("objects", entries.get("classes")):
                    rows.append({"stage": stage, **{key: row[key] for key in shown if key in row}})
        return {"stream": result.frame.stream, "frame": result.frame.index, "objects": rows[:_TABLE_ROWS]}

    def _encode(self, result: Result) -> bytes:
        if result.image is None:
            width = min(result.frame.width, _MAX_WIDTH)
            image = self._images.painted(result, width, lambda size: self._overlay.shapes(size, result))
            result = replace(result, image=image)
        image = self._images.shown(result)
        done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
        if not done:
            raise StageError("cannot encode a JPEG image", why="OpenCV gives no reason")
        return data.tobytes()


_MAX_CONNECTIONS = limits.PAGE_CONNECTIONS
_MAX_VIEWERS = limits.PAGE_VIEWERS
_MAX_RATE_HZ = 30.0
_IO_TIMEOUT_S = 10.0  # of a client that does not read what it asked for
_HEAD_S = limits.PAGE_HEAD_S
"""In which a request must be there as a whole, however it comes in."""
_NEXT_IMAGE_S = 2.0  # then the old one is sent again, to notice viewers who left
_GOODBYE_S = 0.4
_SEND_BUFFER_BYTES = 1 << 18  # a few images: what a slow viewer may lag behind
_BOUNDARY = b"edgert-image"
_SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


Answer = tuple[HTTPStatus, str, bytes, Mapping[str, str]]
"""Status, type, content and further headers."""
_FRESH_S = 0.2
"""So long an answer that takes work is given to whoever asks."""


def _state(stats: Mapping[str, Any], live: Live) -> Answer:
    shown = {key: value for key, value in stats.items() if key not in ("totals", "folders")}
    text = json.dumps({"stats": plain(shown), "latest": live.table()}, allow_nan=False, separators=(",", ":"))
    return HTTPStatus.OK, "application/json", text.encode(), {}


def _metrics(stats: Mapping[str, Any], live: Live) -> Answer:
    return HTTPStatus.OK, CONTENT_TYPE, metrics_text(plain(stats)).encode(), {}


_MADE = {"/stats.json": _state, "/metrics": _metrics}
_JUDGED = {"/healthz": health.stuck, "/readyz": health.unready}


class LiveServer(ThreadingHTTPServer):
    """Serves one :class:`Live` from now on. Each connection has a thread; all of them end with :meth:`stop`.

    Raises:
        OSError: the address cannot be listened to.
    """

    daemon_threads = True
    request_queue_size = 1024  # whoever comes at once and finds it full waits for a second or three

    def __init__(self, host: str, port: int, live: Live, stats: Callable[[], Mapping[str, object]]) -> None:
        self.live, self.stats = live, stats
        self._made, self._making = dict[str, tuple[float, Answer]](), threading.Lock()
        self.stopping = threading.Event()
        self.viewers = threading.BoundedSemaphore(_MAX_VIEWERS)
        try:
            is_local = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_local = host == "localhost"
        # The names a browser may use for a loopback address; none, for "any", when others than this machine may come.
        self.hosts = frozenset({"localhost", "127.0.0.1", "::1", host}) if is_local else frozenset[str]()
        self._connections: dict[socket.socket, None] = {}  # the oldest first; a viewer's is none of them any more
        self._watching: set[socket.socket] = set()
        self._changed = threading.Condition()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="edgert:http", daemon=True)
        self._thread.start()

    def fresh(self, path: str, make: Callable[[Mapping[str, Any], Live], Answer]) -> Answer:
        """The answer of an address, made anew if it is not a fresh one: many who ask cost no more than one."""
        with self._making:
            made = self._made.get(path)
            if made is None or time.monotonic() - made[0] > _FRESH_S:
                made = self._made[path] = (time.monotonic(), make(self.stats(), self.live))
            return made[1]

    def stop(self) -> None:
        """Stops listening and ends every connection and its thread, within half a second."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._changed:
            for connection in (*self._connections, *self._watching):
                _end(connection)
            self._changed.wait_for(lambda: not self._connections and not self._watching, _GOODBYE_S)
        self._thread.join()

    def server_bind(self) -> None:
        """Binds without the look-up of the host's own name that http.server does: it may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Ends the oldest of too many connections: who asks and reads is served in milliseconds, so it is one that does
        neither, and whoever comes finds room."""
        with self._changed:
            if len(self._connections) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                _end(oldest)
            self._connections[request] = None
            return True

    def watches(self, request: Any) -> None:
        """It is a viewer's, who stays, from now on."""
        with self._changed:
            if self._connections.pop(request, 0) is None:  # else it was ended
                self._watching.add(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._connections.pop(request, None)
            self._watching.discard(request)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A request that fails is the log's, not the terminal's."""
        _LOG.debug("a request of %s failed", client_address, exc_info=True)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it ended by itself in the meantime
        _LOG.debug("already closed: %s", error)


class _Head(io.RawIOBase):
    """What a client sends, until a time on time.monotonic()'s clock: one that sends a byte now and then ends, too."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self._until = connection, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(self._until - time.monotonic(), 1e-3))
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "edgert", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Head(self.connection, time.monotonic() + _HEAD_S))

    def handle(self) -> None:
        try:
            super().handle()
        except OSError as error:  # the viewer left, or did not read for too long
            _LOG.debug("connection of %s ended: %s", self.client_address, error)

    def do_GET(self) -> None:
        self.connection.settimeout(_IO_TIMEOUT_S)
        try:
            path = urlsplit(self.path).path
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"no such address\n")
            return
        try:
            if not self._is_known_host():
                self._send(HTTPStatus.FORBIDDEN, "text/plain", b"unknown Host header\n")
            elif path == "/stream.mjpg":
                self._stream()
            else:
                self._send(*self._answer(path))
        except EdgertError as error:
            _LOG.warning("%s: %s", self.path, error)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error.what}\n".encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Goes to the log, not to the terminal the pipeline is shown on."""
        _LOG.debug(format, *args)

    def _is_known_host(self) -> bool:
        """A page of a stranger's that points its own name at this machine (DNS rebinding) gets nothing. Only names are
        compared: through a tunnel the port is another one."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            name = None
        return not self.server.hosts or name in self.server.hosts

    def _answer(self, path: str) -> Answer:
        """What an address gives; the stream's has no end and is no part of it."""
        live = self.server.live
        if path == "/":
            body, policy = page()
            return HTTPStatus.OK, "text/html; charset=utf-8", body, {"Content-Security-Policy": policy}
        if path in _MADE:
            return self.server.fresh(path, _MADE[path])
        if path in _JUDGED:
            missing = _JUDGED[path](self.server.stats())
            status = HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
            return status, "text/plain; charset=utf-8", ("\n".join(missing) or "ok").encode() + b"\n", {}
        if path == "/snapshot.jpg":
            found = live.jpeg_after(0, _NEXT_IMAGE_S)
            if found is None:
                return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"no image yet\n", {"Retry-After": "1"}
            return HTTPStatus.OK, "image/jpeg", found[1], {}
        return HTTPStatus.NOT_FOUND, "text/plain", b"not found\n", {}

    def _stream(self) -> None:
        viewers = self.server.viewers
        if not viewers.acquire(blocking=False):
            message = f"{_MAX_VIEWERS} viewers are watching already\n".encode()
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", message, {"Retry-After": "10"})
            return
        self.server.watches(self.connection)
        try:
            self._head(HTTPStatus.OK, f"multipart/x-mixed-replace; boundary={_BOUNDARY.decode()}")
            if self.command == "GET":
                self._images()
        finally:
            viewers.release()

    def _images(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self.wfile.write(b"--" + _BOUNDARY + b"\r\n")
        number, image = 0, b""
        while not self.server.stopping.is_set():
            started = time.monotonic()
            number, image = self.server.live.jpeg_after(number, _NEXT_IMAGE_S) or (number, image)
            if image:
                # The boundary follows at once: browsers show an image when they have seen its end.
                head = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image)
                self.wfile.write(b"".join((head, image, b"\r\n--", _BOUNDARY, b"\r\n")))
            self.server.stopping.wait(max(0.0, started + 1 / _MAX_RATE_HZ - time.monotonic()))

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, kind, {"Content-Length": str(len(body)), **(headers or {})})
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **_SAFETY, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
