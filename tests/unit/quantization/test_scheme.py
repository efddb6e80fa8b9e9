import numpy as np
import pytest

from edgert.errors import ModelError
from edgert.graph import Model
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Scheme, Target
from tests.helpers.models import make, node
from tests.unit.quantization.nets import after_conv, branches, conv, graph_of, residual, shuffled, stored


def plan(model: Model, target: Target, *keep: str) -> Scheme:
    return scheme(graph_of(model), target, keep)


def reason(found: Scheme, name: str) -> str:
    return next(item.reason for item in found.skipped if item.node == name)


class TestUnits:
    def test_an_activation_belongs_to_the_convolution_before_it(self) -> None:
        found = {unit.name: unit for unit in scheme(graph_of(residual()), "gpu").units}
        assert found["c0"].nodes == ("c0", "relu0")
        assert found["c0"].output == "r0"
        assert (found["c0"].weight, found["c0"].bias, found["c0"].inputs) == ("c0.w", "c0.b", ("x",))

    def test_tensorrt_adds_the_residual_within_the_convolution(self) -> None:
        found = {unit.name: unit for unit in scheme(graph_of(residual()), "gpu").units}
        assert found["c2"].nodes == ("c2", "add", "relu2")
        assert found["c2"].inputs == ("r1", "r0")
        assert "add" not in found

    def test_onnx_runtime_adds_on_its_own(self) -> None:
        found = {unit.name: unit for unit in scheme(graph_of(residual()), "ort").units}
        assert found["add"].nodes == ("add", "relu2")
        assert found["c2"].nodes == ("c2",)

    def test_of_two_convolutions_the_later_takes_the_add(self) -> None:
        nodes = [conv("a", "x", "t"), conv("b", "x", "v"), node("Add", ["t", "v"], ["y"], name="add")]
        model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, stored(a=(4, 4, 1, 1), b=(4, 4, 1, 1)))
        assert [unit.nodes for unit in scheme(graph_of(model), "gpu").units] == [("a",), ("b", "add")]

    def test_silu_of_two_nodes(self) -> None:
        model = after_conv(node("Sigmoid", ["t"], ["s"], name="sigmoid"), node("Mul", ["t", "s"], ["u"], name="mul"))
        assert scheme(graph_of(model), "gpu").units[0].nodes == ("a", "sigmoid", "mul")

    def test_hard_swish_of_four_nodes(self) -> None:
        nodes = [
            node("Add", ["t", "three"], ["a"], name="add"),
            node("Clip", ["a", "zero", "six"], ["c"], name="clip"),
            node("Mul", ["t", "c"], ["m"], name="mul"),
            node("Div", ["m", "six"], ["u"], name="div"),
        ]
        model = after_conv(*nodes, three=np.float32(3), zero=np.float32(0), six=np.float32(6))
        assert scheme(graph_of(model), "gpu").units[0].nodes == ("a", "add", "clip", "mul", "div")

    def test_an_activation_that_another_node_looks_past_is_none(self) -> None:
        nodes = [node("Relu", ["t"], ["r"], name="relu"), node("Add", ["t", "r"], ["u"], name="add")]
        assert scheme(graph_of(after_conv(*nodes)), "gpu").units[0].nodes == ("a", "relu", "add")  # x + relu(x) is one
        nodes = [node("Relu", ["t"], ["r"], name="relu"), node("Add", ["x", "r"], ["u"], name="add"),
                 node("Neg", ["t"], ["z"], name="neg")]  # fmt: skip
        assert scheme(graph_of(after_conv(*nodes)), "gpu").units[0].nodes == ("a",)


class TestGpu:
    def test_inputs_of_weighted_nodes_and_the_residual(self) -> None:
        found = plan(residual(), "gpu")
        readers = {name: point.readers for name, point in found.points.items()}
        assert readers == {"x": ("c0",), "r0": ("c1", "add"), "r1": ("c2",), "r2": ("c3",)}
        assert found.weighted == {"c0", "c1", "c2", "c3"}
        assert not any(point.is_output for point in found.points.values())

    def test_q_moves_back_over_what_it_commutes_with(self) -> None:
        found = plan(branches(), "gpu")
        assert found.points["r0"].readers == ("pool",)
        assert found.points["t1"].readers == ("join",)
        assert found.groups["t1"] == ("t1", "t2", "j", "k", "l", "m")
        assert found.groups["r0"] == ("r0", "p")

    def test_readers_in_floating_point_see_the_tensor_unrounded(self) -> None:
        nodes = [node("Relu", ["t"], ["u"], name="relu"), node("Exp", ["u"], ["z"], name="exp")]
        assert plan(after_conv(*nodes), "gpu").points["u"].readers == ("b",)

    def test_a_linear_resize_stays_in_floating_point_and_what_it_gives_is_rounded(self) -> None:
        resize = node("Resize", ["t", "", "twice"], ["u"], name="resize", mode="linear")
        found = plan(after_conv(resize, twice=np.array([1, 1, 2, 2], np.float32)), "gpu")
        assert "t" not in found.points
        assert found.points["u"].readers == ("b",)
        nearest = node("Resize", ["t", "", "twice"], ["u"], name="resize", mode="nearest")
        found = plan(after_conv(nearest, twice=np.array([1, 1, 2, 2], np.float32)), "gpu")
        assert found.groups["t"] == ("t", "u")

    def test_an_add_behind_two_activations_takes_integers(self) -> None:
        nodes = [
            node("Relu", ["t"], ["a"], name="relu"),
            conv("other", "x", "v"),
            node("Sigmoid", ["v"], ["b"], name="sigmoid"),
            node("Add", ["a", "b"], ["u"], name="add"),
        ]
        found = plan(after_conv(*nodes, **stored(other=(4, 4, 1, 1))), "gpu")
        assert found.points["a"].readers == ("add",)
        assert found.points["b"].readers == ("add",)
        assert found.groups["a"] == ("a",)

    def test_kept_units_have_no_points(self) -> None:
        found = plan(residual(), "gpu", "c1", "c2")
        assert [unit.name for unit in found.kept] == ["c1", "c2"]
        assert set(found.points) == {"x", "r2"}


class TestOrt:
    def test_a_relu_is_done_on_integers_of_the_scale_behind_it(self) -> None:
        found = plan(residual(), "ort")
        assert found.points["t0"].is_hidden
        assert found.groups["t0"] == found.groups["r0"] == ("r0",)
        assert {"relu0", "relu1", "relu2"} <= found.direct
        assert found.groups["t2"] == ("t2",)

    def test_what_leads_to_no_other_integer_node_is_not_rounded(self) -> None:
        assert "y" not in plan(residual(), "ort").points

    def test_an_average_may_be_of_rounded_values(self) -> None:
        nodes = [node("Relu", ["t"], ["r"], name="relu"), node("GlobalAveragePool", ["r"], ["y"], name="gap")]
        found = plan(after_conv(*nodes), "ort")
        assert set(found.points) == {"x", "t", "r"}
        assert "gap" in {item.node for item in found.skipped}

    def test_movement_concat_and_pooling_share(self) -> None:
        found = plan(branches(), "ort")
        assert found.groups["m"] == ("t1", "t2", "j", "k", "l", "m")
        assert found.groups["t0"] == ("r0", "p")
        assert {"pool", "join", "swap"} <= found.direct

    def test_slow_stems_stay_in_floating_point(self) -> None:
        nodes = [
            conv("c0", "x", "t"),
            node("Relu", ["t"], ["r"], name="relu"),
            conv("c1", "r", "u"),
            conv("c2", "u", "y"),
        ]
        model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, stored(c0=(8, 3, 3, 3), c1=(7, 8, 1, 1), c2=(4, 7, 1, 1)))
        found = plan(model, "ort")
        assert "in fours" in reason(found, "c0")
        assert found.weighted == {"c1", "c2"}  # c2 has seven channels, but stands behind an integer node
        assert plan(model, "gpu").weighted == {"c0", "c1", "c2"}

    def test_depthwise_stems_of_few_channels_too(self) -> None:
        nodes = [conv("c0", "x", "t", group=16), conv("c1", "t", "y")]
        model = make(nodes, {"x": [1, 16, 8, 8]}, {"y": None}, stored(c0=(16, 1, 3, 3), c1=(4, 16, 1, 1)))
        assert "of 16 channels or fewer" in reason(plan(model, "ort"), "c0")

    def test_a_sigmoid_that_scales_has_a_known_range(self) -> None:
        model = after_conv(node("Sigmoid", ["t"], ["s"], name="sigmoid"), node("Mul", ["t", "s"], ["u"], name="mul"))
        found = plan(model, "ort")
        assert found.points["s"].amax == 1.0
        assert "s" not in found.needed
        assert found.groups["t"] == ("t",)

    def test_arithmetic_with_stored_numbers_stays_in_floating_point(self) -> None:
        model = after_conv(node("Mul", ["t", "k"], ["u"], name="mul"), k=np.ones((1, 4, 1, 1), np.float32))
        assert reason(plan(model, "ort"), "mul") == "one of its inputs is a stored tensor"

    @pytest.mark.parametrize(
        ("operator", "why"),
        [
            (node("ConvTranspose", ["t", "a.w"], ["u"], name="n"), "no integer ConvTranspose"),
            (node("Elu", ["t"], ["u"], name="n"), "no integer Elu"),
            (node("Clip", ["t", "one"], ["u"], name="n"), "bounds exclude 0"),
            (node("Foo", ["t"], ["u"], name="n", domain="my.ops"), "operator my.ops.Foo"),
        ],
    )
    def test_reasons(self, operator: object, why: str) -> None:
        model = after_conv(operator, one=np.float32(1))
        found = plan(model, "ort")
        assert why in reason(found, "n")
        assert "n" not in {unit.name for unit in found.units}

    def test_kept_units_are_read_and_written_rounded_by_their_neighbors(self) -> None:
        found = plan(residual(), "ort", "c1")
        assert found.kept[0].nodes == ("c1", "relu1")
        assert {"r0", "r1"} <= set(found.points)
        assert "t1" not in found.points


class TestDla:
    def test_every_tensor_that_is_read_inside_has_a_scale(self) -> None:
        found = plan(shuffled(), "dla")
        assert set(found.points) == {"x", "t0", "r0", "p", "t1", "t2", "j", "t3", "k", "l", "m"}
        assert found.points["t0"].is_hidden
        assert found.groups["t0"] == ("r0", "p")

    @pytest.mark.parametrize("target", ["ort", "gpu", "dla"])
    def test_what_follows_from_stored_tensors_has_none(self, target: Target) -> None:
        nodes = [conv("grid", "k", "g"), node("Add", ["t", "g"], ["u"], name="add")]
        model = after_conv(*nodes, k=np.ones((1, 4, 6, 6), np.float32), **stored(grid=(4, 4, 1, 1)))
        found = plan(model, target)
        assert "g" not in found.needed
        assert "grid" not in {name for unit in found.units for name in unit.nodes}

    def test_what_only_float_operators_read_has_none(self) -> None:
        nodes = [node("Flatten", ["t"], ["f"], name="flat"), node("Softmax", ["f"], ["y"], name="s")]
        found = plan(after_conv(*nodes), "dla")
        assert set(found.points) == {"x"}
        assert reason(found, "s") == "a DLA does not run it: f has 2 dimensions; the layer takes N×C×H×W"

    def test_a_layer_that_has_no_int8_reports_it(self) -> None:
        model = after_conv(node("Softmax", ["t"], ["y"], name="s", axis=1))
        assert reason(plan(model, "dla"), "s") == "a DLA has no INT8 Softmax"


class TestKeep:
    def test_a_unit_that_is_not_there(self) -> None:
        with pytest.raises(ModelError, match="no unit 'c9'") as caught:
            plan(residual(), "gpu", "c9")
        assert "no node of that name" in str(caught.value)

    def test_a_node_inside_a_unit_is_named_with_its_unit(self) -> None:
        with pytest.raises(ModelError, match="belongs to unit 'c0'"):
            plan(residual(), "gpu", "relu0")

    def test_a_node_that_is_in_floating_point_anyway(self) -> None:
        model = after_conv(node("Softmax", ["t"], ["y"], name="s"))
        with pytest.raises(ModelError, match="no integer Softmax"):
            plan(model, "ort", "s")
