"""Spools that are damaged anywhere: each opens without an error, and what can be read of it is delivered in order."""

import json
import logging
import re
import shutil
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from random import Random

import pytest

from edgert.stages.sink.send.spool import Spool
from tests.helpers.command import ROOT
from tests.helpers.damage import damaged

COUNT, SENT = 3000, 100
_BODY = re.compile(rb'\{"id":"m-(\d+)","n":\d+,"x":"x*"\}')


def body(number: int) -> bytes:
    return b'{"id":"m-%d","n":%d,"x":"%s"}' % (number, number, b"x" * (1500 if number % 9 == 0 else number * 7 % 300))


@pytest.fixture(scope="module", params=["closed", "killed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spool of two files that a process left behind: the first messages were sent."""
    folder = tmp_path_factory.mktemp(request.param)
    code = f"""
import os, signal
from pathlib import Path
from tests.faults.test_damaged_spools import COUNT, SENT, body
from edgert.stages.sink.send.spool import Spool
one = Spool(Path({str(folder / "a")!r}), 1 << 30, 1e6, "x")
for number in range(COUNT):
    one.put("event", "gate", "yard", body(number))
one.remove(one.oldest(SENT))
if {request.param == "killed"}:
    os.kill(os.getpid(), signal.SIGKILL)
one.close()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == (-signal.SIGKILL if request.param == "killed" else 0)
    return folder


def delivered(path: Path) -> list[int]:
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


@lru_cache(maxsize=4)
def records(content: bytes) -> dict[int, tuple[int, int]]:
    """Number of each message that was not sent → begin and end of its record."""
    found = {int(one[1]): (content.rfind(b"\n", 0, one.start()) + 1, one.end()) for one in _BODY.finditer(content)}
    return {number: span for number, span in found.items() if number >= SENT}


def try_one(whole: Path, folder: Path, file: str, rng: Random) -> None:
    shutil.copytree(whole, folder)
    path = folder / "a" / file
    before = path.read_bytes()
    after = damaged(before, rng)
    path.write_bytes(after)
    numbers = delivered(folder / "a")
    here = records(before)
    whole_ones = {number for number, (begin, end) in here.items() if before[begin:end] == after[begin:end]}
    must = set(range(SENT, COUNT)).difference(here) | whole_ones
    lost = must - set(numbers)
    assert not lost, f"readable, and not delivered: {sorted(lost)[:20]} of {len(must)}"
    rest = iter(numbers)  # what is damaged may come as a double
    assert all(number in rest for number in sorted(must)), "not in order"
    shutil.rmtree(folder)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [12, pytest.param(250, marks=pytest.mark.slow)])
def test_a_damaged_spool_delivers_what_can_be_read(
    whole: Path, tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for number in range(count):
        rng = Random(f"{whole.name[:6]}/{number}")
        file = rng.choice(sorted(path.name for path in (whole / "a").glob("*.spool")))
        try:
            try_one(whole, tmp_path / "spool", file, rng)
        except Exception as error:
            raise AssertionError(f"case {number}, {file}: {type(error).__name__}: {error}") from error
