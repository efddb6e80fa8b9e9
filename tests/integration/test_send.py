"""What edgert sends arrives at real servers: all of it, in order, whatever happens to the server meanwhile."""

import base64
import hashlib
import hmac
import json
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.config import SinkStage
from edgert.stages.context import Context, make_stage
from edgert.stages.sink.send import kafka, mqtt, nats, sender, server
from edgert.stages.sink.send.sink import SendSink
from edgert.testing import sample
from tests.helpers import brokers, command
from tests.helpers.moving import Scene, events_stage, zones_stage
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.2)
    caplog.set_level(logging.INFO, "edgert.send")


def opened(folder: Path, sink: str, **keys: Any) -> SendSink:
    section = SinkStage.model_validate({"sink": sink, "from": "track", "spool": folder / "spool", **keys})
    found: SendSink = make_stage(section, "out", Context(pipeline="pole"))
    found.open()
    return found


def waiting(sink: SendSink) -> int:
    assert sink._spool is not None
    return sink._spool.count


def finish(sink: SendSink) -> None:
    wait_until(lambda: not waiting(sink))
    sink.close()


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
            wait_until(lambda count=count: arrived() > count - 50)  # it has not saved all that it acknowledged
            broker.kill()
            run(sink, scene, 100)
            broker.start()
        wait_until(lambda: not waiting(sink))
        wait_until(lambda: arrived() == 600)
        sink.close()
        assert numbers(listener.of_kind("result")) == list(range(600))
        assert {topic for topic, body in listener.messages if body.startswith(b"{")} == {"edgert/pole/gate/result"}
        wait_until(lambda: listener.messages[-1] == ("edgert/pole/status", b"offline"))
        listener.close()


HOME = """\
schema: 1
name: "Süd"
stages:
  gate: {source: a.mp4}
  yard: {source: b.mp4}
  track: {track: bytetrack, from: python}
  python: {python: "m:f", from: [gate, yard]}
  areas: {stage: zones, from: track, lines: {kerb: [[0, 0], [1, 1]]},
    zones: {field: {points: [[0.5, 0], [1, 0], [1, 1]], streams: [gate]}}}
  alarm: {stage: events, from: areas, rules: {intruder: {zone: field}, crossed: {line: kerb}}}
"""


class Home:
    """A Home Assistant, as far as it reads what is retained and what comes, beside a sink that sends events."""

    def __init__(self, folder: Path, broker: brokers.Program, text: str = HOME, **keys: Any) -> None:
        from edgert.config import load_pipeline

        (folder / "p.yaml").write_text(text, encoding="utf-8")
        stages = load_pipeline(folder / "p.yaml").config.stages
        keys = {"send": "events", "home_assistant": True, "server": f"mqtt://127.0.0.1:{broker.port}", **keys}
        section = SinkStage.model_validate({"sink": "mqtt", "from": "alarm", "spool": folder / "spool", **keys})
        self.sink: SendSink = make_stage(section, "out", Context(pipeline="Süd", before=stages))
        self._scene = Scene("gate")
        self._zones = zones_stage({"field": ((0.5, 0), (1, 0), (1, 1), (0.5, 1))})
        self._events = events_stage(intruder={"zone": "field"})
        self.sink.open()

    def see(self, **feet: tuple[float, float]) -> None:
        found = {int(name[1:]): place for name, place in feet.items()}
        self.sink.process(self._events.process(self._zones.process(self._scene.at(found))))


def retained(port: int) -> dict[str, bytes]:
    return {topic: body for topic, body in brokers.retained(port).items() if body}


def configs(found: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    sensors = [json.loads(body) for topic, body in found.items() if topic.endswith("/config")]
    return {one["name"]: one for one in sensors}


def test_mqtt_is_online_and_announces_every_rule_before_the_first_event(tmp_path: Path) -> None:
    with brokers.mosquitto(tmp_path) as broker:
        home = Home(tmp_path, broker)
        wait_until(lambda: len(configs(retained(broker.port))) == 3)
        found = retained(broker.port)
        assert found["edgert/Süd/status"] == b"online"
        sensors = configs(found)
        assert set(sensors) == {"gate intruder", "gate crossed", "yard crossed"}
        assert sensors["gate crossed"]["off_delay"] == 1 and "off_delay" not in sensors["gate intruder"]
        assert all(re.fullmatch("[a-zA-Z0-9_/-]+", topic) for topic in found if topic.startswith("homeassistant/"))
        state = sensors["gate intruder"]["state_topic"]
        assert found[state] == b"OFF"
        home.see(_1=(70.0, 20.0))
        wait_until(lambda: retained(broker.port)[state] == b"ON")  # as a Home Assistant that starts now sees it
        home.sink.close()
        assert retained(broker.port)["edgert/Süd/status"] == b"offline" and retained(broker.port)[state] == b"OFF"


def test_mqtt_announces_again_when_the_broker_or_home_assistant_was_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with brokers.mosquitto(tmp_path, "allow_anonymous true", "persistence false") as broker:
        home = Home(tmp_path, broker)
        wait_until(lambda: len(configs(retained(broker.port))) == 3)
        broker.kill()
        wait_until(lambda: "cannot send to" in caplog.text)
        broker.start()
        wait_until(lambda: len(configs(retained(broker.port))) == 3 and "sending to" in caplog.text)
        assert retained(broker.port)["edgert/Süd/status"] == b"online"
        listener = brokers.MqttListener(broker.port, "homeassistant/binary_sensor/#")
        wait_until(lambda: len(configs(dict(listener.messages))) == 3)
        listener.messages.clear()
        listener.say("homeassistant/status", b"online")
        wait_until(lambda: len(configs(dict(listener.messages))) == 3)
        listener.close()
        home.sink.close()


def test_another_that_says_offline_for_us_is_contradicted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "_LAST_WILL_S", 0.0)
    with brokers.mosquitto(tmp_path) as broker:
        other = brokers.MqttListener(broker.port, "nothing")
        other.say("edgert/Süd/status", b"online", retain=True)
        home = Home(tmp_path, broker)
        wait_until(lambda: "online before this pipeline began" in caplog.text)
        assert "give each a name:" in caplog.text
        wait_until(lambda: len(configs(retained(broker.port))) == 3)
        other.say("edgert/Süd/status", b"offline", retain=True)
        wait_until(lambda: retained(broker.port)["edgert/Süd/status"] == b"online")
        (tmp_path / "other").mkdir()
        beside = Home(tmp_path / "other", broker)  # a second sink of this process, of the same name
        wait_until(lambda: beside.sink._publisher._is_present)  # type: ignore[attr-defined]
        beside.sink.close()
        assert retained(broker.port)["edgert/Süd/status"] == b"online"
        home.sink.close()
        assert retained(broker.port)["edgert/Süd/status"] == b"offline"
        other.close()


def test_a_rule_that_is_gone_is_taken_back(tmp_path: Path) -> None:
    with brokers.mosquitto(tmp_path) as broker:
        home = Home(tmp_path, broker)
        wait_until(lambda: len(configs(retained(broker.port))) == 3)
        home.sink.close()
        home = Home(tmp_path, broker, HOME.replace("crossed", "over"))
        wait_until(lambda: set(configs(retained(broker.port))) == {"gate intruder", "gate over", "yard over"})
        home.sink.close()


def test_a_damaged_list_of_sensors_holds_up_nothing(tmp_path: Path) -> None:
    with brokers.mosquitto(tmp_path) as broker:
        home = Home(tmp_path, broker)
        wait_until(lambda: len(configs(retained(broker.port))) == 3)
        home.sink.close()
        known = home.sink._publisher._announced  # type: ignore[attr-defined]
        topics = json.loads(known.read_bytes())
        for noise in (json.dumps([one.replace("config", "c#nfig") for one in topics]), "[" * 100_000, json.dumps([7])):
            known.write_text(noise)  # a wildcard is one flipped bit
            home = Home(tmp_path, broker)
            wait_until(lambda: known.read_bytes() == json.dumps(topics).encode())
            home.sink.close()


def test_a_run_that_is_over_at_once_was_there(tmp_path: Path) -> None:
    with brokers.mosquitto(tmp_path) as broker:
        Home(tmp_path, broker).sink.close()
        assert retained(broker.port)["edgert/Süd/status"] == b"offline" and len(configs(retained(broker.port))) == 3


@pytest.mark.parametrize("sink", ["mqtt", "nats", "webhook", "kafka"])
def test_a_server_that_accepts_and_never_answers_holds_up_no_stop(
    tmp_path: Path, sink: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 1.0)
    if sink == "kafka":
        pytest.importorskip("confluent_kafka", reason="confluent-kafka (extra 'test') is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scheme = "http" if sink == "webhook" else sink
        one = opened(tmp_path, sink, server=f"{scheme}://127.0.0.1:{silent.getsockname()[1]}")
        run(one, Scene(), 3)
        time.sleep(0.5)
        began = time.monotonic()
        one.close()
        assert time.monotonic() - began < sender.CLOSE_S + 1
    assert "3 messages were not sent; they wait in" in caplog.text
    again = opened(tmp_path, sink, server=f"{scheme}://127.0.0.1:{brokers.free_port()}")  # its spool is free
    wait_until(lambda: waiting(again) == 3)
    again.close()


def test_a_broker_that_freezes_holds_up_no_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 1.0)
    with brokers.mosquitto(tmp_path) as broker:
        sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{broker.port}")
        run(sink, Scene(), 3)
        wait_until(lambda: not waiting(sink))
        broker.freeze()
        run(sink, Scene(), 2)
        time.sleep(0.2)
        began = time.monotonic()
        sink.close()
        assert time.monotonic() - began < sender.CLOSE_S + 1 and "2 messages were not sent" in caplog.text


def test_a_broker_that_does_not_let_us_in_is_named_and_no_password_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "users").write_text("")
    with brokers.mosquitto(tmp_path, "allow_anonymous false", f"password_file {tmp_path}/users") as broker:
        keys = {"user": "edgert", "password": "sesame-77"}
        sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{broker.port}", **keys)
        run(sink, Scene(), 1)
        wait_until(lambda: "the broker refuses the connection: Not authorized" in caplog.text)
        sink.close()
        assert "1 messages were not sent" in caplog.text and "sesame-77" not in caplog.text


def test_a_server_that_is_no_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "TIMEOUT_S", 0.3)
    other = brokers.Receiver()
    sink = opened(tmp_path, "mqtt", server=f"mqtt://127.0.0.1:{other.port}")
    run(sink, Scene(), 1)
    wait_until(lambda: "cannot send to" in caplog.text)
    sink.close()
    assert "is it an MQTT broker, with or without TLS?" in caplog.text
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
        finish(sink)
        found = brokers.stored(broker.port)
        assert [one["frame"] for one in found] == list(range(600))  # doubles were dropped by their ids


def test_nats_without_a_stream_is_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with brokers.nats(tmp_path / "store") as broker:
        sink = opened(tmp_path, "nats", server=f"nats://127.0.0.1:{broker.port}")
        run(sink, Scene(), 1)
        wait_until(lambda: "no JetStream stream takes this subject" in caplog.text)
        sink.close()
        plain = opened(tmp_path, "nats", server=f"nats://127.0.0.1:{broker.port}", jetstream=False)
        finish(plain)


def test_nats_has_the_subject_that_the_file_names(tmp_path: Path) -> None:
    with brokers.nats(tmp_path / "store") as broker:
        brokers.stream_of(broker.port, "yard.>")
        sink = opened(tmp_path, "nats", server=f"nats://127.0.0.1:{broker.port}", subject="yard.{stream}")
        run(sink, Scene("gate"), 2)
        finish(sink)
        assert [one["frame"] for one in brokers.stored(broker.port)] == [0, 1]


def test_kafka(tmp_path: Path) -> None:
    package = pytest.importorskip("confluent_kafka", reason="confluent-kafka (extra 'test') is not installed")
    keys = {"options": {"test.mock.num.brokers": "1"}}
    sink = opened(tmp_path, "kafka", server="kafka://127.0.0.1", topic="pole", **keys)
    run(sink, Scene("gate"), 1)
    wait_until(lambda: not waiting(sink))
    publisher: Any = sink._publisher
    (broker,) = publisher._producer.list_topics(timeout=10).brokers.values()
    run(sink, Scene("gate"), 0)
    scene = Scene("yard")
    run(sink, scene, 500)
    wait_until(lambda: not waiting(sink))
    settings = {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "a", "auto.offset.reset": "earliest"}
    consumer, messages = package.Consumer(settings), list[Any]()
    consumer.subscribe(["pole"])
    wait_until(lambda: messages.extend(consumer.consume(200, 0.2)) or len(messages) >= 501)
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
    wait_until(lambda: "cannot send to" in caplog.text)
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
    finish(sink)
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
    finish(sink)
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
    finish(sink)
    assert [json.loads(body)["frame"] for _, body in receiver.requests] == [1, 2]
    assert "refuses a message, which is dropped: HTTP 422" in caplog.text
    receiver.shutdown()


def test_certificates_are_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = brokers.certificate(tmp_path)
    receiver = brokers.Receiver((cert, key))
    address = f"https://localhost:{receiver.port}/"
    sink = opened(tmp_path, "webhook", server=address)
    run(sink, Scene(), 1)
    wait_until(lambda: "certificate verify failed" in caplog.text)
    sink.close()
    trusting = opened(tmp_path, "webhook", server=address, tls={"ca": cert})
    run(trusting, Scene(), 1)
    finish(trusting)
    careless = opened(tmp_path, "webhook", server=address, tls={"verify": False})
    run(careless, Scene(), 1)
    finish(careless)
    assert len(receiver.requests) == 3
    wrong = opened(tmp_path, "webhook", server=f"https://127.0.0.1:{receiver.port}/", tls={"ca": cert})
    run(wrong, Scene(), 1)
    wait_until(lambda: "IP address mismatch" in caplog.text or "not valid for '127.0.0.1'" in caplog.text)
    wrong.close()
    receiver.shutdown()


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(OSError, match="cannot use the certificates"):
        server.Tls(ca=tmp_path / "ca.pem").context()


CASES: Mapping[str, dict[str, Any]] = {
    "expected an address like mqtt://HOST or mqtts://HOST": {"sink": "mqtt", "server": "broker:1883"},
    "expected an address like nats://HOST": {"sink": "nats", "server": "nats://"},
    "which are never printed": {"sink": "mqtt", "server": "mqtt://me:secret-9@host"},
    "no field {strem}; did you mean 'stream'": {"sink": "mqtt", "server": "mqtt://h", "topic": "a/{strem}"},
    "without wildcards": {"sink": "mqtt", "server": "mqtt://h", "topic": "a/#"},
    "tls: has no meaning": {"sink": "webhook", "server": "http://h", "tls": {"verify": False}},
    "given together": {"sink": "webhook", "server": "https://h", "tls": {"cert": "a.pem"}},
    "there is no file": {"sink": "webhook", "server": "https://h", "tls": {"ca": "a.pem"}},
    "home_assistant: shows events": {"sink": "mqtt", "server": "mqtt://h", "home_assistant": True},
    "attach: crop shows the object of an event": {"sink": "mqtt", "server": "mqtt://h", "attach": "crop"},
    "expected base64 behind": {"sink": "webhook", "server": "http://h", "secret": "whsec_x"},
    "secret: it is empty": {"sink": "webhook", "server": "http://h", "secret": ""},
    "base64 behind whsec_": {"sink": "webhook", "server": "http://h", "secret": "whsec_"},
    "body: image sends what attach: makes": {"sink": "webhook", "server": "http://h", "body": "image"},
    "have no meaning with send: events": {"sink": "mqtt", "server": "mqtt://h", "send": "events", "every": "1s"},
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
    from edgert.errors import ConfigError

    monkeypatch.setattr("edgert.stages.sink.send.sink.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="sink 'mqtt' needs the package paho") as caught:
        opened(tmp_path, "mqtt", server="mqtt://h")
    assert "pip install" in caught.value.fix and "mqtt" in caught.value.fix


GREETINGS = {"mqtt": b"\x20\x02\x00\x00", "nats": b'INFO {"server_id":"x","max_payload":1000000}\r\n', "webhook": b""}


def test_ctrl_c_while_servers_answer_nothing_is_a_clean_stop(tmp_path: Path) -> None:
    """As frozen brokers: connections are accepted, and MQTT's and NATS's even greeted, and then nothing comes."""
    lines = ["stages:", '  gate: {source: "synthetic:noise", size: 32x24, fps: 10, realtime: true}']
    with ExitStack() as open_servers:
        clients = list[socket.socket]()

        def accept(server: socket.socket, greeting: bytes) -> None:
            with suppress(OSError):
                while True:
                    clients.append(server.accept()[0])
                    clients[-1].sendall(greeting)

        for sink, greeting in GREETINGS.items():
            silent = open_servers.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=accept, args=(silent, greeting), daemon=True).start()
            url = f"{'http' if sink == 'webhook' else sink}://127.0.0.1:{silent.getsockname()[1]}"
            lines += [f"  to-{sink}: {{sink: {sink}, from: gate, server: '{url}', spool: {sink}.db}}"]
        (tmp_path / "p.yaml").write_text("\n".join(lines))
        running = command.start("run", "p.yaml", "--plain", "-q", cwd=tmp_path)
        wait_until(lambda: len(clients) >= len(GREETINGS))
        time.sleep(0.5)
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        said = "".join(running.communicate(timeout=PATIENCE_S))
        took_s = time.monotonic() - began
    assert running.returncode == 0, said
    assert "does not end" not in said and said.count("were not sent; they wait in") == len(GREETINGS)
    assert took_s < 8.0, (took_s, said)
