"""The memory of planned rows."""

from __future__ import annotations

from pathlib import Path

from edgert.installation import data_folder
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.solver import solve
from edgert.planner import plan
from edgert.planner.plan_page import render
from edgert.planner.plan_rows import CONTEXT_BYTES, NOT_PLANNED, board_parts, row_memory
from edgert.planner.plan_text import to_json
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
