"""Plans from measured profiles."""

import json
from pathlib import Path

import pytest

from edgert.config import PipelineFile, load_pipeline
from edgert.errors import ArtifactError, ConfigError, PlacementError
from edgert.graph import clean, load, read
from edgert.placement.cost.work import units
from edgert.placement.profile import MeasuredTransition, ModelTimes, Profile, ProfiledUnit
from edgert.planner import plan
from edgert.planner.plan_page import render
from edgert.planner.plan_text import to_json
from edgert.planner.simulation import Scenario, simulate
from tests.unit.planner.test_planning import network

CORES = ("cpu0", "cpu1")


def profiled(model: Path, out: Path, contention: float = 1.25) -> Path:
    """A profile of 1 ms per unit."""
    loaded = load(model)
    works = units(read(clean(loaded)[0]))
    whole = ModelTimes(float(len(works)), contention * len(works), float(len(works)))
    found = Profile(
        model.stem,
        loaded.digest,
        "host",
        "",
        {"cpu": "Test CPU"},
        9,
        dict.fromkeys(CORES, whole),
        tuple(ProfiledUnit(work.name, work.nodes, dict.fromkeys(CORES, 1.0)) for work in works),
        MeasuredTransition(0.01, 0.0, 0.0),
    )
    out.write_text(json.dumps(found.to_json()))
    return out


def pipeline(tmp_path: Path, model: str = "", more: str = "") -> PipelineFile:
    network(tmp_path / "net.onnx")
    (tmp_path / "p.yaml").write_text(
        f"""
board: host
{more}
models: {{net: {{onnx: net.onnx, task: {{embed: none}}, precision: fp32{model}}}}}
stages: {{cam: {{source: 'usb:0', fps: 10}}, look: {{infer: net, from: cam}}}}
"""
    )
    return load_pipeline(tmp_path / "p.yaml")


def test_one_core_and_all_of_them_with_company_slowing_both(tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    made = plan(file, profiles=[profiled(tmp_path / "net.onnx", tmp_path / "profile.json")])
    (board,) = made.boards
    rows = {row.name: row for row in board.rows}
    count = len(rows["cpu0"].models[0].network.units)
    assert made.smallest == "host" and board.title == "Test CPU"
    assert rows["cpu0"].most_fps == pytest.approx(1000 / count, rel=0.01)
    assert rows["mixed"].most_fps == pytest.approx(2 * 1000 / count / 1.25, rel=0.01)
    assert all(row.power_w is None and row.energy_mj is None for row in board.rows)
    assert rows["mixed"].memory_bytes > rows["cpu0"].memory_bytes > 0
    assert "measured on this machine" in render(made)
    assert to_json(made)["boards"][0]["rows"][0]["power_w"] is None


def test_a_power_budget_without_a_meter_is_not_called_kept(tmp_path: Path) -> None:
    file = pipeline(tmp_path, more="budgets: {power: 5W}")
    made = plan(file, profiles=[profiled(tmp_path / "net.onnx", tmp_path / "profile.json")])
    assert made.smallest is None
    assert all(row.doubts == ("power unknown",) for row in made.boards[0].rows)


def test_the_placement_of_the_file_is_kept(tmp_path: Path) -> None:
    file = pipeline(tmp_path, model=", placement: cpu1")
    made = plan(file, profiles=[profiled(tmp_path / "net.onnx", tmp_path / "profile.json")])
    for row in made.boards[0].rows:
        assert {name for engine in row.models[0].engines for name in engine.assignment} == {"cpu1"}
    with pytest.raises(PlacementError, match="cannot run on gpu"):
        plan(pipeline(tmp_path, model=", placement: gpu"), profiles=[tmp_path / "profile.json"])


@pytest.mark.parametrize("globs", ["{third: cpu1}", '{third: cpu0, "*": cpu1}'])
def test_nodes_that_no_glob_fits_go_where_the_first_says_as_in_a_run(tmp_path: Path, globs: str) -> None:
    file = pipeline(tmp_path, model=f", placement: {globs}")
    made = plan(file, profiles=[profiled(tmp_path / "net.onnx", tmp_path / "profile.json")])
    for row in made.boards[0].rows:
        assert {name for engine in row.models[0].engines for name in engine.assignment} == {"cpu1"}


def test_without_the_model_s_profile_it_says_how_to_measure_one(tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    path = profiled(tmp_path / "net.onnx", tmp_path / "profile.json")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "digest": "0" * 64}))
    with pytest.raises(ConfigError, match="no profile of model 'net'") as caught:
        plan(file, profiles=[path])
    assert "bench --units" in caught.value.fix and caught.value.where
    with pytest.raises(ArtifactError, match="cannot read profile"):
        plan(file, profiles=[tmp_path / "missing.json"])
    with pytest.raises(ConfigError, match="there are no measured times of this machine") as requested:
        plan(file)
    assert "--profile" in requested.value.fix


def test_frames_are_dealt_by_the_weights_of_the_file(tmp_path: Path) -> None:
    file = pipeline(tmp_path, model=", placement: {replicate: {cpu0: 3, cpu1: 1}}")
    (row,) = plan(file, profiles=[profiled(tmp_path / "net.onnx", tmp_path / "profile.json")]).boards[0].rows
    engines = row.models[0].engines
    assert {engine.accelerators: round(engine.share, 9) for engine in engines} == {("cpu0",): 0.75, ("cpu1",): 0.25}
    units = len(row.models[0].network.units)
    # Of four frames cpu0 runs three; while cpu1 runs the fourth, 1.25 times as long, it goes on as slowly.
    assert row.most_fps == pytest.approx(4e3 / ((3 - 1 + 1.25) * units), rel=0.01)


def test_two_threads_share_the_work_of_a_run_evenly(tmp_path: Path) -> None:
    file = pipeline(tmp_path, ", threads: 2")
    profile = profiled(tmp_path / "net.onnx", tmp_path / "profile.json", contention=1.0)
    alone_ms = json.loads(profile.read_text())["whole"]["cpu0"]["alone_ms"]
    made = simulate(file, board="host", profiles=[profile], scenario=Scenario(seconds=5.0))
    assert made.played.latency_ms.p50 == pytest.approx(alone_ms / 2, rel=0.02)
    assert made.played.busy["cpu"] == pytest.approx(10 * alone_ms / 1e3, rel=0.02)
    assert any("net: its profile has the times of one thread; several are assumed" in note for note in made.notes)
