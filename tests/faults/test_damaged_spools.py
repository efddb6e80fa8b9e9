"""Spools that are damaged anywhere: each opens without an error, and what can be read of it is delivered in order."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from edgert.stages.sink.send.spool import Spool
from tests.helpers.command import ROOT
from tests.helpers.damage import damaged

STORED, JOURNALED = 900, 60
PAGE, RECORD = 1024, 30


def body(number: int) -> bytes:
    """Of a size that has several on a page, and some on more than one."""
    return b'{"n":%d,"x":"%s"}' % (number, b"x" * (1500 if number % 9 == 0 else number * 7 % 300))


@pytest.fixture(scope="module", params=["closed", "killed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spool that a process left behind: the first messages were sent, the last are in the journal."""
    folder = tmp_path_factory.mktemp(request.param)
    code = f"""
import os, signal
from pathlib import Path
from tests.faults.test_damaged_spools import JOURNALED, STORED, body
from edgert.stages.sink.send.spool import Spool
one = Spool(Path({str(folder / "a.db")!r}), 1 << 30, 1e6, "x")
for number in range(STORED):
    one.put("event", "gate", "yard", body(number))
    if number % 200 == 199:
        one.secure()
one.secure()
one.remove(one.oldest(100))
for number in range(STORED, STORED + JOURNALED):
    one.put("event", "gate", "yard", body(number))
if {request.param == "killed"}:
    os.kill(os.getpid(), signal.SIGKILL)
one.close()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == (-signal.SIGKILL if request.param == "killed" else 0)
    return folder


def delivered(path: Path) -> list[int]:
    """Open the spool as a run does, and send all that is in it."""
    one = Spool(path, 1 << 30, 1e6, "stages.out")
    one.trim()
    numbers, after = list[int](), -1
    while messages := one.oldest(64, after):
        for message in messages:
            found = json.loads(message.body)
            assert found["id"] == message.id
            numbers.append(found.get("n", -1))
        after = messages[-1].number
        one.remove(messages)
        one.secure(after)
    one.put("event", "gate", "yard", body(10**6))
    assert [json.loads(message.body)["n"] for message in one.oldest(9)] == [10**6]
    one.remove(one.oldest(9))
    assert one.count == 0 and one.size_bytes == 0
    one.close()
    again = Spool(path, 1 << 30, 1e6, "stages.out")  # and the next start finds nothing wrong
    assert again.count == 0
    again.close()
    return numbers


def on_whole_pages(before: bytes, after: bytes, numbers: range) -> set[int]:
    """Those of the messages that are on one page of the file, which is as it was."""
    found = set()
    for number in numbers:
        at = before.find(body(number))
        page = slice(at // PAGE * PAGE, at // PAGE * PAGE + PAGE)
        if at >= 0 and at % PAGE + len(body(number)) <= PAGE and before[page] == after[page]:
            found.add(number)
    return found


def in_whole_records(before: bytes, after: bytes) -> Iterator[int]:
    """Those of the messages whose record of the journal is as it was, where that says whose it is."""
    for number in range(STORED, STORED + JOURNALED):
        at = before.index(body(number)) - len("eventgateyard") - RECORD
        record = slice(at, at + RECORD + len(b"eventgateyard") + len(body(number)))
        if before[record] == after[record] and (before[:20] == after[:20] or before[-24:] == after[-24:]):
            yield number


def try_one(whole: Path, folder: Path, file: str, rng: Random) -> None:
    """Damage a file of a spool, and send what is left."""
    shutil.copytree(whole, folder)
    before = (folder / file).read_bytes()
    after = damaged(before, rng)
    (folder / file).write_bytes(after)
    numbers = delivered(folder / "a.db")
    wanted = set(range(100, STORED + JOURNALED))
    must = wanted
    if file == "a.db":
        must = on_whole_pages(before, after, range(100, STORED)) | set(range(STORED, STORED + JOURNALED))
        must -= {number for number in must if body(number) not in before and number < STORED}
    elif file == "a.journal":
        must = set(range(100, STORED)) | set(in_whole_records(before, after))
    else:
        must = set(range(100, 800))  # what was secured is in the file
    lost = must - set(numbers)
    assert not lost, f"readable, and not delivered: {sorted(lost)[:20]} of {len(must)}"
    rest = iter(numbers)  # what is damaged may come as a double
    assert all(number in rest for number in sorted(must)), "not in order"
    shutil.rmtree(folder)


def files(whole: Path) -> Iterator[str]:
    yield "a.db"
    yield "a.journal"
    if (whole / "a.db-wal").exists():
        yield "a.db-wal"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [12, pytest.param(250, marks=pytest.mark.slow)])
def test_a_damaged_spool_delivers_what_can_be_read(
    whole: Path, tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for number in range(count):
        rng = Random(f"{whole.name[:6]}/{number}")
        file = rng.choice(["a.db"] * 4 + list(files(whole)))
        try:
            try_one(whole, tmp_path / "spool", file, rng)
        except Exception as error:
            raise AssertionError(f"case {number}, {file}: {type(error).__name__}: {error}") from error
