import io
import itertools
import json
import os
import sys
import termios
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console, Group
from typer.testing import CliRunner

from edgert.cli.machine_commands import Pipelines, format_reading, top
from edgert.cli.top_view import History, Panel, Snapshot, keyboard, row_table, sparkline
from edgert.meters.reading import measured
from tests.helpers.shown_run import shown_run
from tests.helpers.sysfs import plant

app = typer.Typer()

app.command()(top)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code
    return result.stdout


def test_one_sample_as_json(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    sample = json.loads(run("--once", "--json", "-", "--root", str(tmp_path)))
    power = sample["readings"]["power"]
    assert (power["kind"], power["value"]) == ("measured", pytest.approx(12.365))
    assert sample["readings"]["emc.clock"]["value"] is None
    assert sample["pipelines"] == []


def test_a_table_says_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    plant(tmp_path, "nano")
    text = run("--once", "--root", str(tmp_path))
    assert "1.02 W" in text
    assert "unavailable" in text


def test_on_this_machine_processor_and_memory_are_measured() -> None:
    readings = json.loads(run("--once", "--json", "-"))["readings"]
    assert {readings[name]["kind"] for name in ("cpu.load", "memory.total", "memory.rss")} == {"measured"}


@pytest.mark.parametrize("url", ["nope", "file:///etc/passwd", "", "dock.local:8080"])
def test_what_is_no_address_is_refused(url: str, tmp_path: Path) -> None:
    run(url, "--once", "--root", str(tmp_path), code=2)


STATS = {
    "fps": 7.5,
    "frames_out": 240,
    "seconds": 10.0,
    "dropped": 3,
    "recent": {"fps": 24.6, "latency_ms": {"p50": 8.0, "p99": 21.4}, "dropped": {"queue": 2, "join": 1}},
    "peak_rss_bytes": 300 * 2**20,
    "budgets": {
        "governor": {"setting": "80 % of the frames"},
        "throttled": 17,
        "used": {"mean": 0.812, "limit": 1.0, "unit": "cores"},
    },
    "promised": {"latency": 0.06, "memory": 2**30},
}


def test_a_pipeline_of_this_user_is_there_with_nothing_set_up() -> None:
    with shown_run(lambda: {"name": "dock-watch", "label": "simulated:", "stats": STATS}):
        sample = json.loads(run("--once", "--json", "-"))
        text = " ".join(run("--once").split())
    row = next(one for one in sample["pipelines"] if one["at"] == f"process {os.getpid()}")
    assert (row["name"], row["stats"]) == ("dock-watch", STATS)
    assert row["fps_now"] is None  # no time has passed on its clock
    for words in (
        "simulated: dock-watch",
        "24.6",
        "240",
        "21.4",
        "300.0 MiB",
        "80 % of the",
        "17 throttled",
        "of 60.0",
    ):
        assert words in text


def test_the_rate_is_that_since_the_look_before() -> None:
    frames = itertools.count(240, 5)

    def state() -> dict[str, object]:
        at = next(frames)
        return {"name": "rate", "stats": {**STATS, "frames_out": at, "seconds": at / 50}}

    pipelines = Pipelines()
    with shown_run(state):
        rates = [row["fps_now"] for _ in range(2) for row in pipelines.read() if row.get("name") == "rate"]
        shown = run("--once")
    assert rates == [None, pytest.approx(50.0)]
    (row,) = [line for line in shown.splitlines() if " 24.6 " in line]
    assert " 50 " not in row  # of the last minute, as the table says: a look is short


def test_cameras_have_rows_of_their_own() -> None:
    share = {"fps": 14.9, "dropped": {"queue": 4, "join": 3}, "latency_ms": {"p50": 11.0, "p99": 47.5}}
    away = {"up": False, "state_s": 90.2, "reason": "connection\x1b refused"}
    stages = {"north": {"source": {"up": True, "state_s": 300.0, "reason": ""}}, "south": {"source": away}, "find": {}}
    stats = {**STATS, "stages": stages, "recent": {"streams": {"north": share}}}
    with shown_run(lambda: {"name": "dock", "stats": stats}):
        lines = [" ".join(line.split()) for line in run("--once").splitlines()]
    assert "dock north 14.9 7 11.0 ms 47.5 ms up for 300 s" in lines
    assert "dock south 0 0 ? ? down for 90 s: connection refused" in lines


@pytest.mark.parametrize("stats", [
    {},
    {"fps": "24", "recent": [], "budgets": {"governor": {"setting": 3}}},
    {"recent": {"latency_ms": 3, "dropped": {"queue": "x"}, "streams": []}, "stages": {"a": {"source": {"up": True}}}},
    None,
])  # fmt: skip
def test_whatever_another_program_says_is_shown(stats: object) -> None:
    with shown_run(lambda: {"name": "odd\x1b[2J", "stats": stats}):
        text = run("--once")
    assert ("?" if isinstance(stats, dict) else "does not answer like") in text
    assert "\x1b[2J" not in text


def test_a_folder_of_sockets_that_others_may_enter_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgert").mkdir()
    (tmp_path / "edgert").chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (row,) = (row for row in Pipelines().read() if row["at"] == "this machine")
    assert row["trouble"].startswith(f"{tmp_path}/edgert cannot hold sockets: ") and "\n" not in row["trouble"]


def test_without_pipelines_it_says_so(tmp_path: Path) -> None:
    assert "no pipelines of this user are running" in run("--once", "--root", str(tmp_path))


def test_pipelines_come_first_and_what_is_missing_takes_one_line(tmp_path: Path) -> None:
    plant(tmp_path, "nano")
    lines = run("--once", "--root", str(tmp_path)).splitlines()
    readings = next(number for number, line in enumerate(lines) if line.startswith("reading"))
    assert "pipelines" in lines[0] and readings > 0
    assert [line for line in lines if "unavailable" in line] == [line for line in lines if line.startswith("unavail")]


def shown(width: int) -> str:
    """The table of a pipeline that lags, at a width."""
    recent = {"latency_ms": {"p50": 11_550.0, "p99": 17_280.0}}
    stats = {**STATS, "recent": recent, "promised": {}, "frames_out": 123456}
    console = Console(width=width, file=io.StringIO())
    with console.capture() as taken:
        console.print(row_table([{"at": "process 4242", "name": "cars", "stats": stats}], width, "pipelines"))
    return taken.get()


def test_at_80_columns_long_latencies_are_seconds_and_the_process_is_named() -> None:
    assert max(map(len, shown(80).splitlines())) <= 80
    assert "17.3 s" in shown(80) and "process 4242" in shown(80)
    assert "11.6 s" in shown(200) and "123,456" in shown(200) and "e+" not in shown(200)


def test_readings_have_their_units_and_no_exponents() -> None:
    values = {("cores", 0.01984): "0.02 cores", ("", 1_234_567.0): "1,234,567", ("J", 0.00000012): "0 J"}
    assert [format_reading(measured(value, unit, "")) for unit, value in values] == list(values.values())


def test_history_is_a_block_for_each_sample_and_forgets_what_is_gone() -> None:
    assert sparkline((0.0, 15.0, None, 30.0)) == "▁▅ █" and sparkline(()) == "" and sparkline((0.0, 0.0)) == "▁▁"
    history = History()
    rows: list[dict[str, Any]] = [{"at": "a", "stats": {"recent": {"fps": 10}}}, {"at": "b", "trouble": "away"}]
    history.add(rows)
    assert history.of(rows[0]) == "", "one sample is no history"
    history.add([{**rows[0], "fps_now": 20.0}, rows[1]])
    assert (history.of(rows[0]), history.of(rows[1])) == ("▅█", "  ")
    history.add([{"at": "a", "stats": {"fps": "many"}}])
    assert (history.of(rows[0]), history.of(rows[1])) == ("▅█ ", "")


TWO = [
    {"at": "process 1", "name": "dock", "stats": {**STATS, "stages": {"find": {"busy_percent": 71.0}}}},
    {"at": "process 2", "name": "gate", "stats": {"stages": {"find": {"failing": "no\x1b memory"}}}},
]


def pressed(*keys: str, rows: list[dict[str, Any]] = TWO, height: int = 25) -> tuple[list[str], bool]:
    """Every screen after these keys, and whether the program is over then."""
    screens, stopped = list[str](), threading.Event()
    console = Console(width=140, height=height, file=io.StringIO(), force_terminal=True, color_system=None)

    def draw(shown: object) -> None:
        with console.capture() as taken:
            console.print(shown)
        screens.append(taken.get())

    rest = deque(keys)
    panel = Panel(draw, lambda seconds: rest.popleft() if rest else "", stopped, console)

    def shown(chosen: str) -> Group:
        return Group(f"chosen: {chosen}", row_table(rows, 140, "pipelines", None, chosen))

    panel.show(Snapshot(rows, shown, {}))
    while not (is_over := panel.wait(0.02)) and rest:
        pass
    return screens, is_over


@pytest.mark.parametrize(("keys", "chosen"), [
    ((), ""), (("down",), "process 1"), (("down", "down"), "process 2"), (("down",) * 3, "process 1"),
    (("up",), "process 2"), (("down", "up"), "process 2"), (("down", "close"), ""),
])  # fmt: skip
def test_arrows_choose_a_line(keys: tuple[str, ...], chosen: str) -> None:
    screens, is_over = pressed(*keys)
    assert f"chosen: {chosen}\n" in screens[-1] and not is_over and "q quit" in screens[0]


def test_enter_shows_the_stages_of_a_line_and_escape_all_lines() -> None:
    screens, _ = pressed("open", "down", "close")
    assert "dock · process 1" in screens[1] and "find" in screens[1] and "71 %" in screens[1]
    assert "gate · process 2" in screens[2] and "down: no memory" in screens[2]
    assert "chosen: process 2" in screens[3]


def test_more_lines_than_the_terminal_has_are_scrolled_to_the_chosen_one_and_by_pages() -> None:
    rows = [{**TWO[1], "at": f"process {number}", "name": f"dock{number}"} for number in range(40)]
    screens, _ = pressed(*["down"] * 12, "page down", "page down", "page down", "page up", rows=rows, height=11)
    for screen in screens:
        assert len(screen.splitlines()) == 11 and "of 43" in screen
    assert "lines 1–10 of 43" in screens[0] and "dock6" in screens[0] and "dock7" not in screens[0]
    assert "dock11" in screens[12] and "dock12" not in screens[12]
    assert "lines 26–35" in screens[14] and "lines 34–43" in screens[15] and "dock39" in screens[15]
    assert "lines 24–33" in screens[16]
    few, _ = pressed("page down", height=11)
    assert "PgDn" not in few[-1] and "gate" in few[-1]


def test_space_holds_the_screen_and_q_ends() -> None:
    screens, is_over = pressed("pause", "quit")
    assert is_over and "paused: space goes on" in screens[1]


def test_keys_of_a_terminal_have_meanings_and_it_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = os.openpty()
    before = termios.tcgetattr(inner)
    monkeypatch.setattr(sys, "stdin", os.fdopen(inner, "r", closefd=False))
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    with keyboard() as read:
        assert read is not None and read(0.0) == ""
        for typed, meaning in ((b"\x1b[A", "up"), (b"\x1bOB", "down"), (b"\r", "open"), (b"\x1b", "close"), (b"x", "")):
            os.write(outer, typed)
            assert read(5.0) == meaning
        os.write(outer, b"\x1b[B\x1b[Bj\x1b[5~\r")  # over a slow line they come at once
        assert [read(5.0) for _ in range(5)] == ["down", "down", "down", "page up", "open"] and read(0.0) == ""
    assert termios.tcgetattr(inner) == before
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: -1)
    with keyboard() as read:
        assert read is None, "in the background"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", os.fdopen(inner, "r", closefd=False))
    with keyboard() as read:
        assert read is None, "another terminal than the one that controls this process"
    os.close(outer)
    os.close(inner)
