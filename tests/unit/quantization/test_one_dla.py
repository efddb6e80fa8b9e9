"""What the DLA's rules answer for a node is what the survey, the scheme, the cache and the emulation go by."""

import numpy as np
import pytest

from dla import Target, fuses, int8_form
from dla.node import Node as DlaNode, Verdict, float_attribute, no
from dla.rule import Rule
from dla.table import LAYERS, Layer
from edgert.graph import Model
from edgert.graph.dla_node import dla_nodes
from edgert.placement.dla_share import survey
from edgert.quantization.lowering.emulate import emulate_dla, execution_modes
from edgert.quantization.scheme.scheme import scheme
from tests.helpers.models import make, node
from tests.unit.quantization.nets import after_conv, amax_of, conv, feeds_of, graph_of, run, stored

TARGET = Target()


def leaky(alpha: float = 0.1) -> Model:
    return after_conv(node("LeakyRelu", ["t"], ["u"], name="leaky", alpha=alpha))


def wide(kernel: int) -> Model:
    nodes = [conv("a", "x", "t"), conv("b", "t", "y")]
    return make(nodes, {"x": (1, 1, 40, 40)}, {"y": None}, stored(a=(1, 1, kernel, kernel), b=(1, 1, 1, 1)))


def answers(model: Model, name: str) -> tuple[str, bool, bool, str]:
    """A node's verdict, whether a segment holds it, whether its input has a point, and how the emulation runs it."""
    graph = graph_of(model)
    found, plan = survey(graph, TARGET), scheme(graph, "dla", dla=TARGET)
    place = next(place for place, one in enumerate(found.nodes) if one.name == name)
    rounded = any(name in point.readers for point in plan.points.values())
    mode = execution_modes(graph, plan)[name]
    return found.verdicts[place].answer, found.segment_of(place) is not None, rounded, mode


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rule more: no LeakyRelu with a slope below 0."""

    def objects(one: DlaNode, target: Target) -> Verdict | None:
        return no("its slope is negative") if float_attribute(one, "alpha", 0.01) < 0 else None

    rules = (*LAYERS["LeakyRelu"].rules, Rule("leaky.slope", "https://example.com", "No slope below 0.", objects))
    monkeypatch.setattr("dla.table.LAYERS", {**LAYERS, "LeakyRelu": Layer("Activation", rules)})


def test_a_node_that_is_within_limits_is_int8_everywhere() -> None:
    assert answers(leaky(), "leaky") == ("yes", True, True, "int8")
    assert answers(wide(32), "a") == ("yes", True, True, "int8")


@pytest.mark.usefixtures("stubborn")
def test_a_rule_that_is_added_refuses_a_node_everywhere() -> None:
    assert answers(leaky(0.1), "leaky") == ("yes", True, True, "int8")
    assert answers(leaky(-0.1), "leaky") == ("no", False, False, "float")


def test_a_limit_refuses_a_node_everywhere() -> None:
    assert answers(wide(33), "a") == ("no", False, False, "float")
    assert answers(wide(33), "b") == ("yes", True, True, "int8")


@pytest.mark.usefixtures("stubborn")
def test_a_refused_node_is_emulated_in_float32() -> None:
    model = leaky(-0.1)
    graph, feeds = graph_of(model), feeds_of(model)
    low = emulate_dla(graph, scheme(graph, "dla"), amax_of(model, feeds))
    found = run(low, model, feeds, ["t", "u"])
    given = found["t"].astype(np.float16).astype(np.float32)  # as the DLA hands it over
    np.testing.assert_array_equal(found["u"], np.where(given < 0, given * np.float32(-0.1), given))


def test_the_reason_is_the_rules() -> None:
    (skipped,) = scheme(graph_of(wide(33)), "dla").skipped
    assert skipped.node == "a"
    assert skipped.reason == "a DLA does not run it: kernel must be 1 to 32, got 33×33"


def test_older_releases_have_less() -> None:
    graph = graph_of(after_conv(node("Div", ["t", "two"], ["y"], name="div"), two=np.float32(2)))
    assert scheme(graph, "dla", dla=Target(2, "10.3.0")).forms["div"] == "int8"
    assert scheme(graph, "dla", dla=Target(1, "8.5.2")).forms["div"] == "none"


@pytest.mark.parametrize(
    ("operator", "form"),
    [
        ("Sigmoid", "lookup"),
        ("Tanh", "lookup"),
        ("Softmax", "fp16"),
        ("Relu", "int8"),
        ("Gelu", "none"),
        ("GlobalAveragePool", "none"),
    ],
)
def test_forms(operator: str, form: str) -> None:
    attributes = {"axis": 1} if operator == "Softmax" else {}
    model = make([node(operator, ["x"], ["y"], name="n", **attributes)], {"x": (1, 4, 6, 6)}, {"y": None})
    (one,) = dla_nodes(graph_of(model))
    assert int8_form(one, TARGET) == int8_form(one, Target(precision="fp16")) == form


def test_what_is_fused() -> None:
    assert fuses("Conv", "Add") and fuses("Conv", "Relu") and fuses("Add", "LeakyRelu")
    assert not fuses("Add", "Add") and not fuses("Conv", "Sigmoid") and not fuses("MaxPool", "Relu")
