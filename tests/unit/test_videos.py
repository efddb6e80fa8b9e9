"""The videos of a source: which they are, what each is called, which pipelines they cannot go with, what is done."""

import json
import os
from pathlib import Path

import pytest

from edgert.config import load_pipeline
from edgert.errors import ConfigError, StageError
from edgert.pipeline import Pipeline
from edgert.validation import validate
from edgert.videos import Journal, videos_of
from tests.helpers.clips import write_clip
from tests.helpers.errors import raises

SINK = "  end: {sink: jsonl, from: cam, path: 'out/{file}.jsonl'}\n"


def write(folder: Path, source: str, more: str = SINK) -> Path:
    file = folder / "p.yaml"
    file.write_text(f"stages:\n  cam: {{source: '{source}'}}\n{more}")
    return file


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(file: Path) -> list[str]:
    return [video.path.name for video in videos_of(load_pipeline(file))]


@pytest.mark.parametrize("source", ["videos:vids/*.mp4", "videos:vids", "vids/*.mp4", "vids", "videos:vids/*"])
def test_a_folder_or_a_pattern_of_videos_is_played_in_natural_order(source: str, tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a10.mp4", "a2.mp4", "a1.mp4", "._a1.mp4", "notes.txt")
    assert found(write(tmp_path, source)) == ["a1.mp4", "a2.mp4", "a10.mp4"]


def test_any_file_may_be_named_by_its_own_suffix(tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a.dat", "b.dat", "c.txt")
    assert found(write(tmp_path, "videos:vids/*.dat")) == ["a.dat", "b.dat"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("videos:vids", "the folder holds none"),
        ("videos:vids/*.mp4", "nothing there matches"),
        ("vids/*.mp4", "nothing there matches"),
        ("videos:nowhere/*.mp4", "there is no folder"),
    ],
)
def test_a_source_without_videos_says_why(source: str, why: str, tmp_path: Path) -> None:
    touch(tmp_path / "vids", "notes.txt")
    with raises(StageError, "no video at", why=why):
        validate(write(tmp_path, source))


@pytest.mark.parametrize("source", ["vids", "vids/*", "images:vids/*"])
def test_what_matches_videos_and_images_is_never_read_as_images(source: str, tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a.mp4", "b.mp4", "thumb.jpg")
    with raises(StageError, "names both images and videos", why="a.mp4", fix='source: "videos:'):
        validate(write(tmp_path, source, "  end: {sink: null, from: cam}\n"))


def test_names_are_those_of_the_files_as_far_as_they_are_their_own(tmp_path: Path) -> None:
    touch(
        tmp_path / "vids",
        "one.mp4",
        "a/two.mp4",
        "b/two.mp4",
        "b/two.mkv",
        "b_two.mkv",
        "b/Two.MKV",
        "{x}.mp4",
        "x y.mp4",
    )
    videos = videos_of(load_pipeline(write(tmp_path, "videos:vids/**/*")))
    names = {video.path.relative_to(tmp_path / "vids").as_posix(): video.name for video in videos}
    assert names["one.mp4"] == "one" and names["a/two.mp4"] == "a_two"
    assert len({name.casefold() for name in names.values()}) == 8
    assert all("/" not in name and "{" not in name for name in names.values())


def test_the_name_is_filled_into_every_path(tmp_path: Path) -> None:
    touch(tmp_path / "vids", "v1.2.mp4", "b.mp4")
    more = SINK + "  stills: {sink: images, from: cam, path: 'out/{file}'}\n"
    outputs = videos_of(load_pipeline(write(tmp_path, "videos:vids", more)))[1].outputs
    assert [str(path) for path in outputs] == ["out/v1.2.jsonl", "out/v1.2/{stream}_{frame:06d}.jpg"]


@pytest.mark.parametrize(
    ("source", "more", "what"),
    [
        ("videos:vids", "  end: {sink: jsonl, from: cam, path: out.jsonl}\n", "does not name the video"),
        ("videos:vids", SINK + "  two: {source: 'synthetic:noise'}\n  e: {sink: null, from: two}\n", "beside another"),
        ("vids/a.mp4", SINK, "{file} has no value"),
        ("videos:vids", "  end: {sink: video, from: cam, path: 'FOLDER/vids/{file}.mp4'}\n", "lies among"),
        ("vids/*.mp4", "  end: {sink: video, from: cam, path: 'FOLDER/vids/{file}-out.mp4'}\n", "lies among"),
        ("videos:**/*.mp4", "  end: {sink: video, from: cam, path: 'FOLDER/vids/x/{file}.mp4'}\n", "lies among"),
    ],
)
def test_a_pipeline_that_several_videos_cannot_go_through_is_refused(
    source: str, more: str, what: str, tmp_path: Path
) -> None:
    touch(tmp_path / "vids", "a.mp4", "b.mp4")
    for refused in (lambda file: validate(file), lambda file: Pipeline(file)):
        with raises(ConfigError, what=what, where="p.yaml:", fix=True):
            refused(write(tmp_path, source, more.replace("FOLDER", str(tmp_path))))


def test_a_pipeline_object_plays_the_only_video_and_names_what_plays_several(tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a.mp4")
    write_clip(tmp_path / "vids" / "a.mp4", 3)
    file = write(tmp_path, "videos:vids", SINK.replace("out/", f"{tmp_path}/out/"))
    with Pipeline(file) as pipeline:
        assert pipeline.run().frames_out == 3
    lines = (tmp_path / "out" / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["file"] for line in lines] == ["a.mp4"] * 3
    touch(tmp_path / "vids", "b.mp4")
    with raises(ConfigError, "plays one video, not 2", fix="run_videos"):
        Pipeline(file)


def test_one_damaged_video_does_not_keep_the_others_from_being_checked(tmp_path: Path) -> None:
    (tmp_path / "vids").mkdir()
    (tmp_path / "vids" / "a.mp4").write_bytes(b"no video")
    file = write(tmp_path, "videos:vids")
    with pytest.raises(StageError, match="cannot open"):
        validate(file)
    write_clip(tmp_path / "vids" / "b.mp4", 2)
    validate(file)


def journal_of(tmp_path: Path, existing: str = "auto") -> Journal:
    more = SINK.replace("}\n", f", existing: {existing}}}\n").replace("out/", f"{tmp_path}/out/")
    file = load_pipeline(write(tmp_path, "videos:vids", more))
    return Journal(file, videos_of(file))


def test_what_is_done_is_remembered_until_something_changes(tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a.mp4", "b.mp4")
    journal = journal_of(tmp_path)
    video, other = journal._videos
    with journal.opened():
        journal.begin(video)
        touch(tmp_path / "out", "a.jsonl")
        journal.end(video, is_done=True)
        journal.begin(other)
        touch(tmp_path / "out", "b.jsonl")
        journal.end(other, is_done=False)
    again = journal_of(tmp_path)
    with again.opened():
        assert again.is_done(video) and not again.is_done(other)
        with pytest.raises(StageError, match="another"), journal_of(tmp_path).opened():
            pass
    (tmp_path / "out" / "a.jsonl").unlink()
    with again.opened():
        assert not again.is_done(video), "its results are gone"
    touch(tmp_path / "out", "a.jsonl")
    os.utime(video.path, (1, 1))
    with again.opened():
        assert not again.is_done(video), "it is another video of that name"
    os.utime(video.path, None)
    changed = journal_of(tmp_path, "replace")
    with changed.opened():
        assert not changed.is_done(video), "it is another pipeline"


def test_half_a_line_and_what_is_no_entry_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a.mp4", "b.mp4")
    journal = journal_of(tmp_path)
    first, second = journal._videos
    with journal.opened():
        for video in (first, second):
            journal.begin(video)
            journal.end(video, is_done=True)
        journal.begin(second)
    whole = journal.path.read_text()
    journal.path.write_text(whole.replace("\n", "\n3\n[]\n{}\n", 1) + whole.splitlines()[-1][:20])
    with journal.opened():
        assert journal.is_done(first) and not journal.is_done(second)
    assert len(journal.path.read_text().splitlines()) == 3, "it is written anew at the start"


def test_what_a_killed_run_left_of_a_video_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "vids", "a.mp4", "a-2.mp4")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.jsonl").write_text('{"old": 1}\n')
    journal = journal_of(tmp_path, "keep")
    video = next(one for one in journal._videos if one.name == "a")
    with journal.opened():
        journal.begin(video)
    with (tmp_path / "out" / "a.jsonl").open("a") as lines:
        lines.write('{"half": ')
    touch(tmp_path / "out", "a-2.jsonl", "a-3.jsonl", "other.jsonl")
    again = journal_of(tmp_path, "keep")
    with again.opened():
        again.begin(video)
        monkeypatch.setattr(os, "truncate", lambda *_: tmp_path.rmdir())  # an OSError
        again.undo(video)
    assert "a.jsonl keeps results of a run of" in caplog.text
    assert (tmp_path / "out" / "a.jsonl").read_text() == '{"old": 1}\n'
    assert sorted(path.name for path in (tmp_path / "out").glob("*.jsonl")) == ["a-2.jsonl", "a.jsonl", "other.jsonl"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"pipeline": 1}', '{"pipeline": "x", "videos": 3}', "\x00", "[" * 99999]
)
def test_a_journal_that_cannot_be_read_has_all_played_again(content: str, tmp_path: Path) -> None:
    touch(tmp_path / "vids", "a.mp4", "b.mp4")
    journal = journal_of(tmp_path)
    journal.path.parent.mkdir()
    journal.path.write_text(content)
    with journal.opened():
        assert not any(journal.is_done(video) for video in journal._videos)
        journal.begin(journal._videos[0])
