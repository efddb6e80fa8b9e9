"""Table of the properties of each operator, for all of edgert.

A row states what is true of an operator in the ONNX standard (https://onnx.ai/onnx/operators/), whatever its
attributes. Where an attribute decides (a Pad with a constant, a cubic Resize), the row promises nothing, and code must
check the node. Select operators by property (:func:`about`, the sets below), not by name: a new operator is then one
new row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from edgert.graph.ir import Graph, Node

Kind: TypeAlias = Literal[
    "conv", "product", "recurrent", "pool", "reduction", "normalization", "affine", "rectifier", "curve", "unary",
    "arithmetic", "logic", "join", "copy", "selection", "view", "measure", "constant", "generator", "random",
    "conversion", "quantize", "dequantize", "integer", "control", "unknown",
]  # fmt: skip
"""Kind of work an operator does:

- sums of products: ``conv``, ``product`` (of matrices), ``recurrent``
- over a window, over axes: ``pool``, ``reduction``, ``normalization``
- elementwise on one tensor: ``affine`` (a factor and a summand per channel), ``rectifier`` (piecewise linear with fixed
  corners), ``curve`` (any other activation), ``unary`` (not an activation)
- elementwise on several tensors: ``arithmetic``, ``logic`` (comparisons, choices)
- copies: ``join``, ``copy``; ``selection`` of elements by their values
- no copy: ``view`` renames a buffer, ``measure`` reads a shape only, ``constant`` is stored, ``generator`` follows from
  shapes and numbers, ``random`` is different in every run
- types: ``conversion``, ``quantize``, ``dequantize``; ``integer`` quantizes its inputs, or computes in integers what
  has no other row
- ``control``: runs inner graphs
"""

Values: TypeAlias = Literal["same", "some", "picked", "mean", "smaller", "new"]
"""Relation of the first output's values to those of the data inputs (:func:`data_inputs`). Each implies the next.
``same``: all values of one input, once each. ``some``: values of one input. ``picked``: values of any data input.
``mean``: values between the smallest and largest input value, or 0. ``smaller``: values no larger in magnitude than
the largest input value. ``new``: no such relation."""

Work: TypeAlias = Literal["", "conv", "transposed", "gemm", "matmul", "einsum", "recurrent"]
"""Name of the formula in :mod:`edgert.graph.count` that counts multiply-adds."""


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """Properties of one operator.

    Attributes:
        kind: kind of work, see :data:`Kind`.
        values: relation of output to input values, see :data:`Values`.
        low: lower bound of every output value, whatever the inputs.
        high: upper bound of every output value, whatever the inputs.
        keeps_sign: whether outputs are not negative where no data input is.
        is_homogeneous: whether f(s·x) = s·f(x) for every s > 0, for all data inputs scaled together.
        data: inputs that hold data, not parameters: the first, all, or those after the first (a condition).
        work: formula of its multiply-adds, see :data:`Work`.
        weight: position of the weight among the inputs, for operators with work.
        is_integer: whether the operator works on integers that stand for other numbers.
        summed_power: power to which values are raised before the operator sums them; None where it sums nothing.
        domain: operator set; ``""`` for the standard one.
    """

    kind: Kind
    values: Values = "new"
    low: float = -inf
    high: float = inf
    keeps_sign: bool = False
    is_homogeneous: bool = False
    data: Literal["first", "all", "rest"] = "first"
    work: Work = ""
    weight: int = 1
    is_integer: bool = False
    summed_power: int | None = None
    domain: str = ""

    @property
    def is_non_negative(self) -> bool:
        """Whether no output value is negative, whatever the inputs."""
        return self.low >= 0

    @property
    def largest(self) -> float:
        """Largest magnitude an output value can have; infinity for no bound."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_bounded(self) -> bool:
        """Whether every output value lies within ±1, whatever the inputs."""
        return self.largest <= 1


_same_values = partial(OperatorInfo, values="same", keeps_sign=True, is_homogeneous=True)
_some_values = partial(OperatorInfo, values="some", keeps_sign=True, is_homogeneous=True)
_picked_values = partial(OperatorInfo, values="picked", keeps_sign=True, is_homogeneous=True)


def _unary(low: float = -inf, high: float = inf, *, keeps_sign: bool = False) -> OperatorInfo:
    return OperatorInfo("unary", low=low, high=high, keeps_sign=keeps_sign or low >= 0)


def _curve(values: Values = "new", low: float = -inf, high: float = inf) -> OperatorInfo:
    return OperatorInfo("curve", values, low, high, keeps_sign=True)


def _layer(kind: Kind, work: Work, weight: int = 1, *, is_integer: bool = False, domain: str = "") -> OperatorInfo:
    return OperatorInfo(kind, work=work, weight=weight, is_integer=is_integer, domain=domain)


def _sum(kind: Kind, power: int, low: float = -inf, high: float = inf) -> OperatorInfo:
    return OperatorInfo(kind, low=low, high=high, keeps_sign=low >= 0, summed_power=power)


_MICROSOFT = "com.microsoft"
_MEAN = OperatorInfo("pool", "mean", keeps_sign=True, is_homogeneous=True, summed_power=1)
_LOGIC = OperatorInfo("logic", low=0, high=1, data="all")
_RANDOM = OperatorInfo("random")
_INTEGER = OperatorInfo("integer", is_integer=True, domain=_MICROSOFT)

OPERATORS: dict[str, OperatorInfo] = {
    # Sums of products.
    "Conv": _layer("conv", "conv"),
    "ConvInteger": _layer("conv", "conv", is_integer=True),
    "DeformConv": _layer("conv", "conv"),
    "FusedConv": _layer("conv", "conv", domain=_MICROSOFT),
    "NhwcFusedConv": _layer("conv", "conv", domain=_MICROSOFT),
    "QLinearConv": _layer("conv", "conv", weight=3, is_integer=True),
    "ConvTranspose": _layer("conv", "transposed"),
    "Gemm": _layer("product", "gemm"),
    "FusedGemm": _layer("product", "gemm", domain=_MICROSOFT),
    "QGemm": _layer("product", "gemm", weight=3, is_integer=True, domain=_MICROSOFT),
    "MatMul": _layer("product", "matmul"),
    "MatMulInteger": _layer("product", "matmul", is_integer=True),
    "QLinearMatMul": _layer("product", "matmul", weight=3, is_integer=True),
    "Einsum": _layer("product", "einsum"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _layer("recurrent", "recurrent")),
    # Over a window, over axes.
    **dict.fromkeys(("MaxPool", "GlobalMaxPool"), _picked_values("pool")),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), _MEAN),
    "LpPool": OperatorInfo("pool", low=0, keeps_sign=True, is_homogeneous=True),
    "GlobalLpPool": OperatorInfo("pool", low=0, keeps_sign=True, is_homogeneous=True, summed_power=2),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _picked_values("reduction")),
    "ReduceMean": OperatorInfo("reduction", "mean", keeps_sign=True, is_homogeneous=True, summed_power=1),
    **dict.fromkeys(
        ("ReduceSum", "CumSum"), OperatorInfo("reduction", keeps_sign=True, is_homogeneous=True, summed_power=1)
    ),
    "ReduceL1": OperatorInfo("reduction", low=0, keeps_sign=True, is_homogeneous=True, summed_power=1),
    "ReduceL2": OperatorInfo("reduction", low=0, keeps_sign=True, is_homogeneous=True, summed_power=2),
    "ReduceSumSquare": _sum("reduction", 2, low=0),
    "ReduceLogSum": _sum("reduction", 1),
    "ReduceLogSumExp": OperatorInfo("reduction"),
    **dict.fromkeys(("ReduceProd", "CumProd"), OperatorInfo("reduction", keeps_sign=True)),
    **dict.fromkeys(("ArgMax", "ArgMin"), OperatorInfo("reduction", low=0, keeps_sign=True)),
    "Softmax": _sum("normalization", 0, low=0, high=1),
    "LogSoftmax": _sum("normalization", 0, high=0),
    "LRN": OperatorInfo("normalization", keeps_sign=True, summed_power=2),
    "LpNormalization": OperatorInfo("normalization", low=-1, high=1, keeps_sign=True, summed_power=2),
    **dict.fromkeys(
        ("InstanceNormalization", "GroupNormalization", "LayerNormalization", "MeanVarianceNormalization"),
        _sum("normalization", 2),
    ),
    # Element by element, on one tensor.
    "BatchNormalization": OperatorInfo("affine"),
    "Relu": OperatorInfo("rectifier", "smaller", low=0, keeps_sign=True, is_homogeneous=True),
    "Clip": OperatorInfo("rectifier"),  # its bounds decide: clip_bounds
    **dict.fromkeys(("LeakyRelu", "PRelu"), OperatorInfo("rectifier", keeps_sign=True, is_homogeneous=True)),
    "ThresholdedRelu": OperatorInfo("rectifier", "smaller", keeps_sign=True),
    **dict.fromkeys(("Sigmoid", "HardSigmoid"), _curve(low=0, high=1)),
    **dict.fromkeys(("Tanh", "Softsign"), _curve("smaller", -1, 1)),
    "Erf": _curve(low=-1, high=1),
    "Softplus": _curve(low=0),
    "HardSwish": _curve("smaller", low=-0.375),  # at x = -1.5
    "Mish": _curve("smaller", low=-0.3089),
    "Gelu": _curve("smaller", low=-0.1700),
    "Swish": _curve("smaller"),
    **dict.fromkeys(("Elu", "Selu", "Celu"), _curve()),
    "Abs": OperatorInfo("unary", "smaller", low=0, keeps_sign=True, is_homogeneous=True),
    "Neg": OperatorInfo("unary", "smaller", is_homogeneous=True),
    "Sign": _unary(-1, 1, keeps_sign=True),
    "Sin": OperatorInfo("unary", "smaller", low=-1, high=1),
    "Cos": _unary(-1, 1),
    "Cosh": _unary(low=1),
    **dict.fromkeys(("Exp", "Sqrt"), _unary(low=0)),
    **dict.fromkeys(("Tan", "Log"), _unary()),
    **dict.fromkeys(("Sinh", "Reciprocal", "Floor", "Ceil", "Round"), _unary(keeps_sign=True)),
    "Not": OperatorInfo("logic", low=0, high=1),
    # Element by element, on several.
    "Add": OperatorInfo("arithmetic", keeps_sign=True, is_homogeneous=True, data="all"),
    "Sub": OperatorInfo("arithmetic", is_homogeneous=True, data="all"),
    "Sum": OperatorInfo("arithmetic", keeps_sign=True, is_homogeneous=True, data="all"),
    "Mean": OperatorInfo("arithmetic", "mean", keeps_sign=True, is_homogeneous=True, data="all"),
    **dict.fromkeys(("Max", "Min"), _picked_values("arithmetic", data="all")),
    **dict.fromkeys(("Mul", "Div", "Pow"), OperatorInfo("arithmetic", keeps_sign=True, data="all")),
    "Mod": OperatorInfo("arithmetic", data="all"),
    "Where": _picked_values("logic", data="rest"),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor"), _LOGIC),
    # Copies.
    "Concat": _picked_values("join", data="all"),
    **dict.fromkeys(("Transpose", "DepthToSpace", "SpaceToDepth"), _same_values("copy")),
    **dict.fromkeys(("Slice", "Split", "Gather", "GatherElements", "GatherND", "Expand", "Tile"), _some_values("copy")),
    "Pad": OperatorInfo("copy"),  # its mode and value decide
    "Resize": OperatorInfo("copy"),  # its mode decides
    **dict.fromkeys(("Upsample", "ScatterND", "ScatterElements", "GridSample", "RoiAlign"), OperatorInfo("copy")),
    "TopK": _picked_values("selection"),
    **dict.fromkeys(("NonMaxSuppression", "NonZero"), OperatorInfo("selection")),
    # No copy.
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _same_values("view")),
    "Dropout": OperatorInfo("view", keeps_sign=True, is_homogeneous=True),  # in training it scales values
    **dict.fromkeys(("Shape", "Size"), OperatorInfo("measure", low=0)),
    "Constant": OperatorInfo("constant"),
    **dict.fromkeys(("ConstantOfShape", "Range"), OperatorInfo("generator")),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"), _RANDOM),
    **dict.fromkeys(("Bernoulli", "Multinomial"), _RANDOM),
    # Types.
    "Cast": OperatorInfo("conversion", "smaller", keeps_sign=True),
    "QuantizeLinear": OperatorInfo("quantize"),
    "DequantizeLinear": OperatorInfo("dequantize"),
    "DynamicQuantizeLinear": OperatorInfo("integer", is_integer=True),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits", "MatMulBnb4"), _INTEGER),
    **dict.fromkeys(("QAttention", "QEmbedLayerNormalization", "DynamicQuantizeLSTM"), _INTEGER),
    # Graphs inside.
    **dict.fromkeys(("If", "Loop", "Scan"), OperatorInfo("control")),
}
"""Properties of operators, by name."""

UNKNOWN = OperatorInfo("unknown")


def about(op: str) -> OperatorInfo:
    """Return the properties of an operator; :data:`UNKNOWN`, which promises nothing, for one without a row."""
    return OPERATORS.get(op, UNKNOWN)


def of_kind(*kinds: Kind) -> frozenset[str]:
    """Return the names of the operators of these kinds."""
    return frozenset(name for name, info in OPERATORS.items() if info.kind in kinds)


def of_values(*values: Values) -> frozenset[str]:
    """Return the names of the operators whose output values have one of these relations to their inputs."""
    return frozenset(name for name, info in OPERATORS.items() if info.values in values)


def data_inputs(op: str, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs of a node that hold data, not parameters (axes, bounds, a condition)."""
    role = about(op).data
    return tuple(inputs[:1] if role == "first" else inputs[1:] if role == "rest" else inputs)


def is_integer(op: str) -> bool:
    """Return whether an operator works on integers that stand for other numbers, as ``QLinear...`` of any domain do."""
    return about(op).is_integer or op.startswith("QLinear")


WEIGHTED = frozenset(
    name
    for name, info in OPERATORS.items()
    if info.work in ("conv", "transposed", "gemm", "matmul") and not info.domain and not info.is_integer
) - {"DeformConv"}
"""Floating-point layers whose second input can be a stored weight, except DeformConv, which no engine runs in INT8."""

VIEWS = of_kind("view")
"""Operators whose output is their input's memory in another shape."""

KNOWN_FROM_SHAPES = of_kind("measure", "constant")
"""Operators that read no data."""

REORDERS = of_values("same")
"""Operators whose output holds every value of the first input once."""

RESHAPES = (VIEWS & REORDERS) - {"Identity"}
"""Operators that change a tensor's shape and keep its values in order."""

COPIES = of_values("same", "some")
"""Operators whose outputs hold values of their first input only. Some Pad and Resize do so, too."""

ACTIVATIONS = of_kind("rectifier", "curve")
POINTWISE = ACTIVATIONS | of_kind("unary")
"""Elementwise operators on one tensor."""

ARITHMETIC = of_kind("arithmetic")
"""Elementwise operators on several tensors."""

SUMS = frozenset(name for name in ARITHMETIC if about(name).is_homogeneous)
"""Arithmetic whose operands must have one common scale, which the result has too, such as Add and Max."""

HOMOGENEOUS = frozenset(name for name, info in OPERATORS.items() if info.is_homogeneous)
"""Operators with f(s·x) = s·f(x) for every s > 0."""

COMBINING = SUMS | {"Mul"}
"""Arithmetic that makes finite results from finite operands."""

MEANS = of_values("mean")
QDQ = of_kind("quantize", "dequantize")


def non_negative(graph: Graph) -> frozenset[str]:
    """Return the names of all tensors, stored ones included, that never hold a negative value."""
    found = {name for name, array in graph.constants.items() if array.dtype.kind in "fiub" and bool(np.all(array >= 0))}
    for node in graph.nodes:
        if _is_non_negative(graph, node, found):
            found.update(filter(None, node.outputs))
    return frozenset(found)


def _is_non_negative(graph: Graph, node: Node, found: set[str]) -> bool:
    if node.domain:
        return False
    bounds = clip_bounds(graph, node)
    if about(node.op).is_non_negative or is_square(node) or (bounds is not None and bounds[0] >= 0):
        return True
    keeps = about(node.op).keeps_sign or is_copy(graph, node) or is_interpolation(node)
    data = set(filter(None, data_inputs(node.op, node.inputs)))
    return keeps and bool(data) and data <= found


def is_square(node: Node) -> bool:
    """Return whether a node multiplies a tensor by itself."""
    return node.op == "Mul" and not node.domain and node.inputs[0] == node.inputs[1]


def is_copy(graph: Graph, node: Node) -> bool:
    """Return whether every output value of a node is one of its first input's values, or 0."""
    if node.domain:
        return False
    if node.op == "Resize":
        return attribute_text(node, "mode", "nearest") == "nearest" and _scales_are_plain(node)
    if node.op != "Pad" or attribute_text(node, "mode", "constant") != "constant":
        return node.op in COPIES or node.op == "Pad"
    if len(node.inputs) < 3 or not node.inputs[2]:
        return not node.attributes.get("value", 0.0)  # an attribute before opset 11
    value = graph.constants.get(node.inputs[2])
    return value is not None and not np.any(value)


def is_interpolation(node: Node) -> bool:
    """Return whether a node is a Resize whose output values lie between input values; those of a cubic one do not."""
    linear = node.op == "Resize" and attribute_text(node, "mode", "nearest") in ("linear", "nearest")
    return linear and not node.domain and _scales_are_plain(node)


def _scales_are_plain(node: Node) -> bool:
    """Return whether a Resize has no region of interest, behind whose edge it would write an extrapolated value."""
    return attribute_text(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"


def clip_bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Return the bounds of a Relu or Clip; None when they are computed at run time, or the node is neither."""
    if node.op == "Relu":
        return 0.0, np.inf
    if node.op != "Clip":
        return None
    low, high = _clip_bound(graph, node, 1, "min", -np.inf), _clip_bound(graph, node, 2, "max", np.inf)
    return None if low is None or high is None else (low, high)


def _clip_bound(graph: Graph, node: Node, position: int, name: str, missing: float) -> float | None:
    """Return one bound of a Clip, an input or (before opset 11) an attribute; None where it is computed."""
    given = node.inputs[position] if position < len(node.inputs) else ""
    if not given:
        return float(node.attributes.get(name, missing))
    value = graph.constants.get(given)
    return None if value is None or np.size(value) != 1 else float(np.reshape(value, ()))


def attribute_text(node: Node, name: str, default: str) -> str:
    """Return a string attribute."""
    value = node.attributes.get(name, default)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
