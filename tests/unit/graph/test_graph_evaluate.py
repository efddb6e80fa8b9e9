from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from edgert.graph.fold_constants import Call, TooLargeError, evaluate, is_supported
from edgert.graph.model import attributes

I64 = np.int64
F = np.array([[-1.5, 0.0, 2.25], [3.5, -4.0, 0.5]], np.float32)
P = np.abs(F) + 1
N = np.array([[-7, 3, 5], [2, -9, 4]])
B = np.array([True, False, True])


def ints(*values: int) -> Any:
    return np.array(values, I64)


CASES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    *(
        (op, [F], {}, 17)
        for op in ("Abs", "Ceil", "Floor", "Neg", "Exp", "Sin", "Cos", "Identity", "Shape", "Size", "NonZero")
    ),
    *((op, [P], {}, 17) for op in ("Sqrt", "Log", "Reciprocal")),
    *((op, [F, F[:1]], {}, 17) for op in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Less", "Greater")),
    *((op, [N, ints(2, -3, 4)], {}, 17) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")),
    *((op, [F, F.T[:1, :1]], {}, 17) for op in ("LessOrEqual", "GreaterOrEqual")),
    *((op, [B, np.array([True])], {}, 17) for op in ("And", "Or")),
    ("Not", [B], {}, 17),
    ("Max", [F, F[:1], F[1:]], {}, 17),
    ("Div", [F, P], {}, 17),
    ("Div", [np.array([200], np.uint8), np.array([7], np.uint8)], {}, 17),
    ("Mod", [F, P], {"fmod": 1}, 17),
    ("Pow", [P, np.float32(2)], {}, 17),
    ("Pow", [ints(2, 3), np.float32(2)], {}, 17),
    ("Cast", [F], {"to": onnx.TensorProto.INT64}, 17),
    ("Cast", [N], {"to": onnx.TensorProto.FLOAT}, 17),
    ("Cast", [F], {"to": onnx.TensorProto.BOOL}, 17),
    ("Cast", [F], {"to": onnx.TensorProto.FLOAT16}, 17),
    ("Concat", [ints(1), ints(2, 3)], {"axis": 0}, 17),
    ("Concat", [F, F], {"axis": -1}, 17),
    ("Gather", [F, np.array(1)], {}, 17),
    ("Gather", [F, np.array([[0, -1]])], {"axis": 1}, 17),
    ("Slice", [F, ints(0), ints(1)], {}, 17),
    ("Slice", [F, ints(-1), ints(-100), ints(1), ints(-1)], {}, 17),
    ("Slice", [F, ints(100), ints(-(2**62)), ints(1), ints(-2)], {}, 17),
    ("Slice", [F, ints(1), ints(2**62), ints(-1)], {}, 17),
    ("Slice", [F, ints(0, 1), ints(1, 3), ints(0, 1), ints(1, 2)], {}, 17),
    ("Slice", [F], {"starts": [1], "ends": [9], "axes": [1]}, 9),
    ("Split", [F, ints(1, 2)], {"axis": 1}, 17),
    ("Split", [F], {"axis": 1, "split": [2, 1]}, 11),
    ("Unsqueeze", [F, ints(0, -1)], {}, 17),
    ("Unsqueeze", [F], {"axes": [0, 2]}, 11),
    ("Squeeze", [F[None, :, None], ints(0)], {}, 17),
    ("Squeeze", [F[None, :, None]], {}, 17),
    ("Squeeze", [F[None]], {"axes": [0]}, 11),
    ("Reshape", [F, ints(0, -1, 1)], {}, 17),
    ("Reshape", [np.zeros((0, 3), np.float32), ints(3, 0)], {"allowzero": 1}, 17),
    ("Flatten", [F[None]], {"axis": 2}, 17),
    ("Flatten", [F[None]], {"axis": -1}, 17),
    ("Flatten", [F[None]], {"axis": 0}, 17),
    ("Expand", [F[:1], ints(4, 1)], {}, 17),
    ("Tile", [F, ints(2, 1)], {}, 17),
    ("Transpose", [F], {}, 17),
    ("Transpose", [F[None]], {"perm": [2, 0, 1]}, 17),
    ("Shape", [F], {"start": 1}, 17),
    ("Shape", [F], {"start": -2, "end": -1}, 17),
    ("ConstantOfShape", [ints(2, 3)], {}, 17),
    ("ConstantOfShape", [ints()], {"value": helper.make_tensor("v", onnx.TensorProto.INT64, [1], [7])}, 17),
    ("Range", [np.array(1), np.array(9), np.array(3)], {}, 17),
    ("Range", [np.array(5), np.array(0), np.array(-2)], {}, 17),
    ("Range", [np.float32(0), np.float32(1), np.float32(0.25)], {}, 17),
    ("Range", [np.array(5), np.array(0), np.array(2)], {}, 17),
    ("ReduceProd", [N], {"keepdims": 0}, 17),
    ("ReduceSum", [N, ints(1)], {}, 17),
    ("ReduceSum", [F], {"noop_with_empty_axes": 1}, 17),
    ("ReduceSum", [N], {"axes": [0], "keepdims": 0}, 11),
    ("ReduceMax", [F], {"axes": [-1]}, 17),
    ("ReduceMin", [F], {"axes": [0]}, 17),
    ("Where", [B, F, F[:1] * 2], {}, 17),
]


def call(inputs: list[Any], given: dict[str, Any], opset: int = 17, limit_bytes: int = 2**20) -> Call:
    return Call(inputs, attributes(helper.make_node("Any", [], [], **given)), opset, limit_bytes)


@pytest.mark.parametrize(
    ("op", "inputs", "given", "opset"), CASES, ids=lambda item: item if isinstance(item, str) else ""
)
def test_agrees_with_the_reference(op: str, inputs: list[Any], given: dict[str, Any], opset: int) -> None:
    operands = [np.asarray(item) for item in inputs]
    made = evaluate(op, call(operands, given, opset))
    assert made is not None
    names = [f"i{position}" for position in range(len(operands))]
    results = [f"o{position}" for position in range(len(made))]
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, operands, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, **given)], "g", values, [onnx.ValueInfoProto(name=n) for n in results]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))
    for got, want in zip(made, expected, strict=True):
        assert got.dtype == np.asarray(want).dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "inputs", "given"),
    [
        ("ConstantOfShape", [ints(10**6, 10**6)], {}),
        ("Expand", [np.zeros(1, np.float32), ints(10**5, 10**5)], {}),
        ("Tile", [np.zeros((1, 1), np.float32), ints(10**5, 10**5)], {}),
        ("Range", [np.array(0), np.array(10**12), np.array(1)], {}),
        ("Add", [np.zeros((10**4, 1), np.float32), np.zeros((1, 10**4), np.float32)], {}),
        ("Gather", [np.zeros((1, 10**4), np.float32), np.zeros(10**4, I64)], {}),
        ("Where", [np.ones((10**4, 1), bool), np.zeros(10**4, np.float32), np.zeros(1, np.float32)], {}),
    ],
)
def test_large_results_are_refused_before_they_are_made(op: str, inputs: list[Any], given: dict[str, Any]) -> None:
    with pytest.raises(TooLargeError):
        evaluate(op, call(inputs, given))


@pytest.mark.parametrize(
    ("op", "inputs", "given"),
    [
        ("Conv", [F, F], {}),
        ("Div", [N, ints(0)], {}),
        ("Mod", [N, ints(0)], {}),
        ("Range", [np.array(0), np.array(3), np.array(0)], {}),
        ("Gather", [F, np.array(9)], {}),
        ("Reshape", [F, ints(7)], {}),
        ("Add", [F, None], {}),
        ("Concat", [F, F], {}),
        ("Cast", [np.array([1e30, np.nan], np.float32)], {"to": onnx.TensorProto.INT32}),
        ("Cast", [F], {"to": onnx.TensorProto.STRING}),
        ("Slice", [F, ints(0), ints(1), ints(0), ints(0)], {}),
        ("Expand", [F, ints(5, 5)], {}),
    ],
)
def test_what_the_specification_leaves_open_is_not_computed(op: str, inputs: list[Any], given: dict[str, Any]) -> None:
    assert evaluate(op, call(inputs, given)) is None


def test_old_broadcasting_is_not_computed() -> None:
    assert evaluate("Add", call([F, F], {}, opset=6)) is None


def test_random_operators_are_unknown() -> None:
    assert not is_supported("RandomNormal")
    assert not is_supported("DequantizeLinear")
