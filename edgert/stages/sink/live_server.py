"""A small HTTP server for the live page: six addresses, read only, nothing from the disk."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import cv2

from edgert.errors import EdgertError, StageError
from edgert.runtime.json_form import plain
from edgert.runtime.records import Classification, Detections, Keypoints, Result
from edgert.stages.draw import Images, image_of
from edgert.stages.overlay import Overlay, current_outputs
from edgert.stages.sink.prometheus import CONTENT_TYPE, metrics_text

# The live page: one file with everything in it.


@lru_cache(maxsize=1)
def page() -> tuple[bytes, str]:
    """The page and its Content-Security-Policy, which lets it run its own script and style and fetch from its own
    origin, and nothing else."""
    text = importlib.resources.files("edgert.stages.sink").joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {_hash_of(text, 'script')}; style-src {_hash_of(text, 'style')}"
    )
    return text.encode(), policy


def _hash_of(text: str, tag: str) -> str:
    """What Content Security Policy Level 3 calls a hash source, of the content of the one ``tag`` in the page."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


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

    def show(self, result: Result) -> None:
        """Replaces the newest result; a few microseconds whether or not anybody looks."""
        result.frame.lease.retain()
        with self._changed:
            before, self._newest = self._newest, result
            self._number += 1
            self._changed.notify_all()
        _release(before)

    def close(self) -> None:
        """Wakes every viewer for good and lets the frame go."""
        with self._changed:
            self._closed = True
            before, self._newest = self._newest, None
            self._changed.notify_all()
        _release(before)

    def jpeg_after(self, number: int, timeout_s: float) -> tuple[int, bytes] | None:
        """The newest image as JPEG and its number, once that is above ``number``; None when none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._closed, timeout_s)
            result, newest = self._newest, self._number
            if result is None or newest <= number:
                return None
            result.frame.lease.retain()
        try:
            return self._encoded(result, newest)
        finally:
            result.frame.lease.release()

    def table(self) -> Mapping[str, Any]:
        """What the newest result holds: ``stream``, ``frame`` and ``objects`` (stage, label, score, id)."""
        with self._changed:
            result = self._newest
        if result is None:
            return {"stream": None, "frame": None, "objects": []}
        rows = [row for stage, record in current_outputs(result).items() for row in _rows(stage, record)]
        return {"stream": result.frame.stream, "frame": result.frame.index, "objects": rows[:_TABLE_ROWS]}

    def _encoded(self, result: Result, number: int) -> tuple[int, bytes]:
        with self._encoding:
            if self._jpeg[0] < number:
                self._jpeg = (number, self._encode(result))
            return self._jpeg

    def _encode(self, result: Result) -> bytes:
        image = result.image
        if image is None:
            image = image_of(result, min(result.frame.width, _MAX_WIDTH), self._images)
            self._overlay.paint(image, result)
        done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
        if not done:
            raise StageError("cannot encode a JPEG image", why="OpenCV gives no reason")
        return data.tobytes()


def _release(result: Result | None) -> None:
    if result is not None:
        result.frame.lease.release()


def _rows(stage: str, record: object) -> list[dict[str, Any]]:
    if not isinstance(record, (Detections, Classification, Keypoints)):
        return []
    entries = plain(record)
    kept = ("label", "class", "score", "id")
    rows = entries["objects"] if "objects" in entries else entries["classes"]
    return [{"stage": stage, **{key: row[key] for key in kept if key in row}} for row in rows]


_LOG = logging.getLogger(__name__)
_MAX_CONNECTIONS = 48
_MAX_VIEWERS = 8
_MAX_RATE_HZ = 30.0
_IO_TIMEOUT_S = 10.0  # of a client that neither reads nor writes
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


class LiveServer(ThreadingHTTPServer):
    """Serves one :class:`Live`. Each connection has a thread; all of them end with :meth:`stop`.

    Raises:
        OSError: the address cannot be listened to.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, live: Live, stats: Callable[[], Mapping[str, object]]) -> None:
        self.live, self.stats = live, stats
        self.stopping = threading.Event()
        self.viewers = threading.BoundedSemaphore(_MAX_VIEWERS)
        self.hosts = _local_names(host)
        self._connections: set[socket.socket] = set()
        self._changed = threading.Condition()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="edgert:http", daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stops listening and ends every connection and its thread, within half a second."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._changed:
            for connection in self._connections:
                _hang_up(connection)
            self._changed.wait_for(lambda: not self._connections, _GOODBYE_S)
        self._thread.join()

    def server_bind(self) -> None:
        """Binds without the look-up of the host's own name that http.server does: it may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Turns connections away beyond a fixed number."""
        with self._changed:
            if len(self._connections) >= _MAX_CONNECTIONS:
                return False
            self._connections.add(request)
            return True

    def shutdown_request(self, request: Any) -> None:
        """Forgets a connection that ended."""
        super().shutdown_request(request)
        with self._changed:
            self._connections.discard(request)
            self._changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "edgert", ""
    timeout = _IO_TIMEOUT_S

    def handle(self) -> None:
        try:
            super().handle()
        except OSError as error:  # the viewer left, or did not read for too long
            _LOG.debug("connection of %s ended: %s", self.client_address, error)

    def do_GET(self) -> None:
        if not self._is_known_host():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"unknown Host header\n")
            return
        answer = self._ROUTES.get(urlsplit(self.path).path)
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
            return
        try:
            answer(self)
        except EdgertError as error:
            _LOG.warning("%s: %s", self.path, error)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error.what}\n".encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Goes to the log, not to the terminal the pipeline is shown on."""
        _LOG.debug(format, *args)

    def _is_known_host(self) -> bool:
        """A page of a stranger's that points its own name at this machine (DNS rebinding) gets nothing.

        Only names are compared: through a tunnel the port is another one.
        """
        if not self.server.hosts:
            return True
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return False
        return name in self.server.hosts

    def _page(self) -> None:
        body, policy = page()
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", body, {"Content-Security-Policy": policy})

    def _health(self) -> None:
        self._send(HTTPStatus.OK, "text/plain", b"ok\n")

    def _stats(self) -> None:
        data = {"stats": plain(self.server.stats()), "latest": self.server.live.table()}
        body = json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
        self._send(HTTPStatus.OK, "application/json", body)

    def _metrics(self) -> None:
        self._send(HTTPStatus.OK, CONTENT_TYPE, metrics_text(plain(self.server.stats())).encode())

    def _snapshot(self) -> None:
        found = self.server.live.jpeg_after(0, _NEXT_IMAGE_S)
        if found is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"no image yet\n", {"Retry-After": "1"})
        else:
            self._send(HTTPStatus.OK, "image/jpeg", found[1])

    def _stream(self) -> None:
        viewers = self.server.viewers
        if not viewers.acquire(blocking=False):
            message = f"{_MAX_VIEWERS} viewers are watching already\n".encode()
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", message, {"Retry-After": "10"})
            return
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

    _ROUTES: Mapping[str, Callable[[_Handler], None]] = {
        "/": _page,
        "/stream.mjpg": _stream,
        "/snapshot.jpg": _snapshot,
        "/stats.json": _stats,
        "/metrics": _metrics,
        "/healthz": _health,
    }


def _local_names(host: str) -> frozenset[str]:
    """The names a browser may use for a loopback address; none, for "any", when others than this machine may come."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return frozenset({"localhost", "127.0.0.1", "::1", host}) if local else frozenset()


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it ended by itself in the meantime
        _LOG.debug("already closed: %s", error)
