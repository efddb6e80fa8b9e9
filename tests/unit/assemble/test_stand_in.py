"""A file that plays like a camera is pointed to the key that has it drop like one."""

from pathlib import Path

import pytest

from edgert.assemble import assemble
from edgert.config import load_pipeline
from tests.helpers.clips import write_clip


@pytest.mark.parametrize(
    ("more", "drop", "expected"),
    [
        ("loop: true, realtime: true", "", 1),
        ("loop: true, realtime: true, drop: oldest", "", 0),
        ("loop: true, realtime: true", ", drop: oldest", 0),
        ("realtime: true", "", 0),
        ("loop: true, limit: 3", "", 0),
    ],
)
def test_a_file_that_plays_like_a_camera_is_noted_once(
    more: str, drop: str, expected: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_clip(tmp_path / "a.mp4", 3)
    (tmp_path / "p.yaml").write_text(
        f"stages:\n  cam: {{source: a.mp4, {more}}}\n"
        f"  one: {{sink: null, from: cam{drop}}}\n  two: {{sink: null, from: cam{drop}}}\n"
    )
    assemble(load_pipeline(tmp_path / "p.yaml")).close()
    assert ["drop: oldest" in line and "stages.cam" in line for line in caplog.messages] == [True] * expected
