"""Traces and summaries read, and refused with line and reason."""

import json
import math
from pathlib import Path

import pytest

from edgert.errors import ConfigError
from edgert.simulator.sources import read_stage_times, read_trace
from tests.helpers.errors import Exactly, raises


def written(folder: Path, *lines: str) -> Path:
    path = folder / "camera.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_trace_of_times_and_objects(tmp_path: Path) -> None:
    path = written(tmp_path, '{"time_s": 5.0, "objects": 2}', "", '{"time_s": 5.04, "objects": 0}', '{"time_s": 5.1}')
    (trace,) = read_trace(path).values()
    assert trace.times_ms == pytest.approx((0.0, 40.0, 100.0)) and trace.objects == (2, 0, 0)


def test_what_a_run_wrote_is_a_trace(tmp_path: Path) -> None:
    def line(stream: str, at_ms: int, count: int) -> str:
        outputs = {
            "find": {"type": "detections", "objects": [{}] * 9},
            "track": {"type": "detections", "objects": [{}] * count},
            "kind": {"type": "classification", "classes": []},
        }
        return json.dumps({"stream": stream, "frame": 0, "timestamp_ns": at_ms * 10**6, "outputs": outputs})

    found = read_trace(written(tmp_path, line("a", 0, 1), line("b", 10, 2), line("a", 33, 3), line("b", 43, 4)))
    assert found["a"].objects == (1, 3) and found["b"].times_ms == (0.0, 33.0)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting"),
        ("[1]", "not a JSON object"),
        ('{"objects": 3}', "neither time_s nor timestamp_ns"),
        ('{"time_s": "soon"}', "could not convert"),
        ('{"time_s": 1.0, "objects": -1}', "objects -1"),
        ('{"time_s": NaN}', "time nan"),
        ('{"time_s": 1.0, "outputs": 7}', "outputs is 7"),
    ],
)
def test_a_line_that_does_not_parse_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = written(tmp_path, '{"time_s": 0.0}', line)
    with raises(ConfigError, "cannot parse", why=why, where=Exactly(f"{path}:2"), fix="time_s"):
        read_trace(path)


def test_times_must_rise_and_two_frames_are_the_least(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="before the last one") as caught:
        read_trace(written(tmp_path, '{"time_s": 1.0}', '{"time_s": 0.5}'))
    assert caught.value.where.endswith(":2")
    with pytest.raises(ConfigError, match="too short"):
        read_trace(written(tmp_path, '{"time_s": 1.0}'))
    with raises(ConfigError, "cannot read trace", why=Exactly("No such file or directory")):
        read_trace(tmp_path / "none.jsonl")


def test_times_of_stages_come_from_a_summary(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    stages = {"find": {"busy_ms_per_result": 0.1}, "find:0": {"busy_ms_per_result": 7.0}}
    path.write_text(json.dumps({"stages": stages}), encoding="utf-8")
    times = read_stage_times(path)
    assert times.of_stage("find") == 7.0 and times.of_stage("paint") == 0.0
    assert times.of("find") == 0.1 and times.of_part("find:1", "find") == 7.0


@pytest.mark.parametrize("time_ms", [-1, math.inf, math.nan])
def test_times_that_cannot_be_are_refused(tmp_path: Path, time_ms: float) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"stages": {"a": {"busy_ms_per_result": time_ms}}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="has impossible times") as caught:
        read_stage_times(path)
    assert caught.value.why == f"busy_ms_per_result of a is {float(time_ms)}"


@pytest.mark.parametrize("text", ["{}", "[", '{"stages": [7]}', '{"stages": {"a": 7}}', '{"stages": {"a": {}}}'])
def test_what_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with raises(ConfigError, fix="edgert run"):
        read_stage_times(path)
