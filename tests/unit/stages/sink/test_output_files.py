"""Names, locks, rotation and the removal of old files, by a clock and a disk of the test's own."""

import errno
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from edgert.errors import StageError
from edgert.runtime.records import Result
from edgert.stages.sink import output_file, retention
from edgert.stages.sink.image_files import ImagesSink
from edgert.stages.sink.output_file import DISK, Files, OutputFile
from edgert.stages.sink.results import JsonlSink
from edgert.stages.sink.retention import Rules
from tests.helpers.frames import frame_of, result_of
from tests.helpers.waiting import wait_until
from tests.helpers.written import names, opened, write

START_S = 1_800_000_000.0
ASIDE = r"-\d{4}-\d\d-\d\d-\d{6}(-\d+)?"
KEEPS = Rules(keeps=True)


class Clocks:
    """Time of day and monotonic time, each as the test sets it; files that are written get their date by it."""

    def __init__(self) -> None:
        self.day_s, self.passed_s = START_S, 1000.0

    def go_on(self, seconds: float) -> None:
        self.day_s += seconds
        self.passed_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    fake = SimpleNamespace(
        time=lambda: clocks.day_s,
        monotonic=lambda: clocks.passed_s,
        strftime=time.strftime,
        localtime=lambda at=None: time.gmtime(clocks.day_s if at is None else at),
    )
    monkeypatch.setattr(output_file, "time", fake)
    monkeypatch.setattr(retention, "time", fake)
    return clocks


def lines(path: Path) -> list[int]:
    return [json.loads(line)["frame"] for line in path.read_text().splitlines()]


def frames(count: int, first: int = 0, stream: str = "camera") -> Iterator[Result]:
    return (result_of(frame_of(2, 2, index=index, stream=stream)) for index in range(first, first + count))


def finished(files: Files, clocks: Clocks, stream: str, size_bytes: int) -> Path:
    """One file of a sink, written, finished and dated."""
    file = files.begin(stream)
    file.write(b"x" * size_bytes)
    files.finish(file)
    DISK.wait(10.0)
    os.utime(file.path, (clocks.day_s, clocks.day_s))
    return file.path


# What an earlier run left.


def test_a_camera_s_restart_adds_lines(tmp_path: Path) -> None:
    for first in (0, 3):
        write(JsonlSink("events", tmp_path / "out.jsonl", KEEPS), *frames(3, first))
    assert lines(tmp_path / "out.jsonl") == list(range(6)) and names(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize("tail", [b'{"stream":"cam', b"\0" * 5000, b'{"a":"' + b"x" * 200_000])
@pytest.mark.parametrize("whole", [0, 2])
def test_a_torn_last_line_is_cut(tmp_path: Path, tail: bytes, whole: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out.jsonl"
    write(JsonlSink("events", path), *frames(whole))
    with path.open("ab") as file:
        file.write(tail)
    write(JsonlSink("events", path, KEEPS), *frames(2, whole))
    assert lines(path) == list(range(whole + 2)) and "was cut off" in caplog.text


def test_lines_are_added_to_json_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nare long")
    with pytest.raises(StageError, match="cannot append to") as caught:
        JsonlSink("events", path, KEEPS).open()
    assert "existing: replace" in caught.value.fix and path.read_text() == "my notes\nare long"
    write(JsonlSink("events", path), *frames(1))
    assert lines(path) == [0]


def test_a_line_without_an_end_is_not_searched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_file, "_LONGEST_LINE_BYTES", 1 << 16)
    (tmp_path / "out.jsonl").write_bytes(b"{" * (1 << 18))
    with pytest.raises(StageError, match="cannot append"):
        JsonlSink("events", tmp_path / "out.jsonl", KEEPS).open()


def test_images_of_an_earlier_run_stay(tmp_path: Path) -> None:
    for _ in range(3):
        write(ImagesSink("s", tmp_path, rules=KEEPS), *(Result(frame_of(index=n)) for n in range(2)))
    assert names(tmp_path) == [f"camera_00000{n}{run}.jpg" for n in (0, 1) for run in ("-2", "-3", "")]


def test_dated_images_of_one_second_get_numbers(tmp_path: Path, clocks: Clocks) -> None:
    write(ImagesSink("s", tmp_path / "{time}.jpg"), *(Result(frame_of(index=n)) for n in range(3)))
    assert names(tmp_path) == ["080000-2.jpg", "080000-3.jpg", "080000.jpg"]


# Names.


def test_a_name_with_a_date_that_is_taken_gets_a_number(tmp_path: Path, clocks: Clocks) -> None:
    """As when a clock is set back, or at the end of daylight saving time."""
    sink = JsonlSink("events", tmp_path / "{stream}-{date}-{time}.jsonl", Rules(keeps=True, rotate_s=60.0))

    def an_hour_again() -> None:
        clocks.go_on(3600.0)
        clocks.day_s -= 3600.0

    write(sink, *frames(3), each=an_hour_again)
    stem = "camera-2027-01-15-080000"
    assert {name: lines(tmp_path / name) for name in names(tmp_path)} == {
        f"{stem}.jsonl": [0],
        f"{stem}-2.jsonl": [1],
        f"{stem}-3.jsonl": [2],
    }


def test_dates_can_be_folders(tmp_path: Path, clocks: Clocks) -> None:
    sink = JsonlSink("events", tmp_path / "{date}" / "{stream}.jsonl", Rules(keeps=True, rotate_s=60.0))
    write(sink, *frames(2), each=lambda: clocks.go_on(86_400.0))
    assert names(tmp_path) == ["2027-01-15/camera.jsonl", "2027-01-16/camera.jsonl"]


def test_what_stands_there_is_renamed_after_its_last_change(tmp_path: Path, clocks: Clocks) -> None:
    files = Files(tmp_path / "out.mp4", KEEPS, "stages.video")
    for content in (b"first", b"second", b"third"):
        file = files.begin("camera")
        file.write(content)
        files.finish(file)
        os.utime(file.path, (START_S, START_S))
    assert [(tmp_path / name).read_bytes() for name in names(tmp_path)] == [b"second", b"first", b"third"]
    assert names(tmp_path) == ["out-2027-01-15-080000-2.mp4", "out-2027-01-15-080000.mp4", "out.mp4"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "disk" / "lines.jsonl")
    (tmp_path / "disk" / "lines.jsonl").touch()
    sink = JsonlSink("events", tmp_path / "out.jsonl", Rules(keeps=True, rotate_bytes=100))
    write(sink, *frames(2))
    assert (tmp_path / "out.jsonl").is_symlink() and lines(tmp_path / "out.jsonl") == [1]
    assert len(names(tmp_path / "disk")) == 2


@pytest.mark.parametrize("stream", ["../up", "a/b", "a\x00b", ".hidden", "ü b", "x" * 20])
def test_names_of_streams_stay_in_their_folder(tmp_path: Path, stream: str) -> None:
    rules = Rules(keeps=True, rotate_bytes=1, keep_bytes=1)
    write(JsonlSink("events", tmp_path / "out" / "{stream}.jsonl", rules), *frames(3, stream=stream))
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {tmp_path / "out"}


# Rotation.


def test_a_file_never_becomes_larger(tmp_path: Path) -> None:
    write(JsonlSink("events", tmp_path / "out.jsonl", Rules(keeps=True, rotate_bytes=200)), *frames(20))
    found = [tmp_path / name for name in names(tmp_path)]
    assert all(re.fullmatch(f"out({ASIDE})?.jsonl", path.name) for path in found)
    assert max(path.stat().st_size for path in found) <= 200
    assert sorted(index for path in found for index in lines(path)) == list(range(20))


def test_a_file_that_became_old_while_nobody_wrote_it(tmp_path: Path, clocks: Clocks) -> None:
    rules, path = Rules(keeps=True, rotate_s=3600.0), tmp_path / "out.jsonl"
    for count, first in ((2, 0), (1, 2), (1, 3)):
        write(JsonlSink("events", path, rules), *frames(count, first))
        os.utime(path, (START_S, START_S))
        clocks.go_on(1800.0)
    assert [lines(tmp_path / name) for name in names(tmp_path)] == [[0, 1, 2], [3]]


def test_a_clock_that_is_set_ends_no_file(tmp_path: Path, clocks: Clocks) -> None:
    sink = JsonlSink("events", tmp_path / "out.jsonl", Rules(keeps=True, rotate_s=3600.0))
    jumps = iter([10 * 365 * 86_400.0, -20 * 365 * 86_400.0, 0.0])

    def jump() -> None:
        clocks.day_s += next(jumps)

    write(sink, *frames(3), each=jump)
    assert names(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize("rules", [Rules(rotate_bytes=100), Rules(keep_s=5.0)])
def test_a_pipe_cannot_rotate(tmp_path: Path, rules: Rules) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(StageError, match="cannot rotate") as caught:
        JsonlSink("events", tmp_path / "pipe", rules).open()
    os.close(reader)
    assert "no regular file" in caught.value.why


# Which files go.


def test_the_oldest_go_where_all_take_too_much(tmp_path: Path, clocks: Clocks) -> None:
    rules = Rules(keeps=True, rotate_bytes=10, keep_bytes=100)
    files = Files(tmp_path / "{stream}-{time}.jsonl", rules, "stages.events")
    paths = []
    for _ in range(8):
        paths.append(finished(files, clocks, "cam", 30))
        clocks.go_on(10.0)
        files.remove_old()
    assert names(tmp_path) == [path.name for path in paths[-3:]]


def test_files_of_earlier_runs_count(tmp_path: Path, clocks: Clocks) -> None:
    rules = Rules(keeps=True, rotate_bytes=10, keep_s=3600.0)
    for name, age_s in (("075820", 100.0), ("065320", 4000.0), ("092320", -5000.0)):  # the last: a clock was set back
        (tmp_path / f"cam-{name}.mp4").write_bytes(b"x")
        os.utime(tmp_path / f"cam-{name}.mp4", (START_S - age_s, START_S - age_s))
    files = Files(tmp_path / "{stream}-{time}.mp4", rules, "stages.video")
    finished(files, clocks, "cam", 1)
    files.remove_old()
    assert names(tmp_path) == ["cam-075820.mp4", "cam-080000.mp4", "cam-092320.mp4"]


def test_nothing_becomes_old_when_a_clock_is_set(tmp_path: Path, clocks: Clocks) -> None:
    """A board without a battery starts in 1970, until it finds the network."""
    clocks.day_s = 100.0
    rules = Rules(keeps=True, rotate_bytes=10, keep_s=7 * 86_400.0)
    (tmp_path / "cam-000010.mp4").write_bytes(b"of an earlier start")
    os.utime(tmp_path / "cam-000010.mp4", (10.0, 10.0))
    files = Files(tmp_path / "{stream}-{time}.mp4", rules, "stages.video")
    finished(files, clocks, "cam", 1)
    clocks.go_on(5.0)
    clocks.day_s = START_S
    finished(files, clocks, "cam", 1)
    files.remove_old()
    files._retention.add_stream("another")  # the folder is listed again
    files.remove_old()
    assert len(names(tmp_path)) == 3
    clocks.go_on(8 * 86_400.0)
    files.remove_old()
    assert names(tmp_path) == []


def test_only_files_of_the_sink_go(tmp_path: Path, clocks: Clocks) -> None:
    others = ["holiday.mp4", "south-2027-01-01-000000.mp4", "north.mp4.bak", "north-best.mp4", "sub/north.mp4", "x/y"]
    for name in others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 100)
    (tmp_path / "north-2027-01-01-000001.mp4").symlink_to(tmp_path / "holiday.mp4")
    files = Files(tmp_path / "{stream}.mp4", Rules(keeps=True, rotate_bytes=10, keep_bytes=11), "stages.video")
    for _ in range(4):
        finished(files, clocks, "north", 10)
        clocks.go_on(2.0)
        files.remove_old()
    left = names(tmp_path)
    assert set(others) <= set(left) and "north-2027-01-01-000001.mp4" in left
    assert len(left) <= len(others) + 1 + 2


def test_a_file_that_somebody_writes_stays(tmp_path: Path, clocks: Clocks) -> None:
    (tmp_path / "cam-000001.mp4").write_bytes(b"x" * 100)
    with (tmp_path / "cam-000001.mp4").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        files = Files(tmp_path / "{stream}-{time}.mp4", Rules(rotate_bytes=10, keep_bytes=11), "stages.video")
        finished(files, clocks, "cam", 5)
        files.remove_old()
    assert "cam-000001.mp4" in names(tmp_path)


def test_empty_files_of_a_killed_run_go_and_no_others(tmp_path: Path, clocks: Clocks) -> None:
    own = ["cam-2027-01-01-000001.mp4", "cam-2027-01-01-000001-2.mp4"]
    others = ["cam-x.mp4", "door-2027-01-01-000001.mp4", "cam-2027-01-02-000001.mp4", "cam-2027-01-03-000001.mp4"]
    for name in (*own, *others):
        (tmp_path / name).touch()
    (tmp_path / others[2]).write_bytes(b"x")
    with (tmp_path / others[3]).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # another process has just begun it
        files = Files(tmp_path / "{stream}-{date}-{time}.mp4", Rules(keeps=True), "stages.video")
        finished(files, clocks, "cam", 5)
    assert set(others) < set(names(tmp_path)) and not set(own) & set(names(tmp_path))
    (tmp_path / own[0]).touch()
    clocks.go_on(1.0)
    lines = Files(tmp_path / "{stream}-{date}-{time}.mp4", Rules(keeps=True), "stages.lines")
    lines.finish(lines.begin("cam", appends=True))
    assert own[0] in names(tmp_path), "a file of lines may be empty"


def test_folders_that_become_empty_go(tmp_path: Path, clocks: Clocks) -> None:
    rules = Rules(keeps=True, rotate_s=60.0, keep_s=2 * 86_400.0)
    files = Files(tmp_path / "{date}" / "{stream}" / "{time}.mp4", rules, "stages.video")
    for _ in range(6):
        finished(files, clocks, "cam", 5)
        clocks.go_on(86_400.0)
        files.remove_old()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2027-01-19", "2027-01-20"]


def test_too_little_is_free(tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 1000

    def disk(path: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=room - sum(one.stat().st_size for one in tmp_path.rglob("*.mp4")), f_frsize=1)

    monkeypatch.setattr(os, "statvfs", disk)
    files = Files(tmp_path / "{stream}-{time}.mp4", Rules(rotate_bytes=10, free_bytes=500), "stages.video")
    for _ in range(20):
        finished(files, clocks, "cam", 100)
        clocks.go_on(2.0)
        files.remove_old()
    assert len(names(tmp_path)) == 5
    room = 300
    clocks.go_on(2.0)
    files.remove_old()
    clocks.go_on(9.0)
    files.remove_old()  # another sink may make room
    clocks.go_on(2.0)
    with pytest.raises(StageError, match="are free for") as caught:
        files.remove_old()
    assert "keep.free" in caught.value.why and names(tmp_path) == []


def test_a_full_disk_makes_room(tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, room = os.write, 1000

    def small_disk(descriptor: int, data: memoryview) -> int:
        free = room - sum(one.stat().st_size for one in tmp_path.iterdir())
        if free <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(descriptor, data[:free])

    monkeypatch.setattr(os, "write", small_disk)
    path, rules = tmp_path / "out.jsonl", Rules(keeps=True, rotate_bytes=300, keep_s=1e9)
    write(JsonlSink("events", path, rules), *frames(100))
    found = sorted(index for name in names(tmp_path) for index in lines(tmp_path / name))
    assert found == list(range(found[0], 100)) and len(found) >= 5
    with pytest.raises(StageError, match="No space left"):
        write(JsonlSink("events", tmp_path / "all.jsonl", Rules(keeps=True, rotate_bytes=300)), *frames(100))
    assert all(lines(tmp_path / name) for name in names(tmp_path) if (tmp_path / name).stat().st_size)


def test_old_files_that_cannot_be_removed_end_nothing_and_nothing_is_tried_for_ever(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path / "{stream}-{time}.mp4", Rules(rotate_bytes=10, keep_bytes=11), "stages.video")
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
    for _ in range(4):
        finished(files, clocks, "cam", 10)
        clocks.go_on(2.0)
        files.remove_old()
    assert not files.make_room()
    assert len(names(tmp_path)) == 4 and caplog.text.count("cannot remove") == 1


def test_images_go_too_and_the_folder_is_not_listed_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, scandir = [0], os.scandir

    def counted(path: str) -> object:
        listed[0] += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    monkeypatch.setattr(retention, "_REMOVAL_PERIOD_S", 0.0)
    sink = ImagesSink("s", tmp_path, rules=Rules(keeps=True, keep_bytes=20_000))
    write(sink, *(Result(frame_of(index=n)) for n in range(300)), each=sink.sync)
    listings = listed[0]
    sizes = [(tmp_path / name).stat().st_size for name in names(tmp_path)]
    assert listings <= 2 and sum(sizes) <= 20_000 + 2 * max(sizes)
    assert "camera_000299.jpg" in names(tmp_path) and "camera_000000.jpg" not in names(tmp_path)


def test_more_files_than_are_remembered(tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MAX_REMEMBERED", 10)
    for number in range(50):
        (tmp_path / f"cam-{number:06d}.mp4").write_bytes(b"x")
        os.utime(tmp_path / f"cam-{number:06d}.mp4", (START_S - 100 + number, START_S - 100 + number))
    files = Files(tmp_path / "{stream}-{time}.mp4", Rules(rotate_bytes=10, keep_bytes=20), "stages.video")
    finished(files, clocks, "cam", 0)
    files.remove_old()
    assert names(tmp_path)[:-1] == [f"cam-{number:06d}.mp4" for number in range(30, 50)]


def test_images_without_a_number_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="has no effect on") as caught:
        ImagesSink("s", tmp_path / "latest.jpg", rules=Rules(keep_s=5.0))
    assert "{frame}" in caught.value.fix


# The disk.


def test_what_is_written_reaches_the_disk_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fdatasync = dict[int, int](), os.fdatasync

    def seen(descriptor: int) -> None:
        fdatasync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fdatasync", seen)
    with opened(JsonlSink("events", tmp_path / "out.jsonl", KEEPS)) as sink:
        for result in frames(3):
            sink.process(result)
            file = (tmp_path / "out.jsonl").stat()
            wait_until(lambda file=file: synced.get(file.st_ino) == file.st_size)


def test_a_disk_that_fails_when_it_is_asked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(JsonlSink("events", tmp_path / "out.jsonl", KEEPS)) as sink:
        monkeypatch.setattr(os, "fdatasync", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        deadline = time.monotonic() + 10.0
        with pytest.raises(StageError, match="cannot write") as caught:
            while time.monotonic() < deadline:
                sink.process(next(frames(1)))
                time.sleep(0.01)
    assert "Input/output error" in caught.value.why
    DISK.wait(10.0)
    assert f"{tmp_path}/out.jsonl: the last writes may be lost: Input/output error" in caplog.text


def test_a_file_system_without_locks_or_syncs_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_here = Mock(side_effect=OSError(errno.EOPNOTSUPP, "not supported"))
    monkeypatch.setattr(fcntl, "flock", not_here)
    monkeypatch.setattr(os, "fdatasync", not_here)
    for first in (0, 3):
        write(JsonlSink("events", tmp_path / "out.jsonl", KEEPS), *frames(3, first))
    write(ImagesSink("s", tmp_path), Result(frame_of()))
    assert lines(tmp_path / "out.jsonl") == list(range(6))


def test_nothing_is_left_open(tmp_path: Path) -> None:
    for index in range(3):
        write(JsonlSink("events", tmp_path / "out.jsonl", Rules(keeps=True, rotate_bytes=100)), *frames(20))
        write(ImagesSink("s", tmp_path), Result(frame_of(index=index)))
    wait_until(lambda: not any(one.name == "edgert-disk" for one in threading.enumerate()))
    targets = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]  # noqa: PTH115
    assert not [target for target in targets if target.startswith(str(tmp_path))]


def test_a_file_that_cannot_be_emptied_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("{}\n")
    with monkeypatch.context() as patch, pytest.raises(StageError, match="cannot write"):
        patch.setattr(OutputFile, "cut", lambda *_: Path("/nowhere").stat())
        JsonlSink("events", path).open()
    write(JsonlSink("events", path), *frames(1))
    assert lines(path) == [0]


def test_two_writers_of_one_process(tmp_path: Path) -> None:
    with opened(JsonlSink("a", tmp_path / "out.jsonl")):
        (tmp_path / "same.jsonl").hardlink_to(tmp_path / "out.jsonl")
        with pytest.raises(StageError, match="cannot write") as caught:
            JsonlSink("b", tmp_path / "same.jsonl").open()
    assert "another stage or stream of this process" in caught.value.why
    OutputFile(tmp_path / "out.jsonl", "stages.a").close()
