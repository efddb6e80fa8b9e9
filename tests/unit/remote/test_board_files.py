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
from edgert.errors import ArtifactError, BuildError, EdgertError
from edgert.remote.board_actions import follow, perform, receive
from edgert.remote.board_job import (
    BUNDLE_LIFETIME_S,
    RUN_LIFETIME_S,
    Content,
    Run,
    cancel,
    existing_run,
    find_content,
    find_run,
    hold_lock,
    is_held,
    remove_old_files,
    start,
    try_lock,
    work,
)

BYTES = bytes(range(256)) * 40
DIGEST = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture(name="content")
def _content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path))
    return find_content(DIGEST)


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Iterator[BinaryIO]:
    """All the bytes, as a stream."""
    (tmp_path / "sent").write_bytes(BYTES)
    with (tmp_path / "sent").open("rb", buffering=0) as file:
        yield file  # type: ignore[misc]  # raw, as standard input is read


def answers(out: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_lock_ends_with_the_last_process_that_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lock"
    assert not is_held(path)
    first = try_lock(path)
    assert first is not None and is_held(path) and try_lock(path) is None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(first,)) as compiler:
        os.close(first)
        assert is_held(path)
        compiler.kill()
    assert not is_held(path)


def test_a_lock_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    first = try_lock(tmp_path / "lock")
    assert first is not None
    with pytest.raises(ArtifactError, match="is being copied to the board already"), hold_lock(tmp_path / "lock", 0):
        pass
    os.close(first)


@pytest.mark.parametrize(
    ("part", "bundle", "at"),
    [(b"", b"", 0), (BYTES[:1000], b"", 1000), (b"", BYTES, len(BYTES)), (b"", b"?" + BYTES[1:], 0)],
    ids=["whole", "from where it broke off", "not again", "again if it was damaged there"],
)
def test_a_bundle_comes_in(content: Content, source: BinaryIO, part: bytes, bundle: bytes, at: int) -> None:
    content.folder.mkdir(parents=True)
    for path, data in ((content.part, part), (content.bundle, bundle)):
        if data:
            path.write_bytes(data)
    source.seek(at)
    out = io.BytesIO()
    receive(content, len(BYTES), source, out)
    assert answers(out) == [{"at": at}, {"done": True}]
    assert content.bundle.read_bytes() == BYTES and not content.part.exists()


def test_a_bundle_that_is_cut_short_is_kept_to_go_on_from(content: Content, source: BinaryIO) -> None:
    source.seek(0)
    with pytest.raises(ArtifactError, match="was not received completely") as caught:
        receive(content, len(BYTES) + 1, source, io.BytesIO())
    assert caught.value.why == f"{len(BYTES)} of {len(BYTES) + 1} bytes were received"
    assert content.part.read_bytes() == BYTES and not content.bundle.exists()


def test_a_bundle_that_was_damaged_on_its_way_is_thrown_away(content: Content, source: BinaryIO) -> None:
    content.folder.mkdir(parents=True)
    content.part.write_bytes(b"?" + BYTES[1:1000])
    source.seek(1000)
    with pytest.raises(ArtifactError, match="damaged on its way to the board"):
        receive(content, len(BYTES), source, io.BytesIO())
    assert not content.part.exists() and not content.bundle.exists()


def test_a_disk_that_fills_up_is_named(content: Content, source: BinaryIO) -> None:
    content.folder.mkdir(parents=True)
    content.part.symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match="the disk of the board is full") as caught:
        receive(content, len(BYTES), source, io.BytesIO())
    assert "No space left" in caught.value.why and "EDGERT_CACHE" in caught.value.fix


@pytest.mark.parametrize("name", ["../../etc", "a" * 63, "A" * 64])
def test_names_from_the_other_side_cannot_lead_out(name: str) -> None:
    with pytest.raises(ArtifactError, match="is not the digest of a bundle"):
        find_content(name)
    with pytest.raises(ArtifactError, match="unknown job"):
        find_run(f"{name}.{'0' * 12}")


def test_a_run_whose_files_are_gone_is_told(content: Content) -> None:
    with pytest.raises(ArtifactError, match="the board has no such job") as caught:
        existing_run(f"{DIGEST}.{'0' * 12}")
    assert "build again" in caught.value.fix


def a_run(content: Content, number: int = 0) -> Run:
    run = find_run(f"{content.digest}.{number:012x}")
    run.folder.mkdir(parents=True)
    run.events.write_text('{"step": "a"}\n{"step": "b"}\nhalf a li')
    run.log.write_text("line\n" * 100 + "the last\n")
    return run


def test_events_are_told_from_any_line_on(content: Content) -> None:
    run = a_run(content)
    run.end.write_text('{"code": 0}')
    out = io.BytesIO()
    follow(run, 14, out)
    line, end = answers(out)
    assert line == {"at": 28, "text": '{"step": "b"}'}
    assert end["at"] == 28 and end["end"]["code"] == 0 and not end["end"]["canceled"]
    assert end["end"]["log"].splitlines()[-1] == "the last" and len(end["end"]["log"].splitlines()) == 20


def work_with(command: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The end of a run whose compiler is a line of the shell."""
    monkeypatch.setattr("edgert.remote.board_job._edgert_command", lambda: ["sh", "-c", command, "edgert"])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    lock = try_lock(run.content.work)
    assert lock is not None
    work(run, lock)
    return json.loads(run.end.read_text())


def test_a_job_calls_the_command_line_with_words_that_it_takes(
    content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(content)
    run.strict.touch()
    assert work_with(f"printf '%s\\n' \"$@\" > {tmp_path / 'words'}; exit 3", run, monkeypatch) == {"code": 3}
    verb, *words = (tmp_path / "words").read_text().splitlines()
    group: Any = typer.main.get_command(app)
    given = group.commands[verb].make_context(verb, words).params
    assert str(given["json"]) == "-" and given["strict"] and given["output"] == run.output


def test_a_run_that_nobody_works_on_any_more_is_over(content: Content) -> None:
    out = io.BytesIO()
    follow(a_run(content), 0, out)
    assert answers(out)[-1]["end"]["code"] is None


def test_a_run_asked_for_again_is_not_started_twice(content: Content) -> None:
    run = a_run(content)
    assert start(run) == (run, False)


def test_who_comes_second_joins_the_first(content: Content, source: BinaryIO) -> None:
    receive(content, len(BYTES), source, io.BytesIO())
    lock, first = try_lock(content.work), a_run(content)
    assert lock is not None
    os.write(lock, first.name.encode())
    assert start(find_run(f"{DIGEST}.{1:012x}")) == (first, True)
    os.close(lock)


def test_a_job_needs_its_bundle(content: Content) -> None:
    with pytest.raises(ArtifactError, match="the bundle is not on the board"):
        start(find_run(f"{DIGEST}.{1:012x}"))


def test_a_run_that_is_canceled_before_its_process_works_ends(
    content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(content)
    content.work.write_text(run.name)
    with hold_lock(content.work, 1):
        cancel(run)
    assert work_with("exec sleep 60", run, monkeypatch) == {"code": -signal.SIGTERM}


def test_canceling_what_has_ended_does_nothing(content: Content) -> None:
    run = a_run(content)
    cancel(run)
    assert not run.canceled.exists()


def test_what_nothing_needs_is_swept(content: Content) -> None:
    old, new = a_run(content, 1), a_run(content, 2)
    other = find_content("0" * 64)
    other.folder.mkdir()
    other.bundle.touch()
    for folder, age_s in ((old.folder, RUN_LIFETIME_S), (other.folder, BUNDLE_LIFETIME_S)):
        for path in (*folder.iterdir(), folder):
            os.utime(path, (0, path.stat().st_mtime - age_s - 1))
    remove_old_files(content)
    assert not old.folder.exists() and not other.folder.exists() and new.folder.exists()


def test_an_error_is_told_to_the_other_side(content: Content) -> None:
    out = io.BytesIO()
    with pytest.raises(ArtifactError):
        perform(["cancel", f"{DIGEST}.{'0' * 12}"], io.BytesIO(), out)
    assert answers(out)[0]["error"]["what"] == "the board has no such job"


def test_an_action_that_there_is_not() -> None:
    with pytest.raises(EdgertError, match="unknown action 'folow'; did you mean 'follow'"):
        perform(["folow"], io.BytesIO(), io.BytesIO())


def test_an_action_with_words_that_it_does_not_take() -> None:
    out = io.BytesIO()
    with pytest.raises(ArtifactError, match="action 'cancel' does not take 2 arguments"):
        perform(["cancel", "one", "two"], io.BytesIO(), out)
    assert answers(out)[0]["error"]["what"] == "action 'cancel' does not take 2 arguments"


def test_a_job_that_neither_lives_nor_ends_is_told(
    content: Content, source: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgert.remote.board_job._STABLE_S", 0.0)
    receive(content, len(BYTES), source, io.BytesIO())
    lock, first = try_lock(content.work), a_run(content)
    assert lock is not None
    os.write(lock, first.name.encode())
    first.end.write_text("{}")
    with pytest.raises(BuildError, match="does not end"):
        start(find_run(f"{DIGEST}.{1:012x}"))
    os.close(lock)
