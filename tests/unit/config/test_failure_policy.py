"""``on_error`` and ``watchdog``: what a file may ask, and what holds where it asks nothing."""

from pathlib import Path

import pytest

from edgert.assemble import Environment, assemble
from edgert.errors import ConfigError
from edgert.runtime.task import FailurePolicy
from tests.helpers.pipeline_text import pipeline, refused

LIVE = 'cam: {source: "synthetic:noise", fps: 5}'
RECORDED = 'cam: {source: "synthetic:noise", fps: 5, limit: 3}'


def care(folder: Path, stage: str, source: str = LIVE, top: str = "") -> FailurePolicy:
    file = pipeline(folder, f"{top}stages:\n  {source}\n  x: {{{stage}, from: cam}}\n")
    assembly = assemble(file, Environment(callbacks={"x": lambda _: None}))
    try:
        return assembly.task("x").policy
    finally:
        assembly.close()


@pytest.mark.parametrize(
    ("stage", "live", "recorded"),
    [
        ("sink: jsonl, path: o.jsonl", "restart", "stop"),
        ("sink: 'null'", "restart", "stop"),
        ("sink: callback", "log", "stop"),
        ("draw: boxes", "stop", "stop"),
        ("crop: [0, 0, 1, 1]", "stop", "stop"),
    ],
)
def test_what_suits(stage: str, live: str, recorded: str, tmp_path: Path) -> None:
    assert care(tmp_path, stage) == FailurePolicy(live, watchdog_s=10.0)  # type: ignore[arg-type]
    assert care(tmp_path, stage, RECORDED).on_error == recorded


def test_what_is_asked_holds_from_the_start(tmp_path: Path) -> None:
    asked = care(tmp_path, "sink: jsonl, path: o.jsonl, on_error: drop, watchdog: 3s", RECORDED)
    assert asked == FailurePolicy("drop", at_start=True, watchdog_s=3.0)


@pytest.mark.parametrize(
    ("top", "own", "seconds"),
    [
        ("", "", 10.0),
        ("watchdog: 2s\n", "", 2.0),
        ("watchdog: off\n", "", 0.0),
        ("watchdog: off\n", "watchdog: 1s", 1.0),
        ("", "watchdog: off", 0.0),
        ("", 'watchdog: "off"', 0.0),
    ],
)
def test_whose_watchdog_holds(top: str, own: str, seconds: float, tmp_path: Path) -> None:
    stage = ", ".join(filter(None, ["sink: 'null'", own]))
    assert care(tmp_path, stage, top=top).watchdog_s == seconds


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        ("sink: 'null', on_error: restrat", "expected stop, restart, drop or log; did you mean 'restart'?"),
        ("track: bytetrack, on_error: restart", "restart is not possible here: a tracker has nothing to open again"),
        ("draw: boxes, on_error: restart", "restart is not possible here: it has nothing to open again"),
        ("crop: [0, 0, 1, 1], on_error: restart", "restart is not possible here"),
        ("sink: 'null', watchdog: 10", "expected one of us, ms, s, m, min, h, d"),
        ("sink: 'null', watchdog: on", "expected a number with a unit"),
        ("sink: 'null', watchdgo: 3s", "did you mean 'watchdog'?"),
        ("sink: jsonl, path: 'o-{strem}.jsonl'", "unknown field {strem}; did you mean 'stream'?"),
        ("sink: video, path: 'o-{frame}.mp4'", "unknown field {frame}"),
        ("sink: images, path: 'o-{frame:x}.png'", "cannot format {frame:x}"),
    ],
)
def test_what_cannot_be_asked(stage: str, what: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"stages:\n  {LIVE}\n  x: {{{stage}, from: cam}}\n")
    assert what in str(error), str(error)


def test_sources_are_opened_again_by_reconnect(tmp_path: Path) -> None:
    error = refused(tmp_path, 'stages:\n  cam: {source: "synthetic:noise", on_error: restart}\n')
    assert "reconnect: opens a source again; write stop or drop" in str(error)


def test_a_model_that_runs_in_parts_cannot_be_opened_again(tmp_path: Path) -> None:
    from edgert.assemble import graph as rules
    from edgert.config import InferStage
    from edgert.runtime.branches import Branch
    from tests.helpers.stages import Does

    stage = InferStage.model_validate({"infer": "m", "from": "cam", "on_error": "restart"})
    rules.check_on_error("x", stage, [Branch((Does(),))], on_gpu=False)
    with pytest.raises(ConfigError, match="restart is not possible here") as caught:
        rules.check_on_error("x", stage, [Branch((Does(), Does()))], on_gpu=False)
    assert "parts" in caught.value.why
    with pytest.raises(ConfigError) as caught:
        rules.check_on_error("x", stage, [Branch((Does(),))], on_gpu=True)
    assert "GPU" in caught.value.why
