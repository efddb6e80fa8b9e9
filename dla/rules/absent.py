"""Operators without a DLA layer, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dla.limit import MATRIX
from dla.node import Node
from dla.rule import rule
from dla.target import Target
from dla.verdict import Verdict, no

_MEAN = "write it as AveragePool with windows of up to 8, or as a Conv with stored weights of 1/(H·W)"
_FOLD_SHAPES = "fix the shapes and fold it away: edgert does when it builds"
_SHUFFLE = "stay at N×C×1×1 (a 1×1 Conv does what Gemm does), and drop the axes after the network"
_STORED = "where its indices are stored, write it as Slice or Conv; else leave it to the GPU"
_POST = "cut it off to post-processing"
_LOGIC = "write it with Mul, Add and Clip on 0 and 1"

INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "GlobalAveragePool": _MEAN,
        "ReduceMean": _MEAN,
        "ReduceSum": "write it as a Conv with stored weights of 1, or as AveragePool and Mul",
        "ReduceMin": "write it as -ReduceMax(-x)",
        "HardSwish": "write it as Mul(x, Clip(x + 3, 0, 6)) · 1/6",
        "HardSigmoid": "write it as Clip(x·6·alpha + 6·beta, 0, 6) · 1/6",
        "Neg": "write it as Mul by -1",
        "Reciprocal": "write it as Div of a stored 1, from TensorRT 10 on",
        "Sqrt": "write it as Pow by 0.5, from TensorRT 10 on",
        "Mean": "write it as Sum and Mul",
        "Flatten": _SHUFFLE,
        "Squeeze": _SHUFFLE,
        "Unsqueeze": _SHUFFLE,
        "Shape": _FOLD_SHAPES,
        "Size": _FOLD_SHAPES,
        "ConstantOfShape": _FOLD_SHAPES,
        "Constant": _FOLD_SHAPES,
        "Range": _FOLD_SHAPES,
        "Cast": "take the cast out: the builder chooses the precision",
        "Pad": "fold it into the padding of the Conv or pooling behind it",
        "Gather": _STORED,
        "GatherElements": _STORED,
        "GatherND": _STORED,
        "ScatterElements": _STORED,
        "ScatterND": _STORED,
        "Where": "write it as Mul and Add with a mask of 0 and 1",
        "And": _LOGIC,
        "Or": _LOGIC,
        "Xor": _LOGIC,
        "Not": _LOGIC,
        "DepthToSpace": "write it as a ConvTranspose with stored 0 and 1 whose kernel equals its stride",
        "SpaceToDepth": "write it as a Conv with stored 0 and 1 whose kernel equals its stride",
        "CumSum": "along channels, write it as a 1×1 Conv with a stored triangle of 1",
        "GreaterOrEqual": "write it as Greater and Equal, added",
        "LessOrEqual": "write it as Less and Equal, added",
        "Expand": "store the expanded tensor, or let the next operation spread it",
        "Tile": "write it as Concat of the tensor with itself",
        "LayerNormalization": "train with BatchNormalization",
        "GroupNormalization": "train with BatchNormalization: one region instead of five was twice as fast in "
        "https://github.com/NVIDIA-AI-IOT/jetson_dla_tutorial",
        "InstanceNormalization": "train with BatchNormalization",
        "Gelu": "train with Relu, or x·Sigmoid(1.702·x)",
        "Erf": "train with Relu instead of GELU, or x·Sigmoid(1.702·x)",
        "Mish": "train with x·Sigmoid(x)",
        "Elu": "train with LeakyRelu",
        "Selu": "train with LeakyRelu",
        "Celu": "train with LeakyRelu",
        "Softplus": "train with Relu",
        "Softsign": "train with Tanh",
        "ThresholdedRelu": "train with Relu",
        "LogSoftmax": "take Softmax; the order of scores is the same",
        "TopK": _POST,
        "ArgMax": _POST,
        "NonMaxSuppression": _POST,
        "NonZero": _POST,
    }
)
"""Operator → what to do about it."""


@rule("general.operator", MATRIX)
def operator(node: Node, target: Target) -> Verdict | None:
    """The operator has a layer on the DLA."""
    return no(f"{node.op} has no DLA layer that TensorRT offers", INSTEAD.get(node.op, "leave it to the GPU"))
