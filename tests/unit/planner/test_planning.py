"""Whole plans of small networks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from rich.console import Console

from edgert.cli.plan_command import show_plan
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import ConfigError, PlacementError
from edgert.graph import load, to_bytes
from edgert.planner import Plan, Row, plan
from edgert.planner.plan_page import render
from edgert.planner.plan_text import NUMBERS, headline, more_memory, numbers, to_json
from edgert.planner.planned_model import planned_models
from tests.helpers.models import node, save

ORIN = "orin-nx-16gb"


def network(path: Path) -> None:
    """Convolutions that a DLA takes around a Mish-like Softplus that none does."""
    random = np.random.default_rng(1)
    weights = {f"w{n}": random.normal(0, 0.1, shape).astype(np.float32) for n, shape in enumerate(
        [(32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3)])}  # fmt: skip
    nodes = [
        node("Conv", ["x", "w0"], ["a"], name="first", pads=[1] * 4),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w1"], ["c"], name="second", pads=[1] * 4),
        node("Softplus", ["c"], ["d"], name="soft"),
        node("Conv", ["d", "w2"], ["y"], name="third", pads=[1] * 4),
    ]
    save(path, nodes, {"x": (1, 3, 64, 64)}, {"y": (1, 64, 64, 64)}, weights)


def pipeline(
    tmp_path: Path, more: str = "", model: str = "", fps: float = 30, stage: str = "", stages: str = ""
) -> PipelineFile:
    network(tmp_path / "net.onnx")
    text = f"""
board: {ORIN}
{more}
models:
  net: {{onnx: net.onnx, task: {{embed: none}}, precision: fp16{model}}}
stages:
  cam: {{source: 'usb:0', fps: {fps}}}
  look: {{infer: net, from: cam{stage}}}
{stages}
"""
    (tmp_path / "p.yaml").write_text(text)
    return load_pipeline(tmp_path / "p.yaml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan(pipeline(tmp_path_factory.mktemp("plan")), mode="15W", objective="throughput")


def test_every_placement_is_a_row_and_the_best_is_taken(made: Plan) -> None:
    (board,) = made.boards
    rows = {row.name: row for row in board.rows}
    assert set(rows) == {"gpu", "dla", "mixed"}
    assert board.chosen == 0 and made.smallest == ORIN
    assert rows["mixed"].most_fps >= max(rows["gpu"].most_fps, rows["dla"].most_fps) * 0.99
    assert rows["gpu"].models[0].dla_share == 0 and rows["dla"].models[0].dla_share == 1  # all multiply-adds
    assert rows["dla"].models[0].loadables and max(rows["dla"].busy.values()) < 1
    assert all(row.most_fps == pytest.approx(30 * row.headroom) for row in board.rows)
    assert all(row.fps == pytest.approx(30, rel=0.01) for row in board.rows)


def test_the_refused_node_stays_on_the_gpu(made: Plan) -> None:
    for row in made.boards[0].rows:
        for engine in row.models[0].engines:
            units = row.models[0].network.units
            on = {node: where for unit, where in zip(units, engine.assignment, strict=True) for node in unit.nodes}
            assert on["soft"] == "gpu"


def test_a_plan_is_plain_data_and_a_page(made: Plan) -> None:
    data = to_json(made)
    assert data["boards"][0]["rows"][0]["models"][0]["engines"][0]["units"][0]["nodes"]
    assert data["predicted"] is True
    page = render(made)
    assert page == render(made)
    assert "Softplus" in page or "soft" in page
    assert "not measured" in page


def test_every_mode_of_the_board_is_planned(tmp_path: Path) -> None:
    (board,) = plan(pipeline(tmp_path)).boards
    assert {row.mode for row in board.rows} == {"MAXN", "10W", "15W", "25W"}


def test_a_row_has_the_same_figures_whatever_other_modes_are_planned(tmp_path: Path) -> None:
    file = pipeline(tmp_path, more="budgets: {latency: 50ms, power: 20W}")
    alone = {row.name: row for row in plan(file, mode="15W").boards[0].rows}
    among = {row.name: row for row in plan(file).boards[0].rows if row.mode == "15W"}
    assert alone.keys() == among.keys()
    for name, row in among.items():
        for figure in ("fps", "most_fps", "p50_ms", "p99_ms", "power_w", "energy_mj"):
            assert getattr(row, figure) == pytest.approx(getattr(alone[name], figure))
        assert {one.name: one.verdict for one in row.checks} == {one.name: one.verdict for one in alone[name].checks}


def test_boards_come_by_size_and_one_that_nobody_knows_is_not_called_missed(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, fps=5), board="all", mode="maxn")
    names = [board.board for board in made.boards]
    assert names.index("jetson-nano-4gb") < names.index("orin-nx-16gb") < names.index("agx-orin-64gb")
    assert names[-1] == "thor-t5000"
    unknown = next(board for board in made.boards if board.board == "thor-t4000")
    assert unknown.verdict == "unknown" and "not known" in headline(made)
    page = render(made)
    assert '<span class="open">? not known: ' in page and "✗ unknown" not in page


def test_each_model_has_its_own_share_of_the_dla(made: Plan) -> None:
    row = next(row for row in made.boards[0].rows if row.name == "dla")
    assert dict(zip(NUMBERS, numbers(row), strict=True))["DLA"] == ("all", 1.0, "")
    other = replace(row.models[0], name="other", dla_share=0.0)
    both = replace(row, models=(row.models[0], other))
    assert dict(zip(NUMBERS, numbers(both), strict=True))["DLA"] == ("net all, other none", 1.0, "")


def test_a_board_without_dla_runs_on_its_gpu_and_is_told_apart_from_those_that_have_one(tmp_path: Path) -> None:
    (board,) = plan(pipeline(tmp_path), board="orin-nano-8gb").boards
    assert {row.name for row in board.rows} == {"gpu"}
    with pytest.raises(PlacementError, match="Orin Nano 8GB has no DLA") as caught:
        plan(pipeline(tmp_path, model=", placement: dla"), board="orin-nano-8gb")
    assert ORIN in str(caught.value)


def test_a_placement_that_a_rule_forbids_names_the_rule(tmp_path: Path) -> None:
    file = pipeline(tmp_path, model=", placement: {soft: dla0}")
    with pytest.raises(PlacementError) as caught:
        plan(file, mode="15W")
    error = caught.value
    assert "'soft'" in error.what and "dla0" in error.what
    assert "general.operator" in error.why and "Softplus has no DLA layer" in error.why
    assert "train with Relu" in error.fix
    assert error.where.startswith(str(tmp_path / "p.yaml:"))


def test_a_placement_of_a_node_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="placement 'sotf' matches no node") as caught:
        plan(pipeline(tmp_path, model=", placement: {sotf: gpu}"), mode="15W")
    assert "did you mean 'soft'?" in caught.value.what and "first, relu, second" in caught.value.why
    assert caught.value.where.endswith("models.net.placement")


def test_rewrites_that_the_file_leaves_out(tmp_path: Path) -> None:
    text = ", skip_rewrites: maxpool"
    with pytest.raises(PlacementError, match="no rewrite 'maxpool'") as caught:
        plan(pipeline(tmp_path, model=text), mode="15W")
    assert caught.value.where.endswith("models.net.skip_rewrites") and str(tmp_path) in caught.value.where
    path = tmp_path / "negated.onnx"
    nodes = [node("Neg", ["x"], ["y"], name="negated")]
    shape = (1, 32, 8, 8)
    save(path, nodes, {"x": shape}, {"y": shape}, {})

    def share(skipped: str) -> list[str]:
        file = pipeline(tmp_path, model=f", skip_rewrites: {skipped}")
        model = file.config.models["net"].model_copy(update={"onnx": path})
        changed = file.config.model_copy(update={"models": {"net": model}})
        (subject,) = planned_models(replace(file, config=changed))
        return [node.op for node in subject.graph.nodes]

    assert share("[]") == ["Mul"] and share("neg") == ["Neg"] and share("'*'") == ["Neg"]


def test_a_placement_of_the_file_is_kept(tmp_path: Path) -> None:
    (board,) = plan(pipeline(tmp_path, model=", placement: {first: dla1, third: gpu}"), mode="15W").boards
    for row in board.rows:
        for engine in row.models[0].engines:
            assert (engine.assignment[0], engine.assignment[-1]) == ("dla1", "gpu")


def test_frames_are_dealt_by_the_weights_of_the_file(tmp_path: Path) -> None:
    (board,) = plan(pipeline(tmp_path, model=", placement: {replicate: {gpu: 3, dla0: 1}}"), mode="15W").boards
    (row,) = board.rows
    shares = {engine.accelerators: engine.share for engine in row.models[0].engines}
    assert shares == {("gpu",): pytest.approx(0.75), ("dla0", "gpu"): pytest.approx(0.25)}  # soft stays on the GPU
    room = 30 / max(busy for name, busy in row.busy.items() if name != "cpu")
    assert row.busy["gpu"] < 1 and row.most_fps <= room  # threads have to bring frames to the engines, too


def test_a_placement_of_an_activation_moves_what_it_is_fused_with(tmp_path: Path) -> None:
    (board,) = plan(pipeline(tmp_path, model=", placement: {relu: dla1}"), mode="15W").boards
    assert board.rows
    for row in board.rows:
        for engine in row.models[0].engines:
            units = row.models[0].network.units
            on = {node: where for unit, where in zip(units, engine.assignment, strict=True) for node in unit.nodes}
            assert on["relu"] == on["first"] == "dla1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"board": "orin-nx-16g"}, "no board 'orin-nx-16g'; did you mean 'orin-nx-16gb'?"),
        ({"mode": "16W"}, "orin-nx-16gb has no power mode '16W'; did you mean"),
        ({"mode": "maxn_sup", "board": "all"}, "no board has a power mode 'maxn_sup'; did you mean 'MAXN_SUPER'?"),
        ({"tensorrt": "ten"}, "expected a version number like 10.3.0, got 'ten'"),
        ({"tensorrt": "ten", "board": "orin-nano-8gb"}, "expected a version number like 10.3.0, got 'ten'"),
        ({"board": "host"}, "there are no measured times of this machine"),
        ({"board": "host"}, "there is no --profile"),
        ({"board": "host"}, "edgert bench --units"),
    ],
)
def test_unknown_boards_modes_and_releases(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(pipeline(tmp_path), **options)  # type: ignore[arg-type]
    assert message in caught.value.what + str(caught.value) and caught.value.fix


def test_a_board_that_edgert_does_not_run_on_is_planned_with_a_word(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, fps=5), board="xavier-nx-8gb", mode="MODE_15W_2CORE")
    assert made.smallest == "xavier-nx-8gb" and made.boards[0].rows
    assert "edgert itself does not run on a Jetson Xavier NX 8GB: its last JetPack, 5" in made.notes[0]
    assert "edgert export" in made.notes[0]
    assert not any("does not run" in note for note in plan(pipeline(tmp_path, fps=5), mode="15W").notes)


def test_of_many_boards_one_note_names_those_that_edgert_does_not_run_on(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, fps=5), board="all", mode="maxn")
    assert made.smallest == "jetson-nano-4gb"
    (note,) = (one for one in made.notes if "does not run" in one)
    assert "jetson-tx2-8gb" in note and "orin" not in note.partition(";")[0]
    assert note.endswith("the smallest that it runs on is orin-nx-8gb")


def test_of_many_boards_those_without_the_mode_say_which_they_have(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, fps=5), board="all", mode="20w")
    assert {row.mode for board in made.boards for row in board.rows} == {"20W"}
    (skipped,) = next(board.skipped for board in made.boards if board.board == "orin-nano-8gb")
    assert skipped == "20w: no such power mode (it has 15W, 7W)"


def test_a_release_without_a_dla_and_one_in_doubt_are_told(tmp_path: Path) -> None:
    without = plan(pipeline(tmp_path), mode="15W", tensorrt="10.9")
    assert [row.name for row in without.boards[0].rows] == ["gpu"]
    assert any("TensorRT 10.9 has no DLA" in note and "JetPack" in note for note in without.notes)
    doubtful = plan(pipeline(tmp_path), mode="15W", tensorrt="11.4.1")
    assert any("other Orin modules are not named" in note for note in doubtful.notes)
    assert not any(note.startswith("TensorRT") for note in plan(pipeline(tmp_path), mode="15W").notes)


def test_budgets_that_nothing_keeps_say_what_comes_closest(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, more="budgets: {latency: 1us}"), mode="15W")
    assert made.smallest is None and made.boards[0].chosen is None
    assert "latency" in made.boards[0].advice[0]


@pytest.mark.slow
def test_all_boards_have_a_verdict_and_the_smallest_that_fits_is_named(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path, fps=5), board="all", objective="energy")
    titles = [board.board for board in made.boards]
    assert len(titles) == len(set(titles)) >= 18
    assert made.smallest in titles
    smallest = next(board for board in made.boards if board.board == made.smallest)
    assert smallest.chosen is not None
    assert all(board.rows or board.skipped for board in made.boards)
    page = render(replace(made))
    assert "smallest" in page
    listed = page[page.index("<nav") : page.index("</nav>")]
    assert listed.count("<li>") == len(titles) + 2 and f'<a href="#{titles[0]}">' in listed
    assert page.count('<details class="whole">') == len(titles)


def test_a_pipeline_without_models_has_nothing_to_plan(tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text(f"board: {ORIN}\nstages: {{cam: {{source: 'usb:0'}}}}")
    with pytest.raises(ConfigError, match="no stage runs a model"):
        plan(load_pipeline(tmp_path / "q.yaml"))


def test_a_plan_names_what_its_stages_rest_on(made: Plan) -> None:
    assert made.notes[0].startswith("decoding, drawing, encoding and the like: as measured on another processor")
    assert "± 40%" in made.notes[0] and made.notes[0] in render(made)
    wide = replace(made.boards[0].rows[0], error=1.2, memory_error=1.5)
    page = render(replace(made, boards=(replace(made.boards[0], rows=(wide,), chosen=0),)))
    assert "±\N{NO-BREAK SPACE}120% of times" in page and f"up to + {more_memory(wide)}; engines" in page  # not "± all"


def test_what_a_pipeline_draws_and_encodes_is_not_free(tmp_path: Path) -> None:
    paint = "  paint: {draw: [boxes, labels], from: look}\n"
    video = "  video: {sink: video, from: paint, path: out.mp4, encode: cpu}\n"

    def row(stages: str, board: str = "orin-nano-8gb") -> Row:
        file = pipeline(tmp_path)
        path = file.document.path
        path.write_text(path.read_text() + stages)
        return plan(load_pipeline(path), board=board, mode="15W").boards[0].rows[0]

    alone, drawn, encoded = row(""), row(paint), row(paint + video)
    assert alone.most_fps > 2 * drawn.most_fps > 2 * encoded.most_fps and encoded.most_fps < 150
    assert alone.p99_ms < drawn.p99_ms < encoded.p99_ms
    assert alone.error is not None and drawn.error is not None and alone.error < drawn.error < 0.4
    own = row(paint + "  mine: {python: 'json:dumps', from: look}\n")
    assert own.error is not None and own.error > 0.5  # nobody measured it
    assert row(paint + video, ORIN).most_fps < 450  # by its processor, which the file asks for
    assert row(paint + video.replace("cpu", "auto"), ORIN).busy["nvenc"] > 0


def test_bars_stand_beside_their_figures_and_memory_s_goes_up_only(made: Plan) -> None:
    row = replace(
        made.boards[0].rows[0], memory_bytes=412 * 2**20, memory_error=341 / 412, error=0.36, power_error=None
    )
    shown = dict(zip(NUMBERS, numbers(row), strict=True))
    assert shown["at most"].bar == shown["p99 ms"].bar == "±36%" and shown["W"].bar == "±?"
    assert (shown["memory"].text, shown["memory"].bar) == ("412\N{NO-BREAK SPACE}MiB", "+341\N{NO-BREAK SPACE}MiB")
    plain = to_json(replace(made, boards=(replace(made.boards[0], rows=(row,), chosen=0),)))["boards"][0]["rows"][0]
    assert plain["memory_at_most_bytes"] == 753 * 2**20 and plain["estimated"] == []


def test_what_is_estimated_is_marked_in_page_terminal_and_json(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path), board="thor-t4000")
    assert "gpu_mhz" in to_json(made)["boards"][0]["rows"][0]["estimated"]
    text = show_text(made)
    assert "~unknown" in text and "~ estimated by ratios" in text and "? " in text
    assert "<small>~ estimated</small>" in render(made)
    assert "~" not in show_text(plan(pipeline(tmp_path), mode="15W"))


def show_text(made: Plan) -> str:
    console = Console(width=160, record=True)
    show_plan(console, made)
    return console.export_text()


@pytest.mark.parametrize(("zeros", "said"), [(2, "2 of 3 products have two zeros"), (0, "0 of 3 products")])
def test_weights_with_two_zeros_in_four_are_faster_where_that_is_asked_for(
    tmp_path: Path, zeros: int, said: str
) -> None:
    pipeline(tmp_path)
    file, model = tmp_path / "p.yaml", load(tmp_path / "net.onnx")
    for tensor in model.proto.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        array[:, np.arange(array.shape[1]) % 4 < zeros] = 0
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    (tmp_path / "net.onnx").write_bytes(to_bytes(model))
    dense = plan(file, mode="15W", objective="throughput")
    sparse = plan(file, mode="15W", objective="throughput", overrides=["models.net.tensorrt.sparse=true"])
    times = [
        sum(unit.costs["gpu"].time_ms for unit in made.boards[0].rows[0].models[0].network.units)
        for made in (dense, sparse)
    ]
    assert (times[1] < times[0]) == bool(zeros)
    assert not [note for note in dense.notes if "two zeros" in note]
    assert any(note.startswith(f"net: {said}") for note in sparse.notes)
