"""Evaluation of single nodes: sizes that are refused, and operands that are left to the backend."""

from typing import Any

import numpy as np
import onnx
import pytest

from edgert.graph.fold_constants import evaluate
from edgert.graph.ir import Node
from edgert.graph.model import Array

F = np.array([[-1.5, 0.0, 2.25], [3.5, -4.0, 0.5]], np.float32)
N = np.array([[-7, 3, 5], [2, -9, 4]])


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def evaluated(op: str, inputs: list[Any], given: dict[str, Any], opset: int = 17) -> list[Array] | None:
    feeds = {f"i{place}": np.asarray(array) for place, array in enumerate(inputs)}
    return evaluate(Node(op, tuple(feeds), ("o",), given, "n"), feeds, opset, limit_bytes=2**20)


def test_ranges_are_inputs_or_attributes_by_the_opset() -> None:
    (made,) = evaluated("Slice", [F, ints(2), ints(-(2**62)), ints(1), ints(-1)], {}) or ()
    assert np.array_equal(made, F[:, ::-1])
    (made,) = evaluated("Slice", [F], {"starts": [1], "ends": [9], "axes": [1]}, opset=9) or ()
    assert np.array_equal(made, F[:, 1:])


def test_integers_are_divided_towards_zero() -> None:
    (made,) = evaluated("Div", [N, ints(2, -3, 4)], {}) or ()
    assert made.tolist() == [[-3, -1, 1], [1, 3, 1]] and made.dtype == np.int64


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", [ints(10**6, 10**6)]),
        ("Expand", [np.zeros(1, np.float32), ints(10**5, 10**5)]),
        ("Tile", [np.zeros((1, 1), np.float32), ints(10**5, 10**5)]),
        ("Range", [np.array(0), np.array(10**12), np.array(1)]),
        ("Add", [np.zeros((10**4, 1), np.float32), np.zeros((1, 10**4), np.float32)]),
        ("Gather", [np.zeros((1, 10**4), np.float32), np.zeros(10**4, np.int64)]),
        ("Where", [np.ones((10**4, 1), bool), np.zeros(10**4, np.float32), np.zeros(1, np.float32)]),
        ("NonZero", [np.ones((2**9, 2**9), np.float32)]),
    ],
)
def test_large_results_are_refused_before_they_are_made(op: str, inputs: list[Any]) -> None:
    assert evaluated(op, inputs, {}) is None


@pytest.mark.parametrize(
    ("op", "inputs", "given"),
    [
        ("Conv", [F, F], {}),
        ("RandomNormal", [], {"shape": [2]}),
        ("DequantizeLinear", [np.int8(1), np.float32(1)], {}),
        ("Div", [N, ints(0)], {}),
        ("Mod", [N, ints(0)], {}),
        ("Range", [np.array(0), np.array(3), np.array(0)], {}),
        ("Gather", [F, np.array(9)], {}),
        ("Reshape", [F, ints(7)], {}),
        ("Add", [F], {}),
        ("Concat", [F, F], {}),
        ("Cast", [np.array([1e30, np.nan], np.float32)], {"to": onnx.TensorProto.INT32}),
        ("Cast", [F], {"to": onnx.TensorProto.STRING}),
        ("Slice", [F, ints(0), ints(1), ints(0), ints(0)], {}),
        ("Expand", [F, ints(5, 5)], {}),
    ],
)
def test_what_the_specification_leaves_open_is_not_computed(op: str, inputs: list[Any], given: dict[str, Any]) -> None:
    assert evaluated(op, inputs, given) is None


def test_old_broadcasting_is_not_computed() -> None:
    assert evaluated("Add", [F, F], {}, opset=6) is None
