from pathlib import Path
from typing import Any

import pytest

from edgert.config.stages import SinkStage
from edgert.errors import ConfigError, StageError
from edgert.runtime.records import Result
from edgert.runtime.stage import Stage
from edgert.stages.context import Context, make_stage
from tests.helpers.frames import result_of
from tests.helpers.written import opened


def config(**keys: Any) -> SinkStage:
    return SinkStage.model_validate({"from": "x", **keys})


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        ("video", "a.mp4", "VideoSink"),
        ("jsonl", "a.jsonl", "JsonlSink"),
        ("images", "a", "ImagesSink"),
        ("http", None, "HttpSink"),
        ("display", None, "DisplaySink"),
        ("null", None, "NullSink"),
        ("callback", None, "CallbackSink"),
    ],
)
def test_each_kind_of_sink(tmp_path: Path, kind: str, path: str | None, name: str) -> None:
    where = {"path": tmp_path / path} if path else {}
    sink = make_stage(config(sink=kind, **where), "out", Context(function=print))
    assert type(sink).__name__ == name and isinstance(sink, Stage)
    assert list(tmp_path.iterdir()) == []  # nothing is made before it is opened


def test_a_callback_is_called_in_order() -> None:
    seen: list[Result] = []
    sink = make_stage(config(sink="callback"), "out", Context(function=seen.append))
    wanted = [result_of() for _ in range(3)]
    with opened(sink):
        for result in wanted:
            assert sink.process(result) is None
    assert seen == wanted


def test_a_callback_needs_a_function() -> None:
    with pytest.raises(ConfigError, match="needs a function") as caught:
        make_stage(config(sink="callback"), "out", Context())
    assert caught.value.where == "stages.out"


@pytest.mark.parametrize(("kind", "path"), [("video", "a.avi"), ("images", "a.gif")])
def test_paths_that_cannot_be_written_are_told_before_anything_runs(tmp_path: Path, kind: str, path: str) -> None:
    with pytest.raises(StageError) as caught:
        make_stage(config(sink=kind, path=tmp_path / path), "out", Context())
    assert caught.value.fix
