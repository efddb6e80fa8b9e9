"""Graphs cut where the accelerator changes, checked on random graphs against what is true of every cut."""

from itertools import pairwise, product

import numpy as np

from edgert.backend.ort import Function
from edgert.errors import PlacementError
from edgert.graph import Graph, Model, read
from edgert.placement.cutting import MOST_PARTS, Part, cut, partition
from tests.helpers import models
from tests.helpers.each import each
from tests.helpers.errors import raises
from tests.helpers.models import make, node

SHAPE = (1, 2)


def random_graph(seed: int, count: int = 10) -> tuple[Model, Graph]:
    """Additions of two random earlier tensors, the last ones leaving the network."""
    random = np.random.default_rng(seed)
    made = ["x"]
    nodes = []
    for n in range(count):
        pair = [made[i] for i in random.integers(max(0, len(made) - 4), len(made), size=2)]
        nodes.append(node("Add", pair, [f"t{n}"], name=f"n{n}"))
        made.append(f"t{n}")
    read_ones = {name for node in nodes for name in node.input}
    model = make(nodes, {"x": SHAPE}, dict.fromkeys([name for name in made[1:] if name not in read_ones], SHAPE))
    return model, read(model)


def chain(count: int) -> Graph:
    nodes = [node("Relu", [f"t{n}"], [f"t{n + 1}"], name=f"n{n}") for n in range(count)]
    return read(make(nodes, {"t0": SHAPE}, {f"t{count}": SHAPE}))


def check(graph: Graph, places: dict[str, str], parts: tuple[Part, ...]) -> None:
    """Every node once, where it was wanted, after all that it reads; and tensors named as they are needed."""
    assert sorted(name for part in parts for name in part.nodes) == sorted(node.name for node in graph.nodes)
    made = {spec.name for spec in graph.inputs}
    for number, part in enumerate(parts):
        assert all(places[name] == part.accelerator for name in part.nodes)
        assert made.issuperset(part.inputs)
        nodes = [node for node in graph.nodes if node.name in part.nodes]
        own = set(part.inputs)
        for one in nodes:
            assert own.issuperset(one.reads)
            own.update(one.outputs)
        later = {name for other in parts[number + 1 :] for name in other.inputs}
        assert set(part.outputs) == own.difference(part.inputs) & (later | graph.output_names)
        made |= set(part.outputs)
    assert all(one.accelerator != other.accelerator for one, other in pairwise(parts))


@each("seed", range(40))
def test_parts_of_random_graphs_can_run_in_their_order(seed: int) -> None:
    _, graph = random_graph(seed)
    random = np.random.default_rng(seed)
    places = {node.name: f"cpu{random.integers(0, 3)}" for node in graph.nodes}
    check(graph, places, partition(graph, places))


def fewest(graph: Graph, places: dict[str, str]) -> int:
    """The fewest parts on two accelerators, by trying every order of runs that takes all or only some of the ready."""

    def taken(done: frozenset[str], here: str) -> frozenset[str]:
        made = {"x", *(name for node in graph.nodes if node.name in done for name in node.outputs)}
        for one in graph.nodes:
            if one.name not in done and places[one.name] == here and made.issuperset(one.reads):
                done |= {one.name}
                made.update(one.outputs)
        return done

    everything = frozenset(node.name for node in graph.nodes)
    for count in range(1, len(everything) + 1):
        for order in product(("cpu0", "cpu1"), repeat=count):
            done: frozenset[str] = frozenset()
            for here in order:
                done = taken(done, here)
            if done == everything:
                return count
    raise AssertionError("some order always works")


@each("seed", range(20))
def test_there_are_no_more_parts_than_needed(seed: int) -> None:
    _, graph = random_graph(seed, count=8)
    random = np.random.default_rng(seed)
    places = {node.name: f"cpu{random.integers(0, 2)}" for node in graph.nodes}
    assert len(partition(graph, places)) == fewest(graph, places)


def test_going_back_is_a_third_part() -> None:
    graph = chain(6)
    places = {f"n{n}": "cpu1" if n in (2, 3) else "cpu0" for n in range(6)}
    parts = partition(graph, places)
    assert [(part.accelerator, part.nodes) for part in parts] == [
        ("cpu0", ("n0", "n1")),
        ("cpu1", ("n2", "n3")),
        ("cpu0", ("n4", "n5")),
    ]
    assert str(parts[1]) == "2 nodes n2 … n3 on cpu1"


def test_too_many_parts_are_refused_with_the_nodes_where_they_begin() -> None:
    graph = chain(MOST_PARTS + 1)
    with raises(PlacementError, what="17 segments", why="n0 (cpu0), n1 (cpu1)", fix=True):
        partition(graph, {f"n{n}": f"cpu{n % 2}" for n in range(MOST_PARTS + 1)})


def test_parts_compute_what_the_whole_computes() -> None:
    model, graph = random_graph(3)
    places = {node.name: f"cpu{n % 2 if n > 4 else 0}" for n, node in enumerate(graph.nodes)}
    feeds = {"x": np.random.default_rng(0).random(SHAPE, np.float32)}
    expected = Function(model)(feeds)
    for part in partition(graph, places):
        feeds |= Function(cut(graph, part, model))({name: feeds[name] for name in part.inputs})
    assert all(np.array_equal(feeds[name], value) for name, value in expected.items())


def test_a_tensor_whose_size_depends_on_the_data_cannot_be_handed_on() -> None:
    ends_early = models.keep_above()
    nodes = [*ends_early.proto.graph.node, node("Relu", ["rows"], ["positive"], name="relu")]
    weights = {"axis": np.array([0], np.int64), "zero": np.array(0, np.int64), "limit": np.array(0.5, np.float32)}
    model = make(nodes, {"x": (1, 10, 6)}, {"positive": ("kept", 6)}, weights)
    graph = read(model)
    first, _ = partition(graph, {node.name: "cpu1" if node.op == "Relu" else "cpu0" for node in graph.nodes})
    with raises(PlacementError, "cannot be cut", why="rows", fix="one accelerator"):
        cut(graph, first, model)
