"""Whether a pipeline is well: for /readyz, /healthz, systemd and Docker."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgert.runtime import health
from edgert.runtime.health import Heartbeat, Progress, notify, status_line, stuck_stages, unready_reasons

WELL: dict[str, Any] = {"results_in": 5, "results_out": 5, "is_open": True, "failing": "", "stuck_s": 0.0}


def stats(**stages: dict[str, Any]) -> dict[str, Any]:
    recent = {"fps": 29.94, "latency_ms": {"p99": 41.2, "count": 9}, "dropped": {"queue": 2, "join": 1}}
    made = {name: {**WELL, **stage} for name, stage in stages.items()}
    return {"required": ["north", "south"], "stages": made, "recent": recent}


@pytest.mark.parametrize(
    ("stages", "missing"),
    [
        ({"north": {}, "south": {}, "find": {}}, []),
        ({"north": {"results_out": 0, "source": {"reason": "no route"}}}, ["north: no route"]),
        ({"north": {"results_out": 0, "source": {"reason": ""}}}, ["north: no frame yet"]),
        ({"south": {"source": {"up": False, "state_s": 40.4, "reason": "401"}}}, ["south: down for 40 s: 401"]),
        ({"south": {"source": {"up": False, "reason": ""}}}, ["south: down for 0 s"]),
        ({"south": {"source": {"up": True, "reason": ""}}}, []),
        ({"spare": {"results_out": 0, "source": {"up": False, "reason": "no route"}}}, []),
        ({"video": {"failing": "no space left"}}, ["video: down: no space left"]),
        ({"find": {"is_open": False}}, ["find: not open yet"]),
        ({"find": {"stuck_s": 12.6}}, ["find: in one call for 13 s"]),
    ],
)
def test_it_is_ready_when_all_that_is_required_works(stages: dict[str, Any], missing: list[str]) -> None:
    assert unready_reasons(stats(**stages)) == missing
    assert stuck_stages(stats(**stages)) == [one for one in missing if "in one call" in one]


def test_what_is_not_known_is_no_fault() -> None:
    assert unready_reasons({}) == stuck_stages({}) == []
    assert unready_reasons({"required": ["a"], "stages": {"b": {}}}) == []


def test_the_status_is_one_line() -> None:
    line = status_line(stats(north={}, south={"source": {"up": False, "state_s": 7.0, "reason": "two\nlines\x1b"}}))
    assert line == "29.9 fps, p99 41 ms, 3 dropped, last minute; south: down for 7 s: two lines\\x1b"
    assert status_line({}).startswith("0.0 fps")


def test_results_that_wait_while_nobody_works_for_a_minute_are_a_fault() -> None:
    progress, waits = Progress(), {"waiting": 3, "in_call": False}
    assert progress.hangs(stats(find=waits, log={}), 0.0) == ""
    assert progress.hangs(stats(find=waits, log={}), 59.0) == ""
    assert progress.hangs(stats(find=waits, log={}), 61.0) == "find: no waiting result taken for 61 s"
    assert progress.hangs(stats(find={**waits, "results_in": 6}, log={}), 62.0) == ""  # it goes on
    assert progress.hangs(stats(find=waits, log={"in_call": True}), 200.0) == ""  # it waits for one who works
    assert progress.hangs(stats(find=waits, log={}), 230.0) == ""
    assert progress.hangs(stats(find={}, log={}), 400.0) == ""  # nothing waits


# systemd


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A socket like that of systemd; gives the next messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield lambda: server.recv(4096).decode().split("\n")


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in (None, "", "vsock:2:1234"):
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        if address is not None:
            monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert notify("READY=1")  # it may come back


def test_names_without_a_file_are_reached_too(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"edgert-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0{name}")
        server.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1", "STATUS=up")
        assert server.recv(100) == b"READY=1\nSTATUS=up"


def test_from_start_to_end(systemd: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000")  # so it beats every 20 ms
    now = [stats(north={"results_out": 0}, south={})]
    heartbeat = Heartbeat(lambda: now[0])
    heartbeat.start()
    try:
        assert systemd()[1:] == ["EXTEND_TIMEOUT_USEC=60000000"]
        now[0] = stats(north={}, south={})
        while (lines := systemd())[1] != "READY=1":
            assert lines[1:] == ["EXTEND_TIMEOUT_USEC=60000000"]
        assert re.fullmatch(r"STATUS=29\.9 fps.*last minute", lines[0]) and lines[2:] == ["WATCHDOG=1"]
        now[0] = stats(north={"source": {"up": False, "reason": "gone"}}, south={})  # a camera is no reason to restart
        while "gone" not in (lines := systemd())[0]:
            assert lines[1:] == ["WATCHDOG=1"]
        assert lines[1:] == ["WATCHDOG=1"]
        now[0] = stats(north={}, find={"stuck_s": 11.0})
        while "in one call" not in (lines := systemd())[0]:
            assert lines[1:] == ["WATCHDOG=1"]
        assert lines[1:] == systemd()[1:] == [], "no sign of life while a stage is stuck"
        now[0] = stats(north={}, south={})
        while "in one call" in (lines := systemd())[0]:
            assert not lines[1:]
        assert lines[1:] == ["WATCHDOG=1"], "READY once"
    finally:
        heartbeat.stop()
    while (lines := systemd()) != ["STOPPING=1", "STATUS=stopping"]:
        assert lines[0].startswith("STATUS=")


def test_the_watchdog_is_asked_thrice_a_period_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    for usec, beat_s in (("6000000", 2.0), ("600000000", health._BEAT_S), ("", health._BEAT_S)):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        assert Heartbeat(dict)._beat_s == beat_s
