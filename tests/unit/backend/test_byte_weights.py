"""Stored int8 with a scale for each channel, on processors where sums of byte products saturate."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgert.backend.ort import Function, byte_weights
from edgert.graph import Model, to_bytes
from tests.helpers import models


def weighted(zero_point: bool) -> Model:
    """``y`` = ``x`` [1, 3] · weights [3, 2], which have a scale for each column."""
    named = ["w8", "scales", *(["zeros"] if zero_point else [])]
    nodes = [
        helper.make_node("DequantizeLinear", named, ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = models.make(nodes, {"x": ((1, 3), TensorProto.FLOAT)}, {"y": ((1, 2), TensorProto.FLOAT)})
    stored = {"w8": np.int8([[1, -2], [3, 4], [-5, 6]]), "scales": np.float32([0.5, 0.25]), "zeros": np.int8([0, 0])}
    for name, value in stored.items():
        if name in named:
            model.proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("zero_point", [False, True])
def test_zero_points_are_written_out_where_bytes_saturate(zero_point: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weighted(zero_point)
    before = to_bytes(model)
    monkeypatch.setattr(byte_weights, "saturates_bytes", lambda: True)
    assert (byte_weights.content(model) == before) is zero_point
    assert to_bytes(model) == before, "the model itself stays as it is"
    found = Function(model)({"x": np.float32([[1, 1, 1]])})["y"]
    assert found.tolist() == [[-0.5, 2.0]]


def test_elsewhere_models_are_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_weights, "saturates_bytes", lambda: False)
    model = weighted(False)
    assert byte_weights.content(model) == to_bytes(model)
