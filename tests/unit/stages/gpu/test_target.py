"""Where an image goes: tensors in the order of their dimensions, and in an engine's own."""

from __future__ import annotations

from typing import get_args

import pytest

from edgert.stages.gpu.gpu_preprocess import ValueType, plain
from tests.helpers.gpu_target import TensorLayout, target


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", get_args(ValueType))
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_plain_tensors_have_the_strides_of_their_names(layout: TensorLayout, dtype: ValueType, channels: int) -> None:
    assert plain(layout, dtype, 2, 40, 24, channels) == target(layout, dtype, 2, 40, 24, channels)


@pytest.mark.parametrize(
    ("layout", "dtype", "group", "is_aligned"),
    [
        ("nchw", "float16", 1, True),
        ("nhwc", "float16", 1, False),
        ("dla_linear", "float16", 1, True),
        ("dla_hwc4", "int8", 4, False),
        ("chw16", "float16", 4, False),
        ("chw32", "int8", 4, False),
    ],
)
def test_how_much_is_stored_at_once(layout: TensorLayout, dtype: ValueType, group: int, is_aligned: bool) -> None:
    found = target(layout, dtype, 1, 40, 24)
    assert (found.group, found.aligned(4)) == (group, is_aligned)
