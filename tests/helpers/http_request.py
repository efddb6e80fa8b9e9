"""One HTTP request on a connection of its own, and a server for a block."""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from edgert.stages.context import Context
from edgert.stages.kinds import Http
from edgert.stages.sink.web.http_sink import HttpSink


def answer_of(
    url: str, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


class _Server(ThreadingHTTPServer):
    request_queue_size, daemon_threads = 64, True  # forty connections of a test wait at once; five are usual


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server that answers by ``handler``."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def live_page(
    stats: Callable[[], Mapping[str, object]] = dict, name: str = "page", video: bool = False, **keys: Any
) -> HttpSink:
    """The sink of a live page on a free port, not opened; it shows cameras as images unless ``video`` is set."""
    made = HttpSink(name, Http.model_validate({"sink": "http", "from": "x", "port": 0, **keys}), Context(stats=stats))
    made.whep = made.whep if video else None
    return made
