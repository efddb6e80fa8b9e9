"""Pipeline files simulated on boards and on this machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgert.board.host import core_accelerators
from edgert.board.record import find_board
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import BudgetError, ConfigError
from edgert.graph import load
from edgert.installation import shipped
from edgert.placement.cost.power import power
from edgert.placement.profile import MeasuredTransition, ModelTimes, Profile, ProfiledUnit
from edgert.placement.segment_engines import Step
from edgert.planner import plan
from edgert.planner.simulation import Scenario, Simulation, simulate, step_of
from edgert.planner.simulation_page import render, simulation_headline, track_of, verdict_text
from edgert.report.chart import HUES
from edgert.simulator.board_platform import static_graph
from edgert.simulator.board_stages import board_stages
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.pipeline_design import InferenceSlot, Scene, design_of
from edgert.simulator.sources import StageTimes
from edgert.simulator.spans import Second, Span, lanes
from tests.helpers.errors import Exactly, raises
from tests.unit.planner.test_planning import ORIN, network, pipeline

SHORT = Scenario(seconds=3.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    file = pipeline(tmp_path_factory.mktemp("simulation"), "budgets: {power: 14W, latency: 50ms}")
    return simulate(file, mode="15W", scenario=SHORT)


def test_a_camera_on_a_board(made: Simulation) -> None:
    assert (made.board, made.mode) == (ORIN, "15W")
    assert made.played.fps == pytest.approx(30.0, rel=0.05) and made.played.dropped == 0
    assert made.played.power_w is not None and 2 < made.played.power_w < 15
    assert made.verdict == "kept" and verdict_text(made).startswith("kept, ")
    assert "simulated for 3" in simulation_headline(made) and "15W" in simulation_headline(made)
    assert any("cooler is assumed" in note for note in made.notes)


def test_its_headline_has_error_bars_and_what_may_come_out_less(made: Simulation) -> None:
    sure = replace(made, error=0.2, power_error=0.1, most_fps=100.0)
    text = simulation_headline(sure).replace("\N{NO-BREAK SPACE}", " ")
    assert text.endswith(" ms ±20%.") and " W ±10%, p99 " in text and "perhaps" not in text
    assert "30 frames a second (perhaps 25) at" in simulation_headline(replace(sure, most_fps=30.0))
    assert "(perhaps 25)" not in simulation_headline(replace(sure, most_fps=30.0, error=None))
    unknown = simulation_headline(replace(sure, error=None, power_error=None))
    assert unknown.count("±?") == 2
    assert "perhaps 25, at the far end of its error bar" in render(replace(sure, most_fps=30.0))


def test_its_page_has_one_second_in_full(made: Simulation) -> None:
    second = made.played.second
    assert second is not None and second.spans
    text = render(made)
    assert ("One second in full" in text and ">gpu<" in text and "cam → look" in text) or "No queue held" in text
    stages = {span.stage for span in second.spans}
    assert all(f">{stage}</span>" in text for stage in stages)  # in the legend
    assert len(text) < 300_000
    assert "One second in full" not in render(replace(made, played=replace(made.played, second=None)))


def test_the_second_comes_first_and_lines_that_hardly_change_are_folded(made: Simulation) -> None:
    text = render(made)
    assert text.index(">One second in full</h2>") < text.index(">Over time</h2>")
    moments = made.played.moments
    assert moments
    flat = tuple(replace(moments[0], at_s=one.at_s) for one in moments)
    folded = render(replace(made, played=replace(made.played, moments=flat)))
    assert "<details><summary>Hardly changed: frames per second " in folded
    rising = tuple(replace(one, fps=10.0 + number) for number, one in enumerate(flat))
    text = render(replace(made, played=replace(made.played, moments=rising)))
    assert text.index("<figcaption>Frames per second") < text.index("<details>")
    assert "Hardly changed: latency" in text


def test_a_lane_says_what_each_stage_took_and_stages_beyond_the_last_color_share_it() -> None:
    spans = [Span("gpu", f"s{n}", 10.0 * n, 10.0 * n + 4) for n in range(12)]
    (lane,) = lanes(Second(0.0, 120.0, None, tuple(spans), (), ()))
    hues = {f"s{n}": min(n, HUES - 1) for n in range(12)}
    track = track_of(lane, hues)
    assert sorted(track.spans) == list(range(HUES)) and len(track.spans[HUES - 1]) == 5
    assert track.titles[0].replace("\N{NO-BREAK SPACE}", " ") == "s0 on gpu: 1 time, 4 ms in all, 4 ms at most"
    assert track.titles[HUES - 1].count("\n") == 4


def test_its_json_says_that_it_is_simulated(made: Simulation) -> None:
    data = json.loads(json.dumps(made.to_json()))
    assert data["simulated"] is True and data["played"]["frames_in"] == made.played.frames_in
    assert len(data["played"]["moments"]) == 3
    for one in data["played"]["moments"]:
        assert one["energy_j_per_frame"] == pytest.approx(one["power_w"] / one["fps"])


def test_its_page_shows_every_chart(made: Simulation) -> None:
    text = render(made)
    for title in (
        "Frames per second",
        "Latency from capture to sink",
        "Power",
        "Energy of a frame",
        "Temperature",
        "Busy",
    ):
        assert f"<figcaption>{title}" in text
    assert "budget 14 W" in text and render(made) == text


def test_a_plan_of_a_board_has_the_p99_of_a_simulation(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "budgets: {latency: 50ms}")
    (board,) = plan(file, mode="15W").boards
    assert board.chosen is not None
    row = board.rows[board.chosen]
    assert row.p99_ms < 50
    assert row.tightest.name in ("rate", "latency", "memory") and 0 < row.tightest.margin < 1
    played = simulate(file, mode="15W", scenario=SHORT).played
    assert played.latency_ms.p99 == pytest.approx(row.p99_ms, rel=0.05)


def test_budgets_that_no_share_of_the_frames_keeps_are_refused(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "budgets: {power: 1W, when_exceeded: degrade}")
    with pytest.raises(BudgetError, match="no setting keeps the budgets"):
        simulate(file, mode="15W", scenario=SHORT)


def test_a_stream_of_low_priority_stops_first_wherever_it_stands(tmp_path: Path) -> None:
    board = shipped(f"configs/boards/{ORIN}.yaml").read_text().replace(f"name: {ORIN}", "name: frugal")
    frugal = tmp_path / "frugal.yaml"  # whose work is most of what it draws
    frugal.write_text(board.replace("watts: 4.6", "watts: 0.05").replace("watts: 5.3", "watts: 0.05"))

    def two(more: str = "") -> PipelineFile:
        path = pipeline(tmp_path, more).document.path
        text = path.read_text().replace("from: cam}", "from: [gate, cam]}").replace("fps: 30", "fps: 500")
        text = text.replace(ORIN, "./frugal.yaml")
        path.write_text(text.replace("stages:", "stages:\n  gate: {source: 'usb:1', fps: 500, priority: low}"))
        return load_pipeline(path)

    (row,) = [one for one in plan(two(), mode="15W").boards[0].rows if one.name == "gpu"]
    record = find_board(str(frugal))
    step = step_of(row, power(record, record.mode("15W")))
    cap_w = step.drawn_w(0.2)  # more than 30 % of one stream takes, and less than of two
    played = simulate(two(f"budgets: {{power: {cap_w}W, when_exceeded: degrade}}"), mode="15W", scenario=SHORT).played
    assert played.governed is not None
    assert set(played.governed.seconds) == {played.governed.setting}
    assert played.governed.setting == "30 % of the frames, without gate"


def test_what_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    with pytest.raises(ConfigError, match="orin-nx-16gb"):
        simulate(file, board="orin-nx-16g", scenario=SHORT)
    with raises(ConfigError, "MAXN", what="16W"):
        simulate(file, mode="16W", scenario=SHORT)
    with pytest.raises(ConfigError, match="one board at a time"):
        simulate(file, board="all", mode="15W", scenario=SHORT)
    for seconds in (0.0, -1.0, float("nan")):
        with raises(ConfigError, "cannot simulate", where=Exactly("seconds")):
            simulate(file, scenario=Scenario(seconds=seconds))
    for objects in (-1.0, 1e9, float("nan")):
        with pytest.raises(ConfigError, match="cannot simulate objects"):
            Scenario(objects=objects)
    with pytest.raises(ConfigError, match="cannot simulate jitter"):
        Scenario(jitter=float("nan"))


def test_a_pipeline_without_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("stages:\n  cam: {source: 'usb:0'}\n  end: {sink: null, from: cam}\n")
    with pytest.raises(ConfigError, match="no stage runs a model"):
        simulate(load_pipeline(tmp_path / "p.yaml"), board=ORIN, scenario=SHORT)


def test_a_trace_of_a_stream_that_is_no_source_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"time_s": 0, "stream": "cma"}\n{"time_s": 1, "stream": "cma"}\n')
    with raises(ConfigError, r"'cma'.*cam", fix="sources: cam"):
        simulate(pipeline(tmp_path), scenario=replace(SHORT, trace=trace))


def profile(folder: Path, file: PipelineFile, alone_ms: float = 10.0, model: str = "net") -> Path:
    """As if measured: every core takes as long, and half as long again in company."""
    config = file.config.models[model]
    nodes = tuple(node.name for node in static_graph(config).nodes)
    cores = list(core_accelerators())
    whole = {core: ModelTimes(alone_ms, 1.5 * alone_ms, alone_ms) for core in cores}
    unit = ProfiledUnit(nodes[0], nodes, dict.fromkeys(cores, alone_ms))
    digest = load(config.onnx).digest
    made = Profile(model, digest, "host", "", {"cpu": "test"}, 1, whole, (unit,), MeasuredTransition(0.1, 0.0, 0.0))
    path = folder / "profile.json"
    path.write_text(json.dumps(made.to_json()))
    return path


def test_this_machine_is_simulated_from_profiles(tmp_path: Path) -> None:
    file = pipeline(tmp_path, model=", placement: cpu0")
    made = simulate(file, board="host", profiles=[profile(tmp_path, file)], scenario=SHORT)
    assert made.board == "host" and made.played.power_w is None
    assert "times of this machine do not vary: a p99 is only that of the queues" in made.notes
    assert made.played.latency_ms.p50 == pytest.approx(10.0, abs=0.1)


def test_a_stage_on_this_machine_takes_what_a_run_measured_with_its_model(tmp_path: Path) -> None:
    file = pipeline(tmp_path, model=", placement: cpu0")
    stages = tmp_path / "run.json"
    stages.write_text(json.dumps({"stages": {"look": {"busy_ms_per_result": 18.0}}}))
    scenario = replace(SHORT, stages=stages)
    made = simulate(file, board="host", profiles=[profile(tmp_path, file)], scenario=scenario).played
    assert made.busy["cpu"] * 1e3 / made.fps == pytest.approx(18.0, rel=0.02)  # the model's 10 ms among them
    assert made.latency_ms.p50 == pytest.approx(18.0, rel=0.02) == pytest.approx(made.latency_ms.p99, rel=0.02)


def test_a_model_that_takes_over_in_batches_is_as_much_slower_than_its_profile_as_the_first(tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    (tmp_path / "p.yaml").write_text("""
models:
  net: {onnx: net.onnx, task: {embed: none}, degrade_to: small}
  small: {onnx: net.onnx, task: {embed: none}}
stages:
  left: {source: 'usb:0', fps: 30}
  right: {source: 'usb:1', fps: 30}
  look: {infer: net, from: [left, right], batch: {max: 2}}
""")
    by_profile = [InferenceSlot(((Step(ANY_CORE, ms),),), rows=2) for ms in (10.0, 4.0)]
    slots = [lambda *_, slot=slot: [slot] for slot in by_profile]
    times = StageTimes({"look": 16.0})  # 6 ms to fill, and 10 of the model
    design = design_of(load_pipeline(tmp_path / "p.yaml"), slots[0], Scene({}, times=times), slots[1:])
    node = design.nodes[0]
    tasks = (node.task, *node.fallbacks)
    assert [[step.time_ms for step in task.steps] for task in tasks] == [[6.0], [6.0]]
    assert [[step.time_ms for step in task.run] for task in tasks] == [[10.0], [4.0]]
    assert [task.batch for task in tasks] == [2, 2]


@pytest.mark.skipif(len(core_accelerators()) < 2, reason="needs two cores")
def test_replicas_on_this_machine_take_turns(tmp_path: Path) -> None:
    file = pipeline(tmp_path, model=", placement: {replicate: {cpu0: 1, cpu1: 1}}")
    text = (tmp_path / "p.yaml").read_text().replace("'usb:0', fps: 30", "'synthetic:noise'")
    (tmp_path / "p.yaml").write_text(text)
    file = load_pipeline(tmp_path / "p.yaml")
    made = simulate(file, board="host", profiles=[profile(tmp_path, file)], scenario=SHORT)
    cores = len(core_accelerators())
    assert made.played.fps == pytest.approx(200 / (1 + 0.5 / (cores - 1)), rel=0.05)


def test_a_model_without_a_profile_is_refused(tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    path = profile(tmp_path, file)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "digest": "0" * 64}))
    with raises(ConfigError, "no profile of model 'net'", fix="bench --units"):
        simulate(file, board="host", profiles=[path], scenario=SHORT)


def test_stages_take_what_a_run_measured(tmp_path: Path) -> None:
    file = pipeline(tmp_path, stages="  paint: {draw: boxes, from: look}")
    stages = tmp_path / "run.json"
    busy = {"paint": {"busy_ms_per_result": 12.0}}
    stages.write_text(json.dumps({"stages": busy}))
    plain = simulate(file, mode="15W", scenario=SHORT).played
    timed = simulate(file, mode="15W", scenario=replace(SHORT, stages=stages)).played
    board = find_board(ORIN)
    (predicted,) = board_stages(file, board, board.mode("15W")).own["paint"]
    assert timed.latency_ms.p50 == pytest.approx(plain.latency_ms.p50 - predicted.time_ms + 12.0, abs=0.2)


def test_estimated_clocks_are_marked_and_keep_no_budget_for_sure(tmp_path: Path) -> None:
    file = pipeline(tmp_path, more="budgets: {latency: 50ms}")
    found = simulate(file, board="thor-t4000", scenario=SHORT)
    assert found.verdict == "unknown" and found.error is None
    notes = "\n".join(found.notes)
    assert "estimated by ratios of what is published, not measured: cpu_mhz, sms, gpu_mhz, emc_mhz" in notes
    assert "whether a row of the plan keeps every budget is not known" in notes and "no row" not in notes
    assert "estimated" not in "\n".join(simulate(file, board=ORIN, scenario=SHORT).notes)


def test_a_profile_of_a_board_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no times of a board"):
        simulate(pipeline(tmp_path), board="orin-nx-16gb", profiles=[tmp_path / "none.json"], scenario=SHORT)
