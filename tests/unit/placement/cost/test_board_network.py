"""A graph as a placement problem: accelerators, costs, transitions, and what stages take of a board."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from edgert.board.record import board, boards, find_board
from edgert.board.sections import Precision
from edgert.errors import ConfigError
from edgert.installation import data_folder, shipped
from edgert.placement.cost.board_network import network
from edgert.placement.cost.coefficients import Coefficients, coefficients, validated
from edgert.placement.cost.power import power
from edgert.placement.cost.work import units
from edgert.placement.problem import Network
from edgert.simulator import board_stages
from edgert.simulator.board_platform import contention_of
from edgert.simulator.board_stages import NVDEC, NVENC, cpu_costs
from tools.networks.builder import Builder
from tools.networks.table import build


def placed(
    name: str = "agx-orin-64gb", mode: str = "MAXN", precision: Precision = "int8", batch: int = 1,
    allowed: set[str] | None = None, model: str = "resnet18",
) -> Network:  # fmt: skip
    record = board(name)
    return network(
        model, build(model, 224), record, record.mode(mode), coefficients(record.soc), precision=precision, batch=batch,
        allowed=allowed, rate_hz=30.0,
    )  # fmt: skip


def total_ms(problem: Network, accelerator: str) -> float:
    return sum(unit.costs[accelerator].time_ms for unit in problem.units)


def test_accelerators_are_those_of_the_mode() -> None:
    assert set(placed().units[0].costs) == {"gpu", "dla0", "dla1"}
    assert set(placed("orin-nx-8gb").units[0].costs) == {"gpu", "dla0"}
    assert set(placed("orin-nano-8gb", "15W").units[0].costs) == {"gpu"}
    assert set(placed(precision="fp32").units[0].costs) == {"gpu"}


def test_only_units_whose_nodes_are_allowed_may_go_to_the_dla() -> None:
    graph = build("resnet18", 224)
    allowed = {node.name for node in graph.nodes if node.op in ("Conv", "Relu", "Add")}
    found = {unit.name: "dla0" in unit.costs for unit in placed(allowed=allowed).units}
    assert all(found[name] == name.startswith("Conv") for name in found)
    assert sum(found.values()) == 20


def test_records_say_what_was_asked() -> None:
    problem = placed(batch=4)
    assert (problem.name, problem.rate_hz, problem.home) == ("resnet18", 30.0, "gpu")
    first = problem.edges[0]
    assert (first.name, first.producer, first.consumers, first.size_bytes) == ("input", None, (0,), 4 * 3 * 224 * 224)
    assert sum(edge.is_output for edge in problem.edges) == 1
    assert sum(unit.weight_bytes for unit in problem.units) == pytest.approx(11.7e6, rel=0.01)


def test_every_edge_names_units_in_order() -> None:
    problem = placed(model="googlenet")
    for edge in problem.edges:
        assert all((edge.producer if edge.producer is not None else -1) < reader for reader in edge.consumers)
        assert edge.consumers or edge.is_output


def test_batch_helps_the_gpu_more_than_the_dla() -> None:
    one, many = placed(batch=1), placed(batch=16)
    assert total_ms(many, "gpu") / total_ms(one, "gpu") < total_ms(many, "dla0") / total_ms(one, "dla0") < 16


def test_graph_with_a_batch_of_its_own_is_scaled_from_there() -> None:
    record = board("agx-orin-64gb")
    problems = [
        network("m", build("resnet18", 224, own), record, record.mode("MAXN"), coefficients("tegra234"),
                precision="int8", batch=8)
        for own in (1, 8)
    ]  # fmt: skip
    assert total_ms(problems[0], "gpu") == pytest.approx(total_ms(problems[1], "gpu"))
    assert problems[0].edges[0].size_bytes == problems[1].edges[0].size_bytes


def test_units_made_before_give_the_same() -> None:
    record, graph = board("agx-orin-64gb"), build("resnet18", 224)
    made = network("m", graph, record, record.mode("MAXN"), coefficients("tegra234"), precision="int8")
    again = network(
        "m", graph, record, record.mode("MAXN"), coefficients("tegra234"), precision="int8", works=units(graph)
    )
    assert made == again


def test_slower_mode_takes_longer_everywhere() -> None:
    fast, slow = placed(), placed(mode="MODE_15W")
    for accelerator in ("gpu", "dla0"):
        assert total_ms(slow, accelerator) > 1.5 * total_ms(fast, accelerator)


def test_transitions_take_gpu_time_and_start_the_loadable() -> None:
    there = placed().edges[0].transitions
    into, back = there["gpu", "dla0"], there["dla0", "gpu"]
    found = coefficients("tegra234")
    assert 0 < back.gpu_ms == pytest.approx(into.gpu_ms - found.transition.to_dla_us / 1e3)
    assert (into.from_ms, into.to_ms) == (0.0, found.dla.run_us / 1e3)  # type: ignore[union-attr]
    assert (back.from_ms, back.to_ms) == (found.transition.from_dla_us / 1e3, 0.0)
    assert into.traffic_bytes == 2 * placed().edges[0].size_bytes
    assert ("gpu", "gpu") not in there


def test_all_time_of_a_transition_is_somebodys() -> None:
    record = board("agx-orin-64gb")
    watts = power(record, record.mode("MAXN"))
    for (start, end), one in placed().edges[0].transitions.items():
        busy = dict.fromkeys(("gpu", "dla0", "dla1"), 0.0)
        for name, busy_ms in one.busy(start, end):
            busy[name] += busy_ms
        assert all(busy[name] > 0 for name in {start, end, "gpu"})
        assert sum(busy.values()) == pytest.approx(one.time_ms)
        engines = sum(watts.energy_mj(name, busy_ms, 0.0) for name, busy_ms in busy.items())
        assert one.energy_mj == pytest.approx(engines + one.traffic_bytes * watts.dram_pj_per_byte * 1e-9)


def test_energy_is_engine_and_traffic() -> None:
    record = board("agx-orin-64gb")
    watts = power(record, record.mode("MAXN"))
    for accelerator in ("gpu", "dla0"):
        cost = placed().units[3].costs[accelerator]
        traffic_mj = cost.traffic_bytes * watts.dram_pj_per_byte * 1e-9
        if accelerator == "gpu":  # launches draw nothing, and what is multiplied draws on top
            assert traffic_mj < cost.energy_mj < (watts.gpu_w + watts.math_w) * cost.time_ms + traffic_mj
        else:
            assert cost.energy_mj == pytest.approx(watts.dla_w * cost.time_ms + traffic_mj)


def test_contention_leaves_a_floor() -> None:
    record = board("agx-orin-64gb")
    costs = coefficients("tegra234")
    memory = contention_of(record, record.mode("MAXN"), costs)
    full = 1e9 * (record.bandwidth_gb_s(record.mode("MAXN")) or 0.0)
    assert memory.slowdown(0.1 * full, full) == memory.slowdown(0, full) == 1
    assert memory.slowdown(full, full) == pytest.approx(1 / costs.contention.floor)


def test_every_board_has_coefficients() -> None:
    for path in sorted(shipped("configs/boards/agx-orin-64gb.yaml").parent.glob("*.yaml")):
        found = coefficients(board(path.stem).soc)
        assert isinstance(found, Coefficients)
        assert (found.dla is not None) == (found.soc in ("tegra194", "tegra234"))


def test_unknown_chip_is_told() -> None:
    with pytest.raises(ConfigError, match=r"no cost coefficients for chip 'tegra235'.*tegra234"):
        coefficients("tegra235")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [("bandwidth: 0", "bandwidth: 7", "less than or equal to 1"), ("half_depth:", "half_deep:", "Field required")],
)
def test_damaged_file_is_told(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "tegra234.yaml"
    path.write_text(shipped("configs/costs/tegra234.yaml").read_text(encoding="utf-8").replace(old, new, 1))
    with pytest.raises(ConfigError, match="file of cost coefficients at gpu") as error:
        validated(path, TypeAdapter(Coefficients), "cost coefficients")
    assert why in str(error.value.why)


def test_tensor_read_twice_is_one_edge() -> None:
    """A tensor read by several units is one edge, and one that nothing computes has no producer."""
    b = Builder(1, 8, 16, 16)
    x = b.conv("input", 8, 3)
    graph = b.graph(b.conv(x, 8, 3), b.conv(x, 8, 5))
    record = board("agx-orin-64gb")
    problem = network("m", graph, record, record.mode("MAXN"), coefficients("tegra234"), precision="fp16")
    assert [(edge.producer, edge.consumers) for edge in problem.edges] == [(None, (0,)), (0, (1, 2)), (1, ()), (2, ())]


def test_every_board_has_a_core_and_units_that_are_known_or_said_to_be_unknown() -> None:
    costs = cpu_costs()
    for record in boards():
        assert record.cpu.model in costs.cores and record.name in costs.video
        for mode in record.modes:
            slowdown = costs.slowdown(record, mode)
            assert (slowdown is None) == (mode.cpu_mhz is None)
            assert slowdown is None or 0.3 < slowdown < 20


def test_a_slower_clock_takes_longer_in_proportion() -> None:
    board, costs = find_board("orin-nx-16gb"), cpu_costs()
    fast, slow = board.mode("MAXN"), board.mode("10W")
    assert fast.cpu_mhz is not None and slow.cpu_mhz is not None
    ratio = (costs.slowdown(board, slow) or 0.0) / (costs.slowdown(board, fast) or 1.0)
    assert ratio == pytest.approx(fast.cpu_mhz / slow.cpu_mhz)


def test_a_unit_for_video_takes_as_many_streams_as_are_published() -> None:
    costs, orin = cpu_costs(), find_board("orin-nx-16gb")
    assert costs.unit_ms(orin, NVDEC, 1.92 * 1.08) == pytest.approx(1e3 / 30 / 18)
    assert costs.unit_ms(orin, NVENC, 1.92 * 1.08) == pytest.approx(1e3 / 30 / 12)
    assert costs.unit_ms(find_board("orin-nano-8gb"), NVENC, 1.0) is None  # it has none
    assert costs.unit_ms(find_board("jetson-tx2-8gb"), NVDEC, 1.0) is None  # it is not published


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [("error: 0.4", "error: -1", "error"), ("mips: 1719", "mips: 0", "cores"), ("decode: 8", "decode: many", "video")],
)
def test_a_damaged_file_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, key: str
) -> None:
    text = (data_folder("configs") / "costs" / "cpu.yaml").read_text(encoding="utf-8")
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "cpu.yaml").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr(board_stages, "data_folder", lambda _: tmp_path)
    with pytest.raises(ConfigError, match=f"costs of stages at {key}") as caught:
        cpu_costs.__wrapped__()
    assert "cpu.yaml" in caught.value.where
