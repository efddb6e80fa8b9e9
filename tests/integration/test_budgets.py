"""Budgets in real runs: held while another process loads the machine, and what was done is told."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert.assemble import Environment, memory
from edgert.assemble.memory import plan_memory
from edgert.assemble.run_settings import PowerStep, PowerSteps
from edgert.board.host import SystemMemory
from edgert.budget.control import PowerControl
from edgert.config import load_pipeline
from edgert.errors import BudgetError, ConfigError
from edgert.graph import to_bytes
from edgert.meters import measured
from edgert.meters.all import Meters, Sample
from edgert.meters.rails import POWER
from edgert.meters.usage import PROCESS
from edgert.pipeline import pipeline_in
from tests.helpers.pipeline_text import parts_pipeline
from tests.helpers.small_pipeline import network
from tests.helpers.sysfs import plant


def write(folder: Path, budgets: str, source: str = "fps: 40") -> Path:
    belt = f'{{source: "synthetic:noise", size: 320x240, realtime: true, {source}}}'
    sink = '  out: {sink: "null", from: find}\n'
    return parts_pipeline(folder, belt, sink, model=", precision: fp32", top=f"budgets: {budgets}\n")


class Scripted(Meters):
    """The meters of this machine, but for CPU time, which the test says: on a busy machine a process gets little of it,
    whatever it wants."""

    cores = 0.1

    def sample(self) -> Sample:
        sample = super().sample()
        return replace(sample, readings={**sample.readings, PROCESS: measured(self.cores, "cores", "the test")})


def test_stop_ends_the_run_with_what_was_exceeded(tmp_path: Path) -> None:
    meters = Scripted()
    path = write(tmp_path, "{cpu: 0.6, when_exceeded: stop}", "fps: 5")
    with pytest.raises(BudgetError) as caught, pipeline_in(Environment(meters=meters), path) as pipeline:
        meters.cores = 0.9
        pipeline.run()
    assert caught.value.what == "a budget was exceeded"
    assert caught.value.why == "CPU time 0.9 of 0.6 cores, for 2 s"
    assert "p.yaml:1 budgets" in caught.value.where


@pytest.mark.timing
@pytest.mark.slow
def test_frames_are_throttled_while_the_budget_is_exceeded_and_come_back_after(tmp_path: Path) -> None:
    meters = Scripted()
    path = write(tmp_path, "{cpu: 0.6, when_exceeded: degrade}", "fps: 20")
    with pipeline_in(Environment(meters=meters), path) as pipeline:
        pipeline.start()
        meters.cores = 1.2
        _budgets_once(pipeline, lambda budgets: budgets["throttled"] > 0)
        meters.cores = 0.1
        pipeline.wait(2)  # what was measured before still counts for a moment
        busy = pipeline.summary().budgets
        after = _budgets_once(pipeline, lambda budgets: "headroom" in _reasons(budgets)[-1])
    assert busy["governor"]["setting"].endswith("% of the frames")
    assert busy["throttled"] > 0
    assert " of 0.6 cores" in _reasons(after)[0]
    assert "headroom for" in _reasons(after)[-1]
    assert _share(after["governor"]["setting"]) > _share(busy["governor"]["setting"])


def _budgets_once(pipeline: edgert.Pipeline, is_reached: Callable[[Any], bool], most_s: float = 20) -> Any:
    """What a running pipeline says of its budgets as soon as that is so, or at the end of that time."""
    ends = time.monotonic() + most_s
    while not is_reached(budgets := pipeline.summary().budgets) and time.monotonic() < ends:
        pipeline.wait(0.1)
    return budgets


def test_a_stream_of_low_priority_stops_first_wherever_it_stands(tmp_path: Path) -> None:
    path, meters = write(tmp_path, "{cpu: 0.6, when_exceeded: degrade}", "fps: 20"), Scripted()
    text = path.read_text().replace("from: belt", "from: [gate, belt]")
    gate = '  gate: {source: "synthetic:noise", size: 320x240, realtime: true, fps: 20, priority: low}\n'
    path.write_text(text.replace("stages:\n", f"stages:\n{gate}"))
    with pipeline_in(Environment(meters=meters), path) as pipeline:
        pipeline.start()
        meters.cores = 6.0
        pipeline.wait(4)
        governor = pipeline.summary().budgets["governor"]
    assert governor["setting"].endswith("% of the frames, without gate")


def _reasons(budgets: Any) -> list[str]:
    return [event["reason"] for event in budgets["governor"]["events"]]


def _share(setting: str) -> int:
    return 100 if setting == "all frames" else int(setting.split()[0])


def test_memory_is_planned_and_compared(tmp_path: Path) -> None:
    path = write(tmp_path, "{}", "fps: 40, limit: 30")
    free = plan_memory(load_pipeline(path))
    enough = free.most_bytes + 8 * 2**20  # to spare, since this process grows from one test to the next
    path = write(tmp_path, f"{{memory: {enough}B}}", "fps: 40, limit: 30")
    with edgert.Pipeline(path) as pipeline:
        summary = pipeline.run()
    memory = summary.budgets["memory"]
    assert memory["fits"] and memory["measured_bytes"] == summary.memory.peak_rss_bytes
    assert memory["more_bytes"] == memory["measured_bytes"] - memory["total_bytes"]


def test_more_than_this_machine_has_does_not_start_without_a_budget_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SystemMemory(16 * 2**20, 16 * 2**20, None)
    monkeypatch.setattr(memory, "system_memory", lambda: small)
    monkeypatch.setattr(memory, "free_bytes", lambda: small.available_bytes)
    with pytest.raises(BudgetError, match=r"of memory, this machine has 16\.0 MiB") as caught:
        edgert.Pipeline(write(tmp_path, "{}"))
    assert caught.value.where.endswith("p.yaml:2 models")


def test_a_budget_of_cpu_time_that_no_setting_keeps_is_refused_with_the_closest(tmp_path: Path) -> None:
    with pytest.raises(BudgetError) as caught:
        edgert.Pipeline(write(tmp_path, "{cpu: 0.0001, when_exceeded: degrade}"))
    assert "10 % of the frames, is predicted to need" in caught.value.why
    assert "cpu: " in caught.value.fix
    assert caught.value.where.endswith("p.yaml:1 budgets")


def test_a_latency_that_the_engine_alone_exceeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="no setting keeps the budgets"):
        edgert.Pipeline(write(tmp_path, "{latency: 0.001ms, when_exceeded: stop}"))


def test_a_warning_says_at_the_start_what_is_predicted_and_runs(tmp_path: Path) -> None:
    path = write(tmp_path, "{latency: 0.001ms, when_exceeded: warn}", "fps: 40, limit: 5")
    with edgert.Pipeline(path) as pipeline:
        governor = pipeline.run().budgets["governor"]
    assert governor["notes"][0].startswith(
        "no setting keeps the budgets: the closest, all frames, is predicted to need"
    )


def test_power_that_nothing_here_measures_stops_no_run_and_is_told(tmp_path: Path) -> None:
    nothing = Meters(tmp_path, nvml=lambda _: {})
    with pytest.raises(BudgetError, match="a power budget cannot be enforced here") as caught:
        pipeline_in(Environment(meters=nothing), write(tmp_path, "{power: 15W, when_exceeded: stop}"))
    assert "this machine has no power sensor" in caught.value.why
    assert caught.value.where.endswith("p.yaml:1 budgets.power") and "warn or degrade" in caught.value.fix
    path = write(tmp_path, "{power: 15W, when_exceeded: degrade}", "fps: 40, limit: 5")
    with pipeline_in(Environment(meters=nothing), path) as pipeline:
        budgets = pipeline.run().budgets
    assert "budgets.power is not watched" in budgets["governor"]["notes"][0]
    assert budgets["used"]["mean"] is None and budgets["used"]["total"] == 0.0


class Clocked(Scripted):
    def __init__(self, cap: Path) -> None:
        super().__init__()
        self._cap = cap

    def sample(self) -> Sample:
        sample = super().sample()
        watts = 11.5 if self._cap.read_text().strip() == "918000000" else 8.5
        return replace(sample, readings={**sample.readings, POWER: measured(watts, "W", "the test")})


def test_power_is_kept_by_a_lower_clock_which_is_restored_at_the_end(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp6")
    clock = tmp_path / "sys/class/devfreq/17000000.gpu/max_freq"
    found = PowerStep("", 9.0, 4.0, 3.0, 10.0)
    capped = PowerStep("GPU at 612 MHz", 7.0, 4.0, 2.0, 15.0, gpu_hz=612_000_000)
    path, meters = write(tmp_path, "{power: 10W, when_exceeded: degrade}", "fps: 5"), Clocked(clock)
    with PowerControl(allow=True, root=tmp_path) as control:
        power = PowerSteps((found, capped), control)
        with pipeline_in(Environment(meters=meters, power=power), path) as pipeline:
            pipeline.start()
            _budgets_once(pipeline, lambda governor: governor["governor"]["events"])
            pipeline.wait(0.5)
            governor = pipeline.summary().budgets["governor"]
            assert clock.read_text().strip() == "612000000"
    assert clock.read_text().strip() == "918000000"
    assert governor["setting"] == "all frames, GPU at 612 MHz"
    assert [event["reason"] for event in governor["events"]] == [
        "all frames -> all frames, GPU at 612 MHz: power 11.5 of 10 W"
    ]


VARIANTS = """\
budgets: {cpu: 0.6, when_exceeded: degrade}
models:
  large: {onnx: large.onnx, task: {embed: none}, input: {resize: stretch}, precision: fp32, degrade_to: small}
  small: {onnx: small.onnx, task: {embed: none}, input: {resize: stretch}, precision: fp32}
stages:
  belt: {source: "synthetic:noise", size: 320x240, realtime: true, fps: 20}
  find: {infer: large, from: belt}
  out: {sink: callback, from: find}
"""


def test_a_smaller_model_takes_over_between_two_frames(tmp_path: Path) -> None:
    for name, size in (("large", 320), ("small", 16)):
        (tmp_path / f"{name}.onnx").write_bytes(to_bytes(network((1, 3, size, size))))
    (tmp_path / "p.yaml").write_text(VARIANTS)
    meters, seen = Scripted(), list[object]()
    with pipeline_in(
        Environment(meters=meters, callbacks={"out": lambda result: seen.append(result.outputs["find"])}),
        tmp_path / "p.yaml",
    ) as pipeline:
        pipeline.start()
        meters.cores = 0.9
        _budgets_once(pipeline, lambda budgets: budgets["governor"]["setting"] == "all frames, with small")
        before = len(seen)
        budgets = _budgets_once(pipeline, lambda _: len(seen) > before + 5)
    assert budgets["governor"]["setting"] == "all frames, with small"
    assert budgets["governor"]["events"][0]["reason"].startswith("all frames -> all frames, with small: CPU time ")
    assert len(seen) > before + 5 and None not in seen


PLACES = """\
models:
  first:
    {onnx: m.onnx, task: {embed: none}, input: {resize: stretch}, precision: fp32, placement: cpu0, degrade_to: cut}
  cut:
    onnx: m.onnx
    task: {embed: none}
    input: {resize: stretch}
    precision: fp32
    placement: {"*": cpu1, "Conv*": cpu0}
    degrade_to: last
  last: {onnx: m.onnx, task: {embed: none}, input: {resize: stretch}, precision: fp32, placement: {replicate: [cpu1]}}
stages:
  belt: {source: "synthetic:noise", size: 64x64, realtime: true, fps: 50}
  find: {infer: first, from: belt}
  out: {sink: callback, from: find}
"""


def test_work_moves_to_other_accelerators_between_two_frames_and_back(tmp_path: Path) -> None:
    """Whole on one core, cut over two, whole on the other: all loaded, and all give the same numbers in order."""
    (tmp_path / "m.onnx").write_bytes(to_bytes(network((1, 3, 16, 16))))
    (tmp_path / "p.yaml").write_text(PLACES)
    seen: list[int] = []
    with edgert.Pipeline(tmp_path / "p.yaml", callbacks={"out": lambda result: seen.append(result.frame.index)}) as one:
        choice = one._assembly.choice  # written by a governor in a run with budgets
        one.start()
        for level in (0, 1, 2, 1, 0):
            choice.level = level
            before = len(seen)
            one.wait(0.4)
            assert len(seen) > before
        stages = one.summary().stages
    assert seen == sorted(seen)
    assert min(stages[name].results_in for name in ("find:0", "find:1", "find:2", "find:3")) > 5


def test_models_with_other_classes_cannot_take_turns(tmp_path: Path) -> None:
    for name, labels in (("large", "bolt\nnut\n"), ("small", "nut\nbolt\n")):
        (tmp_path / f"{name}.onnx").write_bytes(to_bytes(network((1, 3, 16, 16))))
        (tmp_path / f"{name}.txt").write_text(labels)
    text = VARIANTS
    for name in ("large", "small"):
        text = text.replace(
            f"{name}.onnx, task: {{embed: none}}", f"{name}.onnx, task: {{embed: none, labels: {name}.txt}}"
        )
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ConfigError, match="models 'large' and 'small' have different classes") as caught:
        edgert.Pipeline(tmp_path / "p.yaml", callbacks={"out": lambda result: None})
    assert "p.yaml:4 models.small.task" in caught.value.where
    assert caught.value.fix == "use one labels file for both"
