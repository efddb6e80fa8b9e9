"""The log of ``edgert run``: lines of text, JSON, and systemd's journal, with real processes and sockets."""

import io
import json
import logging
import os
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from edgert.cli import log, run_view
from edgert.cli.log import JsonStderr, journal_message, priority, record_fields, start_log
from edgert.errors import ArtifactError
from tests.helpers.command import edgert, environment, in_process

SECRET = "sesame-secret-77"
TEXT = """
name: p
stages:
  north: {source: "synthetic:noise", size: 64x48, limit: 3}
  south: {source: "rtsp://me:${PW}@127.0.0.1:1/x", required: false}
  tell: {python: "own:tell", from: [north, south]}
  out: {sink: "null", from: tell}
"""
CODE = """
import logging, os, sys
said = logging.getLogger("edgert.own")
def tell(result):
    if result.frame.index == 0:
        said.error("tell: bad\\x1b[2J with %s", os.environ["PW"])
        print("printed " + os.environ["PW"], file=sys.stderr)
        try:
            1 / 0
        except ZeroDivisionError:
            said.exception("tell: two\\nlines")
"""


def write(folder: Path) -> Path:
    (folder / "own.py").write_text(CODE)
    (folder / "p.yaml").write_text(TEXT)
    return folder / "p.yaml"


def secret_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if SECRET in line]


def lines_of(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_is_json_with_stage_and_stream_and_without_secrets(tmp_path: Path) -> None:
    arguments = ("run", str(write(tmp_path)), "--log", "json", "--duration", "1", "--json", "-")
    done = edgert(*arguments, cwd=tmp_path, env={"PW": SECRET})
    assert done.returncode == 0 and SECRET not in done.stderr + done.stdout
    assert json.loads(done.stdout)["frames_in"] == 3
    found = lines_of(done.stderr)
    for one in found:
        assert {"time", "level", "logger", "message"} <= set(one)
        assert datetime.fromisoformat(one["time"]).utcoffset() is not None
    (away,) = (one for one in found if "nothing listens" in one["message"])
    assert (away["stage"], away["stream"], away["level"], away["code"]) == ("south", "south", "warning", "source.lost")
    (bad,) = (one for one in found if "bad" in one["message"])
    assert (bad["stage"], bad["level"], bad["logger"]) == ("tell", "error", "edgert.own") and "stream" not in bad
    assert bad["message"] == "tell: bad\\x1b[2J with ${PW}"
    assert [one["message"] for one in found if "printed" in one["message"]] == ["printed ${PW}"]
    (traced,) = (one for one in found if "traceback" in one)
    assert traced["message"] == "tell: two\nlines" and "ZeroDivisionError" in traced["traceback"]
    assert any(one["message"] == "runs code of your own: own" for one in found)


def test_an_error_is_one_line_too(tmp_path: Path) -> None:
    done = in_process("run", str(tmp_path / "none.yaml"), "--log", "json", cwd=tmp_path)
    (one,) = lines_of(done.stderr)
    assert done.returncode == 1 and (one["level"], one["code"]) == ("error", "run.failed")
    assert one["message"].startswith("error: ") and "none.yaml" in one["message"]


def test_text_that_is_no_terminal_is_a_line_with_date_and_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w+") as out:
        assert (
            log.log_format(None, out) == log.log_format("text", sys.stderr) == "text"
            and log.log_format("json", out) == "json"
        )
        monkeypatch.setattr(sys, "stderr", out)
        start_log("text", Console(), quiet=False, stages=dict)
        logging.getLogger("edgert.x").warning("cam: gone")
    at, level, message = (tmp_path / "out").read_text().split(" ", 2)
    assert datetime.fromisoformat(at).utcoffset() is not None and (level, message) == ("warning", "cam: gone\n")


def journal_of(data: bytes) -> dict[str, str]:
    """An entry of the journal's protocol, read by its rules."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[9 + size :]
        found[name.decode()] = value.decode()
    return found


PROGRAM = """
import sys
from edgert.cli import log
from edgert.cli.__init__ import main
log.JOURNAL = sys.argv.pop(1)
main()
"""


def with_journal(folder: Path, journal: Path) -> subprocess.CompletedProcess[str]:
    """A run whose standard error is what systemd says is the journal's."""
    with (folder / "stderr").open("wb") as stderr:
        about = os.fstat(stderr.fileno())
        env = environment({"PW": SECRET, "JOURNAL_STREAM": f"{about.st_dev}:{about.st_ino}"})
        command = [sys.executable, "-c", PROGRAM, str(journal), "run", str(write(folder)), "--duration", "1"]
        return subprocess.run(command, cwd=folder, env=env, stderr=stderr, text=True, timeout=120, check=False)


def test_the_journal_gets_fields_by_its_own_protocol(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        assert with_journal(tmp_path, tmp_path / "journal").returncode == 0
        journal.setblocking(False)
        found = []
        try:
            while True:
                found.append(journal_of(journal.recv(1 << 20)))
        except BlockingIOError:
            pass
    (away,) = (one for one in found if "nothing listens" in one["MESSAGE"])
    assert (away["PRIORITY"], away["SYSLOG_IDENTIFIER"], away["EDGERT_STAGE"]) == ("4", "edgert", "south")
    assert (away["EDGERT_STREAM"], away["EDGERT_CODE"]) == ("south", "source.lost")
    assert away["CODE_FUNC"] == "record_loss" and away["CODE_FILE"].endswith("live.py")
    (traced,) = (one for one in found if one["MESSAGE"].startswith("tell: two\nlines\nTraceback"))
    assert traced["PRIORITY"] == "3" and "EDGERT_STREAM" not in traced
    assert SECRET not in repr(found) and len(secret_lines((tmp_path / "stderr").read_text())) == 1


def record(message: str, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("edgert.x", level, "/a/live.py", 7, message, arguments, None, "lost")


def test_a_message_that_is_about_no_stage_has_none() -> None:
    stages: dict[str, object] = {"cam": SimpleNamespace(source="rtsp://10.0.0.9"), "find": object()}
    assert "stage" not in record_fields(record("other: gone"), stages)
    found = record_fields(record("%s: gone", "cam"), stages)
    assert (found["stage"], found["stream"]) == ("cam", "cam") and "code" not in found
    assert record_fields(record("find: slow"), stages).get("stream") is None
    for text in (
        "stage 'find': bad",
        "stage 'find' has been in one call",
        "stages.find: bad",
        "stages.find.every: bad",
    ):
        assert record_fields(record(text), stages)["stage"] == "find", text


def test_a_camera_that_came_later_is_a_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    stages = dict[str, object]()
    start_log("json", Console(), quiet=False, stages=lambda: stages)
    stages["gate"] = SimpleNamespace(source="rtsp://10.0.0.9")
    logging.getLogger("edgert.source").warning("gate: lost")
    assert json.loads(sys.stderr.under.getvalue())["stream"] == "gate"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("level", "number"), [(10, 7), (20, 6), (25, 6), (30, 4), (40, 3), (50, 2), (99, 2)])
def test_levels_are_the_priorities_of_syslog(level: int, number: int) -> None:
    assert priority(level) == number


def test_entries_of_the_journal_hold_anything() -> None:
    named = {"MESSAGE": "a\nb=c\n\n", "PRIORITY": "3", "EDGERT_STAGE": "", "X": "ü=1"}
    assert journal_of(journal_message(named)) == {"MESSAGE": "a\nb=c\n\n", "PRIORITY": "3", "X": "ü=1"}


def test_without_a_journal_there_lines_have_its_priorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "JOURNAL", str(tmp_path / "none"))
    with (tmp_path / "out").open("w") as out:
        log._JournalHandler(out, dict, log._prefixed).emit(record("cam: two\nlines", level=logging.WARNING))
    assert (tmp_path / "out").read_text() == "<4>cam: two\n<4>lines\n"


def test_too_long_for_a_datagram_goes_to_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "JOURNAL", str(tmp_path / "journal"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal, (tmp_path / "out").open("w") as out:
        journal.bind(str(tmp_path / "journal"))
        log._JournalHandler(out, dict, log._prefixed).emit(record("y" * 5_000_000))
    assert (tmp_path / "out").stat().st_size == 5_000_004


def test_text_written_in_parts_is_one_message(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        stderr = JsonStderr(out)
        stderr.write("error: ")
        stderr.write("what\n  why: so\n")
        stderr.write("\n")
        out.seek(0)
        (one,) = lines_of(out.read())
    assert (one["level"], one["message"]) == ("error", "error: what\n  why: so")


def test_the_summary_is_kept_again_and_again_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "SUMMARY_EVERY_S", 0.005)
    kept, at_once, most = list[str](), 0, 0

    def keep(summary: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        kept.append(summary)
        at_once -= 1
        raise ArtifactError("the disk is full")  # it may not be the next time

    run: Any = SimpleNamespace(wait=lambda timeout_s: time.sleep(0.001) or len(kept) == 3, summary=lambda: "so far")
    run_view._watch(run, lambda: False, keep, lambda summary: None, 60.0)
    assert kept == ["so far"] * 3 and most == 1
