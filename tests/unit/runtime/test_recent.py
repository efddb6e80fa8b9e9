"""The last minute: by counts that were noted every five seconds, of a clock that tests move."""

import json
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.memory import Counts
from edgert.runtime import Task, summarize
from edgert.runtime.json_form import plain
from edgert.runtime.metrics import BOUNDS_NS, UPTO_MS, Meter
from edgert.runtime.recent import History, totals
from tests.helpers.stages import Does, Numbers, chain, link, result
from tests.helpers.virtual_clock import VirtualClock

MS, SECOND = 1_000_000, 1_000_000_000


def move(clock: VirtualClock, seconds: float) -> None:
    clock.wait(threading.Event(), seconds)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    nodes, clock = chain(Numbers(), Does()), VirtualClock(7 * SECOND)
    history = History(lambda: nodes, clock, lambda: 7 * SECOND)
    for second in range(200):  # slow and losing frames at first, quick from the 100th second on
        is_slow = second < 100
        for _ in range(10):
            nodes[1].meter.done("cam", (200 if is_slow else 20) * MS)
        nodes[1].meter.busy_ns += SECOND // (2 if is_slow else 4)
        nodes[1].meter.losses["cam", "queue"] = min(second + 1, 100) * 5
        move(clock, 1.0)
        history.take_snapshot()
        recent = history.recent()
        whole = second + 1 if second < 10 else second - 5  # the first five seconds are left out then
        assert recent.seconds == pytest.approx(min(whole, 62), abs=3.0)
        assert recent.fps == pytest.approx(10) and recent.streams["cam"].fps == pytest.approx(10)
    slow, share = history.recent().latency_ms, history.recent().stages["1"]
    assert slow.p99 == pytest.approx(20, rel=0.011) and share.streams["cam"].latency_ms == slow
    assert share.busy_percent == pytest.approx(25) and share.dropped == {} and history.recent().dropped == {}


def test_the_first_five_seconds_are_left_out_once_as_many_have_followed() -> None:
    nodes, clock = chain(Numbers(), Does()), VirtualClock()
    history, meter = History(lambda: nodes, clock, lambda: 0), nodes[1].meter
    for second in range(1, 15):
        for _ in range(10):  # a backlog at first, while models are prepared
            meter.done("cam", (2000 if second <= 3 else 20) * MS)
        move(clock, 1.0)
        recent = history.recent()  # notes the counts, at 1, 6 and 11 seconds
        assert recent.latency_ms.p99 == pytest.approx(2000 if second < 11 else 20, rel=0.011), second
        assert recent.seconds == (second if second < 11 else second - 6)


def test_a_minute_without_a_frame_is_empty() -> None:
    nodes, clock = chain(Numbers(), Does()), VirtualClock()
    history = History(lambda: nodes, clock, lambda: 0)
    nodes[1].meter.done("cam", 20 * MS)
    nodes[1].meter.losses["cam", "join"] = 3
    move(clock, 1)
    assert history.recent().latency_ms.count == 1 and history.recent().dropped == {"join": 3}
    for _ in range(14):
        move(clock, 5)
        history.take_snapshot()
    recent = history.recent()
    assert (recent.fps, recent.latency_ms.count, recent.latency_ms.p99, recent.dropped) == (0, 0, 0, {})


def test_a_camera_that_comes_back_under_its_name_is_counted_anew() -> None:
    tasks, clock = [Task("cam", Numbers())], VirtualClock()
    history = History(lambda: tasks, clock, lambda: 0)
    for _ in range(3):
        move(clock, 6)
        for _ in range(100):
            tasks[0].meter.done("cam", 20 * MS)
        tasks[0].meter.busy_ns += SECOND
        history.take_snapshot()
    tasks = [Task("cam", Numbers())]  # removed and added again
    move(clock, 6)
    for _ in range(7):
        tasks[0].meter.done("cam", 20 * MS)
    share = history.recent().stages["cam"]
    assert share.latency_ms.count == 7 and share.busy_percent == 0.0


def test_cameras_are_told_apart_and_ends_are_taken_together() -> None:
    source, find, log, show = Task("s", Numbers()), Task("find", Does()), Task("log", Does()), Task("show", Does())
    link(source, find)
    link(find, log)
    link(find, show)
    clock = VirtualClock(2 * SECOND)
    for node, latency_ms in ((find, 5), (log, 10), (show, 30)):
        for _ in range(20):
            node.meter.done("north", latency_ms * MS)
        node.meter.done("south", 1000 * MS)
    show.meter.losses = Counter({("north", "queue"): 4, ("south", "queue"): 1})
    recent = History(lambda: [source, find, log, show], clock, lambda: 0).recent()
    assert recent.fps == 10.5 and recent.latency_ms.count == 42 and recent.dropped == {"queue": 5}
    assert {name: share.fps for name, share in recent.streams.items()} == {"north": 10, "south": 0.5}
    assert recent.streams["north"].latency_ms.p95 == pytest.approx(30, rel=0.011)
    assert recent.streams["south"].dropped == {"queue": 1} and recent.stages["find"].fps == 10.5
    assert recent.stages["find"].streams["south"].latency_ms.p50 == pytest.approx(1000, rel=0.011)
    assert recent.stages["show"].streams["north"].dropped == {"queue": 4} and recent.stages["log"].dropped == {}


@given(st.lists(st.integers(20_000, 50 * SECOND), min_size=1, max_size=200))
def test_percentiles_are_right_to_3_percent(latencies_ns: list[int]) -> None:
    nodes = chain(Numbers(), Does())
    for latency_ns in latencies_ns:
        nodes[1].meter.done("cam", latency_ns)
    found = History(lambda: nodes, VirtualClock(SECOND), lambda: 0).recent().latency_ms
    exact = np.percentile(latencies_ns, [50, 95, 99], method="inverted_cdf") / 1e6
    assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(exact), rel=0.011)
    assert found.mean == pytest.approx(np.mean(latencies_ns) / 1e6, rel=0.011) and found.count == len(latencies_ns)


@pytest.mark.parametrize("latency_ns", [-5, 0, 1, 2**62])
def test_the_ends_of_the_scale_are_counted_too(latency_ns: int) -> None:
    meter = Meter()
    meter.done("cam", latency_ns)
    assert sum(meter.streams["cam"]) == 1


def test_the_bounds_of_prometheus_are_among_ours() -> None:
    assert sorted(set(BOUNDS_NS)) == BOUNDS_NS and {bound * 1e6 for bound in UPTO_MS} <= set(BOUNDS_NS)


def test_what_was_dropped_and_why() -> None:
    _, sink = nodes = chain(Numbers(), Does(), capacity=1, drop="oldest")
    (channel,) = sink.wiring.inlet.channels
    for index in range(3):
        channel.put(result(index))
    channel.put(result(0, "other"))
    assert channel.losses == {("cam", "queue"): 3}
    channel.abandon()
    channel.put(result(1, "other"))
    sink.meter.losses["cam", "join"] = 2
    (stage,) = (one for name, one in summarize(nodes, SECOND, Counts(), 0, {}).stages.items() if name == "1")
    assert stage.losses == {"cam": {"queue": 3, "join": 2}, "other": {"end": 2}}
    assert totals(nodes)["1"]["other"].dropped == {"end": 2} and totals(nodes)["1"]["other"].results == 0


def test_it_is_json_and_empty_before_anything_ran() -> None:
    nodes = chain(Numbers(), Does())
    recent = History(lambda: nodes, VirtualClock(), lambda: 0).recent()
    assert recent.fps == 0 and json.loads(json.dumps(plain(recent)))["stages"]["1"]["latency_ms"]["count"] == 0
    assert History(list, VirtualClock(), lambda: 0).recent().fps == 0
