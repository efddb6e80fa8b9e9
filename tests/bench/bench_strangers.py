"""Every server of a pipeline beside thousands of connections, with recorders in the same process.

``edgert run`` with at most 1,024 descriptors records a camera, once as its packets and once as images, and serves the
live page with TLS, ``sink: webrtc`` with TLS and, where gst-rtsp-server is installed for this Python, ``sink: rtsp``.
Another process attacks one server after the other: thousands of connections that say nothing, those that leave the
handshake or the request unfinished, and slow ones that send a byte now and then. Those that are turned away come back.
A friend asks the attacked server meanwhile. Bars: memory beyond what it was before the attack, at most and a while
afterwards; the friend's longest wait; images of the camera that its recording lacks, and failures of recorders. Where
uvicorn is installed, it is attacked, too; it misses the bars.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import av
from report import main

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from tests.helpers.brokers import certificate
from tests.helpers.clips import h264_units
from tests.helpers.command import environment, free_port
from tests.helpers.rtsp_server import RtspProgram, save

MORE_MIB, LEFT_MIB, WAIT_S, FPS, DESCRIPTORS = 50, 15, 1.0, 15, 1024
ASKED, CALM_S, WARM_S = 40, 10.0, 12.0
FILE = """
schema: 1
name: strangers
stages:
  cam: {{source: "{camera}"}}
  film: {{sink: record, from: cam, path: "{folder}/{{stream}}-{{date}}-{{time}}.mp4", rotate: {{every: 2s}}}}
  shots: {{sink: images, from: cam, path: "{folder}/shots/{{stream}}-{{frame}}.jpg"}}
  page: {{sink: http, from: cam, port: {page}, tls: {{cert: {cert}, key: {key}}}}}
  web: {{sink: webrtc, from: cam, port: {web}, tls: {{cert: {cert}, key: {key}}}}}
"""
RTSP = "  live: {{sink: rtsp, from: cam, port: {live}}}\n"
KINDS = {
    "silent": b"",
    "half a handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "half a request": b"OPTI",
    "slow": b"OPTIONS rtsp://127.0.0.1/cam RTSP/1.0\r\nX: ",
    "slow within TLS": b"GET /metrics HTTP/1.1\r\nX: ",
}
ATTACKS = (
    ("page", "silent", 6000),
    ("page", "half a handshake", 1000),
    ("page", "slow within TLS", 300),
    ("web", "silent", 6000),
    ("web", "slow within TLS", 300),
    ("live", "half a request", 400),
    ("live", "slow", 300),
)
SHOWN = {"page": "the page", "web": "`sink: webrtc`", "live": "`sink: rtsp`", "peer": "uvicorn"}
PEER = """
import sys, uvicorn
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 6000})
port, cert, key = sys.argv[1:]
uvicorn.run(app, port=int(port), ssl_certfile=cert, ssl_keyfile=key, limit_concurrency=384, http="h11", lifespan="off")
"""


def attack(port: int, kind: str, count: int) -> None:
    """So many clients for ever, in one thread: those that were turned away begin again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    context = lenient() if "TLS" in kind else None
    clients: list[socket.socket | None] = [None] * count
    while True:
        for number, client in enumerate(clients):
            with contextlib.suppress(OSError):
                clients[number] = stepped(client, port, kind, context)
                continue
            if client is not None:
                client.close()
            clients[number] = None
        time.sleep(0.05)


def stepped(client: socket.socket | None, port: int, kind: str, context: ssl.SSLContext | None) -> socket.socket | None:
    """A client after its next step; None where it has to begin again. Raises OSError where it was turned away."""
    if client is None:
        client = socket.create_connection(("127.0.0.1", port), timeout=5)
        client = context.wrap_socket(client) if context is not None else client
        client.sendall(KINDS[kind])
        client.setblocking(False)
    elif "slow" in kind:
        client.send(b"x")
    else:
        with contextlib.suppress(BlockingIOError):
            if not client.recv(1 << 12):
                client.close()
                return None
    return client


@cache
def lenient() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def asked(port: int, server: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        if server == "live":
            client.sendall(f"OPTIONS rtsp://127.0.0.1:{port}/cam RTSP/1.0\r\nCSeq: 1\r\n\r\n".encode())
            return client.recv(1 << 12)
        path, found = "/metrics" if server == "page" else "/streams.json", b""
        with lenient().wrap_socket(client, server_hostname="localhost") as encrypted:
            encrypted.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            while more := encrypted.recv(1 << 16):
                found += more
        return found


@dataclass
class Watched:
    pid: int
    most_mib: float = 0.0
    most_files: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def mib(self) -> float:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize() / 2**20

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 - while they come and go

    def look(self) -> None:
        while not self.over.wait(0.05):
            self.most_mib, self.most_files = max(self.most_mib, self.mib()), max(self.most_files, self.files())


def limited() -> None:
    """What a shell that nobody set up gives a program."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


@contextlib.contextmanager
def attacked(port: int, kind: str, count: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--attack", str(port), kind, str(count)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def waits(ask: Callable[[], bytes], seconds: float) -> tuple[list[float], int]:
    """How long a friend waited for each answer, and how many were none."""
    found, failed, began = list[float](), 0, time.monotonic()
    for number in range(1, ASKED + 1):
        at = time.monotonic()
        try:
            failed += b"200 OK" not in ask()[:40]
        except OSError:
            failed += 1
        found.append(time.monotonic() - at)
        time.sleep(max(began + seconds * number / ASKED - time.monotonic(), 0))
    return found, failed


def one_attack(pid: int, port: int, server: str, kind: str, count: int, seconds: float) -> Iterator[Figure]:
    watched = Watched(pid)
    before = watched.mib()
    thread = threading.Thread(target=watched.look)
    thread.start()
    with attacked(port, kind, count):
        time.sleep(0.5)
        found, failed = waits(lambda: asked(port, server), seconds)
    watched.over.set()
    thread.join()
    time.sleep(CALM_S)
    name = f"{count:,} {kind}, {SHOWN[server]}"
    detail = {"before_mib": before, "files": float(watched.most_files)}
    yield Figure(f"{name}: memory more", watched.most_mib - before, "MiB", MORE_MIB, "lower", 1, detail)
    yield Figure(f"{name}: memory left", watched.mib() - before, "MiB", LEFT_MIB, "lower", 1)
    detail = {"median_s": sorted(found)[len(found) // 2], "failed": float(failed)}
    yield Figure(f"{name}: friend's longest wait", max(found), "s", WAIT_S, "lower", len(found), detail)
    yield Figure(f"{name}: friend's requests that failed", failed, "", 0, "lower", len(found))


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    has_rtsp = importlib.util.find_spec("gi") is not None
    ports = {name: free_port() for name in SHOWN}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cert, key = certificate(folder, "localhost")
        camera = RtspProgram(save(h264_units(4 * FPS, size=(640, 360), gop=FPS), folder / "units"), FPS)
        camera.start()
        file, summary, log = folder / "pipeline.yaml", folder / "summary.json", folder / "log"
        text = FILE + RTSP * has_rtsp
        file.write_text(text.format(camera=camera.url, folder=folder, cert=cert, key=key, **ports))
        command = [sys.executable, "-m", "edgert", "run", str(file), "--plain", "--json", str(summary)]
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment(), preexec_fn=limited)
        try:
            time.sleep(WARM_S)
            assert process.poll() is None, log.read_text()
            for server in ("page", "web", *["live"] * has_rtsp):
                waits(lambda server=server: asked(ports[server], server), 2)  # type: ignore[misc]
            for server, kind, count in ATTACKS:
                if has_rtsp or server != "live":
                    yield from one_attack(process.pid, ports[server], server, kind, count, arguments.seconds)
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
            camera.kill()
        if importlib.util.find_spec("uvicorn") is not None:
            yield from peer(ports["peer"], str(cert), str(key), arguments.seconds)
        yield from recorded(folder, json.loads(summary.read_text()), log.read_text())


def peer(port: int, cert: str, key: str, seconds: float) -> Iterator[Figure]:
    """What the attacks on the page do to uvicorn, in a process of its own."""
    for server, kind, count in ATTACKS:
        if server == "page":
            command = [sys.executable, "-c", PEER, str(port), cert, key]
            with subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limited
            ) as process:
                time.sleep(WARM_S / 4)
                waits(lambda: asked(port, "peer"), 1)
                yield from one_attack(process.pid, port, "peer", kind, count, seconds)
                process.kill()


def recorded(folder: Path, summary: dict[str, dict[str, dict[str, int]]], log: str) -> Iterator[Figure]:
    stages = summary["stages"]
    given, images = stages["cam"]["results_out"], 0
    for path in sorted(folder.glob("cam-*.mp4")):
        with av.open(str(path)) as one:
            images += sum(packet.size > 0 for packet in one.demux(video=0))
    shots = sum(1 for _ in (folder / "shots").iterdir())
    yield Figure("images of the camera that its recording lacks", max(given - images, 0), "", FPS, "lower", given)
    # Decoding and encoding compete for the processor with the attackers; what there is no time for is left out.
    yield Figure("images of the camera that there was no time to save", given - shots, "", None, "lower", given)
    errors = sum(stages[name]["errors"] for name in ("film", "shots"))
    yield Figure("failures of recorders", errors, "", 0, "lower", given)
    yield Figure("lines of the log about too many open files", log.count("Too many open files"), "", 0, "lower", 1)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")


if __name__ == "__main__":
    if "--attack" in sys.argv:
        attack(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    main(__doc__ or "", measure, options)
