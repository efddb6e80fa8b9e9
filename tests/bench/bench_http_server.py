"""The page's HTTP server beside Starlette on uvicorn, each in a process of its own, with TLS and few descriptors.

    pip install uvicorn starlette; python tests/bench/bench_http_server.py [--seconds 5] [--json FILE]

Both give a small text at /metrics, and images of 60 KB 30 times a second at /stream.mjpg. The attacks, and the friend
who asks meanwhile, are those of bench_strangers.py.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.http_exchange import Exchange, Request, Response
from edgert.stages.sink.web.http_server import Access, HttpServer
from tests.bench.bench_strangers import Watched, asked, attacked, lenient, limited, waits
from tests.bench.report import main
from tests.helpers.brokers import certificate

TEXT, IMAGE, FPS, VIEWERS = b"# HELP x y\n" * 600, bytes(60_000), 30, 8
PART = b"".join((b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(IMAGE), IMAGE, b"\r\n--b\r\n"))
MIXED = "multipart/x-mixed-replace; boundary=b"
ATTACKS = (("silent", 6000), ("half a handshake", 1000), ("slow within TLS", 300))


class Site:
    open_to_all, whep = (), None

    async def answer(self, exchange: Exchange, request: Request) -> Response | None:
        if request.path == "/metrics":
            return Response(HTTPStatus.OK, "text/plain", TEXT)
        await exchange.begin(HTTPStatus.OK, MIXED)
        async for part in parts():
            await exchange.write(part)
        return None


async def parts() -> AsyncIterator[bytes]:
    while True:
        yield PART
        await asyncio.sleep(1 / FPS)


def serve_own(own: socket.socket, cert: str, key: str) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    HttpServer("127.0.0.1", own, Access(tls=tls), Site(), "http")
    time.sleep(1e6)


def serve_uvicorn(own: socket.socket, cert: str, key: str) -> None:
    uvicorn, responses = (importlib.import_module(name) for name in ("uvicorn", "starlette.responses"))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_text = scope["path"] == "/metrics"
        response = (
            responses.PlainTextResponse(TEXT) if is_text else responses.StreamingResponse(parts(), 200, None, MIXED)
        )
        await response(scope, receive, send)

    options = {"ssl_certfile": cert, "ssl_keyfile": key, "limit_concurrency": 384, "timeout_keep_alive": 5}
    config = uvicorn.Config(app, http="h11", loop="asyncio", lifespan="off", log_level="critical", **options)
    uvicorn.Server(config).run(sockets=[own])


SERVERS = {"own": serve_own, "uvicorn": serve_uvicorn}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drain(port: int) -> None:
    """Watch the stream for ever, as one viewer."""
    with lenient().wrap_socket(socket.create_connection(("127.0.0.1", port))) as client:
        client.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while client.recv(1 << 18):
            continue


def measured(kind: str, pid: int, port: int, attack: str, count: int, seconds: float) -> Iterator[Figure]:
    """Attack a server, or watch its stream."""
    watched = Watched(pid)
    asked(port, "page")
    if not attack:
        for _ in range(count):
            threading.Thread(target=drain, args=(port,), daemon=True).start()
        time.sleep(1)
        before = cpu_s(pid)
        time.sleep(2 * seconds)
        percent = 100 * (cpu_s(pid) - before) / (2 * seconds) / count
        yield Figure(f"{kind}: CPU for each of {count} viewers", percent, "% of a core")
        return
    before = watched.mib()
    looking = threading.Thread(target=watched.look)
    looking.start()
    with attacked(port, attack, count):
        time.sleep(0.5)
        found, failed = waits(lambda: asked(port, "page"), seconds)
    watched.over.set()
    looking.join()
    detail = {"longest_s": max(found), "asked": float(len(found))}
    yield Figure(f"{kind}, {count:,} {attack}: friend not answered", failed, "", detail=detail)
    yield Figure(f"{kind}, {count:,} {attack}: memory more", watched.most_mib - before, "MiB")


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """Start each server anew for every attack."""
    with tempfile.TemporaryDirectory() as folder:
        pair = [str(path) for path in certificate(Path(folder), "localhost")]
        for kind in SERVERS:
            for attack, count in (*ATTACKS, ("", VIEWERS)):
                own = listen("127.0.0.1", 0, "")
                command = [sys.executable, __file__, "--serve", kind, str(own.fileno()), *pair]
                with subprocess.Popen(
                    command, stderr=subprocess.DEVNULL, preexec_fn=limited, pass_fds=[own.fileno()]
                ) as server:
                    yield from measured(kind, server.pid, own.getsockname()[1], attack, count, arguments.seconds)
                    server.kill()
                own.close()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        SERVERS[sys.argv[2]](socket.socket(fileno=int(sys.argv[3])), *sys.argv[4:6])
    main(__doc__ or "", measure, options)
