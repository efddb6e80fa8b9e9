"""``edgert top URL...``: a line for each board, the worst first, and no board delays another."""

import http.server
import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from edgert.cli import fleet_view
from edgert.cli.fleet_view import board_table, watch_boards, worst_first
from edgert.cli.top_view import judge
from tests.helpers.http_request import serving
from tests.unit.cli.test_top import run

WELL: dict[str, Any] = {
    "name": "dock",
    "required": ["north"],
    "promised": {"latency": 0.06},
    "stages": {
        "north": {"results_out": 90, "is_open": True, "source": {"up": True, "state_s": 60.0}},
        "find": {"results_out": 90, "is_open": True},
    },
    "recent": {"fps": 29.9, "latency_ms": {"p50": 8.0, "p99": 21.4}, "dropped": {}},
}
DOWN = {"results_out": 90, "is_open": True, "source": {"up": False, "state_s": 7.0, "reason": "no route to host"}}


def changed(**parts: Any) -> dict[str, Any]:
    return {**WELL, **parts}


SLOW = changed(recent={**WELL["recent"], "latency_ms": {"p99": 80.0}})
THROTTLED = changed(budgets={"governor": {"level": 1, "setting": "80 % of the frames"}})
DROPPING = changed(recent={**WELL["recent"], "dropped": {"queue": 12}})
CAMERA_DOWN = changed(stages={**WELL["stages"], "north": DOWN})
STUCK = changed(stages={**WELL["stages"], "find": {"stuck_s": 41.0}})


class Page(http.server.BaseHTTPRequestHandler):
    """The pages of many boards, each below a path of its own."""

    is_over = threading.Event()

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        if name == "silent":
            self.is_over.wait(20)
            return
        if name == "refuses":
            self.send_error(401)
            return
        bodies = {"noise": b"\xff\x00", "list": b"[]", "odd": json.dumps({"stats": {"stages": 4}}).encode()}
        if name == "camera":
            bodies[name] = json.dumps({"stats": CAMERA_DOWN}).encode()
        body = bodies.get(name, json.dumps({"stats": changed(name=name)}).encode())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test's own output is enough."""


@pytest.fixture
def pages() -> Iterator[str]:
    Page.is_over.clear()
    with serving(Page) as url:
        yield url
        Page.is_over.set()


def test_forty_boards_are_forty_lines_and_the_worst_come_first(pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_view, "_ANSWER_S", 1.0)
    bad = ["silent", "refuses", "noise", "list", "odd", "camera"]
    urls = [*(f"{pages}/b{number:02}" for number in range(33)), *(f"{pages}/{name}" for name in bad)]
    urls.append("http://127.0.0.1:1")
    started_s, stopped = time.monotonic(), threading.Event()
    look = next(watch_boards(urls, 2.0, stopped, Console(width=120), True))
    stopped.set()
    assert time.monotonic() - started_s < 10, "one board after the other"
    rows = look.rows
    assert look.data["boards"] is rows and not look.have_answered and len(rows) == 40
    shown_of = {row["at"].removeprefix(pages): judge(row) for row in rows}
    assert [badness for badness, _ in shown_of.values()] == sorted(badness for badness, _ in shown_of.values())
    assert {name: why for name, (_, why) in shown_of.items() if name[1:2] != "b"} == {
        "/silent": shown_of["/silent"][1],
        "/refuses": "EDGERT_TOKEN is not set",
        "/noise": shown_of["/noise"][1],
        "/list": "does not answer like a pipeline of edgert",
        "/odd": "does not answer like a pipeline of edgert",
        "/camera": "north: down for 7 s: no route to host",
        "http://127.0.0.1:1": "Connection refused",
    }
    assert shown_of["/silent"][1] in ("does not answer", "timed out", "Remote end closed connection without response")
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as taken:
        console.print(board_table(rows, 120))
    text = taken.get()
    assert "40 boards: 6 silent, 1 failing, 33 well; last minute" in text and text.count(" 1/1 ") == 33
    assert "0/1" in text and "29.9" in text and "21.4" in text


def test_a_board_that_answers_no_more_is_silent_after_a_while(pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    board = fleet_view.BoardPoller(f"{pages}/b1", 2.0, threading.Event())
    monkeypatch.setattr(board, "_latest", (time.monotonic(), {"at": board.url, "stats": WELL}))
    assert board.row()["stats"] == WELL
    monkeypatch.setattr(board, "_latest", (time.monotonic() - 30, {"at": board.url, "stats": WELL}))
    assert board.row()["trouble"] == "has not answered for 30 s"


def test_what_is_worse_is_decided_in_this_order() -> None:
    names = ("well", "dropping", "throttled", "slow", "camera", "stuck", "gone")
    states = (WELL, DROPPING, THROTTLED, SLOW, CAMERA_DOWN, STUCK)
    rows: list[dict[str, Any]] = [{"at": name, "stats": one} for name, one in zip(names, states, strict=False)]
    rows.append({"at": "gone", "trouble": "timed out"})
    assert [row["at"] for row in worst_first(rows)] == [
        *("gone", "camera", "stuck", "slow", "throttled", "dropping", "well")
    ]
    reasons = {row["at"]: judge(row)[1] for row in rows}
    assert reasons["slow"] == "p99 80.0 ms of 60.0 ms" and reasons["throttled"] == "runs with 80 % of the frames"
    assert reasons["stuck"] == "find: in one call for 41 s" and reasons["well"] == "ready"


@pytest.mark.parametrize(
    "stats",
    [
        {"stages": {"north": 7}},
        {"stages": {"north": {"source": "x"}}, "required": ["north"]},
        {"recent": {"latency_ms": {"p99": float("nan")}}, "promised": {"latency": 1e999}},
        {"recent": 3, "promised": [], "budgets": {"governor": {"level": "high"}}},
        {"name": "\x1b[2J", "stages": {"a": {"failing": "\x1b[2J"}}},
        {},
    ],
)
def test_whatever_a_page_says_is_a_line_that_steers_no_terminal(stats: dict[str, Any]) -> None:
    row = {"at": "http://dock", "stats": stats}
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as taken:
        console.print(board_table(worst_first([row]), 120))
    assert "dock" in taken.get() and "\x1b[2J" not in taken.get()


def test_the_verb_shows_boards_alone_and_fails_where_one_is_silent(pages: str) -> None:
    assert "1 board: 1 well" in run(f"{pages}/b1", "--once") and "reading" not in run(f"{pages}/b1", "--once")
    (first, second) = json.loads(run(f"{pages}/b1", "http://127.0.0.1:1", "--once", "--json", "-", code=1))["boards"]
    assert first["trouble"] == "Connection refused" and second["stats"]["name"] == "b1"
