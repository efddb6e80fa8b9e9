"""The memory of planned rows, and batches."""

from pathlib import Path

import numpy as np
import pytest

from edgert.config import load_pipeline
from edgert.installation import data_folder
from edgert.placement.plan_record import Row
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.solver import solve
from edgert.planner import plan
from edgert.planner.plan_page import render
from edgert.planner.plan_rows import CONTEXT_BYTES, NOT_PLANNED, board_parts, row_memory
from edgert.planner.plan_text import to_json
from edgert.planner.planning import frames_of
from tests.helpers.models import node, save
from tests.unit.planner.test_planning import ORIN, pipeline


def network(name: str) -> Network:
    """Two units, the first for the DLA only, the second for the GPU only."""
    units = (Unit("a", ("a",), {"dla0": Cost(1.0)}, 1000), Unit("b", ("b",), {"gpu": Cost(1.0)}, 500))
    transition = {("dla0", "gpu"): Transition(0.1)}
    edges = (Edge("x", None, (0,), False, {}, 64), Edge("y", 0, (1,), False, transition, 32))
    return Network(name, units, edges, "gpu", 10.0)


def test_weights_lie_with_their_accelerator_and_tensors_with_all(tmp_path: Path) -> None:
    net = network("net")
    found = board_parts(pipeline(tmp_path), [net], solve([net], "throughput"))
    parts = {(part.name, part.on, part.kind): part.size_bytes for part in found}
    assert parts["net", "dla0", "weights"] == 1000
    assert parts["net", "gpu", "weights"] == 500
    assert parts["net", "dla0+gpu", "activations"] == 64 + 32
    assert parts["cam", "cpu", "frames"] > 0
    (context,) = [part for part in found if part.name == "CUDA"]
    assert context.size_bytes == CONTEXT_BYTES and context.note.startswith("modeled") and context.on == "gpu"


def test_a_plan_shows_the_parts_of_what_it_chose_and_notes_what_is_not_in_it(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path), mode="15W")
    row = made.boards[0].rows[0]
    assert row.memory_bytes == sum(part.size_bytes for part in row.memory)
    rows = to_json(made)["boards"][0]["rows"]
    assert {part["kind"] for part in rows[0]["memory"]} == {"weights", "activations", "runtime", "frames"}
    assert rows[1]["memory"] == []
    page = render(made)
    assert "Memory on Jetson" in page and "activations" in page
    assert NOT_PLANNED in made.notes


def test_a_memory_budget_counts_frames_too(tmp_path: Path) -> None:
    made = plan(pipeline(tmp_path), mode="15W")
    engines = sum(part.size_bytes for part in made.boards[0].rows[0].memory if part.kind != "frames")
    short = plan(pipeline(tmp_path, more=f"budgets: {{memory: {engines + 1000}B}}"), mode="15W")
    assert short.smallest is None
    assert short.boards[0].advice[0].endswith("MiB") and "memory: " in short.boards[0].advice[0]


def test_queues_give_way_where_a_board_has_too_little(tmp_path: Path) -> None:
    file, net = pipeline(tmp_path, stage=", queue: 16"), network("net")
    placement = solve([net], "throughput")
    plenty = row_memory(file, 2**40, lambda one: board_parts(one, [net], placement))
    assert plenty.steps == () and plenty.fits
    short = row_memory(file, plenty.total_bytes - 1000, lambda one: board_parts(one, [net], placement))
    assert short.fits and [step.partition(":")[0] for step in short.steps] == ["queues half as long"]
    assert short.total_bytes < plenty.total_bytes


def test_a_board_with_too_little_for_programs_is_not_taken_and_what_would_do_is_advised(tmp_path: Path) -> None:
    text = (data_folder("configs") / "boards" / f"{ORIN}.yaml").read_text()
    own = tmp_path / "small.yaml"
    own.write_text(
        text.replace(f"name: {ORIN}", "name: small").replace("usable_bytes: 15388MiB", "usable_bytes: 64MiB")
    )
    (board,) = plan(pipeline(tmp_path), board=str(own), mode="15W").boards
    assert board.chosen is None
    assert "of 64.0 MiB" in board.advice[0] and "It would do with a board with " in board.advice[0]
    assert board.advice[0].endswith("of memory for programs")


CAMERAS = 4


def write(folder: Path, batch: int | str, how: str, cameras: int = CAMERAS) -> Path:
    """A small network of twelve layers behind some cameras; ``batch`` is its first dimension."""
    random, nodes, weights, last = np.random.default_rng(0), [], {}, "x"
    for layer in range(12):
        weights[f"w{layer}"] = random.normal(0, 0.05, (32, 32 if layer else 3, 3, 3)).astype(np.float32)
        nodes.append(node("Conv", [last, f"w{layer}"], [f"t{layer}"], name=f"c{layer}", pads=[1] * 4))
        last = f"t{layer}"
    shapes = {side: (batch, depth, 32, 32) for side, depth in (("x", 3), (last, 32))}
    save(folder / "net.onnx", nodes, {"x": shapes["x"]}, {last: shapes[last]}, weights)
    names = [f"cam{number}" for number in range(cameras)]
    sources = "\n".join(f"  {name}: {{source: 'usb:{number}', fps: 30}}" for number, name in enumerate(names))
    text = f"""
board: orin-nx-16gb
models: {{net: {{onnx: net.onnx, task: {{embed: none}}, precision: fp16}}}}
stages:
{sources}
  look: {{infer: net, from: [{", ".join(names)}]{how}}}
"""
    (folder / "p.yaml").write_text(text)
    return folder / "p.yaml"


def gpu_row(path: Path) -> Row:
    (board,) = plan(load_pipeline(path), mode="15W").boards
    return next(row for row in board.rows if row.name == "gpu")


def test_a_batch_leaves_room_for_more_frames(tmp_path: Path) -> None:
    single = gpu_row(write(tmp_path, "N", ""))
    together = gpu_row(write(tmp_path, "N", ", batch: {max: 4, wait: 5ms}"))
    assert together.most_fps > single.most_fps  # a thread brings every frame to the engine by itself
    assert 1.3 * together.busy["gpu"] < single.busy["gpu"]
    activations = {
        row: sum(part.size_bytes for part in row.memory if part.kind == "activations") for row in (single, together)
    }
    assert activations[together] > 3 * activations[single]


def test_a_model_with_one_row_gains_nothing_from_a_batch(tmp_path: Path) -> None:
    single = gpu_row(write(tmp_path, 1, ""))
    requested = gpu_row(write(tmp_path, 1, ", batch: {max: 4, wait: 5ms}"))
    assert requested.models[0].latency_ms == pytest.approx(single.models[0].latency_ms)


@pytest.mark.parametrize(
    ("batch", "how", "cameras", "frames"),
    [
        ("N", "", 4, 1),
        ("N", ", batch: {max: 8, wait: 5ms}", 4, 4),
        ("N", ", batch: {max: 2, wait: 5ms}", 4, 2),
        (2, ", batch: {max: 4, wait: 5ms}", 4, 2),
        ("N", ", batch: {max: 4, wait: 5ms}", 1, 1),
    ],
)
def test_frames_of_a_run(tmp_path: Path, batch: int | str, how: str, cameras: int, frames: int) -> None:
    file = load_pipeline(write(tmp_path, batch, how, cameras))
    assert frames_of(file.config, "net") == frames
