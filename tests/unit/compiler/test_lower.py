"""The form for a weakly typed TensorRT is held to its promise."""

from __future__ import annotations

import pytest

from edgert.errors import CalibrationError
from edgert.graph import read
from edgert.quantization.lowering.trt_form import check_cache, write_cache
from tests.helpers.models import conv


def test_a_cache_names_what_the_model_has() -> None:
    graph = read(conv())
    cache = write_cache({"x": 0.5, "y": 0.25}, "10.3.0")
    assert check_cache(cache, [], graph) == "2 scales for TensorRT 10.3.0, 0 nodes in FP16"
    with pytest.raises(CalibrationError, match="names 'z'"):
        check_cache(write_cache({"z": 0.5}, "10.3.0"), [], graph)
    with pytest.raises(CalibrationError, match="names 'Conv_9'"):
        check_cache(cache, ["Conv_9"], graph)
    with pytest.raises(CalibrationError, match="no TensorRT calibration cache"):
        check_cache("nonsense", [], graph)
