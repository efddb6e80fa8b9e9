"""Weights whose products are subnormal numbers, which take an x86 processor some hundred cycles each."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgert.backend.ort import Function
from edgert.backend.ort.cpu import SPECKS, prepared
from edgert.graph import Model, clean, read
from tests.helpers import models

LEAST = float(np.sqrt(np.finfo(np.float32).tiny))


def specked() -> Model:
    """``y`` = max(``x`` [1, 3] · weights [3, 2], eps), where specks are among the weights, and eps is one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Max", ["product", "eps"], ["y"]),
    ]
    model = models.make(nodes, {"x": ((1, 3), TensorProto.FLOAT)}, {"y": ((1, 2), TensorProto.FLOAT)})
    stored = {"w": np.float32([[0.5, 1e-40], [-2, 1e-25], [0, 2 * LEAST]]), "eps": np.float32([1e-30])}
    model.proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    return model


def test_specks_become_zero_and_other_constants_stay() -> None:
    ready = prepared(specked(), {})
    found = read(ready).constants
    assert found["w"].tolist() == np.float32([[0.5, 0], [-2, 0], [0, 2 * LEAST]]).tolist()
    assert found["eps"][0] > 0
    feeds = {"x": np.float32([[1, -1, 0.25]])}
    assert Function(ready)(feeds)["y"] == pytest.approx(Function(specked())(feeds)["y"], abs=1e-18)


def test_a_model_without_specks_stays_as_it_is() -> None:
    once, changes = clean(specked(), (SPECKS,))
    assert [one.subject for one in changes if one.rule == SPECKS.name] == ["w"]
    again, none = clean(once, (SPECKS,))
    assert again is once and not none
