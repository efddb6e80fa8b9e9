"""The spool: nothing is lost, order is kept, it stays within its bounds, and damage stops nobody."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgert.errors import StageError
from edgert.stages.sink.send.segment import Message, Segment
from edgert.stages.sink.send.spool import Spool
from tests.helpers.command import ROOT

MANY, OPEN = 1 << 30, list[Spool]()


def spool(path: Path | None, limit: int = MANY, age_s: float = 1e6) -> Spool:
    OPEN.append(Spool(path, limit, age_s, "stages.out"))
    return OPEN[-1]


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


def test_a_message_that_has_an_id_keeps_it(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    numbers = [one.put("result", "camera", "", body) for body in (b'{"id":"abc-1-x","n":0}', b'{"n":1}')]
    first, second = one.oldest(2)
    assert [first.number, second.number] == numbers
    assert (first.id, first.body) == ("abc-1-x", b'{"id":"abc-1-x","n":0}')
    assert second.id == json.loads(second.body)["id"] != "abc-1-x"


@pytest.mark.parametrize("in_memory", [False, True])
def test_messages_come_in_order_until_they_are_removed(tmp_path: Path, in_memory: bool) -> None:
    one = spool(None if in_memory else tmp_path / "new" / "a")
    put(one, *range(10))
    first = one.oldest(4)
    assert held(one, 4) == [0, 1, 2, 3] == [json.loads(message.body)["n"] for message in first]
    one.remove(first[:3])
    one.remove([])
    assert held(one) == list(range(3, 10)) and one.count == 7


def test_what_comes_after_a_number(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(8))
    for count in (2, 6):
        after = one.oldest(count)[-1].number
        assert [json.loads(message.body)["n"] for message in one.oldest(9, after)] == list(range(count, 8))
        assert len(one.oldest(1, after)) == 1
    assert not one.oldest(9, one.oldest(8)[-1].number) and one.count == 8


def test_what_was_acknowledged_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, synced = spool(tmp_path / "a"), list[Path]()
    monkeypatch.setattr("edgert.stages.sink.send.segment.sync_file", synced.append)
    put(one, *range(4))
    last = one.oldest(4)[-1].number
    one.secure(last)
    assert not synced and held(one) == [0, 1, 2, 3]
    put(one, 4)
    one.secure(last)
    one.secure(last)
    assert len(synced) == 1


def test_each_has_an_id_of_its_own_which_stays(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    put(one, 1, 2)
    ids = [message.id for message in one.oldest(2)]
    one.remove(one.oldest(2))
    put(one, 3)
    one.close()
    again = spool(tmp_path / "a")
    (third,) = again.oldest(2)
    assert json.loads(third.body) == {"id": third.id, "n": 3} and len({*ids, third.id}) == 3
    assert third.is_earlier and third.id.startswith(one.name)
    again.close()
    other = spool(tmp_path / "b")
    assert other.name != again.name


def test_the_oldest_go_where_there_are_too_many_or_they_are_too_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = spool(tmp_path / "a", limit=10_000, age_s=60)
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


@pytest.mark.parametrize("jump_s", [1e9, -1e9])
def test_a_clock_that_is_set_makes_nothing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    one = spool(tmp_path / "a", age_s=60)
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
    again = spool(tmp_path / "a", age_s=60)  # by another process, which never saw the other time
    again.trim()
    assert held(again) == [1, 2]


def test_messages_from_before_the_clock_was_first_set_are_as_old_as_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as unset:
        unset.setattr(time, "time", lambda: 40.0)  # a board without a battery, which lost power before NTP answered
        one = spool(tmp_path / "a", age_s=60)
        put(one, 0)
        one.close()
    again = spool(tmp_path / "a", age_s=60)
    again.trim()
    assert held(again) == [0]
    elapse(monkeypatch, 70)
    again.trim()
    assert held(again) == []


def test_a_long_wait_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The putting thread waits for the lock while old messages are looked for."""
    one = spool(tmp_path / "a", limit=10**9)
    put(one, *range(20_000))
    one.secure()
    monkeypatch.setattr(Segment, "rows", None)  # none is read
    one.trim()
    monkeypatch.undo()


def test_of_many_files_few_are_in_memory(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    for number in range(5000):
        one.put("result", "camera", "", b'{"n":%d,"x":"%s"}' % (number, b"x" * 1000))
    after, numbers = -1, list[int]()
    while messages := one.oldest(256, after):
        numbers += [json.loads(message.body)["n"] for message in messages]
        after = messages[-1].number
        assert sum(segment._rows is not None for segment in one._segments) <= 2
    assert numbers == list(range(5000)) and len(list((tmp_path / "a").glob("*.spool"))) > 4
    one.remove(one.oldest(4000))
    one.remove(one.oldest(999))
    assert held(one) == [4999] and one.count == 1 and len(list((tmp_path / "a").glob("*.spool"))) == 1
    one.remove(one.oldest(1))
    one.close()
    assert not list((tmp_path / "a").glob("*.spool"))


def test_it_survives_the_process(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from edgert.stages.sink.send.spool import Spool
one = Spool(pathlib.Path({str(tmp_path / "a")!r}), 1 << 30, 1e6, "x")
for number in range(500):
    one.put("result", "camera", "", b'{{"n":%d}}' % number)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert held(spool(tmp_path / "a")) == list(range(500)) and OPEN[-1].count == 500


def test_long_names_survive_the_process_too(tmp_path: Path) -> None:
    one, rule = spool(tmp_path / "a"), "Tür " * 800
    one.put("event", "camera", rule, b'{"n":1}')
    one.close()
    (found,) = spool(tmp_path / "a").oldest(9)
    assert found.rule == rule and not list((tmp_path / "a").glob("*.damaged"))


def test_it_is_never_shared(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    with pytest.raises(StageError, match="another process sends from"):
        spool(tmp_path / "a")
    one.close()
    spool(tmp_path / "a").close()


def file_of(path: Path) -> Path:
    """The only file of messages."""
    (file,) = path.glob("*.spool")
    return file


def test_damaged_files_are_put_aside_and_few_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    for number in range(2, 8):
        (tmp_path / "a" / f"{number:016x}.spool").write_bytes(b"no messages, " * 500)
        one = spool(tmp_path / "a")
        put(one, 1)
        assert held(one) == [1] and one.oldest(1)[0].number > number
        one.remove(one.oldest(1))
        one.close()
    assert len(list((tmp_path / "a").glob("*.damaged"))) == 3 and "is damaged; 0 of its messages" in caplog.text


def zero(path: Path, first: int, last: int | None = None) -> None:
    """Blocks of a file that a medium has lost."""
    data = bytearray(path.read_bytes())
    data[first:last] = bytes(len(data[first:last]))
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["result", "crops"])
def test_of_a_damaged_file_the_rest_is_sent(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(6000), kind=kind)
    one.close()
    zero(file_of(tmp_path / "a"), 200_000, 200_000 + 65536)
    one = spool(tmp_path / "a")
    left = held(one, 9000)
    assert left == sorted(left) and 4000 < len(left) < 6000 and left[-1] == 5999 and left[0] == 0
    assert f"is damaged; {len(left)} of its messages can be read" in caplog.text
    one.close()
    again = spool(tmp_path / "a")
    assert held(again, 9000) == left
    again.remove(again.oldest(9000))
    again.close()
    assert [path.suffix for path in (tmp_path / "a").iterdir() if path.name != "lock"] == [".damaged"]


def test_damage_that_shows_while_it_is_used_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(30_000))
    first, *_ = sorted((tmp_path / "a").glob("*.spool"))
    zero(first, 50_000, 60_000)
    numbers = list[int]()
    while messages := one.oldest(256):
        numbers += [json.loads(message.body)["n"] for message in messages]
        one.remove(messages)
        one.secure()
        one.trim()
    assert numbers == sorted(set(numbers)) and 29_000 < len(numbers) < 30_000 and numbers[-1] == 29_999
    assert "they are damaged in" in caplog.text and one.count == 0 and one.dropped == 30_000 - len(numbers)


def test_files_that_are_removed_while_they_are_used_end_nothing(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    put(one, 0, 1)
    one.secure()
    file_of(tmp_path / "a").unlink()
    put(one, 2)
    one.secure()
    assert held(one) == [0, 1, 2]
    (tmp_path / "a").rename(tmp_path / "b")
    put(one, *range(3, 30_000))
    assert held(one, 30_000)[-1] == 29_999 and list((tmp_path / "a").glob("*.spool"))


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        one = spool(tmp_path / "new" / "a")
        put(one, 1)
        one.secure()
        one.keep_aside(one.oldest(1)[0])
        paths = list((tmp_path / "new" / "a").iterdir())
        assert len(paths) == 3 and {path.stat().st_mode & 0o777 for path in paths} == {0o600}
        assert (tmp_path / "new" / "a").stat().st_mode & 0o777 == 0o700
        one.close()
    finally:
        os.umask(umask)


@pytest.mark.parametrize("path", ["file", "file/a"])
def test_where_nothing_can_be_written_it_is_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    (tmp_path / "file").write_text("mine")
    one = spool(tmp_path / path)
    put(one, 1)
    one.secure()
    assert one.path is None and held(one) == [1] and "kept in memory only" in caplog.text
    assert (tmp_path / "file").read_text() == "mine" and ("it is no folder" in caplog.text) == (path == "file")


def test_a_block_in_the_wrong_place_hides_no_message(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(15_000))
    one.close()
    first, last = sorted((tmp_path / "a").glob("*.spool"))
    own, other = first.read_bytes(), last.read_bytes()
    first.write_bytes(own[:8192] + own[65536:69632] + other[:4096] + own[16384:])
    left = held(spool(tmp_path / "a"), 20_000)
    assert left == sorted(set(left)) and {*range(int(last.stem, 16), 15_000)} < {*left} and len(left) > 14_880


def test_a_record_in_a_body_is_no_message(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    forged = Message(1 << 40, 0.0, "event", "gate", "yard", b'{"id":"forged-1"}').encode().decode("latin-1")
    one.put("event", "gate", "yard", json.dumps({"x": 40 * " " + "event" + forged}, ensure_ascii=False).encode())
    put(one, 1)
    one.close()
    content = file_of(tmp_path / "a").read_bytes()
    file_of(tmp_path / "a").write_bytes(content[:70] + b"\x01" + content[71:])
    assert held(spool(tmp_path / "a")) == [1]


def test_messages_stay_while_there_are_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(15_000))
    with monkeypatch.context() as busy:
        busy.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        with pytest.raises(OSError, match="Too many open files"):
            one.oldest(5)
        put(one, 15_000)
    assert held(one, 30_000) == list(range(15_001)) and one.dropped == 0


def test_a_disk_that_becomes_read_only_stops_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(15_000))
    with monkeypatch.context() as readonly:
        readonly.setattr(os, "pwrite", Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))))
        readonly.setattr(Segment, "_write_header", lambda _: None)
        put(one, *range(15_000, 30_000))
        one.secure()
        one.remove(one.oldest(100))
    one._segments[0].unload()
    assert held(one, 30_000) == list(range(100, 30_000)) and one.dropped == 0 and one.count == 29_900
    assert caplog.text.count("kept in memory for now") == 1 and "Read-only file system" in caplog.text
    put(one, *range(15_000))
    assert one._segments[-1].path is not None  # on the disk again
    one.close()
    assert one.path is None  # some are in memory alone


def test_strange_files_hold_up_no_other_and_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, mine = tmp_path / "a", tmp_path / "mine"
    (folder / f"{7:016x}.spool").mkdir(parents=True)
    mine.write_text("mine")
    (folder / f"{1:016x}.spool").symlink_to(mine)
    (folder / f"{3 << 62:016x}.spool").touch()  # more than fits into a record
    (folder / "aside.jsonl").symlink_to(mine)
    os.mkfifo(folder / f"{3:016x}.spool")  # opening it waits for a writer
    one = spool(folder)
    put(one, 1)
    assert held(one) == [1] and not one.keep_aside(one.oldest(1)[0]) and mine.read_text() == "mine"
    assert caplog.text.count("cannot read") == 2 and one.path is not None


def test_a_full_disk_drops_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = spool(tmp_path / "a")
    put(one, 0)
    monkeypatch.setattr(time, "monotonic", Mock(return_value=time.monotonic()))  # whose digits are part of the size
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    for number in range(1, 8000):
        one.put("result", "camera", "", b'{"n":%d,"x":"%s"}' % (number, b"x" * 200))
    assert one.dropped > 1000 and one.count + one.dropped == 8000
    assert caplog.text.count("No space left on device") == 1
    assert held(one, 8000) == list(range(one.count))
    monkeypatch.undo()
    for number in range(8000, 8004):
        elapse(monkeypatch, 0.4)
        put(one, number)
    assert held(one, 8004)[-1] == 8003


def test_a_failed_write_into_a_new_file_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = spool(tmp_path / "a")
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    put(one, 1)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["lock"] and one.dropped == 1


def test_what_a_power_cut_left_half_written_is_left_out(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(5))
    file = file_of(tmp_path / "a")
    content = file.read_bytes()
    at = content.index(b'"n":3}')
    one.close()
    for broken, left in (
        (content[:at] + b"\0" * (len(content) - at), [0, 1, 2]),
        (content[:at] + b"!" + content[at + 1 :], [0, 1, 2, 4]),
        (content[:at], [0, 1, 2]),
        (b"\xff" * 20 + content[20:], [0, 1, 2, 3, 4]),
    ):
        file.write_bytes(broken)
        one = spool(tmp_path / "a")
        assert held(one) == left and one.count == len(left)
        put(one, 9)
        assert held(one) == [*left, 9]
        one.remove(one.oldest(10))
        assert (one.count, one.size_bytes) == (0, 0)
        one.close()


def test_what_was_acknowledged_does_not_come_back(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    put(one, *range(9))
    one.remove(one.oldest(9))
    put(one, 9, 10)  # they overwrite the first
    one.remove(one.oldest(1))
    content = file_of(tmp_path / "a").read_bytes()
    one.close()
    file_of(tmp_path / "a").write_bytes(content)
    assert held(spool(tmp_path / "a")) == [10] and not OPEN[-1]._segments[0].is_damaged


def test_messages_of_every_size_stay_in_order(tmp_path: Path) -> None:
    one = spool(tmp_path / "a")
    for number in range(30):
        one.put("result", "camera", "", b'{"n":%d,"x":"%s"}' % (number, b"x" * (number % 5 * 300_000)))
    assert held(one) == list(range(30)) and one.count == 30 and one.size_bytes > 2**20
    one.remove(one.oldest(29))
    assert held(one) == [29] and one.count == 1 and one.size_bytes < 1_200_200


@pytest.fixture(autouse=True)
def _logged_and_closed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "edgert.send")
    yield
    while OPEN:
        OPEN.pop().close()
