from collections.abc import Sequence

import numpy as np
import pytest

from edgert.config.engine_choice import ReplicateConfig
from edgert.errors import PlacementError
from edgert.graph import Graph, read
from edgert.placement.cutting import accelerators_of, assign, check_accelerators, weights_of
from tests.helpers.errors import raises
from tests.helpers.models import make, node

NAMES = ("/backbone/conv", "/neck/conv", "/head/cls", "/head/box")


def chain(names: Sequence[str] = NAMES, ops: Sequence[str] = ()) -> Graph:
    ops = ops or ["Relu"] * len(names)
    nodes = [node(op, [f"t{n}"], [f"t{n + 1}"], name=name) for n, (name, op) in enumerate(zip(names, ops, strict=True))]
    return read(make(nodes, {"t0": (1, 2)}, {f"t{len(names)}": (1, 2)}))


def test_the_last_glob_that_fits_decides() -> None:
    places = assign(chain(), {"*": "cpu0", "/head/*": "cpu1", "/head/box": "cpu0"}, NAMES)
    assert places == {"/backbone/conv": "cpu0", "/neck/conv": "cpu0", "/head/cls": "cpu1", "/head/box": "cpu0"}


def test_what_no_glob_fits_goes_where_the_first_says() -> None:
    assert assign(chain(), {"/head/*": "cpu1", "/neck/*": "cpu0"}, NAMES)["/backbone/conv"] == "cpu1"


@pytest.mark.parametrize(
    ("glob", "expected"),
    [("/haed/cls", "'head/cls'"), ("/haed/*", "'head'"), ("*NECK*", "/neck/conv"), ("/tail/*", "/backbone/conv")],
)
def test_a_glob_that_fits_nothing_names_nodes_like_it(glob: str, expected: str) -> None:
    with raises(PlacementError, what=glob, fix=True) as caught:
        assign(chain(), {"*": "cpu0", glob: "cpu1"}, NAMES)
    assert expected in caught.value.what + caught.value.why


def test_a_glob_may_fit_a_node_that_was_folded_away() -> None:
    assert set(assign(chain(), {"*": "cpu0", "/backbone/bn": "cpu1"}, [*NAMES, "/backbone/bn"]).values()) == {"cpu0"}


def quantized() -> Graph:
    """conv → relu in bytes: Q and DQ between them that the file does not know."""
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("QuantizeLinear", ["a", "s", "z"], ["q"], name="a_quantized"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], name="a_dequantized"),
        node("Relu", ["d"], ["y"], name="second"),
    ]
    return read(make(nodes, {"x": (1, 2)}, {"y": (1, 2)}, {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}))


def test_a_quantized_model_hands_on_bytes() -> None:
    places = assign(quantized(), {"*": "cpu0", "second": "cpu1"}, ["first", "second"])
    assert places == {"first": "cpu0", "a_quantized": "cpu0", "a_dequantized": "cpu1", "second": "cpu1"}
    places = assign(quantized(), {"*": "cpu1", "first": "cpu0"}, ["first", "second"])
    assert places["a_quantized"] == "cpu0" and places["a_dequantized"] == "cpu1"


def test_what_a_placement_names() -> None:
    assert weights_of("auto") == {} and accelerators_of("auto") == ()
    assert weights_of("cpu1") == {"cpu1": 1} and accelerators_of("cpu1") == ("cpu1",)
    assert weights_of(ReplicateConfig(replicate={"cpu0": 2, "cpu1": 1})) == {"cpu0": 2, "cpu1": 1}
    assert weights_of({"*": "cpu0"}) == {} and accelerators_of({"*": "cpu0", "a": "cpu1", "b": "cpu0"}) == (
        "cpu0",
        "cpu1",
    )


@pytest.mark.parametrize(
    ("name", "fix"), [("cpu7", "name one of them"), ("gpu", "placement: auto"), ("dla0", "edgert plan")]
)
def test_an_accelerator_that_is_not_here_is_told_with_those_that_are(name: str, fix: str) -> None:
    with raises(PlacementError, what=name, why="cpu0, cpu1", fix=fix):
        check_accelerators(["cpu0", name], ["cpu0", "cpu1"])


def test_those_that_are_here_pass() -> None:
    check_accelerators(["cpu0", "cpu1"], ["cpu0", "cpu1", "cpu2"])
