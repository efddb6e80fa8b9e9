"""The control socket: who may ask, what a request may be, and what is left when a run ends."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edgert import limits
from edgert.control import client, control_socket
from edgert.control.client import find_socket, send_request
from edgert.control.control_socket import ControlSocket
from edgert.control.request import VERBS, Request, Verb, parse_request
from edgert.errors import ConfigError, DeviceError, EdgertError, StageError
from tests.helpers.growth import Holds
from tests.helpers.waiting import wait_until

SHOW = Request("show")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = control_socket.socket_folders
    monkeypatch.setattr(client, "socket_folders", lambda: own()[:1])  # other tests' runs are in the other one
    monkeypatch.setattr(client, "SERVICES", tmp_path / "services")
    return tmp_path / "edgert"


class listening(ControlSocket):
    """An open socket as a block."""

    def __enter__(self) -> Path:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def echo(request: Request, who: str) -> dict[str, Any]:
    return {"verb": request.verb, "words": list(request.words), "who": who}


@pytest.fixture
def path() -> Iterator[Path]:
    with listening("belt", echo) as opened:
        yield opened


def said(path: Path, text: bytes, *, timeout_s: float = 10.0) -> Any:
    """Return the answer to bytes that are sent as they are."""
    with socket.socket(socket.AF_UNIX) as own:
        own.settimeout(timeout_s)
        own.connect(str(path))
        own.sendall(text)
        with own.makefile("rb") as answer:
            return json.loads(answer.read())


def test_runs_of_services_are_found_and_two_of_one_name_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has a folder of its own, as it can write nothing in /tmp. Two may run copies of one pipeline."""
    monkeypatch.setattr(client, "socket_folders", tuple)
    paths = []
    with ExitStack() as stack:
        for name in ("north", "south"):
            own = tmp_path / "services" / name
            own.mkdir(parents=True)
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
            paths.append(stack.enter_context(listening("dock", echo)))
            if name == "north":
                assert find_socket("dock") == find_socket(None) == paths[0] == own / "edgert" / "dock.sock"
        for named in (None, "dock"):
            with pytest.raises(StageError, match=r"^2 pipelines( named 'dock')? are running") as caught:
                find_socket(named)
            assert all(str(path) in caught.value.fix for path in paths)


def test_a_request_is_answered_and_the_socket_is_for_its_user_alone(path: Path, folder: Path) -> None:
    answer = send_request(find_socket(None), Request("set", ("a.b=1",)))
    assert (answer["verb"], answer["words"]) == ("set", ["a.b=1"])
    assert answer["who"] == f"user {os.geteuid()}, process {os.getpid()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert find_socket("belt") == find_socket(str(path)) == path


def test_nothing_is_left_when_the_run_ends(folder: Path) -> None:
    with listening("warm", echo):
        pass
    before = Holds.now()
    with listening("belt", echo) as path:
        assert send_request(path, SHOW)
    wait_until(lambda: Holds.now().more_than(before) <= 0)
    assert list(folder.iterdir()) == []
    with pytest.raises(StageError, match="no pipeline is running"):
        find_socket(None)


def test_who_may_not_see_services_is_shown_how_to_ask_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match="no pipeline is running") as caught:
        find_socket(None)
    assert caught.value.fix == "edgert run PIPELINE; or --name PATH"
    (tmp_path / "services" / "dock").mkdir(parents=True)
    monkeypatch.setattr(client, "socket_folders", lambda: (folder,))
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    with pytest.raises(StageError, match="no pipeline is running") as caught:
        find_socket(None)
    assert caught.value.fix == "sudo edgert ctl asks services: dock; or --name PATH"


def test_runs_of_one_name_have_sockets_of_their_own_and_a_killed_one_is_replaced(path: Path, folder: Path) -> None:
    with listening("belt", echo) as second, listening("belt", echo) as third:
        assert len({path, second, third}) == 3
        assert send_request(second, SHOW) and send_request(path, SHOW)
        with pytest.raises(StageError, match="3 pipelines are running") as caught:
            find_socket(None)
        assert caught.value.fix.startswith("--name belt-") and third.stem in caught.value.fix
        with pytest.raises(StageError, match="did you mean 'belt'"):
            find_socket("blt")
    left = [folder / "gate.sock", folder / "belt-4711.sock"]
    for each in left:
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(each))
    with listening("gate", echo) as replaced:
        assert replaced == left[0] and send_request(replaced, SHOW) and not left[1].exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", "this line is not a request"),
        (b"[1]\n", "this line is not a request"),
        (b'{"verb": 1}\n', "this line is not a request"),
        (b'{"verb": "set", "words": "x"}\n', "this line is not a request"),
        (b"[" * 60_000 + b"\n", "this line is not a request"),
        (b"\xff\xfe\n", "this line is not a request"),
        (rb'{"verb": "set", "words": ["a=\ud800"]}' + b"\n", "set takes text"),
        (rb'{"verb": "add", "words": ["gate", "\ud800.mp4"]}' + b"\n", "add takes text"),
        (rb'{"verb": "apply", "words": ["a: \udcff"]}' + b"\n", "apply takes text"),
        (b'{"verb": "sett", "words": []}\n', "did you mean 'set'"),
        (b'{"verb": "set", "words": []}\n', "set takes 1 word, not 0"),
        (b'{"verb": "show", "words": ["a"]}\n', "show takes no words, not 1"),
        (b'{"verb": "show"' + b" " * limits.CONTROL_LINE_BYTES + b"}\n", "more than 1048576 bytes"),
    ],
)
def test_what_is_no_request_is_refused(path: Path, line: bytes, words: str) -> None:
    answer = said(path, line)
    assert answer["ok"] is False and words in answer["error"]["what"]
    assert send_request(path, SHOW)["verb"] == "show"


def test_half_a_line_that_never_ends_is_refused_in_time_and_holds_up_no_one(path: Path) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(limits.CONTROL_CLIENTS - 1) as slow:
        answers = [slow.submit(said, path, b'{"verb": ') for _ in range(limits.CONTROL_CLIENTS - 1)]
        assert send_request(path, SHOW)["verb"] == "show"
        assert time.monotonic() - began < limits.CONTROL_LINE_S
        for answer in answers:
            assert answer.result()["error"]["what"] == "the request is not complete"
    assert time.monotonic() - began < limits.CONTROL_LINE_S + 5


def test_a_client_that_leaves_or_reads_nothing_holds_up_no_one(path: Path) -> None:
    for _ in range(3 * limits.CONTROL_CLIENTS):
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(path))
            own.sendall(b'{"verb": "show"}\n')
    assert send_request(path, SHOW)["verb"] == "show"


@pytest.mark.timing
def test_200_clients_are_answered_one_after_the_other_each_within_a_second() -> None:
    at_once, most, turn = 0, 0, threading.Lock()

    def answer(request: Request, who: str) -> dict[str, Any]:
        nonlocal at_once, most
        with turn:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.001)
        with turn:
            at_once -= 1
        return echo(request, who)

    def ask(number: int) -> float:
        start.wait()
        began = time.monotonic()
        assert send_request(path, Request("pause", (str(number),)))["words"] == [str(number)]
        return time.monotonic() - began

    start = threading.Barrier(200)
    with listening("many", answer) as path, ThreadPoolExecutor(200) as clients:
        took_s = list(clients.map(ask, range(200)))
    assert most == 1 and max(took_s) <= 1.0


def test_another_user_is_refused_by_either_side(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "peer_of", lambda _: (1, 4711))
    with pytest.raises(StageError, match="another user's"):
        send_request(path, SHOW)
    monkeypatch.setattr(client, "peer_of", lambda _: (1, 4711))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DeviceError, match="another user's socket"):
        send_request(path, SHOW)


def test_an_answer_that_comes_before_the_request_was_sent_is_read() -> None:
    own, run = socket.socketpair()
    with own:
        run.sendall(b"{}\n")
        run.close()
        assert client._exchange(own, SHOW, 5.0) == b"{}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_cannot_reach_the_socket(path: Path) -> None:
    code = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "PermissionError" in ended.stderr


@pytest.mark.parametrize("wrong", ["open", "link", "long"])
def test_where_there_can_be_no_socket_that_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "open":
        folder.mkdir()
        folder.chmod(0o755)
    elif wrong == "link":
        (folder.parent / "other").mkdir(mode=0o700)
        folder.symlink_to(folder.parent / "other")
    else:
        (folder.parent / ("x" * 100)).mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent / ("x" * 100)))
    with pytest.raises(DeviceError):
        ControlSocket("belt", echo).open()
    if wrong != "long":
        with pytest.raises(DeviceError, match="cannot hold sockets"):
            find_socket(None)


def test_a_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/1")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert control_socket.socket_folders() == (Path("/tmp/edgert-4711"),)


def test_a_read_is_answered_while_a_change_is_under_way(path: Path) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def answer(request: Request, who: str) -> dict[str, Any]:
        if request.verb == "pause":
            began.set()
            assert goes_on.wait(20)
        return echo(request, who)

    with listening("slow", answer) as slow, ThreadPoolExecutor(2) as pool:
        changes = [pool.submit(send_request, slow, Request("pause", (name,))) for name in "ab"]
        assert began.wait(20) and send_request(slow, SHOW)["verb"] == "show"
        goes_on.set()
        assert [change.result()["words"] for change in changes] == [["a"], ["b"]]


@pytest.mark.timing
def test_clients_that_do_not_read_a_large_answer_hold_up_no_one_and_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request, who: str) -> str:
        return "x" * (1 << 20) if request.verb == "pause" else request.verb

    monkeypatch.setattr(limits, "CONTROL_LINE_S", 0.5)
    with listening("large", answer) as path:
        idle = [socket.socket(socket.AF_UNIX) for _ in range(limits.CONTROL_CLIENTS - 1)]
        for own in idle:
            own.connect(str(path))
            own.sendall(b'{"verb": "pause", "words": ["a"]}\n')
        began = time.monotonic()
        assert [send_request(path, SHOW) for _ in range(20)] == ["show"] * 20
        assert time.monotonic() - began < 0.5
        for own in idle:
            own.settimeout(10)
            wait_until(lambda own=own: own.recv(1 << 16) == b"")  # the end, of a part
            own.close()


def test_an_error_in_one_answer_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request, who: str) -> dict[str, Any]:
        if request.verb == "save":
            raise ValueError("a bug")
        return echo(request, who) if caplog.records else {"odd": object()}

    with listening("belt", fail) as path:
        with pytest.raises(EdgertError, match="cannot write builtins"):
            send_request(path, SHOW)
        with pytest.raises(StageError, match="the request failed") as caught:
            send_request(path, Request("save"))
        assert "its log has the traceback" in caught.value.why and "ValueError: a bug" in caplog.text
        assert send_request(path, SHOW)["verb"] == "show"


def test_a_server_that_is_none_of_edgert_is_an_error(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(str(folder / "odd.sock"))
        server.listen(1)
        for text in (b"hello\n", b"", b'{"ok": 1}\n', b"[]\n"):
            answer = pool.submit(send_request, folder / "odd.sock", SHOW)
            client, _ = server.accept()
            with client:
                client.recv(100)
                client.sendall(text)
            with pytest.raises(EdgertError, match="does not answer like"):
                answer.result(10)
    with pytest.raises(DeviceError, match="does not answer"):
        send_request(folder / "odd.sock", SHOW)


def test_the_options_of_a_verb_are_parsed_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "swap", Verb("MODEL PATH", {"shadow": int, "min-agreement": float}))
    request = Request.of("swap", ["parts", "--shadow", "500", "new.onnx", "--min-agreement=0.97"])
    assert request == Request("swap", ("parts", "new.onnx"), {"shadow": "500", "min-agreement": "0.97"})
    assert request.values() == {"shadow": 500, "min_agreement": 0.97} and parse_request(request.line()) == request
    for tokens, words in (
        (["parts", "new.onnx", "--shdow", "5"], "did you mean 'shadow'"),
        (["parts", "new.onnx", "--shadow", "many"], "cannot use 'many'"),
        (["parts", "new.onnx", "--shadow"], "--shadow has no value"),
        (["parts", "--shadow", "5"], r"edgert ctl swap MODEL PATH \[--shadow SHADOW\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            Request.of("swap", tokens)


def test_a_client_that_is_accepted_while_it_closes_is_left_too() -> None:
    made, joining = ControlSocket("belt", echo), threading.Event()
    path, start = made.open(), made._start
    (server,) = made._threads
    join = server.join

    def start_late(name: str, work: Any, own: socket.socket) -> None:
        assert joining.wait(10)
        start(name, work, own)

    def join_server(timeout: float | None = None) -> None:
        joining.set()
        join(timeout)

    made._start, server.join = start_late, join_server  # type: ignore[method-assign]
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(str(path))
        made.close()
    assert not made._threads
