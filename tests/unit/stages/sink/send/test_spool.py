"""The spool: nothing is lost, order is kept, it stays within its bounds, and damage stops nobody."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from edgert.errors import StageError
from edgert.stages.sink.send.spool import Spool
from tests.helpers.command import ROOT

MANY = 1 << 30


def spool(path: Path | None, limit: int = MANY, age_s: float = 1e6) -> Spool:
    return Spool(path, limit, age_s, "stages.out")


def put(one: Spool, *numbers: int, kind: str = "result") -> None:
    for number in numbers:
        one.put(kind, "camera", "", b'{"n":%d}' % number)


def held(one: Spool, count: int = 1000) -> list[int]:
    return [json.loads(message.body)["n"] for message in one.oldest(count)]


def elapse(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """By every clock."""
    for name in ("time", "monotonic"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + seconds)


def stored(path: Path) -> int:
    """How many messages the database has."""
    with closing(sqlite3.connect(path)) as database:
        (count,) = database.execute("SELECT count(*) FROM messages").fetchone()
    return int(count)


def test_a_message_that_has_an_id_keeps_it(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    numbers = [one.put("result", "camera", "", body) for body in (b'{"id":"abc-1-x","n":0}', b'{"n":1}')]
    first, second = one.oldest(2)
    assert [first.number, second.number] == numbers
    assert (first.id, first.body) == ("abc-1-x", b'{"id":"abc-1-x","n":0}')
    assert second.id == json.loads(second.body)["id"] != "abc-1-x"
    one.close()


@pytest.mark.parametrize("in_memory", [False, True])
def test_messages_come_in_order_until_they_are_removed(tmp_path: Path, in_memory: bool) -> None:
    one = spool(None if in_memory else tmp_path / "new" / "a.db")
    put(one, *range(10))
    first = one.oldest(4)
    assert held(one, 4) == [0, 1, 2, 3] == [json.loads(message.body)["n"] for message in first]
    one.remove(first[:3])
    one.remove([])
    assert held(one) == list(range(3, 10)) and one.count == 7
    one.close()


@pytest.mark.parametrize("secured", [False, True])
def test_what_comes_after_a_number(tmp_path: Path, secured: bool) -> None:
    one = spool(tmp_path / "a.db")
    put(one, *range(4))
    if secured:
        one.secure()
    put(one, *range(4, 8))
    for count in (2, 6):
        after = one.oldest(count)[-1].number
        assert [json.loads(message.body)["n"] for message in one.oldest(9, after)] == list(range(count, 8))
        assert len(one.oldest(1, after)) == 1
    assert not one.oldest(9, one.oldest(8)[-1].number) and one.count == 8
    one.close()


def test_what_was_acknowledged_is_not_written_to_the_database(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    put(one, *range(4))
    last = one.oldest(4)[-1].number
    one.secure(last)
    one.trim()
    assert stored(tmp_path / "a.db") == 0 and held(one) == [0, 1, 2, 3]
    put(one, 4)
    one.secure(last)
    assert stored(tmp_path / "a.db") == 5 and held(one) == [0, 1, 2, 3, 4]
    one.close()


def test_each_has_an_id_of_its_own_which_stays(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    put(one, 1, 2)
    ids = [message.id for message in one.oldest(2)]
    one.remove(one.oldest(2))
    put(one, 3)
    one.close()
    again = spool(tmp_path / "a.db")
    (third,) = again.oldest(2)
    assert json.loads(third.body) == {"id": third.id, "n": 3} and len({*ids, third.id}) == 3
    assert third.id.startswith(again.name) and ids[0].startswith(again.name)
    again.close()
    other = spool(tmp_path / "b.db")
    assert other.name != again.name
    other.close()


def test_the_oldest_go_where_there_are_too_many_or_they_are_too_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = spool(tmp_path / "a.db", limit=10_000, age_s=60)
    put(one, *range(1000))
    one.trim()
    assert one.size_bytes <= 10_000 and held(one)[-1] == 999 and one.count + one.dropped == 1000
    assert one.count > 50  # not more went than had to
    elapse(monkeypatch, 50)
    put(one, 1000)
    elapse(monkeypatch, 20)
    one.trim()
    assert held(one) == [1000] and one.dropped == 1000
    assert [record.message for record in caplog.records if "dropped" in record.message] == [
        "stages.out: messages are dropped: the spool holds 10000 bytes at most"
    ]
    one.close()


@pytest.mark.parametrize("jump_s", [1e9, -1e9])
def test_a_clock_that_is_set_makes_nothing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    one = spool(tmp_path / "a.db", age_s=60)
    put(one, 0)
    one.secure()
    elapse(monkeypatch, 50)
    put(one, 1)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    one.trim()
    assert held(one) == [0, 1]
    elapse(monkeypatch, 20)
    put(one, 2)
    one.trim()
    assert held(one) == [1, 2] and one.dropped == 1
    one.close()
    again = spool(tmp_path / "a.db", age_s=60)  # by another process, which never saw the other time
    again.trim()
    assert held(again) == [1, 2]
    again.close()


def test_a_long_wait_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever puts waits for the lock while what is too old is looked for."""
    one, steps = spool(tmp_path / "a.db", limit=10**9), 0

    def count() -> None:
        nonlocal steps
        steps += 1

    put(one, *range(20_000))
    one.secure()
    one._database.set_progress_handler(count, 100)
    one.trim()
    assert steps <= 2  # of a hundred of SQLite's instructions
    one.close()


def test_it_survives_the_process(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from edgert.stages.sink.send.spool import Spool
one = Spool(Path({str(tmp_path / "a.db")!r}), 1 << 30, 1e6, "x")
for number in range(500):
    one.put("result", "camera", "", b'{{"n":%d}}' % number)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    one = spool(tmp_path / "a.db")
    assert held(one) == list(range(500)) and one.count == 500
    one.close()


def test_it_is_never_shared(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    with pytest.raises(StageError, match="another process sends from"):
        spool(tmp_path / "a.db")
    one.close()
    spool(tmp_path / "a.db").close()


def test_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.db").write_bytes(b"no database, " * 500)
    one = spool(tmp_path / "a.db")
    put(one, 1)
    assert held(one) == [1] and "is damaged" in caplog.text and len(list(tmp_path.glob("a.damaged-*"))) == 1
    one.close()


def zero(path: Path, first: int, last: int | None = None) -> None:
    """Blocks of a file that a medium has lost."""
    data = bytearray(path.read_bytes())
    data[first:last] = bytes(len(data[first:last]))
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["result", "crops"])
def test_damage_behind_the_first_pages_is_put_aside_and_the_rest_saved(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = spool(tmp_path / "a.db")
    put(one, *range(6000), kind=kind)
    one.secure()
    put(one, 6000, kind=kind)
    one.close()
    name, size = one.name, (tmp_path / "a.db").stat().st_size
    zero(tmp_path / "a.db", size // 3, size // 3 + 65536)
    one = spool(tmp_path / "a.db")
    left = held(one, 9000)
    assert left == sorted(left) and 4000 < len(left) < 6000 and left[-1] == 6000 and left[0] == 0 and one.name == name
    assert "is damaged" in caplog.text and f"recovered {len(left) - 1} messages from the" in caplog.text
    one.close()
    again = spool(tmp_path / "a.db")
    assert held(again, 9000) == left and caplog.text.count("is damaged") == 1
    again.close()


def test_damage_that_shows_while_it_is_used_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = spool(tmp_path / "a.db")
    put(one, *range(3000))
    one.secure()
    zero(tmp_path / "a.db", 50_000, 60_000)
    one._database.execute("PRAGMA cache_size=1")
    put(one, 3000)
    numbers = list[int]()
    while messages := one.oldest(256):
        numbers += [json.loads(message.body)["n"] for message in messages]
        one.remove(messages)
        one.secure()
        one.trim()
    assert numbers == sorted(set(numbers)) and len(numbers) > 2000 and numbers[-1] == 3000
    assert "is damaged" in caplog.text and one.count == 0
    one.close()


def test_a_file_that_is_removed_while_it_is_used_is_made_again(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    put(one, 0, 1)
    one.secure()
    for path in tmp_path.glob("a.db*"):
        path.unlink()
    put(one, 2)
    one.secure()
    assert held(one) == [0, 1, 2]
    one.close()
    again = spool(tmp_path / "a.db")
    assert held(again) == [0, 1, 2]
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE messages SET stream = x'ff' || 'ate' WHERE number % 5 = 3",
        "UPDATE messages SET body = NULL WHERE number % 5 = 3",
        "UPDATE messages SET body = 'text' WHERE number % 5 = 3",
        "UPDATE messages SET body = x'7b22' WHERE number % 5 = 3",
        "UPDATE messages SET kind = 7, time = NULL WHERE number % 5 = 3",
        "UPDATE messages SET time = 'x' WHERE number % 5 = 3",
        "UPDATE spool SET opened = 1 << 40",
        "UPDATE spool SET opened = 'x'",
        "UPDATE spool SET name = x'ffff'",
        "UPDATE messages SET number = 1 << 62 WHERE number % 5 = 3",
        "ALTER TABLE messages RENAME COLUMN body TO bodz",
        "DROP TABLE messages",
    ],
)
def test_rows_that_are_none_hold_up_no_other(tmp_path: Path, damage: str) -> None:
    one = spool(tmp_path / "a.db")
    put(one, 0, 1, 2, 3, 4)
    one.secure()
    one.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute(damage)
        database.commit()
    one = spool(tmp_path / "a.db")
    put(one, 5)
    one.trim()
    numbers = held(one)
    assert set(numbers) >= ({5} if "DROP" in damage else {0, 1, 3, 4, 5}), numbers
    one.remove(one.oldest(9))
    assert one.count == 0
    one.close()


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "b.db").touch(0o644)
    umask = os.umask(0)
    try:
        one, other = spool(tmp_path / "new" / "a.db"), spool(tmp_path / "b.db")
        put(one, 1)
        one.secure()
        one.keep_aside(one.oldest(1)[0])
        paths = [*(tmp_path / "new").iterdir(), *tmp_path.glob("b.*")]
        assert len(paths) == 11 and {path.stat().st_mode & 0o777 for path in paths} == {0o600}
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        one.close()
        other.close()
    finally:
        os.umask(umask)


def test_a_folder_in_its_place_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.db").mkdir()
    one = spool(tmp_path / "a.db")
    put(one, 1)
    assert held(one) == [1] and "it is no file" in caplog.text and (tmp_path / "a.db").is_dir()
    one.close()


def test_few_damaged_files_are_kept(tmp_path: Path) -> None:
    for _ in range(6):
        (tmp_path / "a.db").write_bytes(b"no database, " * 500)
        spool(tmp_path / "a.db").close()
    assert len(list(tmp_path.glob("*.damaged-*"))) == 3


def test_a_journal_that_does_not_know_whose_it_is_any_more(tmp_path: Path) -> None:
    journal = killed(tmp_path / "a.db", 0, 1, 2)
    (tmp_path / "a.journal").write_bytes(bytes([journal[0] ^ 1]) + journal[1:12] + b"\xff" * 7 + b"\x7f" + journal[20:])
    one = spool(tmp_path / "a.db")
    assert held(one) == [0, 1, 2] and one.count == 3
    one.close()


def test_where_nothing_can_be_written_it_is_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    one = spool(tmp_path / "file" / "a.db")
    put(one, 1)
    one.secure()
    assert one.path is None and held(one) == [1] and "kept in memory only" in caplog.text
    one.close()


def test_a_full_disk_drops_and_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = spool(tmp_path / "a.db")
    one._database.execute("PRAGMA max_page_count=80")
    for number in range(8000):
        one.put("result", "camera", "", b'{"n":%d,"x":"%s"}' % (number, b"x" * 200))
    assert one.dropped > 1000 and one.count + one.dropped == 8000
    assert caplog.text.count("database or disk is full") == 1
    assert held(one, 8000) == list(range(one.count))
    one.close()


def killed(path: Path, *numbers: int) -> bytes:
    """What the journal has of a process that put these and was killed."""
    one = spool(path)
    put(one, *numbers)
    journal = path.with_suffix(".journal").read_bytes()
    one.close()
    return journal


def test_what_a_power_cut_left_half_written_is_left_out_of_the_journal(tmp_path: Path) -> None:
    journal = killed(tmp_path / "a.db", *range(5))
    at = journal.index(b'{"n":3}')
    for broken, left in (
        (journal[:at] + b"\0" * (len(journal) - at), [0, 1, 2]),
        (journal[:at] + b"!" + journal[at + 1 :], [0, 1, 2, 4]),
        (journal[:at], [0, 1, 2]),
    ):
        (tmp_path / "a.journal").write_bytes(broken)
        one = spool(tmp_path / "a.db")
        assert held(one) == left and one.count == len(left)
        put(one, 9)
        assert held(one) == [*left, 9]
        one.remove(one.oldest(10))
        assert (one.count, one.size_bytes) == (0, 0)
        one.close()


def test_what_the_journal_had_and_the_database_has_comes_once(tmp_path: Path) -> None:
    journal = killed(tmp_path / "a.db", 0, 1, 2)
    (tmp_path / "a.journal").write_bytes(journal)
    one = spool(tmp_path / "a.db")
    one.secure()
    one.close()
    (tmp_path / "a.journal").write_bytes(journal)  # killed before it was emptied
    one = spool(tmp_path / "a.db")
    assert held(one) == [0, 1, 2] and one.count == 3
    one.close()


def test_a_journal_whose_database_is_gone_is_sent_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "b.journal").write_bytes(killed(tmp_path / "a.db", 0, 1, 2))
    one = spool(tmp_path / "b.db")
    put(one, 3)
    assert held(one) == [0, 1, 2, 3] and len({message.id.split("-")[0] for message in one.oldest(9)}) == 1
    one.close()
    again = spool(tmp_path / "b.db")
    assert held(again) == [0, 1, 2, 3]
    again.close()


def test_messages_of_every_size_stay_in_order(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    for number in range(30):
        one.put("result", "camera", "", b'{"n":%d,"x":"%s"}' % (number, b"x" * (number % 5 * 300_000)))
    assert held(one) == list(range(30)) and one.count == 30 and one.size_bytes > 2**20
    one.remove(one.oldest(29))
    assert held(one) == [29] and one.count == 1 and one.size_bytes < 1_200_200
    one.close()


def test_what_a_full_disk_cannot_remove_is_not_sent_again(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    put(one, *range(5))
    one.secure()
    one._database.execute("PRAGMA query_only=ON")
    one.remove(one.oldest(3))
    put(one, 5)
    assert held(one) == [3, 4, 5] and one.count == 3
    one._database.execute("PRAGMA query_only=OFF")
    one.remove(one.oldest(1))
    one.trim()
    assert held(one) == [4, 5] and one.count == 2 and one.size_bytes == 2 * (len(b'{"n":4}') + 64)
    one.close()


def test_without_a_journal_it_costs_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.journal").mkdir()
    one = spool(tmp_path / "a.db")
    put(one, 1, 2)
    assert held(one) == [1, 2] and "the spool works without it" in caplog.text
    one.close()


def test_securing_it_waits_for_nobody(tmp_path: Path) -> None:
    one = spool(tmp_path / "a.db")
    put(one, *range(100))
    one.secure()
    assert stored(tmp_path / "a.db") == 100
    put(one, 100)
    assert one.count == 101
    one.close()
    assert not (tmp_path / "a.db-wal").exists() or (tmp_path / "a.db-wal").stat().st_size == 0


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgert.send")
