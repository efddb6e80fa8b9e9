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
PARTNERS = Path(__file__).with_name("page_partners.py")
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
    command = [sys.executable, str(PARTNERS), "attack", str(port), str(count)]
    process = subprocess.Popen(command, env=environment())
    time.sleep(2)  # until all of them are there
    try:
        yield
    finally:
        process.kill()
        process.wait()


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
                        command = [sys.executable, str(PARTNERS), "ask", str(at), str(asked), str(arguments.seconds)]
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
    if "--decoy" in sys.argv:
        serve()
    main(__doc__ or "", measure, options)
