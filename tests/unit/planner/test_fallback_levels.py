"""Models that take each other's place, in plans and simulations: every one is predicted, all are loaded, and the
governor moves among them."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from edgert.assemble.governing import Cost, rules_of
from edgert.assemble.run_settings import PowerStep, run_settings
from edgert.cli.plan_command import show_plan
from edgert.config import PipelineFile, load_pipeline
from edgert.config.pipeline_file import BudgetConfig
from edgert.errors import ConfigError
from edgert.planner import plan
from edgert.planner.plan_page import render
from edgert.planner.plan_text import to_json
from edgert.planner.simulation import Scenario, simulate
from tests.helpers.models import node, save
from tests.unit.planner.test_simulation import profile

XAVIER, MODE = "xavier-nx-8gb", "MODE_15W_2CORE"
ELSEWHERE = """
  net: {onnx: net.onnx, task: {embed: none}, precision: fp16, placement: gpu, degrade_to: net-dla}
  net-dla: {onnx: net.onnx, task: {embed: none}, precision: fp16, placement: dla0}
"""
SMALLER = """
  net: {onnx: net.onnx, task: {embed: none}, precision: fp16, degrade_to: small}
  small: {onnx: small.onnx, task: {embed: none}, precision: fp16}
"""


def network(path: Path, side: int = 256, rows: int | str = 1) -> None:
    """Two convolutions, which a DLA does with less energy than a GPU."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        node("Conv", ["a", "v"], ["y"], name="second", pads=[1] * 4),
    ]
    arrays = {"w": np.full((16, 3, 3, 3), 0.1, np.float32), "v": np.full((16, 16, 3, 3), 0.1, np.float32)}
    save(path, nodes, {"x": (rows, 3, side, side)}, {"y": (rows, 16, side, side)}, arrays)


def pipeline(folder: Path, budgets: str, models: str = ELSEWHERE, fps: int = 240) -> PipelineFile:
    network(folder / "net.onnx")
    network(folder / "small.onnx", side=64)
    (folder / "p.yaml").write_text(f"""
board: {XAVIER}
budgets: {{{budgets}, when_exceeded: degrade}}
models:{models}
stages:
  cam: {{source: 'usb:0', fps: {fps}}}
  look: {{infer: net, from: cam}}
""")
    return load_pipeline(folder / "p.yaml")


def test_a_plan_has_a_row_of_every_model_that_a_governor_may_choose(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, "power: 30W"), mode=MODE)
    (row,) = made.boards[0].rows
    (other,) = row.fallbacks
    assert other.fallback_models == ("net-dla",) and other.models[0].engines[0].accelerators == ("dla0",)
    assert other.power_w is not None and row.power_w is not None and other.power_w < row.power_w
    assert other.p99_ms > row.p99_ms
    data = to_json(made)["boards"][0]["rows"][0]["fallbacks"]
    assert [one["fallback_models"] for one in data] == [["net-dla"]] and data[0]["power_w"] == other.power_w
    console = Console(width=160, record=True)
    show_plan(console, made)
    text = console.export_text()
    assert "with net-dla, dla0" in text and "net-dla: 100% of its frames, 2 units on dla0" in text
    assert "with net-dla, dla0" in render(made)


def test_all_that_are_loaded_count_in_its_memory(tmp_path: Path) -> None:
    (row,) = plan(pipeline(tmp_path, "power: 30W"), mode=MODE).boards[0].rows
    weights = {part.name: (part.on, part.size_bytes) for part in row.memory if part.kind == "weights"}
    assert weights.keys() == {"net", "net-dla"} and weights["net-dla"][0] == "dla0"
    assert row.memory_bytes == sum(part.size_bytes for part in row.memory) == row.fallbacks[0].memory_bytes


def test_a_power_budget_that_the_gpu_breaks_is_kept_on_the_dla_without_losing_a_frame(tmp_path: Path) -> None:
    (row,) = plan(pipeline(tmp_path, "power: 30W"), mode=MODE).boards[0].rows
    assert row.power_w is not None and row.fallbacks[0].power_w is not None
    cap_w = (row.power_w + row.fallbacks[0].power_w) / 2
    played = simulate(pipeline(tmp_path, f"power: {cap_w:.3f}W"), mode=MODE, scenario=Scenario(seconds=4.0)).played
    assert played.governed is not None and played.governed.seconds == {"all frames, with net-dla": pytest.approx(4.0)}
    assert played.dropped == 0 and played.fps == pytest.approx(240, rel=0.02)
    assert played.power_w is not None and played.power_w < cap_w
    assert played.busy["dla0"] > 5 * played.busy["gpu"]


@pytest.mark.slow
def test_a_governor_moves_the_work_to_the_dla_when_the_board_gets_hot(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "power: 30W", fps=240)
    (row,) = plan(file, mode=MODE).boards[0].rows
    assert row.power_w is not None and row.fallbacks[0].power_w is not None
    between_c = 95.0 - 3.0 - 2.0 * (row.power_w + row.fallbacks[0].power_w) / 2  # 3 to be kept, 2 for each watt
    played = simulate(file, mode=MODE, scenario=Scenario(seconds=240.0, ambient_c=between_c)).played
    assert played.governed is not None
    event = played.governed.events[0]
    assert event.kind == "switch" and event.setting == "all frames, with net-dla"
    assert event.reason.startswith("all frames -> all frames, with net-dla") and "to throttling" in event.reason
    before = [one for one in played.moments if one.at_s <= event.at_s]
    after = [one for one in played.moments if one.at_s > event.at_s + 1]
    assert not any(one.busy.get("dla0") for one in before) and all(one.busy["dla0"] > 0.04 for one in after[1:])
    assert len(played.governed.events) == 1 and played.dropped == 0 and played.throttled_s == 0


def test_a_smaller_model_takes_over_in_the_same_threads(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "power: 3.9W", SMALLER)
    played = simulate(file, mode=MODE, scenario=Scenario(seconds=4.0)).played
    assert played.governed is not None and any("with small" in name for name in played.governed.seconds)
    assert list(played.stages) == ["cam", "look"] or "look:dispatch" in played.stages
    assert played.power_w is not None and played.power_w < 3.9 and played.fps > 230


HOST = """
  net: {onnx: net.onnx, task: {embed: none}, precision: fp32, threads: 1, degrade_to: small}
  small: {onnx: small.onnx, task: {embed: none}, precision: fp32, threads: 1}
"""


def test_on_this_machine_every_model_needs_a_profile_and_latency_moves_to_the_faster(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "latency: 20ms", HOST, fps=20)
    slow = profile(tmp_path, file, alone_ms=30.0)
    with pytest.raises(ConfigError, match="no profile of model 'small'") as caught:
        simulate(file, board="host", profiles=[slow], scenario=Scenario(seconds=2.0))
    assert "bench --units" in caught.value.fix
    (tmp_path / "s").mkdir()
    fast = profile(tmp_path / "s", file, alone_ms=5.0, model="small")
    played = simulate(file, board="host", profiles=[slow, fast], scenario=Scenario(seconds=3.0)).played
    assert played.governed is not None and list(played.governed.seconds) == ["all frames, with small"]
    assert played.latency_ms.p50 == pytest.approx(5.0, rel=0.1) and played.dropped == 0


def test_what_a_plan_predicts_takes_the_place_of_a_guess() -> None:
    hz = {"cam": 30.0}
    budgets = BudgetConfig.model_validate({"power": "10W", "when_exceeded": "degrade"})
    predicted = [PowerStep("", 9.0, 3.0, 2.0, 8.0), PowerStep("", 7.0, 3.0, 1.5, 12.0)]
    found = run_settings(("cam",), [("net-dla",)])
    rules = rules_of(budgets, found, [Cost(hz, None, 5.0)] * 2, predicted)
    by_name = {one.name: one for one in rules.settings}
    first, other = by_name["all frames"], by_name["all frames, with net-dla"]
    assert (first.power_w, first.latency_ms, other.power_w, other.latency_ms) == (9.0, 8.0, 7.0, 12.0)
    assert by_name["50 % of the frames, with net-dla"].power_w == pytest.approx(5.0)
