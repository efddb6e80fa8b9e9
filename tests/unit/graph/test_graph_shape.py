import numpy as np
import pytest

from edgert.errors import ModelError
from edgert.graph import Model, infer, inputs, outputs, to_bytes, with_shapes
from tests.helpers.models import make, node, value, weights

CONV = node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])


def dynamic(out: object = None) -> Model:
    """Conv, then a Reshape to (batch, rest) through a shape chain."""
    nodes = [
        CONV,
        node("Shape", ["c"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Concat", ["n", "minus"], ["to"], axis=0),
        node("Reshape", ["c", "to"], ["y"]),
    ]
    stored = {"w": weights(4, 3, 3, 3), "zero": np.array([0]), "minus": np.array([-1])}
    return make(nodes, {"x": ["batch", 3, "h", "w_"]}, {"y": out or ["batch", "rest"]}, stored)


def refusal(model: Model, shapes: dict[str, tuple[int, ...]]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        with_shapes(model, shapes)
    return caught.value


def test_inputs_become_static_and_outputs_follow() -> None:
    model = dynamic()
    before = to_bytes(model)
    fixed = with_shapes(model, {"x": (2, 3, 8, 6)})
    assert inputs(fixed)[0].shape == (2, 3, 8, 6)
    assert outputs(fixed)[0].shape == (2, 4 * 8 * 6)
    assert to_bytes(model) == before
    assert fixed.digest != model.digest
    assert to_bytes(with_shapes(model, {"x": (2, 3, 8, 6)})) == to_bytes(fixed)


def test_an_open_batch_may_stay_so() -> None:
    fixed = with_shapes(dynamic(), {"x": (4, 3, 8, 6)}, open_batch=True)
    assert inputs(fixed)[0].shape == ("batch", 3, 8, 6)
    assert outputs(fixed)[0].shape[0] == "batch"
    static = with_shapes(dynamic(), {"x": (4, 3, 8, 6)})
    assert to_bytes(with_shapes(static, {"x": (4, 3, 8, 6)}, open_batch=True)) == to_bytes(static)


def test_output_names_of_dimensions_do_not_bind_inference() -> None:
    wrong = dynamic(["batch", "h"])  # says rest == h
    assert outputs(with_shapes(wrong, {"x": (2, 3, 8, 6)}))[0].shape == (2, 192)


def test_inner_types_are_recorded() -> None:
    fixed = with_shapes(dynamic(), {"x": (1, 3, 8, 8)})
    recorded = {item.name: item for item in fixed.proto.graph.value_info}
    assert [dim.dim_value for dim in recorded["c"].type.tensor_type.shape.dim] == [1, 4, 8, 8]
    assert [item.op_type for item in fixed.proto.graph.node] == ["Conv", "Shape", "Gather", "Concat", "Reshape"]


def test_no_shapes_leave_dimensions_open() -> None:
    open_ = with_shapes(dynamic(), {})
    assert inputs(open_)[0].shape == ("batch", 3, "h", "w_")
    assert outputs(open_)[0].shape[0] == "batch"


def test_a_name_is_one_size_everywhere() -> None:
    nodes = [node("Add", ["a", "b"], ["y"])]
    model = make(nodes, {"a": ["n", 2], "b": ["n", 2]}, {"y": ["n", 2]})
    fixed = with_shapes(model, {"a": (5, 2)})
    assert [spec.shape for spec in inputs(fixed)] == [(5, 2), (5, 2)]
    error = refusal(model, {"a": (5, 2), "b": (6, 2)})
    assert "input 'b'" in error.what
    assert "'n' is 5 in one input and 6" in error.why


def test_unknown_input_name() -> None:
    error = refusal(dynamic(), {"xx": (1, 3, 8, 8)})
    assert "no input 'xx'" in error.what
    assert "x float32[batch, 3, h, w_]" in error.why
    near = make([node("Relu", ["images"], ["y"])], {"images": ["n"]}, {"y": None})
    assert "did you mean 'images'?" in refusal(near, {"image": (1,)}).why


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1, 3, 8), "3 dimensions given, 4 expected"),
        ((1, 4, 8, 8), "dimension 1 is fixed to 3 in the model, 4 given"),
        ((0, 3, 8, 8), "positive"),
        ((-1, 3, 8, 8), "positive"),
    ],
)
def test_shapes_that_do_not_fit_the_input(shape: tuple[int, ...], why: str) -> None:
    error = refusal(dynamic(), {"x": shape})
    assert "input 'x'" in error.what
    assert str(list(shape)) in error.what
    assert "x float32[batch, 3, h, w_]" in error.what
    assert why in error.why


def test_shapes_that_the_graph_cannot_work_with() -> None:
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["a", "k"], ["y"], axis=1),
    ]
    model = make(nodes, {"x": ["n", 3, "h", "w"]}, {"y": None}, {"k": weights(1, 2, 4, 4)})
    assert outputs(with_shapes(model, {"x": (1, 3, 8, 8)}))[0].shape == (1, 5, 4, 4)
    error = refusal(model, {"x": (1, 3, 10, 10)})
    assert "does not work with x [1, 3, 10, 10]" in error.what
    assert "Concat" in error.why or "dimension" in error.why


def test_an_input_of_unknown_rank_takes_any_shape() -> None:
    model = make([node("Relu", ["x"], ["y"])], {"x": value("x", None)}, {"y": None})
    assert outputs(with_shapes(model, {"x": (2, 3)}))[0].shape == (2, 3)


def test_unknown_operators_leave_what_is_behind_them_open() -> None:
    model = make([node("Mystery", ["x"], ["a"], domain="acme"), node("Relu", ["a"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    fixed = with_shapes(model, {"x": (4,)})
    assert inputs(fixed)[0].shape == (4,)
    assert outputs(fixed)[0].shape == (4,)  # by its name: inference could not tell


def test_infer_sees_through_shape_chains_and_keeps_the_graph() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "two", "four"], ["hw"]),
        node("Cast", ["hw"], ["f"], to=1),
        node("Mul", ["f", "half"], ["g"]),
        node("Cast", ["g"], ["i"], to=7),
        node("ConstantOfShape", ["i"], ["grid"]),
        node("Add", ["grid", "half"], ["y"]),
    ]
    stored = {"two": np.array([2]), "four": np.array([4]), "half": np.float32(0.5)}
    model = infer(make(nodes, {"x": [1, 3, 8, 6]}, {"y": value("y", None)}, stored))
    assert outputs(model)[0].shape == (4, 3)
    assert len(model.proto.graph.node) == 7
