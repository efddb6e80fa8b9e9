import threading
from pathlib import Path

import pytest

from edgert.budget.loop import PERIOD_S, Loop
from edgert.budget.rules import Action, Budget, Observation, Rules, Setting
from edgert.budget.watch import CPU_SAMPLES, Observer, Watch
from edgert.meters import Reading, measured, modeled
from edgert.meters.all import Meters
from tests.helpers.sysfs import plant
from tests.helpers.virtual_clock import VirtualClock

NEVER = threading.Event()


def meters(root: Path, clock: VirtualClock, model: Reading | None = None) -> Meters:
    return Meters(root, clock, None if model is None else lambda: model, nvml=lambda _: {})


def test_a_look_has_power_latency_memory_and_margin(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    clock = VirtualClock()
    observer = Observer(meters(tmp_path, clock), Budget(30.0), lambda: 41.0)
    observer.observe()
    clock.wait(NEVER, PERIOD_S)
    seen = observer.observe()
    assert seen.power_w == pytest.approx(Meters(tmp_path, nvml=lambda _: {}).sample().power.value)
    assert seen.latency_ms == 41.0
    assert seen.margin_c is not None and seen.memory_bytes is not None
    assert seen.at_ns == clock.now_ns()


def test_cpu_time_is_averaged_over_two_seconds_and_needs_no_sensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    found = meters(tmp_path, clock)
    observer = Observer(found, Budget(1.0, unit="cores"))
    values = iter([measured(value, "cores", "test") for value in (0.2, 0.4, 0.6, 0.8, 1.0)])
    sample = found.sample
    monkeypatch.setattr(found, "sample", lambda: _with(sample(), next(values)))
    seen = [observer.observe().power_w for _ in range(5)]
    assert CPU_SAMPLES == 4
    assert seen == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.7])


def _with(sample: object, reading: Reading) -> object:
    from dataclasses import replace

    return replace(sample, readings={**sample.readings, "cpu.process": reading})  # type: ignore[type-var, attr-defined]


def test_a_meter_that_vanishes_is_told_and_modeled_power_taken(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    clock = VirtualClock()
    observer = Observer(meters(tmp_path, clock, modeled(21.0, "W", "the board's model")), Budget(30.0))
    for _ in range(2):
        observer.observe()
        clock.wait(NEVER, PERIOD_S)
    for path in tmp_path.rglob("curr*_input"):
        path.unlink()
    for _ in range(3):
        seen = observer.observe()
        clock.wait(NEVER, PERIOD_S)
    assert seen.power_w == pytest.approx(21.0)
    assert any("modeled from now on" in note for note in observer.notes)


class Ending(VirtualClock):
    """Sets the event after so many waits."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._left -= 1
        if self._left < 0:
            event.set()
        return super().wait(event, seconds)


def test_energy_of_the_run_stands_beside_the_budget(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    clock = VirtualClock()
    observer = Observer(meters(tmp_path, clock, modeled(21.0, "W", "the board's model")), Budget(30.0))
    watts = observer.observe().power_w or Meters(tmp_path, nvml=lambda _: {}).sample().power.value
    assert watts is not None
    for _ in range(4):
        clock.wait(NEVER, PERIOD_S)
        observer.observe()
    used = observer.used
    assert used is not None and (used.unit, used.limit) == ("W", 30.0)
    assert used.mean == pytest.approx(watts) and used.total == pytest.approx(4 * PERIOD_S * watts)
    assert (used.covered_s, used.modeled_s, used.missing_s) == (2.0, 0.0, 0.0)
    for path in tmp_path.rglob("curr*_input"):
        path.unlink()
    for _ in range(2):
        clock.wait(NEVER, PERIOD_S)
        observer.observe()
    assert observer.used is not None and observer.used.modeled_s == 1.0


def test_energy_is_told_only_where_power_or_cpu_time_is_promised(tmp_path: Path) -> None:
    observer = Observer(meters(tmp_path, VirtualClock()), Budget(latency_ms=50.0))
    observer.observe()
    assert observer.used is None


def test_every_action_is_logged_with_its_reason_and_so_is_what_cannot_be_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Ending(20)
    rules = Rules(Budget(1.0, when_exceeded="warn", unit="cores", memory_bytes=1), (Setting("all frames", 1.0, 30.0),))
    loop = Loop(rules, lambda action: None, 0)
    watch = Watch(loop, Observer(Meters("/", clock), rules.budget), clock, print, ("a note",))
    with caplog.at_level("INFO", "edgert.budget.watch"):
        watch.start()
        watch.join()
    said = [record.getMessage() for record in caplog.records if record.name == "edgert.budget.watch"]
    assert said[0] == "a note"
    assert [line for line in said if line.startswith("budgets: memory ")] == said[1:] and len(said) == 2


def test_the_thread_looks_until_it_is_stopped_and_tells(tmp_path: Path) -> None:
    clock, carried = Ending(20), list[Action]()
    rules = Rules(Budget(1.0, when_exceeded="warn", unit="cores", memory_bytes=1), (Setting("all frames", 1.0, 30.0),))
    watch = Watch(Loop(rules, carried.append, 0), Observer(Meters("/", clock), rules.budget), clock, print, ("a note",))
    watch.start()
    watch.join()
    watch.stop()
    report = watch.report()
    assert report.seconds == {"all frames": pytest.approx(20 * PERIOD_S)}
    assert report.notes[0] == "a note"
    assert [action.kind for action in carried] == ["warn"]
    assert carried[0].reason.startswith("memory ")


def test_what_goes_wrong_in_the_thread_ends_the_pipeline(tmp_path: Path) -> None:
    failures: list[Exception] = []

    class Blind(Observer):
        def observe(self) -> Observation:
            raise OSError("no eyes")

    clock = VirtualClock()
    rules = Rules(Budget(1.0), (Setting("all frames", 1.0, 30.0),))
    loop = Loop(rules, lambda action: None, 0)
    watch = Watch(loop, Blind(meters(tmp_path, clock), rules.budget), clock, failures.append)
    watch.start()
    watch.join()
    assert [str(failure) for failure in failures] == ["no eyes"]


def test_what_all_frames_would_take_is_looked_at_where_some_were_throttled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = meters(tmp_path, VirtualClock())
    shares = iter([1.0, 0.5, 0.0])
    observer = Observer(found, Budget(1.0, unit="cores"), granted=lambda: next(shares))
    sample = found.sample
    monkeypatch.setattr(found, "sample", lambda: _with(sample(), measured(0.6, "cores", "test")))
    assert [observer.observe().power_w for _ in range(3)] == pytest.approx([0.6, 1.2 / 1.5, 1.8 / 1.5])
