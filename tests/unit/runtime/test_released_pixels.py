"""Behind the last stage that reads a frame's pixels, these are released, however slow later stages are."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from edgert.clock import REAL
from edgert.errors import StageError
from edgert.memory import Counter, Lease, lend
from edgert.runtime import Execution, Frame, Result, Runner, Task
from edgert.runtime.branches import Branch, branch_tasks
from edgert.runtime.frame import has_pixels
from edgert.runtime.graph import Graph, release_pixels
from edgert.runtime.json_form import plain_result
from edgert.runtime.records import merge_results, without_pixels
from edgert.stages.crop import CropRegion
from edgert.stages.infer import InferBatch
from tests.helpers.frames import frame_of
from tests.helpers.stages import Does, Numbers, link, result, tag
from tests.helpers.waiting import wait_until

CAM = frozenset({"cam"})


class Camera(Numbers):
    """Remembers the leases of its frames."""

    def __init__(self, count: int) -> None:
        super().__init__(count=count)
        self.leases: list[Lease] = []

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for index in range(self.count or 0):
            frame = frame_of(8, 6, "nv12", index=index)
            self.leases.append(frame.lease)
            yield replace(frame, stream="cam")

    @property
    def held(self) -> list[int]:
        """The frames whose lease has not ended."""
        return [index for index, lease in enumerate(self.leases) if lease.alive]


class Stuck(Does):
    """A sink that takes nothing more than the first result until it is told to."""

    def __init__(self) -> None:
        self.go, self.results = threading.Event(), list[Result]()
        super().__init__(self._take)

    def _take(self, result: Result) -> None:
        self.results.append(result)
        assert self.go.wait(20)


def stands(camera: Camera, given: int, held: int) -> None:
    """Waits until the pipeline can do no more, and checks that so many frames were given, and so many are held."""
    wait_until(lambda: (len(camera.leases), len(camera.held)) == (given, held))
    time.sleep(0.1)
    assert (len(camera.leases), len(camera.held)) == (given, held)


def looks(function: Callable[[Result], Any] = lambda result: result) -> Does:
    """A stage that uses the pixels of what it gets."""

    def process(result: Result) -> Any:
        assert result.frame.planes[0].shape == (6, 8)
        return function(result)

    return Does(process)


def run(nodes: list[Task]) -> Runner:
    release_pixels(nodes)
    runner = Runner(nodes)
    runner.start()
    return runner


def pipeline(*works: tuple[Any, str]) -> list[Task]:
    nodes = [Task(str(n), work, execution=Execution(reads=reads)) for n, (work, reads) in enumerate(works)]  # type: ignore[arg-type]
    for before, after in pairwise(nodes):
        link(before, after)
    return nodes


@pytest.mark.parametrize(("reads", "held"), [("nothing", 3), ("anywhere", 7)])
def test_a_stuck_sink_and_full_queues_hold_no_frames_unless_it_looks_at_them(reads: str, held: int) -> None:
    camera, sink = Camera(40), Stuck()
    runner = run(pipeline((camera, "nothing"), (looks(), "anywhere"), (sink, reads)))
    # Two wait for the stage that looks, and one in the source's hand; else two more, and one at each stage.
    stands(camera, 7, held)
    sink.go.set()
    assert runner.wait(20)
    assert not camera.held and sink.indices == list(range(40))
    for one in sink.results:
        assert (one.frame.stream, one.frame.width, one.frame.height) == ("cam", 8, 6)
        assert plain_result(one)["frame"] == one.frame.index


def test_stages_between_get_frames_without_pixels_and_the_use_of_these_is_a_clear_error() -> None:
    camera, seen = Camera(3), list[Frame]()
    between = Does(lambda result: seen.append(result.frame) or result.with_output("n", result.frame.index))
    runner = run(pipeline((camera, "nothing"), (looks(), "host"), (between, "nothing"), (Does(), "nothing")))
    assert runner.wait(20)
    first = seen[0]
    for use in (lambda: first.planes[0], first.to_bgr, lambda: len(first.planes), first._single_plane):
        with pytest.raises(StageError, match="a stage used the pixels of a frame after their release") as caught:
            use()
        assert "no stage from here on declares that it reads pixels" in caught.value.why
        assert "takes_images" in caught.value.fix
    assert not seen[0].is_on_gpu and seen[0].lease.retain() is seen[0].lease
    seen[0].lease.release()
    cut = seen[0].crop(1, 1, 5, 5)
    assert (cut.width, cut.height, cut.region, has_pixels(cut)) == (6, 6, (0, 0, 6, 6), False)


def test_a_stage_that_uses_them_all_the_same_fails_with_its_name() -> None:
    runner = run(pipeline((Camera(3), "nothing"), (looks(), "host"), (looks(lambda _: None), "nothing")))
    with pytest.raises(StageError) as caught:
        runner.wait(20)
    assert "after their release" in caught.value.what and "stage '2'" in caught.value.where


def test_a_branch_that_looks_gets_pixels_beside_one_that_is_stuck_and_does_not() -> None:
    camera, sink, own = Camera(40), Stuck(), looks(lambda _: None)
    source, model = Task("cam", camera, execution=Execution(reads="nothing")), Task("model", looks())
    stuck = Task("stuck", sink, execution=Execution(reads="nothing"))
    looking = Task("own", own, execution=Execution(reads="host"))
    link(source, model)
    link(model, stuck)  # first in the file, but it may wait
    link(model, looking)
    runner = run([source, model, stuck, looking])
    stands(camera, 7, 4)  # the model's thread has one in hand
    sink.go.set()
    assert runner.wait(20) and not camera.held
    assert own.indices == sink.indices == list(range(40))
    assert not any(has_pixels(one.frame) for one in sink.results)


class Engine:
    """Inference that counts."""

    rows, idle, runs = 4, False, 0

    def warm_up(self) -> None:
        """Is warm."""

    def fill(self, frame: Frame, row: int = 0) -> Any:
        return frame.planes[0].shape

    def run(self, *geometries: Any) -> list[Any]:
        self.runs += 1
        return list(geometries)


def test_a_batch_lets_all_its_frames_go_at_once() -> None:
    camera, sink = Camera(40), Stuck()
    batch = InferBatch("find", Engine(), 4, 10.0, REAL)
    runner = run(pipeline((camera, "nothing"), (batch, "anywhere"), (sink, "nothing")))
    stands(camera, 7, 3)
    sink.go.set()
    assert runner.wait(20) and not camera.held
    assert sink.indices == list(range(40)) and sink.results[-1].outputs["find"] == (6, 8)


def test_branches_keep_their_order_and_hold_no_frames_behind_what_looks() -> None:
    camera, sink = Camera(60), Stuck()
    own = [Branch((looks(), tag("left"))), Branch((looks(lambda one: time.sleep(0.002) or one), tag("right")))]
    between = branch_tasks("find", own, CAM, 2)
    source = Task("cam", camera, execution=Execution(reads="nothing"))
    end = Task("end", sink, execution=Execution(reads="nothing"))
    link(source, between[0])
    link(between[-1], end)
    runner = run([source, *between, end])
    wait_until(lambda: bool(sink.results))
    # Before the dispatcher two and the source's, one at it, and for each branch two before what looks.
    wait_until(lambda: len(camera.leases) > 12 and len(camera.held) <= 3 + 1 + 2 * 2)
    sink.go.set()
    assert runner.wait(20) and not camera.held
    assert sink.indices == list(range(60))


@pytest.mark.parametrize("reads", ["nothing", "host"])
def test_a_join_has_pixels_where_it_or_what_follows_looks_at_them(reads: str) -> None:
    camera, seen = Camera(30), list[Result]()
    source, left = Task("cam", camera, execution=Execution(reads="nothing")), Task("l", looks())
    right = Task("r", tag("r"), execution=Execution(reads="nothing"))
    join = Task("join", tag("join"), execution=Execution(reads="nothing"))
    end = Task("end", Does(seen.append), execution=Execution(reads=reads))  # type: ignore[arg-type]
    for before, after in ((source, left), (source, right), (left, join), (right, join), (join, end)):
        link(before, after)
    assert run([source, left, right, join, end]).wait(20)
    assert [one.frame.index for one in seen] == list(range(30)) and not camera.held
    assert {has_pixels(one.frame) for one in seen} == {reads != "nothing"}
    assert all(set(one.outputs) == {"r", "join"} for one in seen)


@pytest.mark.parametrize("first", [0, 1])
def test_of_a_part_with_pixels_and_one_without_those_with_pixels_are_kept(first: int) -> None:
    whole = result(0, left=1)
    parts = [whole, replace(without_pixels(whole), outputs={"right": 2})]
    one = merge_results(parts[first], parts[1 - first])
    assert one.frame is whole.frame and set(one.outputs) == {"left", "right"}


def test_crops_of_frames_without_pixels_keep_their_place() -> None:
    camera, seen = Camera(2), list[Frame]()
    crop = CropRegion((0.5, 0.5, 1.0, 1.0))
    end = Does(lambda one: seen.append(one.frame))
    works = ((camera, "nothing"), (looks(), "host"), (crop, "nothing"), (end, "nothing"))
    assert run(pipeline(*works)).wait(20)
    assert [(one.region, has_pixels(one)) for one in seen] == [((4, 2, 8, 6), False)] * 2


def test_a_listener_gets_pixels_while_it_listens() -> None:
    camera, sink = Camera(2), Does(lambda _: None)
    nodes = pipeline((camera, "nothing"), (looks(), "host"), (Does(), "nothing"), (sink, "nothing"))
    release_pixels(nodes)
    assert [node.wiring.releases_pixels for node in nodes] == [False, True, True, False]
    tap = Task("tap", Does(lambda _: None))
    link(nodes[2], tap)
    release_pixels([*nodes, tap])
    assert [node.wiring.releases_pixels for node in nodes] == [False, False, False, False]
    assert [channel.without_pixels for node in nodes for channel in node.wiring.outlets] == [False, False, False, True]
    Graph(nodes).disconnect(nodes[2], tap)
    release_pixels(nodes)
    assert [node.wiring.releases_pixels for node in nodes] == [False, True, True, False]


def test_what_a_stage_makes_of_a_result_before_it_sees_it_takes_over_the_hold() -> None:
    camera, copies = Camera(5), list[Lease]()

    def take(one: Result) -> Result:
        copy = replace(one.frame, lease=lend(one.frame.planes, Counter()))
        copies.append(copy.lease)
        one.frame.lease.release()
        return replace(one, frame=copy)

    held = list[bool]()
    nodes = pipeline((camera, "nothing"), (looks(lambda one: held.append(bool(camera.held)) or one), "host"))
    nodes[1].execution.download = take
    assert run(nodes).wait(20)
    assert len(copies) == 5 and not any(lease.alive for lease in copies) and not camera.held


def test_a_pipeline_that_nobody_settled_lets_nothing_go() -> None:
    camera, seen = Camera(2), list[bool]()
    last = looks(lambda one: seen.append(not has_pixels(one.frame)))
    runner = Runner(pipeline((camera, "nothing"), (looks(), "nothing"), (last, "nothing")))
    runner.start()
    assert runner.wait(20) and seen == [False, False]
