"""Where an image goes: layouts by name, and as engines tell them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from edgert.errors import ModelError
from edgert.stages.gpu.kernel_jobs import TensorLayout, ValueType, strided, target

NAMED = [name for name in get_args(TensorLayout) if name not in ("nhwc", "strided")]
TYPES: dict[str, ValueType] = {"chw16": "float16", "chw32": "int8"}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", NAMED)
def test_strides_say_what_a_name_says(layout: TensorLayout, channels: int, rows: int) -> None:
    named = target(layout, TYPES.get(layout, "float16"), rows, 40, 24, channels)
    told = strided(named.dtype, (rows, channels, 24, 40), named.strides, named.nbytes)
    assert replace(told, layout=layout) == named
    assert (told.group, told.aligned(4)) == (named.group, named.aligned(4))


def test_a_type_that_a_layout_has_not() -> None:
    with pytest.raises(ModelError, match="a chw16 input of int8"):
        target("chw16", "int8", 1, 40, 24)
