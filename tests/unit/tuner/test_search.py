"""The search, over tactics whose times and memory are invented."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgert.clock import REAL, Clock
from edgert.config import EmbedTask, ModelConfig
from edgert.errors import BudgetError, BuildError
from edgert.steps import Stopped
from edgert.tuner import tactic_search as module
from edgert.tuner.candidates import SearchSpace, Tactic
from edgert.tuner.memory_use import Footprint
from edgert.tuner.rounds import Round, RoundSetup
from edgert.tuner.tactic_search import Search
from edgert.tuner.trials import Journal, Tuned, tuned_of

DEFAULT = Tactic("ort", "ort", 2, 1)
FREE = SearchSpace(DEFAULT, ("ort", "openvino"), ("float", "ort"), 2, replicated=True, pinned=True)
MIB = 2**20


class World:
    """Times and memory by tactic, and how often each was asked for."""

    def __init__(
        self, ms: Callable[[Tactic], float], mib: Callable[[Tactic], int] = lambda tactic: 50, absent: str = ""
    ) -> None:
        self.ms, self.mib, self.absent = ms, mib, absent
        self.rounds: list[Sequence[Tactic]] = []
        self.weighed: list[Tactic] = []
        self.random = np.random.default_rng(0)

    def run_round(self, setup: RoundSetup, tactics: Sequence[Tactic], most: int, give_up_ratio: float) -> Round:
        if setup.stop.is_set():
            raise Stopped("the search was stopped")
        self.rounds.append(tactics)
        speed = 1 + 0.5 * self.random.random(most)  # of the machine, the same for all in a turn
        times = {one: (self.ms(one) * speed * (1 + 0.01 * self.random.random(most))).tolist() for one in tactics}
        return Round(times, {})

    def measure(self, tactic: Tactic) -> Footprint:
        self.weighed.append(tactic)
        if tactic.backend == self.absent:
            raise BuildError("OpenVINO is not installed")
        return Footprint(100 * MIB, self.mib(tactic) * MIB)


def run(
    world: World, journal: Path, stop: threading.Event | None = None, clock: Clock = REAL, **limits: float
) -> Tuned:
    config = ModelConfig(onnx=Path("m.onnx"), task=EmbedTask(embed="none"))
    setup = RoundSetup(config, {}, {}, lambda form, outputs: "", 4, stop or threading.Event(), lambda done: None)
    search = Search(FREE, setup, world.measure, Journal(journal), 2**40, print, clock=clock, **limits)  # type: ignore[arg-type]
    return search.run(False, {"cpu": "Z80"})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def made(*arguments: object, **named: object) -> World:
        found = World(*arguments, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(module, "run_round", found.run_round)
        return found

    return made


def by_parts(costs: Mapping[str, float]) -> Callable[[Tactic], float]:
    """10 ms, times a factor for each word in a tactic's description."""
    return lambda tactic: 10 * float(np.prod([factor for word, factor in costs.items() if word in str(tactic)]))


def test_the_fastest_backend_form_and_share_win(world: Callable[..., World], tmp_path: Path) -> None:
    found = run(world(by_parts({"openvino": 0.7, "float": 1.3, "1 thread": 0.9})), tmp_path / "j")
    assert (found.chosen.backend, found.chosen.form, found.chosen.threads) == ("openvino", "ort", 1)
    assert found.gain == pytest.approx(1 / 0.7, rel=0.02) and found.runs >= 15
    assert "1.4" in found.summary and str(DEFAULT) in found.summary
    assert tuned_of(found.to_json()) == found


def test_steps_inside_onnx_runtime_add_up(world: Callable[..., World], tmp_path: Path) -> None:
    found = run(world(by_parts({"no arena": 0.8, "pinned": 0.8, "extended": 0.85, "openvino": 2})), tmp_path / "j")
    assert str(found.chosen) == "ort int8, 2 × 1 thread, pinned, extended optimizations, no arena"
    assert found.gain == pytest.approx(1 / (0.8 * 0.8 * 0.85), rel=0.03)


def test_the_default_stays_where_nothing_is_surely_faster(world: Callable[..., World], tmp_path: Path) -> None:
    found = run(world(by_parts({})), tmp_path / "j")
    assert (found.chosen, found.gain, found.runs) == (DEFAULT, 1.0, 0)
    assert "stays" in found.summary


def test_a_leader_that_was_only_lucky_is_dropped(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({}))
    made.ms = lambda tactic: 10.0 if tactic == DEFAULT or len(made.rounds[-1]) == 2 else 8.0
    assert run(made, tmp_path / "j").chosen == DEFAULT


def test_a_backend_that_is_absent_is_named_and_asked_once(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"openvino": 0.1}), absent="openvino")
    found = run(made, tmp_path / "j")
    assert found.chosen.backend == "ort"
    assert sum(one.backend == "openvino" for one in made.weighed) == 2  # a form each
    reasons = {trial.excluded for trial in found.tried if trial.tactic.backend == "openvino"}
    assert reasons == {"refused: OpenVINO is not installed"}


def test_memory_is_kept(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"openvino": 0.5}), mib=lambda tactic: 200 if tactic.backend == "openvino" else 50)
    found = run(made, tmp_path / "j", memory_bytes=100 * MIB)
    assert found.chosen.backend == "ort"
    excluded = next(trial for trial in found.tried if trial.tactic.backend == "openvino")
    assert excluded.excluded == "over the memory, 100.0 MiB" and excluded.frame is None


def test_speed_is_given_up_for_memory_where_it_must_be(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"no arena": 1.5}), mib=lambda tactic: 150 if tactic.tuning.arena else 50)
    found = run(made, tmp_path / "j", memory_bytes=100 * MIB)
    assert not found.chosen.tuning.arena and found.gain == pytest.approx(1 / 1.5, rel=0.02)


def test_latency_is_kept(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"2 threads": 1.2}))  # two frames of 10 ms at a time take 20 each; one takes 12
    found = run(made, tmp_path / "j", latency_ms=19.0)
    assert found.chosen.replicas == 1


def test_no_tactic_within_the_bounds_is_an_error_with_the_closest(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({}), mib=lambda tactic: 120 if tactic.backend == "ort" else 300)
    with pytest.raises(BudgetError, match=r"none of \d+ tactics of m\.onnx meets the budgets") as caught:
        run(made, tmp_path / "j", memory_bytes=100 * MIB)
    assert "the closest is ort" in caught.value.why and "120.0 MiB" in caught.value.why
    assert "larger budget" in caught.value.fix


def test_an_interrupted_search_goes_on_from_where_it_was(world: Callable[..., World], tmp_path: Path) -> None:
    stop = threading.Event()
    made = world(by_parts({"openvino": 0.7}))
    run_round = made.run_round

    def stopping(setup: RoundSetup, tactics: Sequence[Tactic], most: int, give_up_ratio: float) -> Round:
        found = run_round(setup, tactics, most, give_up_ratio)
        if len(made.rounds) == 2:
            stop.set()
        return found

    module.run_round = stopping  # type: ignore[assignment,attr-defined]
    with pytest.raises(Stopped) as caught:
        run(made, tmp_path / "j", stop=stop)
    assert "best so far: openvino" in caught.value.why and "× as fast as the default" in caught.value.why
    before = list(made.rounds), list(made.weighed)
    found = run(made, tmp_path / "j")
    assert found.chosen.backend == "openvino"
    assert not any(one in before[0] for one in made.rounds[2:])
    assert made.weighed[: len(before[1])] == before[1] and len(set(made.weighed)) == len(made.weighed)


def test_a_damaged_journal_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("{")
    assert Journal(path).once("a", lambda: 1) == 1
    assert Journal(path).once("a", lambda: 2) == 1


def test_other_budgets_are_answered_by_what_was_measured(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"2 threads": 0.5}))
    run(made, tmp_path / "j")
    before = len(made.rounds)
    assert run(made, tmp_path / "j", latency_ms=1e4).chosen.threads == 2
    assert len(made.rounds) == before


class Hurried:
    """A clock that is past a search's end as soon as something has happened."""

    def __init__(self, happened: Callable[[], bool]) -> None:
        self.happened = happened

    def now_ns(self) -> int:
        return 10**15 if self.happened() else 0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        raise AssertionError("a search does not wait")


def test_when_time_is_over_the_best_by_then_is_held_to_the_default(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"openvino": 0.7, "2 threads": 0.9, "no arena": 0.5}))
    clock = Hurried(lambda: len(made.rounds) > 1 and len(made.rounds[-1]) == 4)  # the finalists have run
    found = run(made, tmp_path / "j", clock=clock)
    assert found.chosen.backend == "openvino" and found.gain > 1.3
    assert not any("no arena" in str(trial.tactic) for trial in found.tried)

    made = world(by_parts({"no arena": 0.5}))
    clock = Hurried(lambda: len(made.rounds) > 1 and len(made.rounds[-1]) == 4)
    found = run(made, tmp_path / "k", clock=clock)
    late = {trial.excluded for trial in found.tried if trial.frame is None}
    assert found.chosen == DEFAULT and late == {"not tried: 10 minutes were over"}


def test_without_any_time_the_default_stays(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"openvino": 0.1}))
    found = run(made, tmp_path / "j", clock=Hurried(lambda: len(made.weighed) > 0))
    assert found.chosen == DEFAULT and sum(trial.frame is not None for trial in found.tried) == 1


def test_a_default_that_may_not_run_makes_nothing_hopeless(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({}), mib=lambda tactic: 150 if tactic.tuning.arena else 50)
    patience = []
    run_round = made.run_round

    def asked(setup: RoundSetup, tactics: Sequence[Tactic], most: int, give_up_ratio: float) -> Round:
        patience.append((tactics[0].tuning.arena, give_up_ratio))
        return run_round(setup, tactics, most, give_up_ratio)

    module.run_round = asked  # type: ignore[assignment,attr-defined]
    run(made, tmp_path / "j", memory_bytes=100 * MIB)
    assert all((give_up_ratio > 1e6) == has_arena for has_arena, give_up_ratio in patience) and len(set(patience)) == 2
