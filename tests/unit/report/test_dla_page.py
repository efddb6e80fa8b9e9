"""The page about what a DLA can run."""

import pytest

from dla import Target
from edgert.graph import read
from edgert.placement.dla_share import Survey, survey
from edgert.report.dla_page import cautions, headline, render
from tests.helpers.models import make, node, weights


def surveyed(count: int = 3, target: Target | None = None, prefix: str = "", first: str = "Relu") -> Survey:
    nodes, name = [], "x"
    for place in range(count):
        op = (first, "Neg", "Sin")[place % 3]
        nodes.append(node(op, [name, "k"] if op == "Conv" else [name], [f"t{place}"], name=f"{prefix}{op}_{place}"))
        name = f"t{place}"
    nodes.append(node("Conv", [name, "w"], ["y"], name="conv"))
    model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w": weights(4, 3, 1, 1), "k": weights(3, 3, 1, 1)})
    return survey(read(model), target or Target(2, "10.3", "int8"))


def test_page_names_every_node_and_every_reason() -> None:
    text = render(surveyed(), "net.onnx", "Jetson Orin NX 16GB")
    for words in ("net.onnx", "Relu_0", "Neg_1", "Sin_2", "write it as Mul by -1", "TensorRT 10.3, INT8"):
        assert words in text
    assert 'data-counts="yes:2 no:1 verify:1 folded:0"' in text
    assert 'href="https://docs.nvidia.com' in text or 'href="https://github.com/NVIDIA' in text
    assert text == render(surveyed(), "net.onnx", "Jetson Orin NX 16GB")


def test_headline_and_cautions() -> None:
    sentence = headline(surveyed(), "X").replace("\N{NO-BREAK SPACE}", " ")
    assert sentence == "A DLA of X runs 2 of 4 nodes with all of the work, in 2 segments."
    none = surveyed(target=Target(2, "11.1", "int8"))
    assert "Nothing" in headline(none, "X") and "11.1" in headline(none, "X")
    late = surveyed(target=Target(2, "11.4.1", "int8"))
    assert any("AGX Orin" in text for text in cautions(late))
    many = surveyed(60, first="Conv")
    assert any(f"{many.loadables} loadables" in text for text in cautions(many))


@pytest.mark.parametrize("count", [0, 500])
def test_none_and_five_hundred_nodes(count: int) -> None:
    text = render(surveyed(count), "net.onnx", "a board")
    assert text.count('class="node ') == count + 1
