"""Which layer an operator becomes, and the rules of that layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dla.rule import Rule
from dla.rules import absent, activation, conv, deconv, elementwise, fold, general, pool, resize, shape, softmax


@dataclass(frozen=True, slots=True)
class Layer:
    """What the DLA offers.

    Attributes:
        name: as TensorRT calls it.
        rules: all must agree.
    """

    name: str
    rules: tuple[Rule, ...]


def _layer(name: str, *rules: Rule, planar: bool = True) -> Layer:
    return Layer(name, (*general.EVERY, *((general.planar,) if planar else ()), *rules))


_ACTIVATION = _layer("Activation")
_PROMOTED = _layer("Activation", activation.promoted)
_SUM = _layer("ElementWise", *elementwise.ARITHMETIC)
_EXTREME = _layer("ElementWise", elementwise.broadcast, elementwise.extreme)
_POOL = _layer("Pooling", *pool.POOL)
_TRIGONOMETRY = _layer("Unary", activation.trigonometry)
_LATE = _layer("ElementWise", *elementwise.COMPARISON)
_REDUCE = _layer("Reduce", *softmax.REDUCTION)
_SHUFFLE = _layer("Shuffle", shape.target_shape, shape.shuffle, planar=False)
_LINEAR = _layer("FullyConnected", *conv.GEMM, planar=False)
_RESIZE = _layer("Resize", *resize.RESIZE)
_SCALE = _layer("Quantize", *fold.SCALE, planar=False)

LAYERS: Mapping[str, Layer] = MappingProxyType(
    {
        "Abs": _layer("Unary"),
        "Add": _SUM,
        "Atan": _TRIGONOMETRY,
        "Atanh": _TRIGONOMETRY,
        "AveragePool": _POOL,
        "BatchNormalization": _layer("Scale", elementwise.normalisation),
        "Cast": Layer("Cast", (general.domain, elementwise.cast)),
        "Clip": _layer("Activation", activation.clip),
        "Concat": _layer("Concatenation", *shape.CONCAT),
        "Conv": _layer("Convolution", *conv.CONV),
        "ConvTranspose": _layer("Deconvolution", conv.weights, *deconv.DECONV),
        "Cos": _TRIGONOMETRY,
        "DequantizeLinear": _SCALE,
        "Div": _layer("ElementWise", elementwise.release, elementwise.broadcast, elementwise.divided),
        "Equal": _layer("ElementWise", *elementwise.EQUALITY),
        "Gemm": _LINEAR,
        "GlobalMaxPool": _REDUCE,
        "Greater": _LATE,
        "LRN": _layer("LRN", pool.lrn),
        "LeakyRelu": _ACTIVATION,
        "Less": _LATE,
        "MatMul": _LINEAR,
        "Max": _EXTREME,
        "MaxPool": _POOL,
        "Min": _layer("ElementWise", elementwise.least),
        "Mul": _SUM,
        "PRelu": _layer("ParametricReLU", activation.slope),
        "Pow": _layer("ElementWise", elementwise.release, elementwise.power),
        "QuantizeLinear": _SCALE,
        "ReduceMax": _REDUCE,
        "Relu": _ACTIVATION,
        "Reshape": _SHUFFLE,
        "Resize": _RESIZE,
        "Sigmoid": _PROMOTED,
        "Sin": _TRIGONOMETRY,
        "Slice": _layer("Slice", *shape.SLICE),
        "Softmax": _layer("SoftMax", *softmax.SOFTMAX),
        "Split": _layer("Slice", *shape.SPLIT),
        "Sub": _layer("ElementWise", *elementwise.SUBTRACTION),
        "Sum": _SUM,
        "Tanh": _PROMOTED,
        "Transpose": _SHUFFLE,
        "Upsample": _RESIZE,
    }
)
"""ONNX operator → layer. An operator that is not here has none."""

_ABSENT = Layer("none", (general.domain, absent.operator))

RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for layer in (*LAYERS.values(), _ABSENT) for rule in layer.rules}
)
"""Every rule about one node, by name."""


def layer_of(op: str) -> Layer:
    """The layer that an operator becomes; one that refuses everything for an operator without."""
    return LAYERS.get(op, _ABSENT)
