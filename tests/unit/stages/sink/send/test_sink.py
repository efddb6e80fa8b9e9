"""The sink: what it took is in the spool before it takes more, and what cannot be written is its error."""

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edgert.clock import REAL
from edgert.config import SinkStage, SourceStage
from edgert.errors import StageError
from edgert.stages.context import Context
from edgert.stages.sink.send.messages import Writer
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.server import Server as Address
from edgert.stages.sink.send.sink import SendSink
from edgert.stages.sink.send.spool import Spool
from edgert.stages.sink.send.webhook import WebhookPublisher
from edgert.stages.source.api import ApiSource
from edgert.testing import sample
from tests.helpers.growth import is_freed
from tests.helpers.stages import Numbers
from tests.helpers.written import opened


class Server:
    """A publisher to a server that takes everything."""

    name, stable_s, stays = "test://server", 0.0, False

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []

    def connect(self) -> None: ...

    def send(self, messages: Sequence[Message]) -> None:
        self.got += [json.loads(message.body) for message in messages]

    def close(self) -> None: ...


def sink(folder: Path, **chosen: Any) -> tuple[SendSink, Server]:
    server, writer = Server(), Writer("yard", REAL, **chosen)
    spool = lambda: Spool(folder / "a.db", 1 << 30, 1e6, "stages.out")  # noqa: E731
    return SendSink("out", writer, spool, server), server


def test_it_sends_what_its_writer_makes(tmp_path: Path) -> None:
    one, server = sink(tmp_path)
    assert not list(tmp_path.iterdir())
    for run in (0, 3):  # it can be opened again
        with opened(one):
            for number in range(run, run + 3):
                one.process(sample(number))
        assert [each["frame"] for each in server.got] == list(range(run + 3)) and server.got[0]["pipeline"] == "yard"
    one.close()


def test_whoever_calls_writes(tmp_path: Path) -> None:
    one, server = sink(tmp_path)
    with opened(one):
        assert one._spool is not None and one.effort == "little"
        for number in range(3):
            one.process(sample(number))
            assert one._spool.count + len(server.got) > number  # it is in the spool now
        with pytest.raises(StageError, match=r"cannot write builtins\.object as JSON") as caught:
            one.process(sample(3).with_output("odd", object()))
        assert caught.value.where == "stages.odd"
        one.process(sample(4))  # where the pipeline goes on
    assert [each["frame"] for each in server.got] == [0, 1, 2, 4]


def test_only_sources_that_wait_are_waited_for() -> None:
    files, camera = Numbers(), Numbers(live=True)
    for sources, waits in (({}, False), ({"a": files}, True), ({"a": files, "b": camera}, False)):
        assert Context(sources=sources).is_waited_for == waits
    program = ApiSource("api", SourceStage(source="api"), Context())  # which waits itself
    assert not Context(sources={"api": program}).is_waited_for


def test_images_are_made_while_there_is_a_frame(tmp_path: Path) -> None:
    one, server = sink(tmp_path, attach="frame")
    with opened(one):
        one.process(sample())
        assert one.effort == "much"
        assert one._spool is not None and (one._spool.count or server.got)  # no other thread has the frame
    assert "image" in server.got[0]


def test_headers_of_a_webhook_are_ascii_for_any_name() -> None:
    message = Message(1, 0.0, "event", "gate", "run", b'{"id":"x-1"}')
    config = SinkStage.model_validate({"sink": "webhook", "from": "track", "server": "http://h/"})
    headers = WebhookPublisher(config, "tür")._all_headers(message, b"{}", {})
    assert (headers["ce-source"], headers["ce-type"]) == ("/edgert/t%C3%BCr/gate", "edgert.event.run")


def test_an_error_keeps_no_closed_sink(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise StageError("the disk is full")

    def closed() -> SendSink:
        one, _ = sink(tmp_path)
        with opened(one):
            assert one._spool is not None
            one._spool.put = full  # type: ignore[assignment, method-assign]
            with suppress(StageError):
                one.process(sample(0))
        return one

    assert is_freed(closed)


def test_an_unknown_address_keeps_nothing_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("Name or service not known")

    def caller() -> Server:
        mine = Server()
        with suppress(OSError):
            Address("mqtt://broker.example").look_up(1883)
        return mine

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert is_freed(caller)
