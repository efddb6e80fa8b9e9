"""Which rule objects: its name is what an error and a page lead back to a source with."""

from dataclasses import replace

import pytest

from dla import RULES, Target
from tests.helpers.dla_nodes import (
    IMAGE,
    INT8,
    OLD,
    ORIN,
    TYPED,
    XAVIER,
    Op,
    binary,
    conv,
    data,
    listed,
    stored,
    unary,
    verdict,
)

WEIGHTS = stored("w", 8, 4)
BOOLEAN = data("x", *IMAGE, dtype="bool")
CASES: dict[str, tuple[Op, Target, str]] = {
    "general.dimension": (unary("Relu", shape=(1, 9000, 4, 4)), ORIN, "no"),
    "general.type": (Op("Relu", (data("x", *IMAGE, dtype="int64"),), (data("y", *IMAGE),)), ORIN, "no"),
    "general.form": (Op("Relu", (), (data("y", *IMAGE),)), ORIN, "no"),
    "clip.ceiling": (unary("Clip", min=-1.0, max=6.0), ORIN, "no"),
    "prelu.slope": (unary("PRelu", data("slope", 1, 16, 1, 1)), ORIN, "no"),
    "unary.abs": (unary("Abs"), ORIN, "verify"),
    "unary.trigonometry": (unary("Sin"), ORIN, "verify"),
    "conv.channels": (Op("Conv", (data("x", *IMAGE), stored("w", 8193, 16, 1, 1)), (data("y", *IMAGE),)), ORIN, "no"),
    "conv.groups": (conv(channels=12, made=12, group=4), INT8, "verify"),
    "conv.padding": (conv(pads=[3, 3, 3, 3]), ORIN, "no"),
    "conv.dilation": (conv(dilations=[33, 33]), ORIN, "no"),
    "general.domain": (replace(unary("Relu"), domain="custom"), ORIN, "no"),
    "pool.stride": (unary("MaxPool", kernel_shape=[2, 2], strides=[17, 17]), ORIN, "no"),
    "pool.dilation": (unary("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), ORIN, "no"),
    "pool.outputs": (replace(unary("MaxPool", kernel_shape=[2, 2]), outputs=(data("y", *IMAGE),) * 2), ORIN, "no"),
    "pool.count": (unary("AveragePool", kernel_shape=[2, 2], pads=[1, 1, 1, 1]), XAVIER, "no"),
    "slice.precision": (unary("Slice", listed("s", 0), listed("e", 9), listed("a", 2)), TYPED, "verify"),
    "concat.axis": (binary("Concat", axis=2), ORIN, "no"),
    "concat.inputs": (binary("Concat", b=stored("b", *IMAGE), axis=1), ORIN, "verify"),
    "elementwise.release": (binary("Div"), OLD, "no"),
    "elementwise.min": (binary("Min"), ORIN, "verify"),
    "scale.form": (binary("Add", b=stored("b", 32)), ORIN, "verify"),
    "div.operands": (binary("Div", b=stored("b", 1, 16, 1, 1)), ORIN, "verify"),
    "pow.operands": (binary("Pow"), ORIN, "no"),
    "compare.precision": (binary("Greater"), ORIN, "no"),
    "compare.open": (binary("Greater"), INT8, "verify"),
    "cast.comparison": (Op("Cast", (BOOLEAN,), (data("y", *IMAGE, dtype="float16"),), {"to": 10}), ORIN, "verify"),
    "gemm.scale": (Op("Gemm", (data("x", 1, 8), WEIGHTS), (data("y", 1, 4),), {"alpha": 2.0}), ORIN, "verify"),
    "lrn.window": (unary("LRN", size=4), ORIN, "no"),
    "softmax.generation": (unary("Softmax", axis=1, shape=(1, 8, 1, 1)), XAVIER, "no"),
    "softmax.axis": (unary("Softmax", axis=0), ORIN, "no"),
    "reduce.release": (unary("GlobalMaxPool"), OLD, "no"),
    "scale.symmetric": (
        unary("QuantizeLinear", stored("s", values=(0.1,)), stored("z", values=(9.0,), dtype="uint8")), INT8, "no"
    ),
    "scale.tensor": (unary("DequantizeLinear", stored("s", 16)), TYPED, "no"),
    "slice.step": (unary("Slice", *(listed(n, v) for n, v in (("s", 0), ("e", 9), ("a", 2), ("t", 2)))), ORIN, "no"),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_that_objects_is_named(rule: str) -> None:
    op, target, answer = CASES[rule]
    found = verdict(op, target)
    assert (found.rule, found.answer) == (rule, answer) and found.reason and found.fix


@pytest.mark.parametrize(
    ("rule", "op"),
    [
        ("reshape.shape", Op("Reshape", (data("x", *IMAGE), data("shape", 4)), (data("y", 1, 32, 16, 32),))),
        ("slice.arguments", unary("Slice", data("starts", 1), data("ends", 1))),
    ],
)
def test_a_rule_that_objects_beside_a_general_one_is_heard(rule: str, op: Op) -> None:
    found = RULES[rule](op, ORIN)
    assert found is not None and found.answer == "no" and found.reason in verdict(op).reason


def test_what_is_promoted_to_fp16_is_a_yes_with_a_note() -> None:
    found = RULES["activation.precision"](unary("Sigmoid"), INT8)
    assert found is not None and found.answer == "yes" and found.form == "lookup"
    assert "FP16 inside" in verdict(unary("Sigmoid"), INT8).reason
