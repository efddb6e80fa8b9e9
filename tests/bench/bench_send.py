"""Whether results arrive: a broker that is killed and started again, a sender that is killed, and what sending costs.

    python tests/bench/bench_send.py [--to mqtt nats kafka webhook] [--results 1000000] [--json FILE]

Results of five objects go through a sink to a server on this machine, as fast as they are made. On the way it is
killed and started again 50 times, and the process that sends is killed 20 times; every time another goes on with the
next number. A result counts as lost if the sink took the next one, and the listener never got it. The servers are
mosquitto, nats-server, librdkafka's mock broker, and a stub over TLS (send_partners.py). Before that, in one process,
the time that a stage's thread takes for a result, 30 times a second as behind a camera, with a broker and without one;
how fast the demo runs, with a sender whose broker is gone, with a sink that does nothing, and with neither, by turns:
at a camera's rate, and as fast as the processor can, which its model then fills; and, as fast as it can, what each part
of sending takes of a frame's processor time.
"""

from __future__ import annotations

import argparse
import json
import logging
import mmap
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from report import main
from send_partners import partner

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config import SinkStage
from edgert.pipeline import Pipeline
from edgert.runtime import Result, json_form
from edgert.stages.context import Context, made
from edgert.stages.sink.send.sink import SendSink
from edgert.stages.sink.send.spool import Spool
from tests.helpers.brokers import free_port, mosquitto
from tests.helpers.moving import Scene

ROOT = Path(__file__).parents[2]
SERVER_KILLS, SENDER_KILLS = 50, 20
BAR_US, BAR_SPEED = 60.0, 0.99
PERIOD_S = 1 / 30
OBJECTS = {number: (10.0 * number, 50.0) for number in range(1, 6)}
_IDLE_S = 120.0
"""Without another message for so long, what has not come is lost."""


def sink_of(folder: Path, keys: dict[str, Any]) -> SendSink:
    """A sink for a server on this machine."""
    own = {"from": "track", "spool": folder / "spool.db", "limit": "8GiB", **keys}
    found: SendSink = made(SinkStage.model_validate(own), "out", Context(pipeline="bench"))
    return found


def numbered(result: Result, number: int) -> Result:
    """The same result of another frame."""
    return Result(replace(result.frame, index=number, timestamp_ns=time.monotonic_ns()), result.outputs)


# The process that sends, until it is killed.


def send(folder: Path, keys: dict[str, Any], count: int, ahead: int) -> None:
    """Goes on where the last one was killed. The file ``at`` has the numbers of results that were begun, that were
    in the spool, and that came."""
    sink, result = sink_of(folder, keys), Scene("gate").at(OBJECTS)
    sink.open()
    spool = sink._spool
    assert spool is not None
    with (folder / "at").open("r+b") as file, mmap.mmap(file.fileno(), 24) as at:
        for number in range(struct.unpack("q", at[:8])[0], count):
            while number - struct.unpack("q", at[16:])[0] > ahead:
                time.sleep(0.005)
            at[:8] = struct.pack("q", number + 1)
            sink.process(numbered(result, number))
            at[8:16] = struct.pack("q", number)  # those before it are in the spool
    while spool.count:
        time.sleep(0.05)
    sink.close()


# Whoever listens, and kills.


class Arrivals:
    """What has come: every number, in which order, and under which ids."""

    def __init__(self, count: int) -> None:
        self.seen, self.ids = np.zeros(count, bool), np.zeros(count, np.int64)
        self.last, self.doubles, self.out_of_order, self.other_ids = -1, 0, 0, 0

    def take(self, bodies: list[bytes]) -> None:
        """Messages in the order in which they came."""
        for body in bodies:
            message = json.loads(body)
            number, own = message["frame"], hash(message["id"])
            if self.seen[number]:
                self.doubles += 1
                self.other_ids += int(self.ids[number] != own)
                continue
            self.out_of_order += int(number < self.last)
            self.seen[number], self.ids[number], self.last = True, own, number


def deliver(name: str, count: int) -> Iterator[Figure]:
    """All results, through all kills."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="edgert-") as temporary, partner(name, Path(temporary)) as server:
        folder, began = Path(temporary), time.monotonic()
        (folder / "at").write_bytes(struct.pack("qqq", 0, 0, -1))
        command = [sys.executable, __file__, "--send", str(folder), "--keys", json.dumps(server.keys)]
        command += ["--results", str(count), "--ahead", str(server.ahead)]
        sender, kills, arrivals = subprocess.Popen(command), {"server": 0, "sender": 0}, Arrivals(count)
        moments = sorted(random.uniform(0.02, 0.95, SERVER_KILLS + SENDER_KILLS) * count)
        whom = random.permutation(["server"] * SERVER_KILLS + ["sender"] * SENDER_KILLS).tolist()
        in_flight, news, seen, killed = set[int](), time.monotonic(), 0, list[tuple[int, str]]()
        with (folder / "at").open("r+b") as file, mmap.mmap(file.fileno(), 24) as at:
            while seen < count and time.monotonic() - news < _IDLE_S:
                time.sleep(0.02)
                bodies = server.news()
                if not bodies:
                    continue
                arrivals.take(bodies)
                news, seen, at[16:] = time.monotonic(), int(arrivals.seen.sum()), struct.pack("q", arrivals.last)
                if not moments or seen < moments[0]:
                    continue
                moments.pop(0)
                kills[victim := whom.pop(0)] += 1
                killed.append((arrivals.last, victim))
                if victim == "server":
                    server.kill()
                    server.start()
                else:
                    sender.kill()
                    sender.wait()
                    begun, done, _ = struct.unpack("qqq", at)
                    in_flight |= set(range(done, begun))
                    sender = subprocess.Popen(command)
        seconds = time.monotonic() - began
        sender.kill()
        sender.wait()
    lost = set(np.flatnonzero(~arrivals.seen).tolist()) - in_flight
    by_server = sum(
        min(killed, key=lambda kill: abs(kill[0] - number), default=(0, ""))[1] == "server" for number in lost
    )
    detail: dict[str, float] = {"lost beside a kill of the server": by_server}
    detail |= {f"kills of the {who}": times for who, times in kills.items()}
    detail |= {"doubles": arrivals.doubles, "per second": count / seconds, "in flight at a kill": len(in_flight)}
    yield Figure(f"{name}: lost", len(lost), f"of {count:,}", 0, n=count, detail=detail)
    yield Figure(f"{name}: out of order", arrivals.out_of_order, f"of {count:,}", 0, n=count)
    yield Figure(
        f"{name}: doubles under another id", arrivals.other_ids, f"of {arrivals.doubles:,}", 0, n=arrivals.doubles
    )


def cost(results: int = 600) -> Iterator[Figure]:
    """Of a stage's thread: processor time of a result, with a broker that takes it and with none."""
    result = Scene("gate").at(OBJECTS)
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        with mosquitto(folder) as broker:
            yield _cost("broker there", folder, broker.port, result, results)
        yield _cost("broker gone", folder, free_port(), result, results)


def _cost(name: str, folder: Path, port: int, result: Result, count: int) -> Figure:
    sink, taken = sink_of(folder, {"sink": "mqtt", "server": f"mqtt://127.0.0.1:{port}"}), list[float]()
    sink.open()
    begun = time.process_time()
    for number in range(count):
        one = numbered(result, number)
        began = time.thread_time_ns()
        sink.process(one)
        taken.append((time.thread_time_ns() - began) / 1e3)
        time.sleep(PERIOD_S)
    detail = {"p99": float(np.percentile(taken, 99)), "all threads": 1e6 * (time.process_time() - begun) / count}
    sink.close()
    return Figure(f"a result, {name}", statistics.median(taken), "us", BAR_US, n=count, detail=detail)


# A pipeline whose broker is gone.

DEMO = """
schema: 1
name: bench
models:
  parts: {{onnx: "{root}/pipelines/assets/parts.onnx", task: {{detect: yolox, score: 0.4, iou: 0.5}},
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}}}
stages:
  belt: {{source: "python:pipelines.conveyor:Conveyor", size: 640x480, fps: {hz}, seed: 7, limit: {frames}}}
  find: {{infer: parts, from: belt}}
  track: {{track: bytetrack, from: find}}
  out: {{sink: null, from: track}}
"""
NOTHING = "  tell: {{sink: null, from: track}}\n"
TELL = "  tell: {{sink: mqtt, from: track, server: 'mqtt://127.0.0.1:{port}', spool: '{folder}/spool.db'}}\n"
CAMERA_HZ = 30


def undisturbed(rounds: int, frames: int = 480) -> Iterator[Figure]:
    """How fast the demo runs, at a camera's rate and as fast as it can, where every microsecond of a processor that is
    not the model's is missing. There a sink that does nothing is measured beside it: no sink costs less."""
    camera = DEMO.replace("seed: 7", "seed: 7, realtime: true")
    yield _ratio("fps of a camera while the broker is gone", camera, 3, 300)
    yield _ratio("fps of all that the processor gives while the broker is gone", DEMO, rounds, frames)


def _ratio(title: str, demo: str, rounds: int, frames: int) -> Figure:
    """Of the demo with a sender to the same without, by turns: the median of neighbours, as machines drift."""
    ways = {"alone": demo, "with a sink that does nothing": demo + NOTHING, "with": demo + TELL}
    speeds = {way: list[float]() for way in ways}
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        file, port = Path(name) / "p.yaml", free_port()
        for number in range(rounds + 1):
            for way in list(ways)[:: 1 if number % 2 else -1]:
                file.write_text(ways[way].format(root=ROOT, folder=name, port=port, frames=frames, hz=CAMERA_HZ))
                with Pipeline(file) as pipeline:
                    speed = pipeline.run().fps
                if number:  # the first warm up
                    speeds[way].append(speed)
    detail = {f"fps {way}": statistics.median(found) for way, found in speeds.items()}
    pairs = {way: np.divide(found, speeds["alone"]) for way, found in speeds.items()}
    for way in ("with a sink that does nothing", "with"):
        detail |= {f"{way}: {part}": float(np.percentile(pairs[way], rank)) for part, rank in _QUARTERS.items()}
    return Figure(title, float(np.median(pairs["with"])), "of fps alone", BAR_SPEED, "higher", rounds, detail=detail)


def parts(frames: int = 1200) -> Iterator[Figure]:
    """Processor time of a result's JSON, its way into the spool, and securing the spool, of all that a frame takes."""
    taken = dict[str, float]()

    def timed(owner: Any, name: str, part: str) -> Any:
        called = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            began_ns = time.thread_time_ns()
            found = called(*arguments)
            taken[part] = taken.get(part, 0.0) + (time.thread_time_ns() - began_ns) / 1e3 / frames
            return found

        return patch.object(owner, name, call)

    with tempfile.TemporaryDirectory(prefix="edgert-") as name, ExitStack() as timing:
        for owner, method, part in _PARTS:
            timing.enter_context(timed(owner, method, part))
        file = Path(name) / "p.yaml"
        file.write_text((DEMO + TELL).format(root=ROOT, folder=name, port=free_port(), frames=frames, hz=CAMERA_HZ))
        with Pipeline(file) as pipeline:
            began_s = time.process_time()
            pipeline.run()
            frame_us = 1e6 * (time.process_time() - began_s) / frames
    share, detail = 100 * sum(taken.values()) / frame_us, {"us of a frame": frame_us}
    detail |= {f"us of {part}": found for part, found in taken.items()}
    yield Figure("processor time of a result's sending, with its broker gone", share, "% of a frame's", detail=detail)


_PARTS = (
    (json_form, "plain_result", "plain data"),
    (json_form, "encoded", "JSON"),
    (Spool, "put", "journal"),
    (Spool, "secure", "database"),
)
_QUARTERS = {"25 %": 25, "median": 50, "75 %": 75}


def measure(arguments: Any) -> Iterator[Figure]:
    """All of it."""
    logging.disable(logging.WARNING)
    yield from cost()
    if arguments.rounds:
        yield from undisturbed(arguments.rounds)
        yield from parts()
    for name in arguments.to:
        yield from deliver(name, arguments.results)


def options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40, help="of the demo with a sender and without")
    parser.add_argument("--to", nargs="*", default=["mqtt", "nats", "kafka", "webhook"])


if __name__ == "__main__":
    if "--send" in sys.argv:
        given = argparse.ArgumentParser()
        for name in ("--send", "--keys", "--results", "--ahead"):
            given.add_argument(name)
        wanted = given.parse_args()
        logging.disable(logging.WARNING)
        send(Path(wanted.send), json.loads(wanted.keys), int(wanted.results), int(wanted.ahead))
        os._exit(0)
    main(__doc__.splitlines()[0] if __doc__ else "", measure, options)
