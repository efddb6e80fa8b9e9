from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from edgert.config.engine_choice import ReplicateConfig
from edgert.errors import PlacementError
from edgert.placement.plan_record import EngineRow, ModelRow
from edgert.placement.problem import Assignment, Cost, Network, Unit
from tests.helpers.written import as_written, whole_weights

NODES = (("conv[1]", "relu*"), ("add?",), ("head",))
NETWORK = Network(
    "net",
    tuple(Unit(nodes[0], nodes, {"cpu0": Cost(1.0), "cpu1": Cost(1.0)}) for nodes in NODES),
    (),
    home="cpu0",
)


def placed(*engines: tuple[Assignment, float]) -> ModelRow:
    made = tuple(EngineRow(assignment, share) for assignment, share in engines)
    return ModelRow("net", NETWORK, made, 1.0, 1.0, 1.0, 1.0, 0.0, {})


def test_whole() -> None:
    assert as_written(placed((("cpu1",) * 3, 1.0))) == "cpu1"


def test_split_names_the_fewer_nodes_each_so_that_nothing_else_fits() -> None:
    globs = as_written(placed((("cpu1", "cpu0", "cpu0"), 1.0)))
    assert isinstance(globs, dict) and next(iter(globs)) == "*"
    names = [node for nodes in NODES for node in nodes]
    fits = {name: [place for glob, place in globs.items() if fnmatchcase(name, glob)][-1] for name in names}
    assert fits == {"conv[1]": "cpu1", "relu*": "cpu1", "add?": "cpu0", "head": "cpu0"}
    assert not any(fnmatchcase("conv1", glob) or fnmatchcase("relu7", glob) for glob in list(globs)[1:])


def test_replicated() -> None:
    written = as_written(placed((("cpu0",) * 3, 0.67), (("cpu1",) * 3, 0.33)))
    assert written == ReplicateConfig(replicate={"cpu0": 2, "cpu1": 1})


def test_frames_dealt_to_split_engines_cannot_be_written() -> None:
    with pytest.raises(PlacementError, match="some are split") as caught:
        as_written(placed((("cpu0",) * 3, 0.5), (("cpu1", "cpu0", "cpu0"), 0.5)))
    assert "loadables" in caught.value.fix


@pytest.mark.parametrize(
    ("shares", "weights"),
    [([1.0], [1]), ([0.5, 0.5], [1, 1]), ([0.52, 0.48], [1, 1]), ([0.66, 0.34], [2, 1]), ([0.6, 0.3, 0.1], [6, 3, 1])],
)
def test_weights_are_small(shares: list[float], weights: list[int]) -> None:
    assert whole_weights(shares) == weights
