"""The board's side: locks, bundles that come in, runs and how they end."""

import hashlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import typer

from edgert.cli import app
from edgert.errors import ArtifactError
from edgert.remote.board_job import (
    BUNDLE_LIFETIME_S,
    RUN_LIFETIME_S,
    Run,
    follow,
    hold_lock,
    perform,
    receive,
    remove_old_files,
    start,
    try_lock,
    work,
)

BYTES = bytes(range(256)) * 40
DIGEST = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture(name="run")
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A job whose folder is there, and nothing in it."""
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path))
    return a_run(0)


def a_run(number: int) -> Run:
    run = Run(f"{DIGEST}.{number:012x}")
    run.folder.mkdir(parents=True)
    return run


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Iterator[BinaryIO]:
    """All the bytes, as a stream."""
    (tmp_path / "sent").write_bytes(BYTES)
    with (tmp_path / "sent").open("rb", buffering=0) as file:
        yield file  # type: ignore[misc]  # raw, as standard input is read


def answers(out: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_job_lives_until_the_last_process_that_inherited_its_lock_ends(run: Run) -> None:
    assert not run.is_alive()
    first = try_lock(run.alive)
    assert first is not None and run.is_alive() and try_lock(run.alive) is None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(first,)) as process:
        os.close(first)
        assert run.is_alive()
        process.kill()
    assert not run.is_alive()


def test_a_lock_is_not_waited_for_for_ever(run: Run, source: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.remote.board_job.SILENCE_S", 0.0)
    with (
        hold_lock(run.receiving, bool),
        pytest.raises(ArtifactError, match="is being copied to the board already"),
    ):
        receive(run, len(BYTES), source, io.BytesIO())


@pytest.mark.parametrize(
    ("part", "bundle", "at"),
    [(b"", b"", 0), (BYTES[:1000], b"", 1000), (b"", BYTES, len(BYTES)), (b"", b"?" + BYTES[1:], 0)],
    ids=["whole", "from where it broke off", "not again", "again if it was damaged there"],
)
def test_a_bundle_comes_in(run: Run, source: BinaryIO, part: bytes, bundle: bytes, at: int) -> None:
    for path, data in ((run.part, part), (run.bundle, bundle)):
        if data:
            path.write_bytes(data)
    source.seek(at)
    out = io.BytesIO()
    receive(run, len(BYTES), source, out)
    assert answers(out) == [{"receive": at}]
    assert run.bundle.read_bytes() == BYTES and not run.part.exists()


def test_a_bundle_that_is_cut_short_is_kept_to_go_on_from(run: Run, source: BinaryIO) -> None:
    source.seek(0)
    with pytest.raises(ArtifactError, match="was not received completely") as caught:
        receive(run, len(BYTES) + 1, source, io.BytesIO())
    assert caught.value.why == f"{len(BYTES)} of {len(BYTES) + 1} bytes were received"
    assert run.part.read_bytes() == BYTES and not run.bundle.exists()


def test_a_bundle_that_was_damaged_on_its_way_is_thrown_away(run: Run, source: BinaryIO) -> None:
    run.part.write_bytes(b"?" + BYTES[1:1000])
    source.seek(1000)
    with pytest.raises(ArtifactError, match="damaged on its way to the board"):
        receive(run, len(BYTES), source, io.BytesIO())
    assert not run.part.exists() and not run.bundle.exists()


def test_a_disk_that_fills_up_is_named(run: Run, source: BinaryIO) -> None:
    run.part.symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match="the disk of the board is full") as caught:
        receive(run, len(BYTES), source, io.BytesIO())
    assert "No space left" in caught.value.why and "EDGERT_CACHE" in caught.value.fix


@pytest.mark.parametrize("name", ["../../etc", "a" * 63, "A" * 64])
def test_names_from_the_other_side_cannot_lead_out(name: str) -> None:
    with pytest.raises(ArtifactError, match="is not the name of a job"):
        Run(f"{name}.{'0' * 12}")


def test_events_are_told_from_any_line_on(run: Run) -> None:
    run.events.write_text('{"step": "a"}\n{"step": "b"}\nhalf a li')
    run.log.write_text("line\n" * 100 + "the last\n")
    run.end.write_text('{"code": 0}')
    out = io.BytesIO()
    assert not follow(run, 14, out), "there is no result to send"
    line, end = answers(out)
    assert line == {"at": 28, "text": '{"step": "b"}'}
    assert end["at"] == 28 and end["end"]["code"] == 0 and not end["end"]["canceled"]
    assert end["end"]["log"].splitlines()[-1] == "the last" and len(end["end"]["log"].splitlines()) == 20


def work_with(command: str, run: Run, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The end of a run whose compiler is a line of the shell."""
    monkeypatch.setattr("edgert.remote.board_job._edgert_command", lambda: ["sh", "-c", command, "edgert"])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    work(run, *words)
    return json.loads(run.end.read_text())


def test_a_job_calls_the_command_line_with_words_that_it_takes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"printf '%s\\n' \"$@\" > {tmp_path / 'words'}; exit 3"
    assert work_with(command, run, monkeypatch, "strict") == {"code": 3}
    verb, *words = (tmp_path / "words").read_text().splitlines()
    group: Any = typer.main.get_command(app)
    given = group.commands[verb].make_context(verb, words).params
    assert str(given["json"]) == "-" and given["strict"] and given["output"] == run.output


def test_a_run_that_nobody_works_on_any_more_is_over(run: Run) -> None:
    run.events.touch()
    run.log.touch()
    out = io.BytesIO()
    follow(run, 0, out)
    assert answers(out)[-1]["end"]["code"] is None


def test_a_run_asked_for_again_is_not_started_twice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    run.events.touch()
    start(run)
    run.events.unlink()
    with hold_lock(run.alive, bool):
        start(run)


def test_a_run_that_is_canceled_ends_while_it_waits_and_while_it_works(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold_lock(run.alive, bool):
        perform(["cancel", run.name], io.BytesIO(), io.BytesIO())
    assert work_with("exec sleep 60", run, monkeypatch) == {"code": -signal.SIGTERM}
    monkeypatch.setattr("edgert.remote.board_job._compile", None)
    with hold_lock(run.working, bool):
        assert work_with("", run, monkeypatch) == {"code": -signal.SIGTERM}


def test_canceling_what_has_ended_does_nothing(run: Run) -> None:
    perform(["cancel", run.name], io.BytesIO(), io.BytesIO())
    assert not run.canceled.exists()


def test_what_nothing_needs_is_swept(run: Run) -> None:
    old, alive, new = a_run(1), a_run(2), a_run(3)
    other = Run(f"{'0' * 64}.{'0' * 12}").folder.parent
    other.mkdir()
    with hold_lock(alive.alive, bool):
        for folder, age_s in ((old.folder, RUN_LIFETIME_S), (alive.folder, RUN_LIFETIME_S), (other, BUNDLE_LIFETIME_S)):
            for path in (*folder.iterdir(), folder):
                os.utime(path, (0, path.stat().st_mtime - age_s - 1))
        remove_old_files(run)
    assert not old.folder.exists() and not other.exists() and new.folder.exists() and alive.folder.exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["cancel", "../.."], "'../..' is not the name of a job"),
        (["folow"], "edgert job cannot do 'folow'"),
        (["cancel", "one", "two"], "edgert job cannot do 'cancel one two'"),
    ],
)
def test_an_error_is_told_to_the_other_side(words: list[str], what: str) -> None:
    out = io.BytesIO()
    with pytest.raises(ArtifactError):
        perform(words, io.BytesIO(), out)
    assert answers(out)[0]["error"]["what"] == what
