"""A pipeline and a friend of its page beside two hundred slow and hostile clients.

    python tests/bench/bench_page_clients.py [--clients 200] [--rounds 5] [--seconds 8] [--json FILE]

The demo's scene at a camera's rate through the demo's model onto a live page. Rounds alternate: in one the clients turn
to the page of another process, so that the machine has as much to do; in the next to this one. They stay silent, send
a byte now and then, announce more than they send, ask for the stream and do not read it, ask again and again for
whatever is dear, or send what is no HTTP; whoever is turned away comes back at once. A friend asks for ``/metrics`` of
the attacked page. Bars: frames a second of the pipeline that is attacked, against those while another is, and the
friend's longest wait.
"""

from __future__ import annotations

import argparse
import http.client
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert import Pipeline
from edgert.benchmark.measure import Figure
from edgert.stages.sink.http import HttpSink
from tests.bench.report import main
from tests.helpers.command import ROOT, environment

RATIO, WAIT_S, ASKED = 0.98, 1.0, 100
FPS = 15
FILE = """
name: clients
models:
  parts:
    onnx: {assets}/parts.onnx
    task: {{detect: yolox, labels: {assets}/parts.txt, score: 0.4, iou: 0.5}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}
stages:
  belt: {{source: "python:{pipelines}/conveyor:Conveyor", size: 640x360, fps: {fps}, seed: 7, realtime: true}}
  find: {{infer: parts, from: belt}}
  page: {{sink: http, port: {port}, from: find}}
"""
KINDS = {
    "silent": b"",
    "slow": b"GET /metrics HTTP/1.1\r\nX: ",
    "unfinished": b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
    "blind": b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "greedy": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "curious": b"GET /snapshot.jpg HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "wrong": b"\x16\x03\x01\x02\x00\x01\x00" * 20,
}
SENDS = ("slow", "blind")
"""They go on sending, and read nothing."""


def attack(port: int, count: int) -> None:
    """So many clients, in one thread, for ever."""
    clients: list[tuple[str, socket.socket | None]] = [(list(KINDS)[one % len(KINDS)], None) for one in range(count)]
    while True:
        for number, (kind, client) in enumerate(clients):
            clients[number] = kind, stepped(kind, client, port)
        time.sleep(0.02)


def stepped(kind: str, client: socket.socket | None, port: int) -> socket.socket | None:
    """A client after its next step; None where it has to begin again."""
    try:
        if client is None:
            client = socket.create_connection(("127.0.0.1", port), timeout=5)
            client.sendall(KINDS[kind])
            client.setblocking(False)
        elif kind in SENDS:
            client.send(b"x")
        elif not client.recv(1 << 18):
            client.close()
            return None
    except BlockingIOError:
        return client
    except OSError:
        if client is not None:
            client.close()
        return None
    return client


@contextmanager
def decoy() -> Iterator[int]:
    """The port of a page in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--decoy"], env=environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def serve() -> None:
    """A page of nothing, for ever."""
    sink = HttpSink("page", "127.0.0.1", 0, lambda: {"fps": 1.0, "stages": {}})
    sink.open()
    print(sink.url.rstrip("/").rpartition(":")[2], flush=True)
    time.sleep(1e6)


@contextmanager
def attackers(port: int, count: int) -> Iterator[None]:
    """The same, in another process."""
    command = [sys.executable, __file__, "--attack", str(port), "--clients", str(count)]
    process = subprocess.Popen(command, env=environment())
    time.sleep(2)  # until all of them are there
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ask(port: int, count: int, seconds: float) -> None:
    """A friend in a process of his own: asks for the metrics so many times, and prints how long each took; a negative
    time is that of an answer that was none."""
    began = time.monotonic()
    for number in range(1, count + 1):
        asked_s = time.monotonic()
        connection, failed = http.client.HTTPConnection("127.0.0.1", port, timeout=5), False
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            failed = b"edgert_latency_seconds_bucket" not in answer.read() or answer.status != 200
        except OSError:
            failed = True
        finally:
            connection.close()
        took_s = time.monotonic() - asked_s
        print(-took_s if failed else took_s, flush=True)
        time.sleep(max(began + seconds * number / count - time.monotonic(), 0))


def fps_while(pipeline: Pipeline, seconds: float) -> float:
    """Results a second of the pipeline."""
    before, began = pipeline.summary().frames_out, time.monotonic()
    time.sleep(seconds)
    return (pipeline.summary().frames_out - before) / (time.monotonic() - began)


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """All bars."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipelines = ROOT / "pipelines"
    asked = -(-ASKED // arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clients.yaml")
        path.write_text(FILE.format(assets=pipelines / "assets", pipelines=pipelines, fps=FPS, port=port))
        waits_s, quiet, beside = list[float](), list[float](), list[float]()
        with Pipeline(path) as pipeline, decoy() as other:
            pipeline.start()
            time.sleep(3)
            for _ in range(arguments.rounds):
                for at, rates in ((other, quiet), (port, beside)):
                    with attackers(at, arguments.clients):
                        command = [sys.executable, __file__, "--ask", str(at), str(asked), str(arguments.seconds)]
                        friend = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
                        rates.append(fps_while(pipeline, arguments.seconds))
                        found = map(float, friend.communicate()[0].split())
                        waits_s += found if at == port else ()
    ratio = statistics.median(after / before for before, after in zip(quiet, beside, strict=True))
    detail = {"without_fps": statistics.median(quiet), "with_fps": statistics.median(beside)}
    name = f"frames a second with {arguments.clients} slow and hostile clients of the page, against none"
    yield Figure(name, ratio, "", RATIO, "higher", arguments.rounds, detail)
    failed, waits_s = sum(wait_s < 0 for wait_s in waits_s), sorted(map(abs, waits_s))
    detail = {"median_s": statistics.median(waits_s), "p90_s": waits_s[int(0.9 * len(waits_s))]}
    yield Figure("a friend's longest wait for /metrics", waits_s[-1], "s", WAIT_S, "lower", len(waits_s), detail)
    yield Figure("a friend's requests that failed", failed, "", 0, "lower", len(waits_s))


def options(parser: argparse.ArgumentParser) -> None:
    """Arguments of this one."""
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each round")


if __name__ == "__main__":
    if "--attack" in sys.argv:
        attack(int(sys.argv[2]), int(sys.argv[4]))
    if "--decoy" in sys.argv:
        serve()
    if "--ask" in sys.argv:
        ask(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        sys.exit()
    main(__doc__ or "", measure, options)
