"""Convolutions and what becomes one, at both sides of every limit."""

from dataclasses import replace
from typing import Any

import pytest

from dla import banks, check
from tests.helpers.dla_nodes import INT8, ORIN, XAVIER, Op, answer, conv, data, deconv, stored, unary, verdict


@pytest.mark.parametrize("target", [ORIN, INT8, XAVIER])
def test_plain_convolution_runs_everywhere(target: Any) -> None:
    found = check(conv(pads=[1, 1, 1, 1]), target)
    assert (found.answer, found.rule, found.fix) == ("yes", "convolution", "")
    assert "Convolution" in found.reason


@pytest.mark.parametrize(
    ("inside", "outside", "rule"),
    [
        ({"kernel": (32, 1)}, {"kernel": (33, 1)}, "conv.kernel"),
        ({"kernel": (1, 32)}, {"kernel": (1, 33)}, "conv.kernel"),
        ({"strides": [8, 8]}, {"strides": [8, 9]}, "conv.stride"),
        ({"kernel": (32, 32), "pads": [31, 31, 31, 31]}, {"kernel": (32, 32), "pads": [0, 0, 0, 32]}, "conv.padding"),
        ({"pads": [2, 2, 2, 2]}, {"pads": [3, 0, 0, 0]}, "conv.padding"),
        ({"dilations": [32, 32]}, {"dilations": [1, 33]}, "conv.dilation"),
        ({"group": 16}, {"group": 16, "is_stored": False}, "conv.weights"),
    ],
)
def test_limits(inside: dict[str, Any], outside: dict[str, Any], rule: str) -> None:
    assert answer(conv(**inside)) == "yes"
    found = verdict(conv(**outside))
    assert (found.answer, found.rule) == ("no", rule) and found.reason


@pytest.mark.parametrize("side", ["channels", "made"])
def test_channels_are_limited_and_so_is_the_dimension(side: str) -> None:
    sizes: dict[str, Any] = {"kernel": (1, 1), "width": 1}
    assert answer(conv(**sizes, **{side: 8192})) == "yes"
    found = verdict(conv(**sizes, **{side: 8193}))
    assert found.answer == "no" and "channels must be 1 to 8192" in found.reason and "dimension" in found.reason


@pytest.mark.parametrize(("group", "expected"), [(1, "yes"), (8192, "yes"), (8193, "no")])
def test_groups(group: int, expected: str) -> None:
    op = conv(channels=group, made=group, group=group, kernel=(1, 1), width=1)
    assert answer(op) == expected


@pytest.mark.parametrize(
    ("channels", "made", "group", "fp16", "int8"),
    [
        (16, 16, 16, "yes", "yes"),  # depthwise
        (16, 16, 4, "yes", "yes"),
        (12, 12, 4, "yes", "verify"),
        (16, 8, 4, "yes", "verify"),
    ],
)
def test_channels_per_group_should_be_multiples_of_four(
    channels: int, made: int, group: int, fp16: str, int8: str
) -> None:
    op = conv(channels=channels, made=made, group=group)
    assert (answer(op), answer(op, INT8)) == (fp16, int8)


def test_padding_between_kernel_and_dilated_kernel_is_a_doubt() -> None:
    assert answer(conv(dilations=[3, 3], pads=[2, 2, 2, 2])) == "yes"
    assert verdict(conv(dilations=[3, 3], pads=[3, 3, 3, 3])).rule == "conv.padding"
    assert answer(conv(dilations=[3, 3], pads=[3, 3, 3, 3])) == "verify"
    assert answer(conv(dilations=[3, 3], pads=[7, 3, 3, 3])) == "no"


@pytest.mark.parametrize("mode", ["SAME_UPPER", b"SAME_LOWER", "VALID"])
def test_automatic_padding_is_worked_out(mode: Any) -> None:
    assert answer(conv(auto_pad=mode, strides=[2, 2])) == "yes"


def test_automatic_padding_can_be_too_large() -> None:
    assert answer(conv(kernel=(32, 1), dilations=[2, 1], auto_pad="SAME_UPPER")) == "yes"  # 62 in all: 31 and 31
    found = verdict(conv(kernel=(32, 1), dilations=[3, 1], auto_pad="SAME_UPPER"))  # 93 in all
    assert (found.answer, found.rule) == ("no", "conv.padding") and "46" in found.reason and "47" in found.reason


def test_only_two_dimensions() -> None:
    flat = Op("Conv", (data("x", 1, 4, 9), stored("w", 8, 4, 3)), (data("y", 1, 8, 7),))
    deep = Op("Conv", (data("x", 1, 4, 9, 9, 9), stored("w", 8, 4, 3, 3, 3)), (data("y", 1, 8, 7, 7, 7),))
    for op in (flat, deep):
        assert verdict(op).rule == "general.planar" and answer(op) == "no"


def test_convolution_buffer_of_the_published_example() -> None:
    """512 → 256 channels, 3×3, 160 wide: 9 banks in INT8; 16 in FP16, which TensorRT 8.5.2 refused on Orin."""
    assert banks(512, 160, (3, 3), int8=True) == 9
    assert banks(512, 160, (3, 3), int8=False) == 16
    op = conv(channels=512, made=256, width=160)
    assert answer(op, INT8) == "yes"
    found = verdict(op)
    assert (found.answer, found.rule) == ("verify", "conv.cbuf") and "16 of 16 banks" in found.reason


@pytest.mark.parametrize(
    ("width", "needed", "expected"), [(127, 13, "yes"), (128, 13, "yes"), (129, 14, "verify"), (171, 18, "no")]
)
def test_convolution_buffer_at_its_limits(width: int, needed: int, expected: str) -> None:
    assert banks(512, width, (3, 3), int8=False) == needed
    assert answer(conv(channels=512, made=256, width=width)) == expected


def test_convolution_buffer_counts_the_channels_of_a_group_and_the_dilation() -> None:
    assert answer(conv(channels=1024, made=64, width=160)) == "no"
    assert answer(conv(channels=256, made=64, width=160, group=4)) == "yes"
    assert banks(64, 160, (3, 3), 1, int8=True) < banks(64, 160, (3, 3), 12, int8=True)


@pytest.mark.parametrize(("width", "expected"), [(40, "yes"), (80, "verify")])
def test_groups_that_fit_only_by_themselves_are_a_doubt(width: int, expected: str) -> None:
    """The published formula has all channels of the input: 2 banks for a group of this depthwise one, 19 for all."""
    op = conv(channels=672, made=672, width=width, kernel=(5, 5), group=672, pads=[2, 2, 2, 2])
    found = verdict(op)
    assert found.answer == expected and banks(1, 80, (5, 5), int8=False) == 2
    assert banks(672, 80, (5, 5), int8=False) == 19
    assert width < 80 or (found.rule == "conv.cbuf" and "2 banks" in found.reason and "19" in found.reason)


@pytest.mark.parametrize(
    ("inside", "outside", "rule"),
    [
        ({"kernel": (22, 22)}, {"kernel": (23, 23)}, "deconv.kernel"),
        ({"kernel": (23, 24)}, {"kernel": (33, 1)}, "deconv.kernel"),
        ({"kernel": (64, 1)}, {"kernel": (64, 2)}, "deconv.kernel"),
        ({"kernel": (1, 128)}, {"kernel": (1, 127)}, "deconv.kernel"),
        ({"kernel": (96, 1)}, {"kernel": (32, 32)}, "deconv.kernel"),
        ({"strides": [22, 22]}, {"strides": [32, 32]}, "deconv.stride"),
        ({"strides": [32, 1]}, {"strides": [33, 1]}, "deconv.stride"),
        ({"pads": [0, 0, 0, 0]}, {"pads": [0, 0, 1, 0]}, "deconv.padding"),
        ({"group": 1}, {"group": 2}, "deconv.groups"),
        ({"dilations": [1, 1]}, {"dilations": [2, 1]}, "deconv.dilation"),
        ({"channels": (16, 8192)}, {"channels": (16, 8193)}, "deconv.channels"),
    ],
)
def test_deconvolution(inside: dict[str, Any], outside: dict[str, Any], rule: str) -> None:
    assert answer(deconv(**inside)) == "yes"
    found = verdict(deconv(**outside))
    assert (found.answer, found.rule) == ("no", rule) and (found.fix or rule == "deconv.channels")


def test_output_padding_is_a_doubt() -> None:
    assert answer(deconv(output_padding=[1, 1])) == "verify"


def gemm(*, rows: tuple[int, ...] = (1, 64), matrix: tuple[int, int] = (64, 10), **attributes: Any) -> Op:
    return Op("Gemm", (data("x", *rows), stored("w", *matrix)), (data("y", rows[0], 10),), attributes)


def test_product_with_a_stored_matrix_is_a_convolution() -> None:
    assert verdict(gemm()).rule == "fullyconnected" and answer(gemm(), INT8) == "yes"
    assert answer(gemm(matrix=(64, 8192))) == "yes"
    assert verdict(gemm(matrix=(64, 8193))).rule == "gemm.channels"
    assert verdict(gemm(transA=1)).rule == "gemm.shape"
    assert answer(gemm(alpha=0.5)) == "verify"
    both = Op("MatMul", (data("a", 1, 8, 4, 4), data("b", 1, 8, 4, 4)), (data("y", 1, 8, 4, 4),))
    assert verdict(both).rule == "gemm.weights" and answer(both) == "no"
    assert answer(replace(gemm(), op="MatMul")) == "yes"
    deep = Op("MatMul", (data("x", 1, 8, 4, 4), stored("w", 4, 6)), (data("y", 1, 8, 4, 6),))
    assert answer(deep) == "verify"


def test_batch_normalization_is_a_scale() -> None:
    statistics = [stored(name, 16) for name in "sbmv"]
    assert verdict(unary("BatchNormalization", *statistics)).rule == "scale"
    assert verdict(unary("BatchNormalization", *statistics, training_mode=1)).rule == "batchnorm.form"
