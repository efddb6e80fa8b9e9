"""Memory of tensors that are alive at the same time."""

from edgert.graph import Graph, read
from edgert.graph.count import peak_bytes
from tests.helpers.models import make, node

KIB = 256 * 4  # a float32 tensor of shape (256,)


def graph(*nodes: tuple[str, list[str], list[str]], outputs: tuple[str, ...] = ("y",)) -> Graph:
    made = [node(op, reads, writes) for op, reads, writes in nodes]
    kinds = dict.fromkeys(("x", *outputs), (256,))
    return read(make(made, {"x": kinds["x"]}, {name: kinds[name] for name in outputs}))


def test_a_chain_needs_input_output_and_two_tensors() -> None:
    chain = graph(*(("Neg", [before], [after]) for before, after in [("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")]))
    assert peak_bytes(chain) == 4 * KIB


def test_a_tensor_read_late_stays() -> None:
    skip = graph(("Neg", ["x"], ["a"]), ("Neg", ["a"], ["b"]), ("Neg", ["b"], ["c"]), ("Add", ["a", "c"], ["y"]))
    assert peak_bytes(skip) == 5 * KIB


def test_renaming_and_working_in_place_are_free() -> None:
    plain = graph(("Neg", ["x"], ["a"]), ("Neg", ["a"], ["y"]))
    more = graph(("Neg", ["x"], ["a"]), ("Relu", ["a"], ["b"]), ("Identity", ["b"], ["c"]), ("Neg", ["c"], ["y"]))
    assert peak_bytes(plain) == peak_bytes(more) == 3 * KIB


def test_an_activation_of_a_tensor_that_is_read_again_needs_room() -> None:
    branch = graph(("Neg", ["x"], ["a"]), ("Relu", ["a"], ["b"]), ("Add", ["a", "b"], ["y"]))
    assert peak_bytes(branch) == 4 * KIB
