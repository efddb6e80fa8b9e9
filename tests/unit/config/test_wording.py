"""What a value should have been is said in edgert's words, not pydantic's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pipeline_text import MINIMAL, refused

_STAGE = "stages:\n  cam: {source: a.mp4, %s}\n"
_MODEL = "models:\n  m: {onnx: a, task: {detect: yolox}, %s}\n" + MINIMAL


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("budgets: {cpu: 1%}\n" + MINIMAL, "expected a number of CPU cores above 0, like 1.5"),
        ("budgets: {cpu: 0}\n" + MINIMAL, "expected a number of CPU cores above 0, like 1.5"),
        ("budgets: {cpu: yes}\n" + MINIMAL, "expected a number of CPU cores above 0, like 1.5"),
        ("budgets: {when_exceeded: halt}\n" + MINIMAL, "expected warn, degrade or stop"),
        ("budgets: {when_exceeded: stopp}\n" + MINIMAL, "expected warn, degrade or stop; did you mean 'stop'?"),
        ("name: 5\n" + MINIMAL, "expected text; a number is text in quotes"),
        ("name: ''\n" + MINIMAL, "expected some text"),
        ("stages: {cam: {source: 0}}\n", "a number is no source; the camera of that number is v4l2:///dev/video0"),
        ("stages: {cam: {source: '2'}}\n", "a number is no source; the camera of that number is v4l2:///dev/video2"),
        (_STAGE % "fps: fast", "expected a number"),
        (_STAGE % "fps: .nan", "expected a number"),
        (_STAGE % "fps: 0", "expected 1e-05 or more"),
        (_STAGE % "fps: 2000", "expected 1000 or less"),
        (_STAGE % "limit: 1.5", "expected a whole number"),
        (_STAGE % "queue: 0", "expected 1 or more"),
        (_STAGE % "loop: perhaps", "expected true or false"),
        (_MODEL % "input: letterbox", "expected keys, each with a value"),
        ("stages: {9x: {source: a.mp4}}\n", "expected a name: letters, digits, _ and -, not a digit first"),
        ("stages: {x: {source: a.mp4}, y: {python: f, from: x}}\n", "expected module:function"),
    ],
)
def test_a_value_that_cannot_be_used(tmp_path: Path, text: str, why: str) -> None:
    assert refused(tmp_path, text).why == why


def test_entries_are_counted(tmp_path: Path) -> None:
    empty = "stages: {x: {source: a.mp4}, y: {sink: 'null', from: []}}\n"
    assert refused(tmp_path, empty).what == "stages.y.from: expected entries, at least 1; got 0"
