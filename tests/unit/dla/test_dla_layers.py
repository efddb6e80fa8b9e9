"""Every other layer at both sides of its limits, by generation, release and precision."""

from dataclasses import replace
from typing import Any

import pytest

from dla import Target
from tests.helpers.dla_nodes import (
    IMAGE,
    INT8,
    MIDDLE,
    OLD,
    ORIN,
    TYPED,
    XAVIER,
    Op,
    answer,
    binary,
    data,
    listed,
    resize,
    stored,
    unary,
    verdict,
)

SCALAR = stored("c", values=(2.0,))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("inside", "outside", "rule"),
    [
        ({"kernel_shape": [8, 8]}, {"kernel_shape": [9, 8]}, "pool.window"),
        ({"kernel_shape": [2, 2], "strides": [16, 16]}, {"kernel_shape": [2, 2], "strides": [17, 1]}, "pool.stride"),
        ({"kernel_shape": [8, 8], "pads": [7] * 4}, {"kernel_shape": [8, 8], "pads": [0, 0, 8, 0]}, "pool.padding"),
        ({"kernel_shape": [2, 2]}, {"kernel_shape": [2, 2], "dilations": [2, 2]}, "pool.dilation"),
    ],
)
def test_pooling(op: str, inside: dict[str, Any], outside: dict[str, Any], rule: str) -> None:
    assert answer(unary(op, **inside)) == "yes"
    assert (answer(unary(op, **outside)), verdict(unary(op, **outside)).rule) == ("no", rule)


def test_rounding_the_size_up_pads() -> None:
    small = unary("MaxPool", kernel_shape=[8, 8], strides=[16, 16], shape=(1, 4, 24, 24))
    assert answer(small) == "yes"
    assert answer(replace(small, attributes={**small.attributes, "ceil_mode": 1})) == "yes"  # 24 = 16 + 8
    wide = unary("MaxPool", kernel_shape=[8, 8], strides=[16, 16], shape=(1, 4, 26, 26))
    assert verdict(replace(wide, attributes={**wide.attributes, "ceil_mode": 1})).rule == "pool.padding"


def test_pooling_gives_no_indices() -> None:
    pool = unary("MaxPool", kernel_shape=[2, 2])
    assert verdict(replace(pool, outputs=(*pool.outputs, data("i", *IMAGE)))).rule == "pool.outputs"


@pytest.mark.parametrize(("counts", "pads", "xavier"), [(1, 1, "yes"), (0, 1, "no"), (0, 0, "yes")])
def test_xavier_averages_with_the_padding(counts: int, pads: int, xavier: str) -> None:
    pool = unary("AveragePool", kernel_shape=[3, 3], pads=[pads] * 4, count_include_pad=counts)
    assert (answer(pool, XAVIER), answer(pool, ORIN)) == (xavier, "yes")


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("target", [ORIN, INT8, XAVIER, OLD, TYPED])
def test_activations(op: str, target: Target) -> None:
    assert answer(unary(op), target) == "yes"


def test_sources_disagree_on_the_absolute_value_from_10_on() -> None:
    assert [answer(unary("Abs"), one) for one in (XAVIER, OLD, ORIN, TYPED)] == ["yes", "yes", "verify", "verify"]
    assert verdict(unary("Abs")).rule == "unary.abs"


def test_sigmoid_is_computed_in_half() -> None:
    assert "FP16" in verdict(unary("Sigmoid"), INT8).reason and "FP16" not in verdict(unary("Sigmoid"), ORIN).reason


@pytest.mark.parametrize("op", ["HardSwish", "HardSigmoid", "Elu", "Mish", "Erf", "Softplus", "Gelu", "Exp", "Neg"])
def test_activations_that_are_absent(op: str) -> None:
    found = verdict(unary(op))
    assert (found.answer, found.rule) == ("no", "general.operator") and found.fix


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 6, "yes"), (0, 1, "yes"), (0, 127, "yes"), (0, 0.5, "no"), (0, 128, "no"), (-1, 1, "no"), (0, None, "no")],
)
def test_clip(low: float, high: float | None, expected: str) -> None:
    ceiling = None if high is None else stored("high", values=(high,))
    assert answer(unary("Clip", stored("low", values=(low,)), ceiling)) == expected
    bounds = {"min": low} if high is None else {"min": low, "max": high}
    assert answer(replace(unary("Clip", **bounds), opset=6)) == expected


def test_clip_with_computed_bounds() -> None:
    assert "its bounds are computed at run time" in verdict(unary("Clip", data("low"), None)).reason


def test_parametric_relu() -> None:
    assert answer(unary("PRelu", stored("s", 1, 16, 1, 1))) == "yes"
    assert answer(unary("PRelu", stored("s", 16, 1, 1))) == "verify"
    assert answer(unary("PRelu", data("s", 1, 16, 1, 1))) == "no"


@pytest.mark.parametrize("op", ["Sin", "Cos", "Atan", "Atanh"])
def test_trigonometry_is_a_doubt_or_absent(op: str) -> None:
    assert [answer(unary(op), target) for target in (ORIN, MIDDLE, OLD)] == ["verify", "verify", "no"]


@pytest.mark.parametrize(("op", "expected"), [("Add", "yes"), ("Sub", "yes"), ("Mul", "yes"), ("Sum", "yes"),
                                              ("Max", "yes"), ("Min", "verify")])  # fmt: skip
def test_elementwise(op: str, expected: str) -> None:
    assert {answer(binary(op), target) for target in (ORIN, INT8, XAVIER, OLD)} == {expected}


def test_elementwise_needs_four_dimensions_and_one_size() -> None:
    assert verdict(binary("Add", data("a", 1, 16), data("b", 1, 16))).rule == "general.planar"
    assert verdict(binary("Mul", b=data("b", 1, 16, 1, 1))).rule == "elementwise.broadcast"
    assert answer(binary("Mul", b=data("b", 1, 16, 1, 1))) == "verify"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), "yes"),
        ((1,), "yes"),
        ((16, 1, 1), "yes"),
        ((1, 16, 1, 1), "yes"),
        ((16, 32, 32), "yes"),
        ((1, 1, 32, 32), "verify"),
        ((32,), "verify"),
    ],
)
@pytest.mark.parametrize("op", ["Mul", "Add", "Sub"])
def test_scale(op: str, shape: tuple[int, ...], expected: str) -> None:
    assert answer(binary(op, b=stored("c", *shape))) == expected


def test_stored_minus_tensor_and_stored_maximum_are_doubts() -> None:
    assert verdict(binary("Sub", a=SCALAR)).rule == "scale.order"
    assert verdict(binary("Max", b=SCALAR)).rule == "elementwise.constant"


@pytest.mark.parametrize("op", ["Div", "Pow"])
def test_division_and_powers_came_late(op: str) -> None:
    assert (answer(binary(op, b=SCALAR), ORIN), answer(binary(op, b=SCALAR), OLD)) == ("yes", "no")
    assert answer(binary(op, b=stored("c", 16, 1, 1)), ORIN) == "verify"
    assert "reciprocal" in verdict(binary("Div", b=SCALAR), OLD).fix


def test_operands_of_powers_and_divisions() -> None:
    assert (answer(binary("Div")), answer(binary("Pow"))) == ("yes", "no")
    assert answer(binary("Pow", a=SCALAR)) == "verify" and answer(binary("Pow", b=SCALAR), MIDDLE) == "verify"
    assert (answer(binary("Div", b=SCALAR), MIDDLE), answer(binary("Div", b=SCALAR), XAVIER)) == ("yes", "no")


def compared(op: str, shape: tuple[int, ...] = IMAGE) -> Op:
    return Op(op, (data("a", *IMAGE), data("b", *shape)), (data("y", *IMAGE, dtype="bool"),))


@pytest.mark.parametrize("op", ["Equal", "Greater", "Less"])
def test_comparisons(op: str) -> None:
    late = "verify" if op == "Equal" else "no"
    old = Target(2, "8.6.2", "int8")
    assert [answer(compared(op), target) for target in (INT8, ORIN, old)] == ["verify", "no", late]
    for shape in ((1, 16, 1, 1), (1, 1, 1, 1)):
        assert answer(compared(op, shape), INT8) == "verify"
    assert verdict(compared(op, (1, 16, 32, 1)), INT8).rule == "compare.broadcast"


@pytest.mark.parametrize(("axis", "expected"), [(1, "yes"), (-3, "yes"), (2, "no"), (-1, "no"), (0, "no")])
def test_concat(axis: int, expected: str) -> None:
    assert answer(binary("Concat", axis=axis)) == expected


def test_concat_with_a_stored_part_is_a_doubt() -> None:
    assert answer(binary("Concat", b=stored("c", *IMAGE), axis=1)) == "verify"


NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = {"mode": b"linear", "coordinate_transformation_mode": b"half_pixel"}


@pytest.mark.parametrize(
    ("scales", "kind", "expected", "rule"),
    [
        ((1, 1, 32, 32), NEAREST, "yes", "resize"),
        ((1, 1, 1, 33), NEAREST, "no", "resize.scales"),
        ((1, 1, 4, 4), LINEAR, "yes", "resize"),
        ((1, 1, 5, 4), LINEAR, "no", "resize.scales"),
        ((1, 1, 1.5, 2), NEAREST, "no", "resize.scales"),
        ((1, 1, 0.5, 0.5), NEAREST, "no", "resize.scales"),
        ((1, 2, 2, 2), NEAREST, "no", "resize.scales"),
        ((2, 2), NEAREST, "verify", "resize.scales"),
        ((1, 1, 2, 2), {**NEAREST, "nearest_mode": "ceil"}, "no", "resize.mode"),
        ((1, 1, 2, 2), {"mode": "nearest"}, "yes", "resize"),
        ((1, 1, 2, 2), {**NEAREST, "coordinate_transformation_mode": "half_pixel",
                        "nearest_mode": "round_prefer_ceil"}, "yes", "resize"),
        ((1, 1, 2, 2), {**LINEAR, "coordinate_transformation_mode": "align_corners"}, "no", "resize.mode"),
        ((1, 1, 2, 2), {**LINEAR, "coordinate_transformation_mode": "asymmetric"}, "no", "resize.mode"),
        ((1, 1, 2, 2), {**LINEAR, "coordinate_transformation_mode": "pytorch_half_pixel"}, "verify", "resize.mode"),
        ((1, 1, 2, 2), {"mode": "cubic"}, "no", "resize.mode"),
        ((1, 1, 2, 2), {**LINEAR, "antialias": 1}, "no", "resize.mode"),
    ],
)  # fmt: skip
def test_resize(scales: tuple[float, ...], kind: dict[str, Any], expected: str, rule: str) -> None:
    found = verdict(resize(*scales, **kind))
    assert (found.answer, found.rule) == (expected, rule)


def test_resize_by_sizes_says_what_they_come_to() -> None:
    inputs = (data("x", *IMAGE), None, None, listed("sizes", 1, 16, 64, 64))
    found = verdict(Op("Resize", inputs, (data("y", 1, 16, 64, 64),), NEAREST))
    assert found.answer == "no" and "2×2" in found.reason and "scales" in found.fix


def test_upsample_is_an_old_resize() -> None:
    scales = listed("scales", 1, 1, 2, 2, dtype="float32")
    assert answer(replace(unary("Upsample", scales, mode="nearest"), opset=9)) == "yes"
    assert answer(replace(unary("Upsample", scales, mode="linear"), opset=9)) == "no"
    assert answer(replace(unary("Upsample", mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]), opset=7)) == "yes"


def sliced(*limits: tuple[int, ...], made: tuple[int, ...] = (1, 8, 32, 32)) -> Op:
    names = ("starts", "ends", "axes", "steps")
    more = [listed(name, *values) for name, values in zip(names, limits, strict=False)]
    return Op("Slice", (data("x", *IMAGE), *more), (data("y", *made),))


def test_slice() -> None:
    assert answer(sliced((0,), (8,), (1,), (1,))) == "yes"
    assert verdict(sliced((0,), (99,), (2,), (2,))).rule == "slice.step"
    limits = [listed(name, value) for name, value in (("starts", 0), ("ends", 1), ("axes", 0))]
    assert verdict(Op("Slice", (data("x", 2, 4, 8, 8), *limits), (data("y", 1, 4, 8, 8),))).rule == "slice.axis"
    computed = Op("Slice", (data("x", *IMAGE), data("s", 1), data("e", 1)), (data("y", *IMAGE),))
    assert "its limits are computed at run time" in verdict(computed).reason and answer(computed) == "no"
    old = Op("Slice", (data("x", *IMAGE),), (data("y", *IMAGE),), {"starts": [0], "ends": [8], "axes": [1]})
    assert answer(replace(old, opset=9)) == "yes"


@pytest.mark.parametrize("target", [INT8, Target(2, "8.6.2", "int8"), Target(1, "8.5.2", "int8")])
def test_slices_of_an_int8_build_run_in_half(target: Target) -> None:
    found = verdict(sliced((0,), (8,), (1,)), target)
    assert (found.answer, found.int8_form) == ("yes", "fp16") and "FP16" in found.reason


def test_slices_of_typed_int8_are_a_doubt() -> None:
    found = verdict(sliced((0,), (8,), (1,)), TYPED)
    assert (found.answer, found.rule) == ("verify", "slice.precision") and "typed" in found.reason


def test_split() -> None:
    parts = (data("a", 1, 8, 32, 32), data("b", 1, 8, 32, 32))
    split = Op("Split", (data("x", *IMAGE), listed("split", 8, 8)), parts, {"axis": 1})
    assert (answer(split), answer(split, INT8), answer(split, TYPED)) == ("yes", "yes", "verify")
    assert verdict(replace(split, attributes={"axis": -4})).rule == "split.axis"


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((1, 8192, 1, 1), 1, "yes"),
        ((1, 8193, 1, 1), 1, "no"),
        ((1, 1024, 2, 2), 1, "yes"),
        ((1, 1025, 2, 2), 1, "no"),
        ((1, 8, 16, 1024), -1, "yes"),
        ((2, 8, 16, 16), 0, "no"),
        ((1, 1000), 1, "no"),
    ],
)
def test_softmax(shape: tuple[int, ...], axis: int, expected: str) -> None:
    assert answer(unary("Softmax", shape=shape, axis=axis)) == expected


@pytest.mark.parametrize("axis", [4, -5])
def test_softmax_along_an_axis_that_there_is_not(axis: int) -> None:
    found = verdict(unary("Softmax", shape=(1, 10, 4, 4), axis=axis))
    assert (found.answer, found.reason) == ("no", f"its input has no axis {axis}")
    assert found.fix == "export the model again: the axis is -4 to 3"


def test_softmax_by_generation_precision_and_release() -> None:
    op = unary("Softmax", shape=(1, 10, 4, 4), axis=1)
    assert [answer(op, target) for target in (ORIN, XAVIER, INT8, TYPED)] == ["yes", "no", "yes", "verify"]
    assert "FP16" in verdict(op, INT8).reason
    early = Target(2, "8.4.1", "fp16")
    assert answer(op, early) == "no" and answer(unary("Softmax", shape=(1, 10, 1, 1), axis=1), early) == "yes"


def test_softmax_before_opset_13_runs_over_all_that_follows() -> None:
    op = replace(unary("Softmax", shape=(1, 10, 4, 4), axis=1), opset=11)
    assert answer(op) == "no"
    assert answer(replace(unary("Softmax", shape=(1, 10, 1, 1)), opset=11)) == "yes"


def test_reduction_to_the_maximum() -> None:
    op = unary("ReduceMax", listed("axes", 2, 3), keepdims=1)
    assert [answer(op, target) for target in (ORIN, MIDDLE, OLD, XAVIER)] == ["yes", "yes", "no", "no"]
    assert verdict(unary("ReduceMax", listed("axes", 0, 1))).rule == "reduce.axes"
    assert answer(unary("ReduceMax", axes=[2, 3], keepdims=0)) == "verify"
    assert (answer(unary("GlobalMaxPool")), answer(unary("GlobalMaxPool"), OLD)) == ("yes", "no")


@pytest.mark.parametrize("op", ["ReduceMean", "GlobalAveragePool", "ReduceSum", "ReduceMin"])
def test_other_reductions_are_rewritten(op: str) -> None:
    assert (answer(unary(op)), verdict(unary(op)).fix[:5]) == ("no", "write")


@pytest.mark.parametrize(("size", "expected"), [(3, "yes"), (9, "yes"), (2, "no"), (4, "no"), (11, "no")])
def test_response_normalization(size: int, expected: str) -> None:
    assert answer(unary("LRN", size=size)) == expected


def moved(op: str, before: tuple[int, ...], after: tuple[int, ...], **attributes: Any) -> Op:
    return Op(op, (data("x", *before),), (data("y", *after),), attributes)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (moved("Reshape", IMAGE, (1, 32, 16, 32)), "splits Reshape into pieces"),
        (moved("Reshape", IMAGE, (1, 16, 1024)), "both must be 4"),
        (moved("Reshape", IMAGE, (16, 1, 32, 32)), "the batch must stay"),
        (moved("Transpose", IMAGE, (1, 32, 32, 16), perm=[0, 2, 3, 1]), "splits Transpose into pieces"),
        (moved("Transpose", (2, 2, 4, 4), (2, 2, 4, 4), perm=[1, 0, 2, 3]), "the batch must stay"),
    ],
)
def test_shuffles_are_never_more_than_a_doubt(op: Op, words: str) -> None:
    found = verdict(op)
    assert (found.answer, found.rule) == ("verify", "shuffle.open") and words in found.reason


def test_reshape_to_a_computed_shape() -> None:
    op = Op("Reshape", (data("x", *IMAGE), data("s", 4, dtype="int64")), (data("y", 1, 32, 16, 32),))
    assert answer(op) == "no" and "its shape is computed at run time" in verdict(op).reason


@pytest.mark.parametrize("op", ["Flatten", "Squeeze", "Unsqueeze", "Pad", "Gather", "Where", "TopK", "Tile", "Foo"])
def test_what_is_absent(op: str) -> None:
    found = verdict(unary(op))
    assert (found.answer, found.rule) == ("no", "general.operator") and op in found.reason and found.fix
