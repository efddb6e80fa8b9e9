"""Receivers that answer wrongly, endlessly or never: each exchange ends in time, within bounds, and is logged."""

import logging
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edgert.config import SinkStage
from edgert.config.stages import SourceStage
from edgert.stages.context import Context
from edgert.stages.sink.send import nats, sender, server, webhook
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import Sender
from edgert.stages.sink.send.server import Server
from edgert.stages.sink.send.spool import Spool
from edgert.stages.sink.send.webhook import WebhookPublisher
from edgert.stages.source import nats_source
from edgert.stages.source.kinds import source_for
from tests.helpers import brokers, hostile_http
from tests.helpers.growth import Holds
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
MESSAGE = Message(1, 0.0, "result", "gate", "", b'{"id":"a-1"}')


def publisher(port: int, scheme: str = "http") -> WebhookPublisher:
    keys = {"sink": "webhook", "from": "track", "server": f"{scheme}://localhost:{port}/"}
    return WebhookPublisher(SinkStage.model_validate(keys), "pole")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "EXCHANGE_S", 0.5)
    monkeypatch.setattr("edgert.stages.sink.send.webhook.BODY_S", 0.3)


def sent(one: WebhookPublisher) -> str:
    """What becomes of a message: empty where it was taken, else why not."""
    try:
        one.connect()
        one.send([MESSAGE])
    except (OSError, sender.RefusedError) as error:
        return str(error) or "?"
    finally:
        one.close()
    return ""


@pytest.mark.parametrize("name", hostile_http.ANSWERS)
def test_every_exchange_ends(name: str, hurried: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgert.send")
    with hostile_http.server(name) as port:
        before, began = Holds.now().rss_bytes, time.monotonic()
        why = sent(publisher(port))
        assert time.monotonic() - began < 5 and Holds.now().rss_bytes - before < 5 * 2**20
    assert (why == "") == (name in hostile_http.TAKEN), why
    assert why or "its answers are cut off" in caplog.text


def test_a_receiver_that_does_not_read_is_given_up(hurried: None) -> None:
    big = Message(1, 0.0, "result", "gate", "", b'{"id":"a-1","x":"%s"}' % (b"x" * (32 << 20)))
    with hostile_http.server("nothing", reads=False) as port:
        one = publisher(port)
        one.connect()
        began = time.monotonic()
        with pytest.raises(OSError, match="too long"):
            one.send([big])
        assert time.monotonic() - began < 5
        one.close()


def test_a_handshake_that_does_not_end_is_given_up(hurried: None) -> None:
    with hostile_http.server("status byte by byte", reads=False) as port:
        began = time.monotonic()
        assert sent(publisher(port, "https"))
        assert time.monotonic() - began < 5


def test_an_honest_receiver_keeps_its_connection_and_may_end_it() -> None:
    receiver = brokers.Receiver()
    one = publisher(receiver.port)
    one.connect()
    one.send([MESSAGE] * 3)
    first = one._connection
    one.send([MESSAGE])
    assert one._connection is first and len(receiver.requests) == 4
    assert first is not None
    first._socket.shutdown(socket.SHUT_RDWR)  # as when it has had nothing to do for long
    one.send([MESSAGE])
    assert one._connection is not first and len(receiver.requests) == 5
    one.close()
    receiver.shutdown()


def test_a_page_in_an_answer_is_one_line_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"HTTP/1.1 501 No\r\nContent-Length: 40\r\n\r\n<html>\n  2026-11-29 error: forged\n</html>\n"
    monkeypatch.setitem(hostile_http.ANSWERS, "a page", lambda client, over: client.sendall(page))
    with hostile_http.server("a page") as port:
        said = sent(publisher(port))
    assert said.startswith("HTTP 501 No: <html> 2026-11-29 error: forged </html") and "\n" not in said


def test_a_name_that_nobody_looks_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up, answers = list[str](), threading.Event()

    def hangs(host: str, *_: object, **__: object) -> list[object]:
        looked_up.append(host)
        answers.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(server, "TIMEOUT_S", 0.1)
    one = Server("mqtt://broker.example")
    for _ in range(3):
        with pytest.raises(OSError, match="no name server answers"):
            one.look_up(1883)
    assert looked_up == ["broker.example"], "one look-up at a time"
    answers.set()


FLOODS = {
    "mqtt": b"\x20\x02\x00\x00\x30\xff\xff\xff\x7f",
    "nats": b'INFO {"server_id":"x","version":"2","max_payload":99999}\r\nPONG\r\nMSG a 1 9999999999\r\n',
    "kafka": b"\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("sink", FLOODS)
def test_a_broker_whose_message_has_no_end_is_left(
    sink: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sink == "kafka":
        pytest.importorskip("confluent_kafka", reason="confluent-kafka (extra 'test') is not installed")
    for module in ("mqtt", "nats", "kafka"):
        monkeypatch.setattr(f"edgert.stages.sink.send.{module}.TIMEOUT_S", 1.0)
    monkeypatch.setitem(hostile_http.ANSWERS, "flood", hostile_http.endless(FLOODS[sink], b"x" * 65536))  # type: ignore[arg-type]
    with hostile_http.server("flood", reads=False) as port:
        section: Any = SinkStage.model_validate({"sink": sink, "from": "a", "server": f"{sink}://127.0.0.1:{port}"})
        spool = Spool(None, 1 << 30, 1e6, "stages.out")
        spool.put("result", "gate", "", b"{}")
        section.publisher(Context(), None).close()  # its package is loaded
        before, most, end = Holds.now().rss_bytes, 0, time.monotonic() + PATIENCE_S
        one = Sender("stages.out", spool, section.publisher(Context(), None))
        while "cannot send to" not in caplog.text and time.monotonic() < end:
            most = max(most, Holds.now().rss_bytes - before)
            time.sleep(0.02)
        one.close()
    assert "cannot send to" in caplog.text and most < 40 * 2**20


@pytest.mark.parametrize(
    "greeting",
    [
        FLOODS["nats"],
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b'INFO {"server_id":"x","version":"2","max_payload":-1}\r\nPONG\r\n-ERR \'x\'\r\n',
        b'INFO {"server_id":"x","version":"2","headers":true}\r\nPONG\r\nHMSG a 1 5 9999999999\r\n',
    ],
)
def test_a_source_survives_a_server_that_is_none(
    greeting: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (nats, nats_source):
        monkeypatch.setattr(module, "TIMEOUT_S", 1.0)
    monkeypatch.setitem(hostile_http.ANSWERS, "flood", hostile_http.endless(greeting, b"x" * 65536))  # type: ignore[arg-type]
    with hostile_http.server("flood", reads=False) as port:
        config = SourceStage.model_validate({"source": f"nats://127.0.0.1:{port}"})
        one, stop, frames = source_for("crops", config), threading.Event(), list[object]()
        before, most, end = Holds.now().rss_bytes, 0, time.monotonic() + PATIENCE_S
        reader = threading.Thread(target=lambda: frames.extend(one.frames(stop)))
        reader.start()
        while "trying again" not in caplog.text and time.monotonic() < end:
            most = max(most, Holds.now().rss_bytes - before)
            time.sleep(0.02)
        stop.set()
        reader.join(PATIENCE_S)
        one.close()
    assert "trying again" in caplog.text and not frames and most < 40 * 2**20


def test_a_poisoned_message_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.02)
    arrived, sizes = list[int](), list[int]()

    class Picky:
        name, stable_s, stays = "test://server", 0.0, False

        def connect(self) -> None: ...

        def send(self, messages: list[Message]) -> None:
            sizes.append(len(messages))
            if any(b'"n":3}' in one.body for one in messages):
                raise ValueError("not this one")
            arrived.extend(one.number & 0xFFFF for one in messages)

        def close(self) -> None: ...

    spool = Spool(tmp_path / "a", 1 << 30, 1e6, "stages.out")
    for number in range(9):
        spool.put("result", "gate", "", b'{"n":%d}' % number)
    one = Sender("stages.out", spool, Picky())  # type: ignore[arg-type]
    wait_until(lambda: not spool.count)
    one.close()
    assert list(dict.fromkeys(arrived)) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert (
        f"cannot be sent, tried 5 times: ValueError: not this one; it is kept in {tmp_path}/a/aside.jsonl"
        in caplog.text
    )
    assert b'"n":3}' in (tmp_path / "a" / "aside.jsonl").read_bytes()


@pytest.mark.slow  # as long as an exchange may take
def test_twenty_hostile_receivers_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        ports = {name: stack.enter_context(hostile_http.server(name)) for name in hostile_http.ANSWERS}
        spools = {name: Spool(tmp_path / f"{at}.db", 1 << 30, 1e6, name) for at, name in enumerate(ports)}
        for one in spools.values():
            one.put("result", "gate", "", b"{}")
        before, most = Holds.now().rss_bytes, 0
        senders = [Sender(name, spools[name], publisher(port)) for name, port in ports.items()]
        end = time.monotonic() + 30
        while time.monotonic() < end:
            most = max(most, Holds.now().rss_bytes - before)
            time.sleep(0.1)
        for name in ports:
            assert f"{name}: " in caplog.text or "takes messages, but its answers" in caplog.text, name
        for each in senders:
            each.close()
    print(f"RSS +{most / 2**20:.1f} MiB, {len(ports)} receivers, 30 s")
    assert most < 5 * 2**20
