"""Results that go to the next stage as one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counter, Counts
from edgert.runtime import Node, Record, Result, Runner, summarize
from edgert.runtime.branches import Branch, branch_nodes, let_go
from edgert.runtime.frame import has_pixels
from edgert.runtime.passing import Together, parts, without_pixels
from edgert.stages.crop import Geometry
from edgert.stages.gpu.infer_gpu import Batch, Collect, Pending
from edgert.stages.infer import InferBatch
from edgert.stages.source.api import ApiSource
from tests.helpers.stages import Does, Numbers, link, result

GEOMETRY = Geometry(1, 1, 0, 0, (4, 4), (0.0, 0.0, 4.0, 4.0))


class Promised(Batch):
    """Records that are there when somebody asks."""

    def __init__(self, made: list[Record]) -> None:
        self.geometries, self.made = [GEOMETRY] * len(made), made

    def records(self) -> list[Record]:
        return self.made


class Slots:
    """Inference whose record for a frame is its number, later."""

    rows, idle = 4, False

    def __init__(self) -> None:
        self.filled: dict[int, int] = {}

    def warm_up(self) -> None: ...

    def fill(self, frame: object, row: int = 0) -> Geometry:
        self.filled[row] = frame.index  # type: ignore[attr-defined]
        return GEOMETRY

    def run(self, *geometries: Geometry) -> Promised:
        return Promised([self.filled[row] for row in range(len(geometries))])


def test_one_hold_is_on_all_of_the_frames_and_letting_go_ends_none() -> None:
    three = [result(index) for index in range(3)]
    one = Together.of(three, {"find": "pending"})
    assert one.frame.lease.alive and one.outputs == {"find": "pending"}
    one.frame.lease.retain(2)
    for each in three:
        each.frame.lease.release()
    one.frame.lease.release()
    assert all(each.frame.lease.alive for each in three)
    bare = without_pixels(one)
    assert not any(has_pixels(each.frame) for each in (bare, *parts(bare)))
    assert [each.frame.index for each in parts(bare)] == [0, 1, 2]
    bare.frame.lease.release()
    assert one.frame.lease.alive
    one.frame.lease.release()
    assert not one.frame.lease.alive and not any(each.frame.lease.alive for each in three)


def stage(every: int = 1) -> InferBatch:
    return InferBatch("find", Slots(), 3, 10.0, REAL, every)


def test_a_batch_goes_to_its_collector_as_one_and_leaves_it_in_order() -> None:
    infer, collect = stage(every=2), Collect("find")
    results = [result(index) for index in (0, 1, 2, 3, 4)]
    for each in results[:4]:
        assert list(infer.process(each)) == []
    out: Iterator[Result] = iter(infer.process(results[4]))  # type: ignore[arg-type]
    together = next(out)
    assert isinstance(together, Together) and list(out) == []
    made = collect.process(together)
    assert isinstance(made, list)
    assert [one.outputs.get("find") for one in made] == [0, None, 2, None, 4]
    assert [one.frame for one in made] == [one.frame for one in results]


def test_a_single_one_goes_as_it_is() -> None:
    infer, collect = stage(), Collect("find")
    assert not list(infer.process(result(7)))
    (alone,) = infer.flush(last=True)
    assert not isinstance(alone, Together) and isinstance(alone.outputs["find"], Pending)
    found = collect.process(alone)
    assert isinstance(found, Result) and found.outputs["find"] == 7


@pytest.mark.parametrize("reads", ["nothing", "host"])
def test_every_frame_is_counted_and_given_back(reads: str) -> None:
    camera, seen = Numbers(count=20), list[Result]()
    source, end = Node("cam", camera, reads="nothing"), Node("end", Does(seen.append), reads=reads)  # type: ignore[arg-type]
    nodes = branch_nodes("find", [Branch((stage(), Collect("find")), reads="anywhere")], frozenset({"cam"}), 1)
    link(source, nodes[0])
    link(nodes[-1], end)
    everything = [source, *nodes, end]
    let_go(everything)
    runner = Runner(everything)
    runner.start()
    assert runner.wait(20)
    assert [one.outputs["find"] for one in seen] == list(range(20)) and camera.is_full()
    stages = summarize(everything, 10**9, Counts(), 0, {}).stages
    counts = {(one.results_in, one.results_out) for name, one in stages.items() if name.startswith("find")}
    assert counts == {(20, 20)} and end.meter.results_in == 20


def test_a_pipeline_that_is_broken_off_gives_them_all_back() -> None:
    camera = Numbers(count=None)

    def fail(found: Result) -> None:
        raise ValueError("enough")

    source, end = Node("cam", camera), Node("end", Does(fail))
    nodes = branch_nodes("find", [Branch((stage(), Collect("find")))], frozenset({"cam"}), 1)
    link(source, nodes[0])
    link(nodes[-1], end)
    runner = Runner([source, *nodes, end])
    runner.start()
    with pytest.raises(Exception, match="enough"):
        runner.wait(20)
    assert camera.is_full()


LIMIT_S = 20.0


class Batched:
    """A running pipeline: a source, a model that takes batches of four, and whoever gets the results."""

    def __init__(self, capacity: int = 8) -> None:
        config = SourceStage(source="api", queue=16)
        self.source, self.came = ApiSource("cam", config, Counter(), REAL), list[int]()
        self.begin, self.entered = threading.Event(), threading.Event()
        self.batches = list[int]()
        inference = Slots()
        self.infer = InferBatch("find", inference, 4, 10.0, REAL, fills=True)
        self.nodes = [Node("cam", self.source), Node("find", self.infer), Node("end", Does(self._take))]
        for before, after in zip(self.nodes, self.nodes[1:], strict=False):
            link(before, after, capacity=capacity)
        self.runner = Runner(self.nodes)

    def _take(self, result: Any) -> None:
        self.entered.set()
        assert self.begin.wait(LIMIT_S)
        if isinstance(result, Together):
            self.batches.append(len(parts(result)))
            records, _ = result.outputs["find"]
            assert records.records() == [one.frame.index for one in parts(result)]
        self.came += [one.frame.index for one in parts(result)]


def test_a_running_model_takes_a_batch_as_one_and_larger_ones_in_parts() -> None:
    served = Batched()
    served.begin.set()
    served.runner.start()
    for count in (4, 4, 9, 3, 1, 2):
        served.source.submit(np.zeros((count, 4, 6, 3), np.uint8), timeout_s=LIMIT_S)
    served.source.finish()
    assert served.runner.wait(LIMIT_S)
    assert served.came == list(range(23)) and served.batches == [4, 4, 4, 4, 4, 3]
    assert [node.meter.results_in for node in served.nodes] == [23, 23, 23]
    assert served.nodes[1].inlet.channels[0].count == 23


def test_a_queue_counts_the_frames_of_a_batch() -> None:
    served = Batched(capacity=8)
    channel = served.nodes[1].inlet.channels[0]
    assert channel.together and not served.nodes[2].inlet.channels[0].together
    served.runner.start()
    with pytest.raises(StageError, match="no room"):
        for _ in range(20):
            served.source.submit(np.zeros((4, 4, 6, 3), np.uint8), timeout_s=0.05)
    assert len(channel.items) == 2
    served.begin.set()
    served.source.finish()
    assert served.runner.wait(LIMIT_S) and served.came == list(range(len(served.came)))


def test_whoever_stops_with_batches_under_way_leaves_nothing_held() -> None:
    served, leases = Batched(), list[Any]()
    real = served.source.images

    def images(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        leases.append(found[0].lease)
        return found

    served.source.images = images  # type: ignore[method-assign]
    served.runner.start()
    for count in (4, 4, 3):
        served.source.submit(np.zeros((count, 4, 6, 3), np.uint8))
    assert served.entered.wait(LIMIT_S)
    served.runner.stop()
    served.begin.set()
    assert served.runner.wait(LIMIT_S)
    assert len(leases) == 3 and not any(lease.alive for lease in leases)


class Bursts(Numbers):
    """Numbers that come three at a time."""

    @property
    def at_hand(self) -> int:
        return 2 - (self.given - 1) % 3 if self.given != self.count else 0


@pytest.mark.parametrize("cameras", [1, 2])
def test_what_a_source_has_at_a_time_goes_to_a_batch_as_one(cameras: int) -> None:
    sources = [Bursts(f"cam{number}", count=20) for number in range(cameras)]
    took, seen = list[int](), list[Result]()
    infer = stage()
    process = infer.process
    infer.process = lambda result: took.append(len(parts(result))) or process(result)  # type: ignore[method-assign,func-returns-value]
    nodes = branch_nodes("find", [Branch((infer, Collect("find")))], frozenset(one.name for one in sources), 4)
    starts, end = [Node(one.name, one) for one in sources], Node("end", Does(seen.append))  # type: ignore[arg-type]
    for start in starts:
        link(start, nodes[0], start.name, capacity=4)
    link(nodes[-1], end, *(one.name for one in sources))
    runner = Runner([*starts, *nodes, end])
    runner.start()
    assert runner.wait(LIMIT_S)
    assert took.count(3) == 6 * cameras and took.count(2) == cameras
    for one in sources:
        assert [each.outputs["find"] for each in seen if each.frame.stream == one.name] == list(range(20))
        assert one.is_full()
    assert all(start.meter.results_out == 20 for start in starts)


def test_what_came_before_a_failure_goes_on_first() -> None:
    source, seen = Bursts(fails_at=5), list[Result]()
    nodes = [Node("cam", source), Node("end", Does(seen.append))]  # type: ignore[arg-type]
    link(*nodes)
    runner = Runner(nodes)
    runner.start()
    with pytest.raises(StageError, match="lens cap on"):
        runner.wait(LIMIT_S)
    assert [one.frame.index for one in seen] == [0, 1, 2, 3, 4] and source.is_full()


def test_parts_of_frames_that_are_joined_come_one_by_one() -> None:
    infer = Node("find", stage())
    for name in ("a", "b"):
        link(Node(name, Does()), infer, "cam")
    assert not any(channel.together for channel in infer.inlet.channels)
    apart = Node("find", stage())
    for name in ("a", "b"):
        link(Node(name, Does()), apart, name)
    assert all(channel.together for channel in apart.inlet.channels)
