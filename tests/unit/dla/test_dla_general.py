"""What holds for every layer, nodes that fold away, targets, and where rules come from."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dla import LAYERS, LIMITS, RULES, SOURCES, Target, Tensor, check
from tests.helpers.dla_nodes import IMAGE, INT8, ORIN, TYPED, Op, answer, conv, data, listed, stored, unary, verdict


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 3, 8, 8), "yes"),
        ((4097, 3, 8, 8), "no"),
        ((1, 8192, 1, 1), "yes"),
        ((1, 8193, 1, 1), "no"),
        ((1, 3, 8193, 1), "no"),
        ((1, 3, 1, 8192), "yes"),
        ((None, 3, 8, 8), "verify"),
        ((1, 3, None, 8), "no"),
    ],
)
def test_sizes(shape: tuple[int | None, ...], expected: str) -> None:
    assert answer(unary("Relu", shape=shape)) == expected


def test_batch_is_all_before_the_last_three_dimensions() -> None:
    fits, over = (Op("Reshape", (data("x", 64, n, 3, 8, 8),), (data("y", 64 * n, 3, 8, 8),)) for n in (64, 65))
    assert answer(fits) == "verify" and verdict(over).rule == "general.batch"


def test_unknown_rank() -> None:
    op = Op("Relu", (Tensor("x", None),), (Tensor("y", None),))
    assert verdict(op).rule == "general.static" and "--shape" in verdict(op).fix


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "yes"), ("float16", "yes"), ("int64", "no"),
                                                 ("bfloat16", "no"), ("object", "no")])  # fmt: skip
def test_types(dtype: str, expected: str) -> None:
    assert answer(Op("Relu", (data("x", *IMAGE, dtype=dtype),), (data("y", *IMAGE, dtype=dtype),))) == expected


def test_other_domains_are_plugins() -> None:
    assert verdict(replace(unary("Relu"), domain="com.microsoft")).rule == "general.domain"
    assert answer(replace(unary("Relu"), domain="ai.onnx")) == "yes"


def test_missing_scale_counts_in_int8_only() -> None:
    op = unary("Relu")
    assert check(op, INT8, scaled={"x", "y"}).answer == "yes" == check(op, ORIN, scaled=set()).answer
    found = check(op, INT8, scaled={"x"})
    assert (found.answer, found.rule) == ("verify", "general.scale") and "for y" in found.reason


@pytest.mark.parametrize(("generation", "version"), [(1, "10.3"), (2, "10.13"), (2, "11.0"), (2, "11.3.2")])
def test_release_without_dla_refuses_everything(generation: int, version: str) -> None:
    found = check(unary("Relu"), Target(generation, version, "fp16"))
    assert (found.answer, found.rule) == ("no", "release") and version in found.reason and found.fix


def test_every_line_with_a_dla_takes_a_convolution() -> None:
    for version in ("8.5.2", "8.6.2", "10.3", "10.7", "11.4.1"):
        assert check(conv(), Target(2, version, "int8")).answer == "yes"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Target(3), "generation"),
        (lambda: Target(2, "new"), "version number"),
        (lambda: Target(2, "10.3", "fp32"), "precision"),  # type: ignore[arg-type]
    ],
)
def test_targets_that_there_are_not(make: Callable[[], Target], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


FOLDED = {
    "stored": Op("Add", (stored("a", 1), stored("b", 1)), (stored("y", 1),)),
    "identity": unary("Identity"),
    "dropout": unary("Dropout"),
    "cast": unary("Cast", to=1),
    "one part": unary("Concat", axis=1),
    "order kept": unary("Transpose", perm=[0, 1, 2, 3]),
    "shape kept": unary("Reshape", listed("shape", *IMAGE)),
    "quantize": unary("QuantizeLinear", stored("s", values=(0.1,)), stored("z", values=(0.0,), dtype="int8")),
}


@pytest.mark.parametrize("op", FOLDED.values(), ids=FOLDED)
def test_folded(op: Op) -> None:
    found = verdict(op, INT8)
    assert found.is_folded and found.answer == "yes" and found.reason


def test_not_folded() -> None:
    training = unary("Dropout", None, stored("t", values=(1.0,), dtype="bool"))
    half = Op("Cast", (data("x", *IMAGE),), (data("y", *IMAGE, dtype="float16"),), {"to": 10})
    for op in (training, half, unary("Transpose", perm=[0, 1, 3, 2])):
        assert not verdict(op).is_folded and answer(op) != "yes"


def test_zero_points_and_scales_per_channel() -> None:
    shifted = unary("QuantizeLinear", stored("s", values=(0.1,)), stored("z", values=(128.0,), dtype="uint8"))
    assert (answer(shifted, INT8), answer(shifted, TYPED)) == ("no", "verify")
    weights = Op("DequantizeLinear", (stored("w", 8, 4, 3, 3, dtype="int8"), stored("s", 8)), (data("y", 8, 4, 3, 3),))
    assert (answer(weights, INT8), answer(weights, TYPED)) == ("yes", "verify")
    assert answer(unary("DequantizeLinear", stored("s", 16)), INT8) == "no"
    unknown = unary("QuantizeLinear", stored("s", values=(0.1,)), stored("z", 16, dtype="int8"))
    assert answer(unknown, INT8) == "verify" and "not known" in verdict(unknown, INT8).reason


def test_all_objections_are_heard() -> None:
    found = verdict(conv(kernel=(33, 33), strides=[9, 9]))
    assert "33×33" in found.reason and "9×9" in found.reason and found.rule == "conv.kernel"


def test_every_rule_names_its_page_and_says_what_it_is_about() -> None:
    assert set(RULES) <= set(SOURCES) and len(RULES) > 50
    assert all(source.startswith("https://") for source in SOURCES.values())
    assert all(limit.source.startswith("https://") and limit.low <= limit.high for limit in LIMITS.values())
    assert all(rule.about.endswith(".") for rule in RULES.values())
    assert all(layer.rules for layer in LAYERS.values())


def test_a_rule_named_like_a_limit_has_its_source() -> None:
    shared = set(RULES) & set(LIMITS)
    assert len(shared) > 15 and all(RULES[name].source == LIMITS[name].source for name in shared)
