"""The page's HTTP server beside Starlette on uvicorn, each in a process of its own, with TLS and few descriptors.

    pip install uvicorn starlette; python tests/bench/bench_http_server.py [--seconds 5] [--json FILE]

Both give a small text at /metrics, and images of 60 KB 30 times a second at /stream.mjpg. The attacks, and the friend
who asks meanwhile, are those of bench_strangers.py.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
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
        while True:
            await exchange.write(PART)
            await asyncio.sleep(1 / FPS)


def serve_own(cert: str, key: str) -> None:
    """Serve until the process is killed; print the port."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    print(HttpServer("127.0.0.1", listen("127.0.0.1", 0, ""), Access(tls=tls), Site(), "http").port, flush=True)
    time.sleep(1e6)


def serve_uvicorn(cert: str, key: str) -> None:
    """Do the same by the peer, with the limits that it has."""
    uvicorn: Any = __import__("uvicorn")
    responses: Any = importlib.import_module("starlette.responses")

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield PART
            await asyncio.sleep(1 / FPS)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/metrics":
            response = responses.PlainTextResponse(TEXT)
        else:
            response = responses.StreamingResponse(parts(), media_type=MIXED)
        await response(scope, receive, send)

    own = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(own.getsockname()[1], flush=True)
    options = {"ssl_certfile": cert, "ssl_keyfile": key, "limit_concurrency": 384, "timeout_keep_alive": 5}
    config = uvicorn.Config(app, http="h11", loop="asyncio", lifespan="off", log_level="critical", **options)
    uvicorn.Server(config).run(sockets=[own])


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_percent(pid: int, port: int, seconds: float) -> float:
    """Return the CPU time of a server for each of its viewers, in percent of a core."""

    def drain(client: ssl.SSLSocket) -> None:
        with suppress(OSError):
            while client.recv(1 << 18):
                continue

    with ExitStack() as stack:
        for _ in range(VIEWERS):
            client = lenient().wrap_socket(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            client.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Thread(target=drain, args=(stack.enter_context(client),), daemon=True).start()
        time.sleep(1)
        before, began = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        return 100 * (cpu_s(pid) - before) / (time.monotonic() - began) / VIEWERS


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """Attack each server anew with every kind of client, then watch its stream."""
    kinds = ["own"] + ["uvicorn"] * (importlib.util.find_spec("uvicorn") is not None)
    with tempfile.TemporaryDirectory() as folder:
        pair = [str(path) for path in certificate(Path(folder), "localhost")]
        for kind in kinds:
            for attack, count in (*ATTACKS, ("", 0)):
                command = [sys.executable, __file__, "--serve", kind, *pair]
                with subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=limited
                ) as server:
                    assert server.stdout is not None
                    port, watched = int(server.stdout.readline()), Watched(server.pid)
                    asked(port, "page")
                    if attack:
                        before = watched.mib()
                        looking = threading.Thread(target=watched.look)
                        looking.start()
                        with attacked(port, attack, count):
                            time.sleep(0.5)
                            found, failed = waits(lambda port=port: asked(port, "page"), arguments.seconds)  # type: ignore[misc]
                        watched.over.set()
                        looking.join()
                        detail = {"longest_s": max(found), "asked": float(len(found))}
                        yield Figure(f"{kind}, {count:,} {attack}: friend not answered", failed, "", detail=detail)
                        yield Figure(f"{kind}, {count:,} {attack}: memory more", watched.most_mib - before, "MiB")
                    else:
                        percent = cpu_percent(server.pid, port, 2 * arguments.seconds)
                        yield Figure(f"{kind}: CPU for each of {VIEWERS} viewers", percent, "% of a core")
                    server.kill()


def options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        {"own": serve_own, "uvicorn": serve_uvicorn}[sys.argv[2]](*sys.argv[3:5])
    main(__doc__ or "", measure, options)
