"""Layers and nodes matched, on networks like those that TensorRT's parser makes."""

from edgert.backend.tensorrt.network import Correspondence, Layer, correspond, metadata_names


def layer(name: str, node: str, reads: str = "", makes: str = "", kind: str = "CONVOLUTION") -> Layer:
    metadata = f"[ONNX Layer: {node}]" if node else ""
    return Layer(name, kind, metadata, tuple(reads.split()), tuple(makes.split()), "FLOAT")


NODES = {"a": ("t",), "b": ("u", "v"), "c": ("y",), "gone": ("k",)}


def test_names_in_metadata() -> None:
    assert metadata_names("[ONNX Layer: /a/Conv]") == ("/a/Conv",)
    assert metadata_names("[ONNX Layer: a]\x1e[ONNX Layer: b]\x1e[ONNX Layer: a]") == ("a", "b")
    assert metadata_names("[ONNX Layer: a][ONNX Layer: b]") == ("a", "b")
    assert metadata_names("[ONNX Layer: list[3]]") == ("list[3]",)
    assert metadata_names("") == metadata_names("something else") == ()


def test_several_layers_of_one_node() -> None:
    found = correspond([layer("a", "a", "x", "t"), layer("b", "b", "t", "u"), layer("b_1", "b", "t", "v")], NODES)
    assert found.nodes_of == (("a",), ("b",), ("b",))
    assert found.layers_of == {"a": (0,), "b": (1, 2)} and found.computes == (True, True, True)


def test_nodes_without_a_name_are_called_after_their_output() -> None:
    found = correspond([layer("node_of_t", "node_of_t", "x", "t"), layer("node_of_v", "node_of_v", "t", "v")], NODES)
    assert found.nodes_of == (("a",), ("b",))


def test_a_layer_without_metadata_belongs_to_the_node_of_its_name_or_of_what_it_makes() -> None:
    found = correspond([layer("a", "", "x", "t1"), layer("ONNXTRT_Shuffle", "", "t1", "y")], NODES)
    assert found.nodes_of == (("a",), ("c",)) and found.computes == (True, True)


def test_helpers_belong_to_their_readers() -> None:
    layers = [
        layer("k", "", "", "k_output", "CONSTANT"),
        layer("ONNXTRT_castHelper", "", "k_output", "k_cast", "CAST"),
        layer("a", "a", "x k_cast", "t"),
        layer("b", "b", "t k_cast", "u v"),
        layer("dangling", "", "", "nothing", "CONSTANT"),
    ]
    found = correspond(layers, NODES)
    assert found.nodes_of[0] == found.nodes_of[1] == ("a", "b")
    assert found.computes == (False, False, True, True, False) and found.nodes_of[4] == ()
    assert found.layers_of["a"] == (0, 1, 2)


def test_a_helper_that_stands_after_its_reader_is_found() -> None:
    found = correspond([layer("a", "a", "x k1", "t"), layer("h", "", "z", "k1")], NODES)
    assert found.nodes_of == (("a",), ("a",))


def test_nothing() -> None:
    assert correspond([], NODES) == Correspondence((), (), {})
