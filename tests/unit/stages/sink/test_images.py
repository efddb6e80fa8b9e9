import errno
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from edgert.errors import StageError
from edgert.memory import Counter
from edgert.runtime.records import Result
from edgert.stages.sink.image_files import ImagesSink
from tests.helpers.frames import frame_of
from tests.helpers.written import names, opened, write


def test_a_folder_gets_one_file_per_frame_and_stream(tmp_path: Path) -> None:
    write(ImagesSink("s", tmp_path / "out"), *(Result(frame_of(stream=s, index=n)) for n in (0, 5) for s in "ab"))
    assert names(tmp_path) == ["out/a_000000.jpg", "out/a_000005.jpg", "out/b_000000.jpg", "out/b_000005.jpg"]


def test_a_pattern_makes_its_folders(tmp_path: Path) -> None:
    write(ImagesSink("s", tmp_path / "{stream}/{frame:03d}.png"), Result(frame_of(stream="cam", index=4)))
    assert names(tmp_path) == ["cam/004.png"]


def test_every_nth_of_each_stream(tmp_path: Path) -> None:
    frames = (Result(frame_of(stream=s, index=n)) for n in range(3, 10) for s in "ab")
    write(ImagesSink("s", tmp_path, every=3), *frames)
    assert names(tmp_path) == [f"{s}_{n:06d}.jpg" for s in "ab" for n in (3, 6, 9)]


@pytest.mark.parametrize("form", ["bgr", "rgb", "i420", "nv12", "yuyv", "gray"])
def test_pixels_survive(tmp_path: Path, form: str) -> None:
    counter = Counter()
    frame = frame_of(33, 17, form, counter=counter)  # type: ignore[arg-type]
    write(ImagesSink("s", tmp_path / "{frame}.png"), Result(frame))
    assert counter.read().copies == (form != "bgr")
    assert np.array_equal(cv2.imread(str(tmp_path / "0.png")), frame.to_bgr())


def test_the_drawn_image_is_preferred(tmp_path: Path) -> None:
    drawn = np.full((5, 6, 3), 77, np.uint8)
    write(ImagesSink("s", tmp_path / "{frame}.png"), replace(Result(frame_of()), image=drawn))
    assert np.array_equal(cv2.imread(str(tmp_path / "0.png")), drawn)


def test_without_a_frame_number_the_file_is_the_newest(tmp_path: Path) -> None:
    frames = [Result(frame_of(index=n)) for n in range(3)]
    write(ImagesSink("s", tmp_path / "latest.png"), *frames)
    assert names(tmp_path) == ["latest.png"]
    assert np.array_equal(cv2.imread(str(tmp_path / "latest.png")), frames[-1].frame.planes[0])


def test_two_streams_into_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="2 streams") as caught:
        write(ImagesSink("s", tmp_path / "{frame}.png"), Result(frame_of(stream="a")), Result(frame_of(stream="b")))
    assert "{stream}" in caught.value.fix


@pytest.mark.parametrize("name", ["x.gif", "{frame}.txt", "{camera}.jpg"])
def test_unknown_formats_and_fields_are_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    with pytest.raises(StageError):
        ImagesSink("s", tmp_path / name)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(ImagesSink("s", tmp_path)) as sink:
        sink.process(Result(frame_of(index=0)))
        whole = Path.write_bytes

        def full(path: Path, data: memoryview) -> int:
            whole(path, memoryview(data).cast("B")[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(StageError, match="cannot write") as caught:
            sink.process(Result(frame_of(index=1)))
        assert "No space left" in caught.value.why
        assert names(tmp_path) == ["camera_000000.jpg"]
        assert cv2.imread(str(tmp_path / "camera_000000.jpg")).shape == (48, 64, 3)


def test_what_could_not_be_opened_can_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ImagesSink("s", tmp_path)
    sink._parts.mkdir()
    (sink._parts / "1.jpg").write_bytes(b"left by a process that was killed")
    with monkeypatch.context() as disk:
        disk.setattr(Path, "unlink", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(StageError, match="cannot write"):
            sink.open()
    write(sink, Result(frame_of(index=4)))
    assert names(tmp_path) == ["camera_000004.jpg"]
