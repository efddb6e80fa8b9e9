"""The stage of a swapped model: results in order, none lost, and every frame's lease given back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgert.runtime import AsyncStage, Result
from edgert.swap.guard import AsyncGuard, Guard, guard_for
from tests.helpers.stages import result

DIGESTS = ("new", "old")


@dataclass
class Plain:
    """A stage that adds its name, and fails from some frame on."""

    name: str
    fails_at: int | None = None
    every: int = 1
    worked: list[int] = field(default_factory=list)

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def process(self, one: Result) -> Result:
        if self.fails_at is not None and one.frame.index >= self.fails_at:
            raise ValueError("no")
        self.worked.append(one.frame.index)
        return one.with_output("find", self.name)


@dataclass
class Batching(Plain):
    """The same in batches of three, one batch under way."""

    limit: int = 1
    held: list[Result] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return 0

    @property
    def is_ready(self) -> bool:
        return len(self.held) == 3

    def room(self) -> int:
        return 3 - len(self.held)

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        for one in onward:
            one.frame.lease.retain()
            self.held.append(one)

    def due_ns(self) -> int | None:
        return 1 if self.held else None

    def collect(self, wait: bool) -> list[Result]:
        if not (wait or self.is_ready):
            return []
        out = [Plain.process(self, one) for one in self.held]
        self.held.clear()
        return out

    def give_up(self) -> list[Result]:
        held = list(self.held)
        self.held.clear()
        return held


def run(guard: Guard, count: int, at: dict[int, Any] | None = None) -> list[Result]:
    """Results of frames as a task's station has a stage make them; ``at``: what is done before a frame."""
    out = list[Result]()
    for number in range(count):
        (at or {}).get(number, bool)()
        one = result(number)
        if isinstance(guard, AsyncStage):
            if guard.room() < 1:
                out += guard.collect(wait=True)
            guard.submit((one,), (one,))
            out += guard.collect(False) if guard.is_ready else []
        else:
            one.frame.lease.retain()
            out.append(guard.process(one))
        one.frame.lease.release()
    while isinstance(guard, AsyncGuard) and guard.due_ns() is not None:
        out += guard.collect(wait=True)
    return out


def worked(out: Sequence[Result]) -> str:
    """Which model each frame's record is of; all frames are there, in order, and no lease is held any more."""
    assert [one.frame.index for one in out] == list(range(len(out)))
    for one in out:
        assert one.models == {"find": one.outputs["find"]}
        assert one.frame.lease.alive
        one.frame.lease.release()
        assert not one.frame.lease.alive
    return "".join(one.outputs["find"][0] for one in out)


def pair(kind: type[Plain], fails_at: int | None = None, **settings: Any) -> Guard:
    return guard_for("find", kind("new", fails_at), kind("old"), DIGESTS, **settings)


@pytest.mark.parametrize(("kind", "switches"), [(Plain, "nnnnnooooo"), (Batching, "nnnooooooo")])
def test_a_model_that_fails_is_replaced_on_the_frame_that_it_fails_on(kind: type[Plain], switches: str) -> None:
    guard = pair(kind, fails_at=5)
    faults = list[str]()
    guard.on_fault = lambda: faults.append(guard.reason)
    assert worked(run(guard, 10)) == switches
    assert len(faults) == 1 and faults[0].startswith("it failed: ValueError: no")


@pytest.mark.parametrize(("kind", "switches"), [(Plain, "nnnnoooooo"), (Batching, "nnnnoooooo")])
def test_going_back_changes_between_two_batches(kind: type[Plain], switches: str) -> None:
    guard = pair(kind)
    assert worked(run(guard, 10, {4: lambda: guard.go_back("asked")})) == switches


@pytest.mark.parametrize("kind", [Plain, Batching])
@pytest.mark.parametrize("goes_back", [False, True])
def test_after_it_is_settled_one_model_is_left(kind: type[Plain], goes_back: bool) -> None:
    guard = pair(kind)

    def settle() -> None:
        if goes_back:
            guard.go_back("asked")
        guard.settle()

    out = worked(run(guard, 10, {5: settle}))
    assert out == ("nnnnnooooo" if goes_back else "n" * 10)
    assert guard.old is None and guard.active is guard.new


@pytest.mark.parametrize("kind", [Plain, Batching])
def test_impossible_boxes_are_a_fault(kind: type[Plain]) -> None:
    counts = iter([0] * 7 + list(range(1, 100)))
    assert "o" in worked(run(pair(kind, count_impossible=lambda: next(counts)), 12))


@pytest.mark.parametrize("kind", [Plain, Batching])
def test_runs_that_take_too_long_are_a_fault(kind: type[Plain]) -> None:
    guard = pair(kind, allowed_s=0.0)
    out = worked(run(guard, 40))
    assert out.startswith("n" * 29) and out.endswith("o") and "may take 0 ms" in guard.reason


def test_an_old_model_that_fails_too_raises_and_holds_nothing() -> None:
    guard = guard_for("find", Batching("new", 1), Batching("old", 1), DIGESTS)
    assert isinstance(guard, AsyncGuard)
    frames = [result(number) for number in range(3)]
    guard.submit(frames, frames)
    with pytest.raises(ValueError, match="no"):
        for _ in range(3):
            guard.collect(wait=True)
    for one in guard.give_up():
        one.frame.lease.release()
    for one in frames:
        one.frame.lease.release()
        assert not one.frame.lease.alive


def test_every_is_that_of_both_models() -> None:
    guard = pair(Plain)
    guard.every = 3
    assert (guard.new.every, guard.old.every, guard.every) == (3, 3, 3)  # type: ignore[attr-defined, union-attr]


def test_a_frame_that_the_model_left_out_names_none() -> None:
    class Skips(Plain):
        def process(self, one: Result) -> Result:
            return one

    guard = guard_for("find", Skips("new"), Skips("old"), DIGESTS)
    assert guard.process(result(0)).models == {}
