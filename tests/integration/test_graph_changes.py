"""A running pipeline whose graph changes: streams that were not touched lose nothing, and no thread is left over."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from typing_extensions import Self

from edgert.errors import StageError
from edgert.memory import Counts
from edgert.runtime import Frame, Graph, Result, Runner, Task, summarize
from edgert.runtime.branches import Branch, branch_tasks
from tests.helpers.stages import Does, Later, Numbers, link, tag
from tests.helpers.waiting import wait_until

LIMIT_S = 20.0


class Ticks(Numbers):
    """A source that pauses between frames, so that a program has time to change something."""

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for one in super().frames(stop):
            yield one
            time.sleep(0.0003)


@dataclass
class Seen:
    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    outputs: set[str] = field(default_factory=set)

    def __call__(self, result: Result) -> None:
        self.numbers[result.frame.stream].append(result.frame.index)
        self.outputs.update(result.outputs)


def gaps(numbers: list[int]) -> int:
    """How many numbers are missing, or come twice."""
    return sum(after != before + 1 for before, after in pairwise(numbers))


def threads() -> int:
    return sum(thread.name.startswith("edgert:") for thread in threading.enumerate())


class Running:
    """A pipeline of two sources, a model each that gives results out later, a join, branches, and sinks."""

    def __init__(self) -> None:
        self.seen = {name: Seen() for name in ("still", "joined", "branched")}
        self.sources = {name: Ticks(name, count=None) for name in ("a", "b")}
        a, b = (Task(name, source) for name, source in self.sources.items())
        find = Task("find", Later(lambda one: one.with_output("find", one.frame.index)))
        left, join = Task("left", tag("left")), Task("join", Does(self.seen["joined"]))
        still = Task("still", Does(self.seen["still"]))
        branches = branch_tasks("work", [Branch((tag("work"),)) for _ in range(2)], frozenset("b"), 2)
        end = Task("end", Does(self.seen["branched"]))
        link(a, find, "a")
        link(a, left, "a")
        for task in (find, left):
            link(task, join, "a")
        link(find, still, "a")
        link(b, branches[0], "b")
        link(branches[-1], end, "b")
        self.graph = Graph([a, b, find, left, join, still, *branches, end])
        self.runner = Runner(self.graph)

    def __enter__(self) -> Self:
        self.runner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.stop()
        assert self.runner.wait(LIMIT_S)
        assert all(source.is_full() for source in self.sources.values())


def test_a_listener_gets_every_result_from_some_point_on() -> None:
    with Running() as running:
        seen, graph = Seen(), running.graph
        tap = Task("tap", Does(seen))
        graph.connect(graph.task("find"), tap, frozenset("a"), 2, "never")
        graph.add(tap)
        wait_until(lambda: len(seen.numbers["a"]) > 20)
        graph.remove(tap)
        count = len(seen.numbers["a"])
        wait_until(lambda: running.seen["still"].numbers["a"][-1] > seen.numbers["a"][-1] + 5)
        assert len(seen.numbers["a"]) == count and tap.stage.closed == 1  # type: ignore[union-attr]
        assert "tap" not in [task.name for task in graph.tasks]
    assert gaps(seen.numbers["a"]) == 0
    assert [gaps(numbers) for one in running.seen.values() for numbers in one.numbers.values()] == [0, 0, 0]


def test_a_source_that_is_removed_is_drained_and_its_listeners_wait_for_another() -> None:
    with Running() as running:
        graph, seen = running.graph, Seen()
        source, end = Ticks("c", count=None), Task("tap", Does(seen))
        one = Task("c", source)
        graph.connect(one, end, frozenset("c"), 2, "never")
        graph.add(end)
        graph.add(one)
        wait_until(lambda: len(seen.numbers["c"]) > 10)
        graph.remove(one)
        assert source.is_full() and source.closed == 1
        wait_until(lambda: end.meter.results_in == one.meter.results_out)
        assert seen.numbers["c"] == list(range(source.given))
        again = Task("c", Ticks("c", count=5))
        graph.connect(again, end, frozenset("c"), 2, "never")
        graph.add(again)
        wait_until(lambda: len(seen.numbers["c"]) == source.given + 5)
    assert [gaps(numbers) for each in running.seen.values() for numbers in each.numbers.values()] == [0, 0, 0]


@pytest.mark.parametrize("kind", [Does, Later])
def test_a_stage_that_is_replaced_gives_out_what_it_holds_and_loses_nothing(kind: type[Does]) -> None:
    with Running() as running:
        graph = running.graph
        find = graph.task("find")
        old, meter, new = find.stage, find.meter, kind(lambda one: one.with_output("swapped", 1))
        wait_until(lambda: find.meter.results_out > 10)
        graph.replace(find, new)
        assert find.stage is new and find.meter is meter and new.opened == 1
        assert isinstance(old, Later) and old.closed == 1 and not old.runs
        wait_until(lambda: "swapped" in running.seen["still"].outputs)
        wait_until(lambda: "swapped" in running.seen["joined"].outputs)
    assert [gaps(numbers) for one in running.seen.values() for numbers in one.numbers.values()] == [0, 0, 0]
    assert new.closed == 1


def test_a_stage_that_does_not_open_leaves_the_one_before_at_work() -> None:
    def refuse() -> None:
        raise OSError("no such model")

    with Running() as running:
        find = running.graph.task("find")
        old = find.stage
        with pytest.raises(OSError, match="no such model"):
            running.graph.replace(find, Does(opening=refuse))
        assert find.stage is old
        count = find.meter.results_out
        wait_until(lambda: find.meter.results_out > count + 5)
    assert [gaps(numbers) for one in running.seen.values() for numbers in one.numbers.values()] == [0, 0, 0]


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    with Running() as running:
        graph = running.graph
        a, find, join, head = (graph.task(name) for name in ("a", "find", "join", "work:dispatch"))
        streams, before = frozenset("a"), [task.wiring.outlets for task in graph.tasks]
        for refused, why in (
            (lambda: graph.connect(join, find, streams, 2, "never"), "close a cycle"),
            (lambda: graph.connect(find, join, streams, 2, "never"), "it already does"),
            (lambda: graph.connect(find, a, streams, 2, "never"), "it is a source"),
            (lambda: graph.connect(head, join, streams, 2, "never"), "one of its branches"),
            (lambda: graph.disconnect(a, join), "does not listen"),
            (lambda: graph.remove(head), "a part of another task's stage"),
            (lambda: graph.remove(Task("other", Does())), "never added"),
            (lambda: graph.replace(a, Does()), "a source cannot be replaced"),
            (lambda: graph.add(Task("find", Does())), "already exists"),
            (lambda: graph.task("other"), "tasks: a, b, find"),
        ):
            with pytest.raises(StageError) as caught:
                refused()
            assert why in str(caught.value), why
        assert [task.wiring.outlets for task in graph.tasks] == before


def test_a_task_that_hangs_is_not_changed_and_that_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.runtime.graph.CHANGE_S", 0.1)
    release = threading.Event()
    tasks = [Task("a", Numbers("a", count=None)), Task("stuck", Does(lambda one: release.wait(LIMIT_S) and None))]
    link(*tasks, "a")
    graph = Graph(tasks)
    runner = Runner(graph)
    runner.start()
    wait_until(lambda: tasks[1].meter.status.since_ns)
    with pytest.raises(StageError, match="was not changed"):
        graph.disconnect(*tasks)
    assert tasks[1].wiring.listens_to(tasks[0]) and len(tasks[0].wiring.outlets) == 1
    release.set()
    graph.disconnect(*tasks)
    assert not tasks[0].wiring.outlets
    runner.stop()
    assert runner.wait(LIMIT_S)


def test_a_join_passes_on_what_is_complete_without_an_edge_that_goes() -> None:
    seen, held = Seen(), threading.Event()
    source, slow = Ticks("a", count=None), Does(lambda one: (held.wait(LIMIT_S) and None) or one)
    a, left, right, end = Task("a", source), Task("left", tag("left")), Task("right", slow), Task("end", Does(seen))
    for before, after in ((a, left), (a, right), (left, end), (right, end)):
        link(before, after, "a")
    graph = Graph([a, left, right, end])
    runner = Runner(graph)
    runner.start()
    wait_until(lambda: left.meter.results_out > 2)
    assert not seen.numbers
    graph.disconnect(right, end)
    assert seen.numbers["a"][:1] == [0]
    held.set()
    wait_until(lambda: len(seen.numbers["a"]) > 30)
    runner.stop()
    assert runner.wait(LIMIT_S)
    assert gaps(seen.numbers["a"]) == 0 and source.is_full()


class Changing(Running):
    """The pipeline above, to which sources, listeners and stages come and from which they go, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random, self.number = random.Random(seed), 0
        self.extra: list[tuple[Task, Task]] = []  # a source and its sink
        self.taps: list[tuple[Task, Seen]] = []
        self.heard: list[Seen] = []

    def change(self) -> None:
        ways = [self.add_tap, self.add_source, self.swap]
        ways += [self.remove_tap] * (2 * bool(self.taps)) + [self.remove_source] * (2 * bool(self.extra))
        self.random.choice(ways)()

    def add_tap(self) -> None:
        self.number += 1
        seen, of = Seen(), self.random.choice(("find", "left", "a"))
        tap = Task(f"tap{self.number}", Does(seen))
        self.graph.connect(self.graph.task(of), tap, frozenset("a"), 2, "never")
        self.graph.add(tap)
        self.taps.append((tap, seen))
        self.heard.append(seen)

    def remove_tap(self) -> None:
        tap, _ = self.taps.pop(self.random.randrange(len(self.taps)))
        self.graph.remove(tap)

    def add_source(self) -> None:
        self.number += 1
        name = f"more{self.number}"
        source, sink = Task(name, Ticks(name, count=None)), Task(f"{name}:end", Does(lambda one: None))
        self.graph.connect(source, sink, frozenset({name}), 1, "oldest")
        self.graph.add(sink)
        self.graph.add(source)
        self.extra.append((source, sink))

    def remove_source(self) -> None:
        source, sink = self.extra.pop(self.random.randrange(len(self.extra)))
        self.graph.remove(source)
        self.graph.remove(sink)
        assert source.stage.is_full()  # type: ignore[union-attr]

    def swap(self) -> None:
        kind = self.random.choice((Does, Later))
        name = self.random.choice(("find", "left"))
        self.graph.replace(self.graph.task(name), kind(lambda one: one.with_output(name, one.frame.index)))


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_random_changes_lose_no_frame_of_other_streams_and_leave_no_thread(count: int) -> None:
    wait_until(lambda: not threads())  # of the test before
    with Changing(seed=count) as changing:
        for _ in range(count):
            changing.change()
            assert len(changing.graph.tasks) == threads() - 1  # beside them there is the supervisor
        while changing.taps:
            changing.remove_tap()
        while changing.extra:
            changing.remove_source()
        assert len(changing.graph.tasks) == 11
        places = [len(task.wiring.inlet.channels) for task in changing.graph.tasks]
        assert max(places) == 2, "an edge that comes takes the place of one that went"
    for one in (*changing.seen.values(), *changing.heard):
        assert all(gaps(numbers) == 0 for numbers in one.numbers.values())
    assert not any(task.meter.losses for task in changing.graph.tasks)
    assert summarize(changing.graph.tasks, 10**9, Counts(), 0, {}).dropped == 0
    wait_until(lambda: not threads())
