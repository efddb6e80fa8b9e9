import json

import pytest

from edgert.memory import Counts
from edgert.runtime import SourceStats, Task, summarize
from tests.helpers.stages import Does, Numbers, chain, link, result


def test_before_anything_ran_all_is_zero() -> None:
    summary = summarize(chain(Numbers(), Does()), 0, Counts(), 0, {})
    assert (summary.frames_in, summary.frames_out, summary.fps, summary.memory.copies_per_frame) == (0, 0, 0, 0)
    assert summary.stages["1"].busy_ms_per_result == 0


def test_a_run_in_numbers() -> None:
    source, stage, sink = chain(Numbers(), Does(), Does(), capacity=1, drop="oldest")
    source.meter.results_out, stage.meter.results_out, sink.meter.results_in = 10, 8, 6
    stage.meter.busy_ns, stage.meter.wait_in_ns, stage.meter.wait_out_ns = 500_000_000, 250_000_000, 100_000_000
    for latency_ms in (10, 10, 30):
        sink.meter.done("north", latency_ms * 1_000_000)
    stage.meter.results_in = 8
    for index in range(3):
        sink.wiring.inlet.channels[0].put(result(index))
    summary = summarize([source, stage, sink], 2_000_000_000, Counts(20, 600), 123, {"m": {"threads": 2}})
    assert (summary.frames_in, summary.frames_out, summary.fps, summary.dropped) == (10, 6, 3.0, 2)
    assert (summary.memory.copies_per_frame, summary.memory.bytes_copied_per_frame) == (2, 60)
    busy = summary.stages["1"]
    assert (busy.busy_percent, busy.wait_in_percent, busy.wait_out_percent) == (25, 12.5, 5)
    assert busy.busy_ms_per_result == 62.5
    assert (summary.stages["2"].dropped, summary.stages["2"].waiting) == (2, 1)
    assert summary.stages["0"].source == SourceStats()
    assert summary.latency_ms.p50 == pytest.approx(10, rel=0.011)


def test_frames_out_are_those_of_the_busiest_end_and_halves_lost_in_joins_are_dropped() -> None:
    source, left, right = Task("s", Numbers()), Task("l", Does()), Task("r", Does())
    link(source, left)
    link(source, right)
    left.meter.results_in, right.meter.results_in = 5, 7
    right.meter.losses["cam", "join"] = 2
    summary = summarize([source, left, right], 10**9, Counts(), 0, {})
    assert (summary.frames_out, summary.dropped) == (7, 2)


def test_a_source_that_nobody_listens_to() -> None:
    source = Task("s", Numbers())
    source.meter.results_out = 4
    assert summarize([source], 10**9, Counts(), 0, {}).frames_out == 4


def test_it_is_json() -> None:
    summary = summarize(chain(Numbers(), Does()), 10**9, Counts(), 5, {"m": {"backend": "null"}})
    assert json.loads(json.dumps(summary.to_json()))["engine"]["m"]["backend"] == "null"
    assert set(summary.to_json()) >= {
        "frames_in",
        "frames_out",
        "dropped",
        "fps",
        "latency_ms",
        "stages",
        "copies_per_frame",
        "bytes_copied_per_frame",
        "peak_rss_bytes",
        "engine",
    }
