from pathlib import Path

import pytest

from edgert.errors import StageError
from edgert.stages.sink.retention import check_pattern, fill, has_field

FIELDS = ("stream", "frame")


def test_fields_are_filled_in() -> None:
    assert fill(Path("out/{stream}_{frame:06d}.jpg"), "cam", 42) == Path("out/cam_000042.jpg")
    assert fill(Path("{frame}-{frame:3d}.png"), "cam", 7) == Path("7-  7.png")
    assert fill(Path("plain.jpg"), "cam", 7) == Path("plain.jpg")


@pytest.mark.parametrize("stream", ["../../etc/passwd", "a/b", "..", ".hidden", "a\x00b", "{frame}"])
def test_a_stream_cannot_leave_the_folder(stream: str) -> None:
    path = fill(Path("out/{stream}.jpg"), stream, 1)
    assert path.parent == Path("out") and not path.name.startswith(".") and "\x00" not in str(path)


UNKNOWN = "{} {0} {streem} {frame.__class__} {stream[0]} {frame!r} {frame:x} {stream:>9} {frame:99d}"


@pytest.mark.parametrize("pattern", UNKNOWN.split())
def test_nothing_else_is_looked_up(pattern: str) -> None:
    with pytest.raises(StageError) as caught:
        check_pattern(Path(pattern), FIELDS, "stages.s")
    assert caught.value.fix and caught.value.where == "stages.s"
    assert pattern != "{streem}" or "did you mean 'stream'" in caught.value.what


def test_known_patterns_pass() -> None:
    for pattern in ("{stream}/{frame:06d}.jpg", "{frame:4d}", "{frame}", "none", "{frame:d}"):
        check_pattern(Path(pattern), FIELDS, "stages.s")
    assert has_field(Path("{stream}/x"), "stream") and not has_field(Path("stream"), "stream")
