"""The operator table against ONNX's own schemas, and its promises against ONNX's reference implementation."""

from typing import Any

import numpy as np
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as ort
import pytest
from onnx import TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator

from edgert.graph.operators import (
    ACTIVATIONS,
    COPIES,
    MEANS,
    OPERATORS,
    QDQ,
    REORDERS,
    SUMS,
    UNKNOWN,
    VIEWS,
    WEIGHTED,
    about,
    data_inputs,
    is_integer,
)
from tests.helpers.each import each

OPSET = 22
SHAPE = (2, 4, 6, 6)
STANDARD = sorted(name for name, info in OPERATORS.items() if not info.domain)
OPSETS = {"CumProd": 26, "Swish": 24, "GlobalLpPool": 17}

Array = np.ndarray[Any, Any]


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def table(*shape: int) -> Array:
    return np.random.default_rng(5).normal(0, 1, shape).astype(np.float32)


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "AveragePool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    "LpPool": {"kernel_shape": [3, 3]},
    "LRN": {"size": 3},
    "DepthToSpace": {"blocksize": 2},
    "SpaceToDepth": {"blocksize": 2},
    "Concat": {"axis": 1},
    "Split": {"axis": 1, "num_outputs": 2},
    "Squeeze": {},
    "Gather": {"axis": 2},
    "GatherElements": {"axis": 0},
    "Mod": {"fmod": 1},
    "Cast": {"to": TensorProto.FLOAT16},
}
PARAMETERS: dict[str, tuple[Array, ...]] = {  # inputs after the first
    "PRelu": (np.abs(table(4, 1, 1)),),
    "Reshape": (ints(4, -1),),
    "Squeeze": (),
    "Unsqueeze": (ints(0),),
    "Slice": (ints(1), ints(5), ints(2)),
    "Gather": (ints(3, 0, 3),),
    "GatherElements": (np.ones(SHAPE, np.int64),),
    "GatherND": (np.array([[0, 1], [1, 3]], np.int64),),
    "Expand": (ints(3, *SHAPE),),
    "Tile": (ints(1, 2, 1, 1),),
    "CumSum": (np.array(1),),
    "CumProd": (np.array(1),),
    "TopK": (ints(2),),
}


def run(op: str, data: list[Array]) -> Array:
    """The first output of an operator, on data and whatever parameters it needs."""
    fed = [*data, *PARAMETERS.get(op, ())]
    if op == "Where":
        fed = [data[0] > 0, *data]
    names = [f"x{position}" for position in range(len(fed))]
    outputs = ["y", "z"] if op in ("Split", "TopK") else ["y"]
    node = helper.make_node(op, names, outputs, **ATTRIBUTES.get(op, {}))
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in zip(names, fed, strict=True)]  # fmt: skip
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "g", infos, made)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", OPSETS.get(op, OPSET))])
    if op == "GlobalLpPool":  # ONNX's reference has none
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, dict(zip(names, fed, strict=True)))[0])
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, dict(zip(names, fed, strict=True)))[0])


def data(op: str, scale: float, *, positive: bool = False) -> list[Array]:
    """What is random for one run, as many tensors as the operator has data."""
    rng = np.random.default_rng(7)
    count = 1 if about(op).data == "first" else 2
    made = [rng.normal(0, scale, SHAPE).astype(np.float32) for _ in range(count)]
    return [np.abs(array) if positive else array for array in made]


def claiming(claim: str) -> list[str]:
    return [name for name in STANDARD if getattr(about(name), claim)]


@each("name", STANDARD)
def test_a_row_is_an_operator_of_the_standard(name: str) -> None:
    assert defs.has(name)
    taken = defs.get_schema(name).inputs
    info = about(name)
    if info.work and info.work != "einsum":
        assert len(taken) > info.weight, "the weight is one of its inputs"
    if info.data in ("all", "rest") and info.kind != "logic":
        variadic = taken[-1].option == defs.OpSchema.FormalParameterOption.Variadic
        assert variadic or len(taken) == 2, "all inputs are data"


def test_other_operators_are_onnx_runtimes() -> None:
    known = {(schema.domain, schema.name) for schema in ort.get_all_operator_schema()}
    others = {(info.domain, name) for name, info in OPERATORS.items() if info.domain}
    assert others <= known


def test_nothing_is_promised_of_an_unknown_operator() -> None:
    assert about("Swizzle") is UNKNOWN
    assert not UNKNOWN.is_non_negative and not UNKNOWN.is_bounded and not UNKNOWN.keeps_sign
    assert UNKNOWN.values == "new" and not UNKNOWN.work


NUMBERS = [name for name in STANDARD if about(name).kind not in ("logic", "measure")]  # no truths, no shapes


@pytest.mark.parametrize("name", [n for n in NUMBERS if about(n).low > -np.inf or about(n).high < np.inf])
def test_no_value_is_out_of_bounds(name: str) -> None:
    values = np.concatenate([run(name, data(name, scale)).astype(np.float64).ravel() for scale in (0.5, 3, 40)])
    values = values[~np.isnan(values)]  # a square root of what is negative
    assert values.min() >= about(name).low - 1e-6
    assert values.max() <= about(name).high + 1e-6


@each("name", claiming("keeps_sign"))
def test_what_keeps_the_sign_gives_no_negative_value_of_positive_ones(name: str) -> None:
    for scale in (0.01, 1, 30):
        values = run(name, data(name, scale, positive=True)).astype(np.float64)
        assert not (values < 0).any()


@each("name", claiming("is_homogeneous"))
def test_homogeneous_operators_scale_with_their_input(name: str) -> None:
    given = data(name, 1)
    scaled = run(name, [array * np.float32(4) for array in given])
    np.testing.assert_allclose(scaled, run(name, given) * 4, rtol=1e-5, atol=1e-5)


@each("name", [n for n in STANDARD if about(n).values != "new"])
def test_values_of_the_output_relate_to_those_read(name: str) -> None:
    for scale in (0.2, 5):
        given = data(name, scale)
        made, read = run(name, given).astype(np.float64), np.concatenate([array.ravel() for array in given])
        relation = about(name).values
        assert np.abs(made).max() <= np.abs(read).max() * (1 + (2**-11 if name == "Cast" else 1e-6))
        if relation in ("same", "some", "picked"):
            assert np.isin(made, read.astype(np.float64)).all()
        if relation in ("same", "some"):
            assert about(name).data == "first"
        if relation == "same":
            np.testing.assert_array_equal(np.sort(made, axis=None), np.sort(read, axis=None))
        if relation == "mean":
            assert min(read.min(), 0) - 1e-6 <= made.min() and made.max() <= max(read.max(), 0) + 1e-6


def test_data_stands_where_the_row_says() -> None:
    assert data_inputs("Slice", ["x", "from", "to"]) == ("x",)
    assert data_inputs("Concat", ["x", "y", "z"]) == ("x", "y", "z")
    assert data_inputs("Where", ["if", "x", "y"]) == ("x", "y")


def test_integer_operators() -> None:
    assert is_integer("QLinearConv") and is_integer("MatMulInteger") and is_integer("QAttention")
    assert is_integer("QLinearConcat"), "of a domain of ONNX Runtime, without a row"
    assert not is_integer("Conv") and not is_integer("QuantizeLinear")


def test_sets_by_property() -> None:
    assert {"Conv", "ConvTranspose", "Gemm", "MatMul"} == WEIGHTED
    assert {"Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze"} == VIEWS
    assert {"QuantizeLinear", "DequantizeLinear"} == QDQ
    assert {"AveragePool", "GlobalAveragePool", "ReduceMean", "Mean"} == MEANS
    assert {"Add", "Sub", "Sum", "Mean", "Max", "Min"} == SUMS
    assert {"Dropout"} == VIEWS - REORDERS, "one that trains scales what it leaves"
    assert "Transpose" in REORDERS <= COPIES and "Slice" not in REORDERS
    assert {"Relu", "Gelu"} <= ACTIVATIONS and "Exp" not in ACTIVATIONS
