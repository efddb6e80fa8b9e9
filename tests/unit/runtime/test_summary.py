from __future__ import annotations

import json

import pytest

from edgert.memory import Counts
from edgert.runtime import Node, SourceStats, summarize
from tests.helpers.stages import Does, Numbers, chain, link, result


def test_threads_are_looked_at_over_the_same_last_minute_of_a_run_that_has_ended() -> None:
    nodes = chain(Numbers(), Does(), Does())
    for node, starts_s, slow_s in zip(nodes, (0, 30, 69), (40, 40, 80), strict=True):
        for at_ms in range(1000 * starts_s, 70_001, 25):
            is_slow = 1000 * slow_s <= at_ms < 1000 * slow_s + 500
            node.timing.worked(2_000_000 if is_slow else 1_000_000)
            node.timing.passed_on(at_ms * 1_000_000)
    nodes[1].timing.filled(3_000_000)
    nodes[1].timing.opened_ns, nodes[2].timing.opened_ns = -5, 45_000_000
    summary = summarize(nodes, 70 * 10**9, Counts(), 0, {})
    assert [summary.simulation[name].batch_fill_ms for name in "12"] == [3.0, 0.0]
    assert [summary.simulation[name].startup_ms for name in "12"] == [0.0, 45.0]
    first, second, third = (summary.simulation[name].slow_phases for name in "012")
    assert len(first) == len(second) == len(third) == 60 * 20 + 1
    assert [summary.simulation[name].first_result_ms for name in "012"] == [0.0, 30_000.0, 69_000.0]
    slow = [[ratio > 1.9 for ratio in slow_phases] for slow_phases in (first, second)]
    assert slow[0] == slow[1] and sum(slow[0]) == 10 and set(third) == {1.0}
    assert set(summary.to_json()["simulation"]) == {"0", "1", "2"}
    assert "simulation" not in summarize(nodes, 70 * 10**9, Counts(), 0, {}, has_ended=False).to_json()


def test_before_anything_ran_all_is_zero() -> None:
    summary = summarize(chain(Numbers(), Does()), 0, Counts(), 0, {})
    assert (summary.frames_in, summary.frames_out, summary.fps, summary.copies_per_frame) == (0, 0, 0, 0)
    assert summary.stages["1"].busy_ms_per_result == 0


def test_a_run_in_numbers() -> None:
    source, stage, sink = chain(Numbers(), Does(), Does(), capacity=1, drop="oldest")
    source.meter.results_out, stage.meter.results_out, sink.meter.results_in = 10, 8, 6
    stage.meter.busy_ns, stage.meter.wait_in_ns, stage.meter.wait_out_ns = 500_000_000, 250_000_000, 100_000_000
    for latency_ms in (10, 10, 30):
        sink.meter.latency.add(latency_ms * 1_000_000)
        stage.timing.worked(latency_ms * 1_000_000)
        stage.timing.passed_on(latency_ms * 1_000_000)
        sink.inlet.wakeup.add(latency_ms * 1_000)
    stage.meter.results_in = 8
    for index in range(3):
        sink.inlet.channels[0].put(result(index))
    summary = summarize([source, stage, sink], 2_000_000_000, Counts(20, 600), 123, {"m": {"threads": 2}})
    assert (summary.frames_in, summary.frames_out, summary.fps, summary.dropped) == (10, 6, 3.0, 2)
    assert (summary.copies_per_frame, summary.bytes_copied_per_frame) == (2, 60)
    busy = summary.stages["1"]
    assert (busy.busy_percent, busy.wait_in_percent, busy.wait_out_percent) == (25, 12.5, 5)
    assert busy.busy_ms_per_result == 62.5
    timing = summary.simulation["1"]
    assert (timing.jitter[0], timing.jitter[-1]) == (1.0, 3.0) and timing.slow_phases == (0.6,)  # 10 ms, of 16.7
    assert timing.wakeup_latency_ms == ()
    assert summary.simulation["2"].wakeup_latency_ms[-1] == pytest.approx(0.03, rel=0.011)
    assert (summary.stages["2"].dropped, summary.stages["2"].waiting) == (2, 1)
    assert summary.stages["0"].source == SourceStats()
    assert summary.latency_ms.p50 == pytest.approx(10, rel=0.011)


def test_frames_out_are_those_of_the_busiest_end_and_halves_lost_in_joins_are_dropped() -> None:
    source, left, right = Node("s", Numbers()), Node("l", Does()), Node("r", Does())
    link(source, left)
    link(source, right)
    left.meter.results_in, right.meter.results_in, right.meter.unmatched = 5, 7, 2
    summary = summarize([source, left, right], 10**9, Counts(), 0, {})
    assert (summary.frames_out, summary.dropped) == (7, 2)


def test_a_source_that_nobody_listens_to() -> None:
    source = Node("s", Numbers())
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
