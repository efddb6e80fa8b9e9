"""Recordings that the page plays: what an index names, and nothing else."""

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from edgert.stages.sink.web import clip_index
from edgert.stages.sink.web.clip_index import ClipIndex
from tests.helpers.http_request import live_page
from tests.helpers.written import opened


def line(path: str, *events: str, annotated: bool = False) -> str:
    return json.dumps({"path": path, "annotated": annotated, "events": [{"id": one} for one in events]}) + "\n"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(bytes(range(100)))
    return folder / "clips.jsonl"


def test_a_clip_is_found_by_its_events_once_it_is_finished(index: Path) -> None:
    clips = ClipIndex(index)
    clips.refresh()
    assert clips.count == 0 and clips.address("ab") == ""
    index.write_text(line("a.mp4", "ab", "cd")[:-5])
    clips.refresh()
    assert clips.count == 0, "half a line"
    index.write_text(line("a.mp4", "ab", "cd"))
    clips.refresh()
    assert clips.count == 1 and clips.address("cd") == "/clips/cd.mp4"
    with index.open("a") as file:
        file.write(line("gone.mp4", "ef") + "damaged\n" + line("a.mp4", "01"))
    clips.refresh()
    assert clips.address("ef") == "" and clips.address("01") == "/clips/01.mp4" and clips.count == 3
    index.write_text(line("a.mp4", "02"))
    clips.refresh()
    assert clips.address("02") == "/clips/02.mp4", "an index that begins anew"


@pytest.mark.parametrize(
    "noise", ["[" * 100_000, line("a\0.mp4", "cd"), line("\ud800.mp4", "cd"), line("loop/x", "cd")]
)
def test_noise_in_an_index_hides_no_clip(index: Path, noise: str) -> None:
    (index.parent / "loop").symlink_to("loop")
    index.write_text(noise + "\n" + line("a.mp4", "ab"))
    clips = ClipIndex(index)
    clips.refresh()
    assert clips.address("ab") == "/clips/ab.mp4" and clips.address("cd") == ""


def test_what_was_drawn_on_is_preferred(index: Path) -> None:
    (index.parent / "a-annotated.mp4").write_bytes(b"drawn")
    index.write_text(line("a-annotated.mp4", "ab", annotated=True) + line("a.mp4", "ab"))
    clips = ClipIndex(index)
    clips.refresh()
    found = clips.part("/clips/ab.mp4", "")
    assert found is not None and found.body == b"drawn"


@pytest.mark.parametrize("path", ["../secret.mp4", "/etc/passwd", "link.mp4", "clips.jsonl"])
def test_nothing_else_is_given(index: Path, path: str) -> None:
    (index.parent / "link.mp4").symlink_to(index.parent.parent / "secret.mp4")
    index.write_text(line(path, "ab"))
    clips = ClipIndex(index)
    clips.refresh()
    assert clips.address("ab") == ""
    for address in ("/clips/ab.mp4", "/clips/../secret.mp4", "/clips/a.mp4", "/clips/ab", "/clips/"):
        assert clips.part(address, "") is None


def test_parts_of_a_file(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.write_text(line("a.mp4", "ab"))
    clips, whole = ClipIndex(index), bytes(range(100))
    clips.refresh()
    for wanted, status, content in (
        ("", 206, whole),
        ("bytes=0-", 206, whole),
        ("bytes=10-19", 206, whole[10:20]),
        ("bytes=90-500", 206, whole[90:]),
        ("bytes=-5", 206, whole[-5:]),
        ("bytes=100-", 416, b""),
        ("bytes=-", 206, whole),
        ("lines=1-2", 206, whole),
    ):
        found = clips.part("/clips/ab.mp4", wanted)
        assert found is not None and (found.status, found.body) == (status, content), wanted
    monkeypatch.setattr(clip_index, "PART_BYTES", 30)
    found = clips.part("/clips/ab.mp4", "bytes=5-")
    assert found is not None and found.body == whole[5:35] and found.headers["Content-Range"] == "bytes 5-34/100"
    (index.parent / "a.mp4").unlink()
    assert clips.part("/clips/ab.mp4", "") is None


def test_the_page_gives_whole_files_and_parts(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_index, "PART_BYTES", 30)
    index.write_text(line("a.mp4", "ab"))
    with opened(live_page(clips=index)) as sink:
        with urlopen(f"{sink.url}stats.json") as answer:
            assert json.loads(answer.read())["events"] == 1
        with urlopen(f"{sink.url}clips/ab.mp4") as answer:
            assert answer.read() == bytes(range(100)) and answer.headers["Content-Type"] == "video/mp4"
        with urlopen(Request(f"{sink.url}clips/ab.mp4", headers={"Range": "bytes=60-"})) as answer:
            assert (answer.status, answer.read()) == (206, bytes(range(60, 90)))
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{sink.url}clips/cd.mp4")
