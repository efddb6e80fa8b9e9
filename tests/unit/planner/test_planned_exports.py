"""Networks of every kind, as exporters write them, planned on every board: a plan, or an error with a name."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from edgert.board.record import boards
from edgert.errors import EdgertError, ModelError
from edgert.graph import load
from edgert.planner import Plan, plan
from tests.helpers import evaluation_data, exports
from tests.helpers.models import node, save

QUICK = ("mamba", "lstm")
"""Planned on all boards at once; the others one by one, which takes minutes."""
OPEN = {"custom": "onnx does not know the operator my.ops.DCNv4, nor the size of its result"}
ZOO = sorted(Path(evaluation_data.FOLDER / "models").glob("*.onnx"))


def planned(model: Path, board: str, mode: str = "all") -> Plan:
    text = f"""
models:
  net: {{onnx: {model}, task: {{embed: none}}, precision: fp16}}
stages:
  cam: {{source: 'usb:0', fps: 30}}
  look: {{infer: net, from: cam}}
"""
    file = model.parent / f"{model.stem}.yaml"
    file.write_text(text)
    return plan(file, board=board, mode=mode)


def check(made: Plan, count: int) -> None:
    assert len(made.boards) == count
    for board in made.boards:
        assert board.rows or board.advice, board.board
        for row in board.rows:
            assert row.p99_ms is None or row.p99_ms > 0


@pytest.mark.parametrize("name", sorted(set(exports.EXPORTS) - set(OPEN)))
def test_every_export_is_planned(name: str, tmp_path: Path) -> None:
    made = planned(exports.EXPORTS[name](tmp_path / "net.onnx"), "orin-nx-16gb", "15W")
    check(made, 1)
    (model,) = made.boards[0].rows[0].models
    graph_nodes = {node for unit in model.network.units for node in unit.nodes}
    assert graph_nodes and all(cost.time_ms >= 0 for unit in model.network.units for cost in unit.costs.values())


@pytest.mark.parametrize("name", sorted(OPEN))
def test_a_size_that_nobody_knows_names_the_node_that_leaves_it_open(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        planned(exports.EXPORTS[name](tmp_path / "net.onnx"), "orin-nx-16gb", "15W")
    assert caught.value.why == OPEN[name]


def test_open_shapes_are_refused_by_name_on_every_board(tmp_path: Path) -> None:
    model = exports.open_size(tmp_path / "net.onnx")
    for board in boards():
        with pytest.raises(ModelError, match="input 'images' has dynamic dimensions"):
            planned(model, board.name)


def test_integer_operators_are_refused_by_name_for_tensorrt(tmp_path: Path) -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("ConvInteger", ["q", "w", "z"], ["sums"], name="first"),
        node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    stored = {"w": np.ones((4, 3, 3, 3), np.int8)}
    path = save(tmp_path / "net.onnx", nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 6, 6)}, stored)
    with pytest.raises(ModelError, match="TensorRT does not support DynamicQuantizeLinear") as caught:
        planned(path, "orin-nx-16gb", "15W")
    assert "export the float model" in caught.value.fix and "models.net" in caught.value.where


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_exports_are_planned_on_every_board(name: str, tmp_path: Path) -> None:
    check(planned(exports.EXPORTS[name](tmp_path / "net.onnx"), "all"), len(boards()))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(exports.EXPORTS) - {*OPEN, *QUICK}))
def test_every_export_is_planned_on_every_board(name: str, tmp_path: Path) -> None:
    check(planned(exports.EXPORTS[name](tmp_path / "net.onnx"), "all"), len(boards()))


@pytest.mark.slow
@pytest.mark.parametrize("model", ZOO, ids=[path.stem for path in ZOO])
def test_every_model_of_the_zoo_is_planned_on_every_board_or_refused_by_name(model: Path, tmp_path: Path) -> None:
    (tmp_path / model.name).symlink_to(model)
    try:
        made = planned(tmp_path / model.name, "all")
    except EdgertError as error:
        assert isinstance(error, ModelError) and error.why and error.fix
    else:
        check(made, len(boards()))


@pytest.mark.slow
@pytest.mark.timing  # it takes 7.4 GiB of memory, so it runs alone
@pytest.mark.timeout(1200)
def test_more_weights_than_a_message_can_have_are_planned(tmp_path: Path) -> None:
    model = exports.huge(tmp_path / "net.onnx")
    weights = tmp_path / "weights.bin"
    assert weights.stat().st_blocks * 512 < 2**20  # nothing of it is on the disk
    assert sum(len(tensor.raw_data) for tensor in load(model).proto.graph.initializer) > 2**31
    check(planned(model, "all", "all"), len(boards()))
