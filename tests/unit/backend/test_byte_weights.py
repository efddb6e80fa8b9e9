"""Stored weights that x86 processors multiply wrongly (saturating byte products) or slowly (subnormal ones)."""

import numpy as np
import pytest
from onnx import numpy_helper

from edgert.backend.ort import Function, cpu
from edgert.backend.ort.cpu import SPECKS, prepare
from edgert.graph import Model, clean, read, to_bytes
from tests.helpers.models import make, node


def weighted(zero_point: bool) -> Model:
    """``y`` = ``x`` [1, 3] · weights [3, 2], which have a scale for each column."""
    named = ["w8", "scales", *(["zeros"] if zero_point else [])]
    nodes = [node("DequantizeLinear", named, ["w"], axis=1), node("MatMul", ["x", "w"], ["y"])]
    model = make(nodes, {"x": (1, 3)}, {"y": (1, 2)})
    stored = {"w8": np.int8([[1, -2], [3, 4], [-5, 6]]), "scales": np.float32([0.5, 0.25]), "zeros": np.int8([0, 0])}
    for name, value in stored.items():
        if name in named:
            model.proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("zero_point", [False, True])
def test_zero_points_are_written_out_where_bytes_saturate(zero_point: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weighted(zero_point)
    before = to_bytes(model)
    monkeypatch.setattr(cpu, "saturates_bytes", lambda: True)
    assert (cpu.session_bytes(model) == before) is zero_point
    assert to_bytes(model) == before, "the model itself stays as it is"
    found = Function(model)({"x": np.ones((1, 3), np.float32)})["y"]
    assert found.tolist() == [[-0.5, 2.0]]


def test_elsewhere_models_are_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "saturates_bytes", lambda: False)
    model = weighted(False)
    assert cpu.session_bytes(model) == to_bytes(model)


LEAST = float(np.sqrt(np.finfo(np.float32).tiny))


def specked() -> Model:
    """``y`` = max(``x`` [1, 3] · weights [3, 2], eps), where specks are among the weights, and eps is one."""
    nodes = [node("MatMul", ["x", "w"], ["product"]), node("Max", ["product", "eps"], ["y"])]
    model = make(nodes, {"x": (1, 3)}, {"y": (1, 2)})
    stored = {"w": np.float32([[0.5, 1e-40], [-2, 1e-25], [0, 2 * LEAST]]), "eps": np.float32([1e-30])}
    model.proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    return model


def test_specks_become_zero_and_other_constants_stay() -> None:
    ready = prepare(specked(), {})
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
