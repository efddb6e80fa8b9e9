"""The sender: in order, until acknowledged, through every kind of trouble."""

import errno
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgert.stages.sink.send import sender
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import RefusedError, Sender
from edgert.stages.sink.send.spool import Spool
from tests.helpers.waiting import wait_until

PATIENCE_S = 30.0


class Server:
    """A publisher to a server that breaks as a test says."""

    name, stable_s, stays = "test://server", 0.0, False

    def __init__(self) -> None:
        self.got: list[int] = []
        self.is_down = self.hangs = False
        self.breaks_after: int | None = None
        self.refuses: set[int] = set()
        self.connects = self.closes = 0
        self.asked = threading.Event()

    def connect(self) -> None:
        self.connects += 1
        self.asked.set()
        if self.is_down:
            raise OSError("nobody answers")

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            number = json.loads(message.body)["n"]
            if number in self.refuses:
                raise RefusedError("too large", message)
            self.got.append(number)
            if self.breaks_after is not None and len(self.got) >= self.breaks_after:
                self.breaks_after = None
                raise OSError("the connection is gone")

    def close(self) -> None:
        self.closes += 1


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.05)
    caplog.set_level(logging.INFO, "edgert.send")


def put(spool: Spool, numbers: Sequence[int], one: Sender) -> None:
    for number in numbers:
        spool.put("result", "camera", "", b'{"n":%d}' % number)
    one.notify()


def started(path: Path | None, server: Server) -> tuple[Spool, Sender]:
    spool = Spool(path, 1 << 30, 1e6, "stages.out")
    return spool, Sender("stages.out", spool, server)


def send_all(path: Path, server: Server, count: int = 0) -> None:
    """Put messages, and send until none waits."""
    spool, one = started(path, server)
    put(spool, range(count), one)
    wait_until(lambda: not spool.count)
    one.close()


def test_an_error_of_the_system_is_its_text_without_the_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    spool, one = started(tmp_path / "a", server)
    refused = ConnectionRefusedError(111, "Connection refused")
    monkeypatch.setattr(one, "_step", lambda: (_ for _ in ()).throw(refused))
    put(spool, range(1), one)
    wait_until(lambda: caplog.records)
    one.close()
    assert caplog.records[0].getMessage().endswith(": Connection refused; 1 message waits")


def test_a_server_that_comes_late_gets_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.is_down = True
    spool, one = started(tmp_path / "a", server)
    put(spool, range(1000), one)
    wait_until(lambda: server.connects > 5)
    server.is_down = False
    wait_until(lambda: not spool.count)
    one.close()
    assert server.got == list(range(1000))
    warned = [record.getMessage() for record in caplog.records]
    assert warned[0] == "stages.out: cannot send to test://server: nobody answers; 1000 messages wait"
    assert warned[1].startswith("stages.out: sending to test://server again") and len(warned) == 2


def test_an_error_of_any_kind_is_one_that_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Server):
        def send(self, messages: Sequence[Message]) -> None:
            if self.connects < 3:
                raise RuntimeError("not connected")
            super().send(messages)

        def close(self) -> None:
            super().close()
            raise ValueError("nothing to close")

    server = Odd()
    send_all(tmp_path / "a", server, 5)
    assert server.got == list(range(5)) and "test://server: RuntimeError: not connected" in caplog.text


def test_a_connection_that_breaks_costs_doubles_and_no_message(tmp_path: Path) -> None:
    server = Server()
    server.breaks_after = 7
    send_all(tmp_path / "a", server, 20)
    assert sorted(set(server.got)) == list(range(20)) and server.got[-20:] == list(range(20))


class Forgetful(Server):
    """It acknowledges before anything is safe: killed, it forgets the last messages."""

    stable_s = 0.4

    def __init__(self) -> None:
        super().__init__()
        self.is_gone = False

    def connect(self) -> None:
        super().connect()
        self.is_gone = False

    def send(self, messages: Sequence[Message]) -> None:
        if self.is_gone:
            raise OSError("the connection is gone")
        super().send(messages)

    def forget(self, count: int) -> None:
        self.is_gone = True
        del self.got[-count:]


def test_what_a_server_acknowledged_and_forgot_is_sent_again(tmp_path: Path) -> None:
    server = Forgetful()
    spool, one = started(tmp_path / "a", server)
    put(spool, range(20), one)
    wait_until(lambda: len(server.got) == 20)
    server.forget(7)  # while nothing more comes
    wait_until(lambda: server.connects == 2 and server.got[-1] == 19)
    assert server.got == [*range(13), *range(20)]
    put(spool, range(20, 30), one)
    wait_until(lambda: server.got[-1] == 29)
    server.forget(10)
    put(spool, [30], one)
    wait_until(lambda: server.got[-1] == 30)
    assert list(dict.fromkeys(server.got)) == list(range(31))
    wait_until(lambda: not spool.count)
    server.is_gone = True  # what has settled is not sent again
    put(spool, [31], one)
    wait_until(lambda: server.got[-1] == 31)
    assert server.got[-2:] == [30, 31]
    one.close()


def test_what_has_not_settled_survives_the_process(tmp_path: Path) -> None:
    server = Forgetful()
    server.stable_s = 600.0
    spool, one = started(tmp_path / "a", server)
    put(spool, range(5), one)
    wait_until(lambda: len(server.got) == 5 and len(one._acknowledged) > 0)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path, killed)
    again = Spool(killed / "a", 1 << 30, 1e6, "stages.out")
    assert [json.loads(message.body)["n"] for message in again.oldest(9)] == list(range(5))
    again.close()
    server.is_gone = True
    one.close()


def test_the_end_of_a_run_lets_messages_settle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Forgetful()
    spool, one = started(tmp_path / "a", server)
    put(spool, range(5), one)
    wait_until(lambda: len(server.got) == 5)
    one.close()
    assert not spool.count and server.got == list(range(5)) and "were not sent" not in caplog.text


def test_a_server_that_is_killed_as_the_run_ends_gets_them_in_the_next(tmp_path: Path) -> None:
    server = Forgetful()
    spool, one = started(tmp_path / "a", server)
    put(spool, range(5), one)
    wait_until(lambda: len(server.got) == 5)
    server.forget(2)
    one.close()
    send_all(tmp_path / "a", server)
    assert server.got == [0, 1, 2, *range(5)]


def test_a_message_that_is_refused_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.refuses = {3, 5}
    send_all(tmp_path / "a", server, 9)
    assert server.got == [0, 1, 2, 4, 6, 7, 8] and server.connects == 1 and server.closes == 1
    assert "refuses a message, which is dropped: too large" in caplog.text
    assert "0 messages were dropped, 2 refused" in caplog.text


@pytest.mark.timing
def test_what_is_left_waits_for_the_next_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.is_down = True
    spool, one = started(tmp_path / "a", server)
    put(spool, range(5), one)
    assert server.asked.wait(PATIENCE_S)
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < sender.CLOSE_S + PATIENCE_S / 3
    assert "5 messages were not sent; they wait in" in caplog.text
    again = Server()
    send_all(tmp_path / "a", again)
    assert again.got == list(range(5))


def test_what_waits_for_a_server_is_secured_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 600.0)
    monkeypatch.setattr(sender, "_SECURE_S", 0.02)
    server, secured = Server(), list[int]()
    server.is_down = True
    spool, one = started(tmp_path / "a", server)
    monkeypatch.setattr(spool, "secure", lambda _: secured.append(spool.count))
    put(spool, range(3), one)
    wait_until(lambda: secured.count(3) > 3)
    one.close()
    assert server.connects == 2  # the second at the end


def test_a_full_disk_stops_no_sending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_SECURE_S", 0.02)
    server, secure = Server(), Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    spool, one = started(tmp_path / "a", server)
    monkeypatch.setattr(spool, "secure", secure)
    wait_until(lambda: secure.call_count > 3)
    put(spool, range(5), one)
    wait_until(lambda: not spool.count)
    one.close()
    assert server.got == list(range(5)) and caplog.text.count("No space left on device; sending goes on") == 1


def test_a_server_that_does_not_answer_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 0.1)
    answers = threading.Event()

    class Slow(Server):
        def connect(self) -> None:
            super().connect()
            assert answers.wait(PATIENCE_S)

    server = Slow()
    spool, one = started(tmp_path / "a", server)
    put(spool, [1], one)
    assert server.asked.wait(PATIENCE_S)
    one.close()  # returns
    assert spool.count == 1 and not server.got
    answers.set()
    wait_until(lambda: not one._thread.is_alive())
    Spool(tmp_path / "a", 1 << 30, 1e6, "stages.out").close()  # is free again


def test_trouble_is_reminded_of_and_not_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    server.is_down = True
    spool, one = started(tmp_path / "a", server)
    put(spool, [1], one)
    wait_until(lambda: server.connects > 8)
    assert caplog.text.count("cannot send to") == 1
    monkeypatch.setattr(sender, "_REMIND_S", 0.0)
    wait_until(lambda: caplog.text.count("cannot send to") > 2)
    assert re.search(r"server for \d+ s: nobody answers", caplog.text)
    one.close()
