"""Graphs cut into parts."""

import numpy as np
import pytest
from onnx import TensorProto

from edgert.errors import ModelError
from edgert.graph import Graph, from_proto, read
from edgert.quantization.calibration.walk import Slice, slice_graph
from tests.helpers.models import Typed, make, node

F32 = TensorProto.FLOAT
SIZE_BYTES = 4 * 4 * 8 * 8
"""Of each of the chain's tensors."""


def chain() -> Graph:
    """Eight steps, the first of which the last one reads again, and one that nobody asks for."""
    nodes = [node("Conv", ["x", "w"], ["t0"], pads=[1, 1, 1, 1])]
    nodes += [node("Relu", [f"t{n}"], [f"t{n + 1}"]) for n in range(6)]
    nodes.append(node("Add", ["t6", "t0"], ["y"]))
    nodes.append(node("Shape", ["y"], ["unwanted"]))
    outputs = {"y": (1, 4, 8, 8), "unwanted": Typed("int64", (4,))}
    return read(make(nodes, {"x": (1, 3, 8, 8)}, outputs, {"w": np.ones((4, 3, 3, 3), np.float32)}))


WANTED = ("t0", "t1", "t2", "t3", "t4", "t5", "t6", "y")


def operations(slices: tuple[Slice, ...]) -> list[list[str]]:
    return [[node.outputs[0] for node in part.graph.nodes] for part in slices]


def test_each_node_runs_once_and_in_order() -> None:
    for limit in (1, SIZE_BYTES, 2 * SIZE_BYTES, 3 * SIZE_BYTES, 2**30):
        found = operations(slice_graph(chain(), WANTED, limit))
        assert [name for part in found for name in part] == list(WANTED)
        assert all(len(part) <= max(1, limit // SIZE_BYTES) for part in found)


def test_what_lives_is_what_is_read_later() -> None:
    slices = slice_graph(chain(), WANTED, 3 * SIZE_BYTES)
    assert [part.made for part in slices] == [("t0", "t1", "t2"), ("t3", "t4", "t5"), ("t6", "y")]
    assert [part.dead for part in slices] == [("t1", "x"), ("t2", "t3", "t4"), ("t0", "t5", "t6", "y")]
    assert [[spec.name for spec in part.graph.inputs] for part in slices] == [["x"], ["t2"], ["t0", "t5"]]


def test_nothing_is_computed_for_nobody() -> None:
    slices = slice_graph(chain(), ("t2",), SIZE_BYTES)
    assert operations(slices) == [["t0"], ["t1"], ["t2"]]
    assert slices[-1].made == ("t2",)


def test_a_tensor_of_unknown_type_stays_within_a_slice() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Mystery", ["a"], ["u"], domain="own"),
        node("Relu", ["a"], ["b"]),
        node("Mystery", ["u"], ["v"], domain="own"),
        node("Relu", ["b"], ["c"]),
    ]
    proto = make(nodes, {"x": (4, 8)}, {"v": (4, 8), "c": (4, 8)}).copied_proto()
    proto.opset_import.add(domain="own", version=1)
    graph = read(from_proto(proto))
    assert "u" not in graph.specs or graph.specs["u"].dtype == "unknown"
    assert operations(slice_graph(graph, ("a", "b", "v", "c"), 1)) == [["a"], ["u", "b", "v"], ["c"]]


def test_an_unknown_tensor_is_said_so() -> None:
    with pytest.raises(ModelError, match="nothing computes tensor 'nobody'"):
        slice_graph(chain(), ("nobody",), SIZE_BYTES)
