"""What edgert sends arrives at real servers: all of it, in order, whatever happens to the server meanwhile."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.config import SinkStage
from edgert.stages.context import Context, made
from edgert.stages.sink.send import courier, kafka, mqtt, nats, server
from edgert.stages.sink.send.sink import SendSink
from edgert.testing import sample
from tests.helpers import brokers
from tests.helpers.moving import Scene

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(courier, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(courier, "_LONGEST_WAIT_S", 0.2)
    caplog.set_level(logging.INFO, "edgert.send")


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def opened(folder: Path, sink: str, **keys: Any) -> SendSink:
    section = SinkStage.model_validate({"sink": sink, "from": "track", "spool": folder / "spool.db", **keys})
    found: SendSink = made(section, "out", Context(pipeline="pole"))
    found.open()
    return found


def waiting(sink: SendSink) -> int:
    assert sink._spool is not None
    return sink._spool.count + int(sink._hands_over and sink._written.empty())  # and one on its way there


def run(sink: SendSink, scene: Scene, count: int) -> None:
    for _ in range(count):
        sink.process(scene.at({1: (20, 20)}))


def numbers(bodies: list[dict[str, Any]]) -> list[int]:
    """Of the frames, each once, in the order in which they first came."""
    assert len({one["id"] for one in bodies}) == len({one["frame"] for one in bodies})
    return list(dict.fromkeys(one["frame"] for one in bodies))


def test_mqtt_through_kills_of_the_broker(tmp_path: Path) -> None:
    with brokers.mosquitto(tmp_path) as broker:
        listener, scene = brokers.MqttListener(broker.port), Scene("gate")
        sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{broker.port}")

        def arrived() -> int:
            return len({one["frame"] for one in listener.of_kind("result")})

        for count in (100, 300, 500):
            run(sink, scene, 100)
            until(lambda count=count: arrived() > count - 50)  # it has not saved all that it acknowledged
            broker.kill()
            run(sink, scene, 100)
            broker.start()
        until(lambda: not waiting(sink))
        until(lambda: arrived() == 600)
        sink.close()
        assert numbers(listener.of_kind("result")) == list(range(600))
        assert {topic for topic, body in listener.messages if body.startswith(b"{")} == {"edgert/pole/gate/result"}
        until(lambda: listener.messages[-1] == ("edgert/pole/status", b"offline"))
        listener.close()


def test_mqtt_tells_home_assistant_of_its_rules(tmp_path: Path) -> None:
    from edgert.stages.zones.areas import Area, ZonesStage
    from edgert.stages.zones.rules import EventsStage, Rule

    with brokers.mosquitto(tmp_path) as broker:
        listener, scene = brokers.MqttListener(broker.port), Scene("gate")
        keys = {"send": "events", "home_assistant": True, "topic": "yard/{rule}"}
        sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{broker.port}", **keys)
        zones = ZonesStage("areas", [Area("yard", ((0.5, 0), (1, 0), (1, 1), (0.5, 1)))], [])
        events = EventsStage("alarm", [Rule("in yard", zones=("yard",))], Context().clock)
        for feet in ({1: (70.0, 20.0)}, {1: (70.0, 20.0), 2: (80.0, 20.0)}):
            sink.process(events.process(zones.process(scene.at(feet))))
        until(lambda: len(listener.of_kind("event")) == 2)
        sink.close()
        (config,) = [json.loads(body) for topic, body in listener.messages if topic.startswith("homeassistant/")]
        assert config["state_topic"] == "yard/in-yard" and config["unique_id"] == "edgert_pole_gate_in_yard"
        assert [one["event"]["track"] for one in listener.of_kind("event")] == [1, 2]
        listener.close()


def test_a_broker_that_does_not_let_us_in_is_named_and_no_password_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "users").write_text("")
    with brokers.mosquitto(tmp_path, "allow_anonymous false", f"password_file {tmp_path}/users") as broker:
        keys = {"user": "edgert", "password": "sesame-77"}
        sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{broker.port}", **keys)
        run(sink, Scene(), 1)
        until(lambda: "the broker refuses us: Not authorized" in caplog.text)
        sink.close()
        assert "1 messages were not sent" in caplog.text and "sesame-77" not in caplog.text


def test_a_server_that_is_no_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "TIMEOUT_S", 0.3)
    other = brokers.Receiver()
    sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{other.port}")
    run(sink, Scene(), 1)
    until(lambda: "takes nothing" in caplog.text)
    sink.close()
    assert "is it an MQTT broker, with TLS or without?" in caplog.text
    other.shutdown()


def test_nats_through_kills_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "TIMEOUT_S", 2.0)
    with brokers.nats(tmp_path / "store") as broker:
        brokers.stream_of(broker.port, "edgert.>")
        sink, scene = opened(tmp_path, "nats", server=f"nats://127.0.0.1:{broker.port}"), Scene("gate")
        for _ in range(3):
            run(sink, scene, 100)
            broker.kill()
            run(sink, scene, 100)
            broker.start()
        until(lambda: not waiting(sink))
        sink.close()
        found = brokers.stored(broker.port)
        assert [one["frame"] for one in found] == list(range(600))  # doubles were dropped by their ids


def test_nats_without_a_stream_is_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with brokers.nats(tmp_path / "store") as broker:
        sink = opened(tmp_path, "nats", server=f"nats://127.0.0.1:{broker.port}")
        run(sink, Scene(), 1)
        until(lambda: "no JetStream stream takes this subject" in caplog.text)
        sink.close()
        plain = opened(tmp_path, "nats", server=f"nats://127.0.0.1:{broker.port}", jetstream=False)
        until(lambda: not waiting(plain))
        plain.close()


def test_kafka(tmp_path: Path) -> None:
    package = pytest.importorskip("confluent_kafka", reason="confluent-kafka (extra 'test') is not installed")
    keys = {"options": {"test.mock.num.brokers": "1"}}
    sink = opened(tmp_path, "kafka", server="kafka://127.0.0.1", topic="pole", **keys)
    run(sink, Scene("gate"), 1)
    until(lambda: not waiting(sink))
    door: Any = sink._door
    (broker,) = door._producer.list_topics(timeout=10).brokers.values()
    run(sink, Scene("gate"), 0)
    scene = Scene("yard")
    run(sink, scene, 500)
    until(lambda: not waiting(sink))
    settings = {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "a", "auto.offset.reset": "earliest"}
    consumer, messages = package.Consumer(settings), list[Any]()
    consumer.subscribe(["pole"])
    until(lambda: messages.extend(consumer.consume(200, 0.2)) or len(messages) >= 501)
    consumer.close()
    sink.close()
    yard = [json.loads(one.value()) for one in messages if one.key() == b"yard"]
    assert [one["frame"] for one in yard] == list(range(500))
    assert dict(messages[0].headers())["id"].decode() == json.loads(messages[0].value())["id"]


def test_kafka_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka (extra 'test') is not installed")
    monkeypatch.setattr(kafka, "TIMEOUT_S", 0.5)
    sink = opened(tmp_path, "kafka", server=f"kafka://127.0.0.1:{brokers.free_port()}")
    run(sink, Scene(), 1)
    until(lambda: "takes nothing" in caplog.text)
    sink.close()
    assert "1 messages were not sent" in caplog.text


def test_a_webhook_is_signed_and_tried_again(tmp_path: Path) -> None:
    receiver = brokers.Receiver()
    receiver.answers = [503, 429, 500]
    keys = {
        "secret": "whsec_" + base64.b64encode(b"key").decode(),
        "headers": {"X-Pole": "7"},
        "user": "u",
        "password": "p",
    }
    sink = opened(tmp_path, "webhook", server=f"http://127.0.0.1:{receiver.port}/in?a=1", **keys)
    run(sink, Scene("gate"), 20)
    until(lambda: not waiting(sink))
    sink.close()
    assert [json.loads(body)["frame"] for _, body in receiver.requests] == list(range(20))
    headers, body = receiver.requests[0]
    assert headers["ce-id"] == headers["webhook-id"] == json.loads(body)["id"] and headers["x-pole"] == "7"
    assert headers["ce-type"] == "edgert.result" and headers["ce-source"] == "/edgert/pole/gate"
    assert headers["authorization"] == "Basic " + base64.b64encode(b"u:p").decode()
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(b"key", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"
    receiver.shutdown()


def test_snapshots_are_pushed_as_images(tmp_path: Path) -> None:
    receiver = brokers.Receiver()
    receiver.answers = [503]
    address = f"http://127.0.0.1:{receiver.port}/snapshots"
    sink = opened(tmp_path, "webhook", server=address, attach="frame", body="image", secret="word")
    for number in range(3):
        sink.process(sample(number))
    until(lambda: not waiting(sink))
    sink.close()
    assert len({headers["ce-id"] for headers, _ in receiver.requests}) == 3
    for headers, body in receiver.requests:
        assert headers["content-type"] == "image/jpeg" and headers["ce-source"] == "/edgert/pole/camera"
        image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None and image.shape == sample().frame.planes[0].shape
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(b"word", signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{wanted}" and headers["ce-time"].endswith("Z")
    receiver.shutdown()


def test_what_a_webhook_never_takes_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    receiver = brokers.Receiver()
    receiver.answers = [422]
    sink = opened(tmp_path, "webhook", server=f"http://127.0.0.1:{receiver.port}/")
    run(sink, Scene(), 3)
    until(lambda: not waiting(sink))
    sink.close()
    assert [json.loads(body)["frame"] for _, body in receiver.requests] == [1, 2]
    assert "refuses a message, which is dropped: HTTP 422" in caplog.text
    receiver.shutdown()


def test_certificates_are_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = brokers.certificate(tmp_path)
    receiver = brokers.Receiver((cert, key))
    address = f"https://localhost:{receiver.port}/"
    sink = opened(tmp_path, "webhook", server=address)
    run(sink, Scene(), 1)
    until(lambda: "certificate verify failed" in caplog.text)
    sink.close()
    trusting = opened(tmp_path, "webhook", server=address, tls={"ca": cert})
    run(trusting, Scene(), 1)
    until(lambda: not waiting(trusting))
    trusting.close()
    careless = opened(tmp_path, "webhook", server=address, tls={"verify": False})
    run(careless, Scene(), 1)
    until(lambda: not waiting(careless))
    careless.close()
    assert len(receiver.requests) == 3
    wrong = opened(tmp_path, "webhook", server=f"https://127.0.0.1:{receiver.port}/", tls={"ca": cert})
    run(wrong, Scene(), 1)
    until(lambda: "IP address mismatch" in caplog.text or "not valid for '127.0.0.1'" in caplog.text)
    wrong.close()
    receiver.shutdown()


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(OSError, match="cannot use the certificates"):
        server.Tls(ca=tmp_path / "ca.pem").context()


CASES: Mapping[str, dict[str, Any]] = {
    "expected an address like mqtt://HOST or mqtts://HOST": {"sink": "mqtt", "server": "broker:1883"},
    "expected an address like nats://HOST": {"sink": "nats", "server": "nats://"},
    "where nothing prints it": {"sink": "mqtt", "server": "mqtt://me:secret-9@host"},
    "no field {strem}; did you mean 'stream'": {"sink": "mqtt", "server": "mqtt://h", "topic": "a/{strem}"},
    "without wildcards": {"sink": "mqtt", "server": "mqtt://h", "topic": "a/#"},
    "tls: has no meaning": {"sink": "webhook", "server": "http://h", "tls": {"verify": False}},
    "go together": {"sink": "webhook", "server": "https://h", "tls": {"cert": "a.pem"}},
    "there is no file": {"sink": "webhook", "server": "https://h", "tls": {"ca": "a.pem"}},
    "home_assistant: shows events": {"sink": "mqtt", "server": "mqtt://h", "home_assistant": True},
    "attach: crop shows the object of an event": {"sink": "mqtt", "server": "mqtt://h", "attach": "crop"},
    "body: image sends what attach: makes": {"sink": "webhook", "server": "http://h", "body": "image"},
    "leave nothing out": {"sink": "mqtt", "server": "mqtt://h", "send": "events", "every": "1s"},
    "Port": {"sink": "mqtt", "server": "mqtt://h:99999"},
}


@pytest.mark.parametrize("what", CASES)
def test_keys_that_cannot_be(what: str) -> None:
    with pytest.raises(ValueError) as caught:
        SinkStage.model_validate({"from": "track", **CASES[what]})
    assert what in json.dumps([str(one["ctx"]) for one in caught.value.errors()]).replace('\\"', '"')  # type: ignore[attr-defined]


def test_only_stages_before_it_and_events_of_somebody(tmp_path: Path) -> None:
    from edgert.config import load_pipeline
    from edgert.errors import ConfigError

    text = "schema: 1\nstages:\n  cam: {source: a.mp4}\n  out: {sink: mqtt, server: 'mqtt://h', from: cam, %s}\n"
    for keys, what in (
        ("only: [track]", "records of 'track', which is no stage before it"),
        ("send: events", "no stage before it makes any"),
    ):
        (tmp_path / "p.yaml").write_text(text % keys)
        with pytest.raises(ConfigError, match=what):
            load_pipeline(tmp_path / "p.yaml")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from importlib import util

    from edgert.errors import ConfigError

    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="sink 'mqtt' needs the package paho") as caught:
        opened(tmp_path, "mqtt", server="mqtt://h")
    assert "pip install" in caught.value.fix and "mqtt" in caught.value.fix
