import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgert.errors import ArtifactError, PlacementError
from edgert.graph import Graph, read
from edgert.placement.contention import MEASURED, requested_share
from edgert.placement.cutting import partition
from edgert.placement.profile import (
    MeasuredTransition,
    ModelTimes,
    Profile,
    ProfiledUnit,
    network_of,
    part_ms,
    read_profile,
)
from edgert.placement.run_load import run_load
from edgert.placement.segment_engines import steps
from tests.helpers.errors import Exactly, raises
from tests.helpers.models import make, node

MIB = 2**20
SIDE = 512  # 512 × 512 floats are 1 MiB
MACHINE = {"cpu": "some", "runtime": "ort 1"}


def graph() -> Graph:
    """x → a → b → c → y, 1 MiB everywhere; c also reads a."""
    nodes = [
        node("Relu", ["x"], ["a"], name="a"),
        node("Relu", ["a"], ["b"], name="b"),
        node("Add", ["a", "b"], ["y"], name="c"),
    ]
    return read(make(nodes, {"x": (SIDE, SIDE)}, {"y": (SIDE, SIDE)}))


def profile(contention: float = 1.0) -> Profile:
    whole = {name: ModelTimes(10.0, 10.0 * contention, 9.5) for name in ("cpu0", "cpu1")}
    units = tuple(
        ProfiledUnit(name, (name,), {"cpu0": ms, "cpu1": ms}) for name, ms in (("a", 5.0), ("b", 3.0), ("c", 2.0))
    )
    return Profile("m", "d" * 64, "host", "", MACHINE, 30, whole, units, MeasuredTransition(0.1, 0.2, 0.4))


def test_inputs_of_a_network_keep_their_order() -> None:
    """Edges of a set of names would differ from process to process."""
    names = [f"input{number}" for number in range(8)]
    model = read(make([node("Sum", names, ["y"], name="a")], dict.fromkeys(names, (1,)), {"y": (1,)}))
    network = network_of(replace(profile(), units=(ProfiledUnit("a", ("a",), {"cpu0": 1.0, "cpu1": 1.0}),)), model)
    assert [edge.name for edge in network.edges] == [*names, "y"]


def test_a_profile_comes_back_from_json(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile(1.5).to_json()))
    assert read_profile(path) == profile(1.5)


UNIT = {"name": "a", "nodes": ["a"]}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"{",
        b"\xff",
        [],
        {"schema": 1},
        {"format": "edgert board times"},
        {"units": []},
        {"whole": {}},
        {"transition": {"hop_ms": 1}},
        {"units": [{**UNIT, "time_ms": {"cpu0": 1.0}}]},
        {"units": [{**UNIT, "time_ms": {"cpu0": -1.0, "cpu1": 1.0}}]},
        {"units": [{**UNIT, "time_ms": {"cpu0": float("nan"), "cpu1": 1.0}}]},
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "p.json"
    if isinstance(data, dict):
        data = {**profile().to_json(), **data}
    if data is not None:
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    with raises(ArtifactError, r"cannot read profile .*p\.json", why=True, fix="bench --units"):
        read_profile(path)


def test_it_holds_for_one_model_and_one_machine() -> None:
    profile().check("d" * 64, MACHINE)
    with pytest.raises(PlacementError, match="another model: m"):
        profile().check("e" * 64, MACHINE)
    with raises(PlacementError, "another machine", why=Exactly("its cpu is some, here it is other")):
        profile().check("d" * 64, {**MACHINE, "cpu": "other"})


def test_the_gap_between_kernels_and_whole() -> None:
    assert profile().whole["cpu0"].gap == pytest.approx(0.05)
    assert replace(profile().whole["cpu0"], busy_ms=9.0).contention == 1.0


def test_the_network_for_the_solvers() -> None:
    network = network_of(profile(), graph())
    assert [unit.name for unit in network.units] == ["a", "b", "c"]
    assert network.units[0].costs["cpu1"].time_ms == 5.0 and network.home == "cpu0"
    edges = {edge.name: edge for edge in network.edges}
    assert (edges["x"].producer, edges["x"].consumers, edges["x"].transitions) == (None, (0,), {})
    assert (edges["a"].producer, edges["a"].consumers, edges["a"].size_bytes) == (0, (1, 2), MIB)
    over = edges["a"].transitions["cpu0", "cpu1"]
    assert over.time_ms == pytest.approx(0.1 + 0.2 + 0.4) and over.from_ms == over.to_ms == over.time_ms / 2
    assert edges["y"].is_output and edges["y"].transitions == {}


def test_a_network_of_other_nodes_is_refused() -> None:
    found = replace(profile(), units=profile().units[:2])
    with raises(PlacementError, "same nodes", why=Exactly("only the model has 'c'")):
        network_of(found, graph())


def test_a_part_pays_half_of_every_transition() -> None:
    parts = partition(graph(), {"a": "cpu0", "b": "cpu1", "c": "cpu1"})
    assert part_ms(profile(), graph(), parts, 0) == pytest.approx(5 + 0.6 / 2 + 0.1 / 2)
    assert part_ms(profile(), graph(), parts, 1) == pytest.approx(5 + 0.6 / 2 + 0.1 / 2)
    parts = partition(graph(), {"a": "cpu0", "b": "cpu0", "c": "cpu1"})
    assert part_ms(profile(), graph(), parts, 0) == pytest.approx(8 + 2 * 0.6 / 2 + 0.1 / 2)


def test_solvers_and_schedules_count_a_cut_as_predictions_do() -> None:
    """What a part takes, played: nothing of a cut between two cores is free."""
    net, assignment = network_of(profile(), graph()), ("cpu0", "cpu1", "cpu1")
    parts = partition(graph(), {"a": "cpu0", "b": "cpu1", "c": "cpu1"})
    expected = {part.accelerator: part_ms(profile(), graph(), parts, number) for number, part in enumerate(parts)}
    assert run_load(net, assignment).busy_ms == pytest.approx(expected)
    assert {step.accelerator: step.time_ms for step in steps(net, assignment)} == pytest.approx(expected)


@pytest.mark.parametrize("accelerators", [2, 3, 8])
@pytest.mark.parametrize("contention", [1.0, 1.3, 2.5])
def test_all_together_slow_one_another_as_much_as_was_measured(accelerators: int, contention: float) -> None:
    demand = requested_share(ModelTimes(10.0, 10.0 * contention, 9.5).contention, accelerators)
    assert MEASURED.slowdown(demand, 0.0) == 1.0
    assert MEASURED.slowdown(demand, (accelerators - 1) * demand) == pytest.approx(contention)
