"""Images from folders and globs."""

import logging
import os
import struct
import subprocess
import sys
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.dataset.images import open_images
from edgert.errors import StageError
from edgert.runtime import Result
from edgert.runtime.frame import NO_EXTRA, U8, with_planes
from edgert.runtime.json_form import plain_result
from edgert.stages.context import Context
from edgert.stages.source.files import ImageFiles
from edgert.stages.source.stills import is_image
from tests.helpers.errors import raises
from tests.helpers.virtual_clock import VirtualClock


def write(path: Path, value: int, size: tuple[int, int] = (8, 6)) -> None:
    assert cv2.imwrite(str(path), np.full((size[1], size[0], 3), value, np.uint8))


def images(pattern: Path, clock: VirtualClock | None = None, **options: object) -> ImageFiles:
    config = SourceStage.model_validate({"source": f"images:{pattern}", **options})
    return ImageFiles("cam", config, Context(clock=clock or VirtualClock()))


def values(source: ImageFiles) -> list[int]:
    return [int(frame.planes[0][0, 0, 0]) for frame in source.frames(threading.Event())]


def test_numbers_in_names_count_by_value(tmp_path: Path) -> None:
    for number in (10, 9, 1, 100):
        write(tmp_path / f"part{number}.png", number)
    assert values(images(tmp_path)) == [1, 9, 10, 100]


def test_a_folder_leaves_other_files_out_and_a_glob_picks(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 1)
    write(tmp_path / "b.bmp", 2)
    (tmp_path / "labels.txt").write_text("bolt")
    assert values(images(tmp_path)) == [1, 2]
    assert values(images(tmp_path / "*.bmp")) == [2]
    assert values(images(tmp_path / "a.png")) == [1]


def test_a_named_pipe_is_no_image_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    assert not is_image(tmp_path / "a.png")


def test_a_recursive_glob_finds_deeper_images(tmp_path: Path) -> None:
    (tmp_path / "day1").mkdir()
    write(tmp_path / "day1" / "a.png", 3)
    assert values(images(tmp_path / "**" / "*.png")) == [3]


def test_frames_have_the_names_of_their_files_within_what_all_share(tmp_path: Path) -> None:
    for folder in ("day1", "day2"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "é a.png", 1)

    def names(pattern: Path) -> list[str]:
        return [frame.extra.file for frame in images(pattern, limit=2, loop=True).frames(threading.Event())]

    assert names(tmp_path / "*" / "*.png") == ["day1/é a.png", "day2/é a.png"]
    assert names(tmp_path / "day1") == names(tmp_path / "day1" / "é a.png") == ["é a.png"] * 2
    (frame,) = images(tmp_path / "day1").frames(threading.Event())
    for same in (with_planes(frame, frame.planes, frame.lease), frame.crop(0, 0, 4, 4)):
        assert same.extra.file == "é a.png"
    assert plain_result(Result(frame, {}))["file"] == "é a.png"
    assert "file" not in plain_result(Result(replace(frame, extra=NO_EXTRA), {}))


def test_sizes_may_differ(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 1, (8, 6))
    write(tmp_path / "b.png", 2, (5, 9))
    frames = list(images(tmp_path).frames(threading.Event()))
    assert [(frame.width, frame.height, frame.planes[0].shape) for frame in frames] == [
        (8, 6, (6, 8, 3)),
        (5, 9, (9, 5, 3)),
    ]


def test_unreadable_images_are_skipped_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "e.png", 1)
    for name in "abfghi":
        (tmp_path / f"{name}.png").write_bytes(b"not an image")
    source = images(tmp_path)
    assert values(source) == [1]
    assert source.stats().skipped == 6
    assert [[name in line for name in ("a.png", "f.png", "i.png")] for line in caplog.messages] == [
        [True, False, False],
        [False, True, False],
    ]


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    data = bytearray(cv2.imencode(".bmp", np.zeros((8, 6, 3), np.uint8))[1].tobytes())
    struct.pack_into("<ii", data, 18, 30_000, 30_000)
    (tmp_path / "large.bmp").write_bytes(data)
    code = (
        "from pathlib import Path; from edgert.stages.source.stills import read_image as read; read(Path('large.bmp'))"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stderr=-1, text=True, check=True)
    assert process.stderr.startswith("large.bmp is not read, as it has too many pixels")


def test_when_none_is_readable_they_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(7):
        (tmp_path / f"bad{number}.jpg").write_bytes(b"\xff\xd8 no")
    with raises(StageError, what="none of the 7 images", why="bad0.jpg, bad1.jpg") as caught:
        values(images(tmp_path))
    assert "and 2 more" in caught.value.why and not caplog.messages


def test_nothing_found_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "front.png", 1)
    with raises(StageError, why="did you mean 'front.png'?"):
        images(tmp_path / "fromt.png")
    (tmp_path / "link.png").symlink_to("gone.png")
    with pytest.raises(StageError, match=r"a link to gone\.png, which is not there"):
        images(tmp_path / "link.png")
    with pytest.raises(StageError, match="no image"):
        images(tmp_path / "nowhere" / "*.png")
    (tmp_path / "empty").mkdir()
    with raises(StageError, why="holds none"):
        images(tmp_path / "empty")


def test_images_stand_upright_as_exif_says(tmp_path: Path) -> None:
    path = tmp_path / "phone.jpg"
    image = np.zeros((16, 32, 3), np.uint8)
    image[:, :16] = 255
    encoded = cv2.imencode(".jpg", image)[1].tobytes()
    # TIFF header, one entry: orientation (0x0112) = 6, "turn 90 degrees clockwise" (Exif 2.3, 4.6.4).
    exif = (
        b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00"
    )
    path.write_bytes(encoded[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + encoded[2:])
    (frame,) = images(path).frames(threading.Event())
    assert (frame.width, frame.height) == (16, 32)
    assert frame.planes[0][4].mean() > 200 > 50 > frame.planes[0][28].mean()


def test_fps_spreads_media_time_and_loop_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 1)
    write(tmp_path / "b.png", 2)
    frames = list(images(tmp_path, fps=10, loop=True, limit=5).frames(threading.Event()))
    assert [frame.media_ns for frame in frames] == [n * 100_000_000 for n in range(5)]
    assert [frame.index for frame in frames] == list(range(5))


def test_realtime_paces_by_the_clock(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 1)
    clock = VirtualClock()
    list(images(tmp_path, clock, fps=2, loop=True, limit=5, realtime=True).frames(threading.Event()))
    assert clock.now_ns() == 2_000_000_000


def test_a_name_that_is_no_text_is_read_and_written_as_text(tmp_path: Path) -> None:
    """As unzipped archives and old network shares have them: OpenCV dies of such a name."""
    write(tmp_path / "a.png", 1)
    (tmp_path / "a.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    write(tmp_path / "b.png", 2)
    (frame, other) = images(tmp_path).frames(threading.Event())
    assert sorted((int(one.planes[0][0, 0, 0]), plain_result(Result(one, {}))["file"]) for one in (frame, other)) == [
        (1, "caf\\xe9.png"),
        (2, "b.png"),
    ]
    dataset = open_images(tmp_path)
    assert sorted(int(dataset.frame(index).planes[0][0, 0, 0]) for index in range(2)) == [1, 2]


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_tiff_is_turned_by_its_tag(tmp_path: Path, turn: int) -> None:
    """TIFF 6.0, tag 274; as Exif has it, too (CIPA DC-008, 4.6.5)."""
    upright = np.zeros((6, 8, 3), np.uint8)
    upright[:3, :4], upright[3:, :4], upright[:, 4:] = 50, 150, 250
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[turn]
    _, data = cv2.imencode(".tif", np.ascontiguousarray(stored), (cv2.IMWRITE_TIFF_COMPRESSION, 1))
    (tmp_path / "a.tif").write_bytes(_with_tag(data.tobytes(), 274, turn))
    (frame,) = images(tmp_path).frames(threading.Event())
    assert (frame.width, frame.height) == (8, 6)
    assert np.array_equal(frame.planes[0], upright)


def _with_tag(tiff: bytes, tag: int, value: int) -> bytes:
    """A little-endian TIFF with a tag of one short integer."""
    (place,) = struct.unpack_from("<I", tiff, 4)
    (count,) = struct.unpack_from("<H", tiff, place)
    entries = [tiff[place + 2 + 12 * index :][:12] for index in range(count)]
    entries = [entry for entry in entries if struct.unpack_from("<H", entry)[0] != tag]
    entries.append(struct.pack("<HHIHH", tag, 3, 1, value, 0))
    entries.sort(key=lambda entry: struct.unpack_from("<H", entry))
    tiff += bytes(len(tiff) % 2)
    head = tiff[:4] + struct.pack("<I", len(tiff))
    return head + tiff[8:] + struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)


@pytest.mark.parametrize(
    ("suffix", "said"), [(".webp", "play it as a video"), (".png", ".apng"), (".tif", "pages"), (".jpg", "")]
)
def test_of_a_file_with_several_images_the_first_is_read_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, said: str
) -> None:
    pixels = [np.full((6, 8, 3), value, np.uint8) for value in (10, 200, 90)]
    if suffix == ".tif":
        cv2.imwritemulti(str(tmp_path / "a.tif"), pixels)
    elif suffix == ".jpg":
        write(tmp_path / "a.jpg", 10)
    else:
        _write_animation(tmp_path / f"a{suffix}", pixels)
    with caplog.at_level(logging.WARNING):
        found = values(images(tmp_path, loop=True, limit=3))
        assert abs(open_images(tmp_path).frame(0).planes[0].astype(int) - 10).max() < 4
    assert len(found) == 3 and max(found) < 14
    of_source = [one.getMessage() for one in caplog.records if one.name == "edgert.source"]
    of_dataset = [one.getMessage() for one in caplog.records if one.name == "edgert.dataset"]
    assert len(of_source) == len(of_dataset) == bool(said)
    assert all(said in one and f"a{suffix}" in one for one in of_source + of_dataset)


def _write_animation(path: Path, pixels: list[U8]) -> None:
    """WebP as its container has it (RIFF), PNG as APNG has it; each image whole."""
    stills = [cv2.imencode(path.suffix, one)[1].tobytes() for one in pixels]
    if path.suffix == ".webp":
        size = b"\x07\0\0\x05\0\0"  # 8x6, less one
        frames = [b"\0" * 6 + size + b"\x64\0\0\0" + still[12:] for still in stills]
        chunks = [(b"VP8X", b"\x02\0\0\0" + size), (b"ANIM", bytes(6)), *((b"ANMF", one) for one in frames)]
        body = b"WEBP" + b"".join(kind + struct.pack("<I", len(data)) + data for kind, data in chunks)
        path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
        return
    data = struct.pack(">II", 1, 0)
    chunk = struct.pack(">I", 8) + b"acTL" + data + struct.pack(">I", zlib.crc32(b"acTL" + data))
    path.write_bytes(stills[0][:33] + chunk + stills[0][33:])
