"""The search, over tactics whose times and memory are invented."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgert.compiler.build import Stopped
from edgert.config import EmbedTask, ModelConfig
from edgert.errors import BudgetError, BuildError
from edgert.tune import search as module
from edgert.tune.candidate import Freedom
from edgert.tune.heat import Heat, Track
from edgert.tune.journal import Journal
from edgert.tune.memory import Footprint
from edgert.tune.search import Bounds, Search
from edgert.tune.tactic import Tactic
from edgert.tune.trial import Tuned, tuned_of

DEFAULT = Tactic("ort", "ort", 2, 1)
FREE = Freedom(DEFAULT, ("ort", "openvino"), ("float", "ort"), 2, replicated=True, pinned=True)
MIB = 2**20


class World:
    """Times and memory by tactic, and how often each was asked for."""

    def __init__(
        self, ms: Callable[[Tactic], float], mib: Callable[[Tactic], int] = lambda tactic: 50, absent: str = ""
    ) -> None:
        self.ms, self.mib, self.absent = ms, mib, absent
        self.heats: list[Sequence[Tactic]] = []
        self.weighed: list[Tactic] = []
        self.random = np.random.default_rng(0)

    def heat(self, track: Track, tactics: Sequence[Tactic], most: int) -> Heat:
        if track.stop.is_set():
            raise Stopped("the search was stopped")
        self.heats.append(tactics)
        speed = 1 + 0.5 * self.random.random(most)  # of the machine, the same for all in a turn
        times = {one: (self.ms(one) * speed * (1 + 0.01 * self.random.random(most))).tolist() for one in tactics}
        return Heat(times, {})

    def measure(self, tactic: Tactic) -> Footprint:
        self.weighed.append(tactic)
        if tactic.backend == self.absent:
            raise BuildError("OpenVINO is not installed")
        return Footprint(100 * MIB, self.mib(tactic) * MIB)


def run(world: World, journal: Path, bounds: Bounds = Bounds(), stop: threading.Event | None = None) -> Tuned:  # noqa: B008
    config = ModelConfig(onnx=Path("m.onnx"), task=EmbedTask(embed="none"))
    track = Track(config, {}, {}, lambda form, outputs: "", 4, stop or threading.Event(), lambda done: None)
    search = Search(FREE, track, bounds, world.measure, Journal(journal), 2**40, lambda text: None)
    return search.run(False, {"cpu": "Z80"})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def made(*arguments: object, **named: object) -> World:
        found = World(*arguments, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(module, "heat", found.heat)
        return found

    return made


def by_parts(costs: Mapping[str, float]) -> Callable[[Tactic], float]:
    """10 ms, times a factor for each word in a tactic's description."""
    return lambda tactic: 10 * float(np.prod([factor for word, factor in costs.items() if word in str(tactic)]))


def test_the_fastest_backend_form_and_share_win(world: Callable[..., World], tmp_path: Path) -> None:
    found = run(world(by_parts({"openvino": 0.7, "float": 1.3, "1 thread": 0.9})), tmp_path / "j")
    assert (found.chosen.backend, found.chosen.form, found.chosen.threads) == ("openvino", "ort", 1)
    assert found.gain == pytest.approx(1 / 0.7, rel=0.02) and found.runs >= 15
    assert "1.4" in found.told and str(DEFAULT) in found.told
    assert tuned_of(found.to_json()) == found


def test_steps_inside_onnx_runtime_add_up(world: Callable[..., World], tmp_path: Path) -> None:
    found = run(world(by_parts({"no arena": 0.8, "pinned": 0.8, "extended": 0.85, "openvino": 2})), tmp_path / "j")
    assert str(found.chosen) == "ort int8, 2 × 1 thread, pinned, extended optimizations, no arena"
    assert found.gain == pytest.approx(1 / (0.8 * 0.8 * 0.85), rel=0.03)


def test_the_default_stays_where_nothing_is_surely_faster(world: Callable[..., World], tmp_path: Path) -> None:
    found = run(world(by_parts({})), tmp_path / "j")
    assert (found.chosen, found.gain, found.runs) == (DEFAULT, 1.0, 0)
    assert "stays" in found.told


def test_a_leader_that_was_only_lucky_is_dropped(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({}))
    made.ms = lambda tactic: 10.0 if tactic == DEFAULT or len(made.heats[-1]) == 2 else 8.0
    assert run(made, tmp_path / "j").chosen == DEFAULT


def test_a_backend_that_is_absent_is_named_and_asked_once(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"openvino": 0.1}), absent="openvino")
    found = run(made, tmp_path / "j")
    assert found.chosen.backend == "ort"
    assert sum(one.backend == "openvino" for one in made.weighed) == 2  # a form each
    reasons = {trial.barred for trial in found.tried if trial.tactic.backend == "openvino"}
    assert reasons == {"refused: OpenVINO is not installed"}


def test_memory_is_kept(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"openvino": 0.5}), mib=lambda tactic: 200 if tactic.backend == "openvino" else 50)
    found = run(made, tmp_path / "j", Bounds(memory_bytes=100 * MIB))
    assert found.chosen.backend == "ort"
    barred = next(trial for trial in found.tried if trial.tactic.backend == "openvino")
    assert barred.barred == "over the memory, 100.0 MiB" and barred.frame is None


def test_speed_is_given_up_for_memory_where_it_must_be(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"no arena": 1.5}), mib=lambda tactic: 150 if tactic.tuning.arena else 50)
    found = run(made, tmp_path / "j", Bounds(memory_bytes=100 * MIB))
    assert not found.chosen.tuning.arena and found.gain == pytest.approx(1 / 1.5, rel=0.02)


def test_latency_is_kept(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({"2 threads": 1.2}))  # two frames of 10 ms at a time take 20 each; one takes 12
    found = run(made, tmp_path / "j", Bounds(latency_ms=19.0))
    assert found.chosen.replicas == 1


def test_no_tactic_within_the_bounds_is_an_error_with_the_closest(world: Callable[..., World], tmp_path: Path) -> None:
    made = world(by_parts({}), mib=lambda tactic: 120 if tactic.backend == "ort" else 300)
    with pytest.raises(BudgetError, match=r"none of \d+ tactics of m\.onnx keeps the budgets") as caught:
        run(made, tmp_path / "j", Bounds(memory_bytes=100 * MIB))
    assert "the closest is ort" in caught.value.why and "120.0 MiB" in caught.value.why
    assert "larger budget" in caught.value.fix


def test_an_interrupted_search_goes_on_from_where_it_was(world: Callable[..., World], tmp_path: Path) -> None:
    stop = threading.Event()
    made = world(by_parts({"openvino": 0.7}))
    told = made.heat

    def stopping(track: Track, tactics: Sequence[Tactic], most: int) -> Heat:
        found = told(track, tactics, most)
        if len(made.heats) == 2:
            stop.set()
        return found

    module.heat = stopping  # type: ignore[assignment]
    with pytest.raises(Stopped):
        run(made, tmp_path / "j", stop=stop)
    before = list(made.heats), list(made.weighed)
    found = run(made, tmp_path / "j")
    assert found.chosen.backend == "openvino"
    assert not any(one in before[0] for one in made.heats[2:])
    assert made.weighed[: len(before[1])] == before[1] and len(set(made.weighed)) == len(made.weighed)


def test_a_damaged_journal_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("{")
    assert Journal(path).once("a", lambda: 1) == 1
    assert Journal(path).once("a", lambda: 2) == 1
    Journal(path).close()
    assert not path.exists()
