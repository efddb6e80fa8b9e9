"""Rules for all layers."""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from dla.limit import GUIDE, LIMITS, MATRIX
from dla.node import Node, Shape, Verdict, data_inputs, data_tensors, no, note, verify
from dla.rule import Target, outside, rule

# Operators without a DLA layer, and their replacements.

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
        "Cast": "remove the cast: the builder chooses the precision",
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
        "Expand": "store the expanded tensor, or let the next operation broadcast it",
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
        "LogSoftmax": "use Softmax; the order of scores is the same",
        "TopK": _POST,
        "ArgMax": _POST,
        "NonMaxSuppression": _POST,
        "NonZero": _POST,
    }
)
"""Operator → replacement or advice."""


@rule("general.operator", MATRIX)
def operator(node: Node, target: Target) -> Verdict | None:
    """Require an operator that has a layer on the DLA."""
    return no(f"{node.op} has no DLA layer that TensorRT offers", INSTEAD.get(node.op, "leave it to the GPU"))


COMPARISONS = ("Equal", "Greater", "Less")
"""Operators with a boolean output, which a cast must follow."""
_COMPUTED = ("float32", "float16", "int8", "unknown")
_STATIC = "fix the shape: --shape INPUT=1x3x320x320, or export without dynamic axes"
_INNER = 3  # number of dimensions after the batch: channels, height, width
_HEAD_FIX = "leave it to the GPU, or keep the tensor as N×C×1×1 until the end"


@rule("general.domain", MATRIX)
def domain(node: Node, target: Target) -> Verdict | None:
    """Require a standard operator; a plugin never has a DLA layer."""
    if node.domain in ("", "ai.onnx"):
        return None
    reason = f"{node.domain}.{node.op} is outside the ONNX standard: TensorRT would need a plugin, which is GPU code"
    return no(reason, "write it in standard operators, or leave it to the GPU")


@rule("general.static", GUIDE)
def static(node: Node, target: Target) -> Verdict | None:
    """Require fixed dimensions; a profile may fix the leading one."""
    shapes = [(tensor.name, tensor.shape) for tensor in data_tensors(node)]
    vague = next((name for name, shape in shapes if shape is None or None in shape[1:]), None)
    if vague is not None:
        return no(f"tensor {vague} has open dimensions", _STATIC)
    led = next((name for name, shape in shapes if shape and shape[0] is None), None)
    if led is None:
        return None
    return verify(f"the batch of {led} is open: it must have min = opt = max in the profile", _STATIC)


@rule("general.batch")
def batch(node: Node, target: Target) -> Verdict | None:
    """Limit the batch: all dimensions before the last three count."""
    sizes = [batch_of(tensor.shape) for tensor in data_tensors(node) if tensor.shape is not None]
    return next((found for size in sizes if (found := outside("general.batch", "the batch", [size]))), None)


@rule("general.dimension")
def dimension(node: Node, target: Target) -> Verdict | None:
    """Limit channels, height and width."""
    allowed = LIMITS["general.dimension"]
    for tensor in data_tensors(node):
        shape = tensor.shape or ()
        inner = [dim for dim in (shape[-_INNER:] if len(shape) > _INNER else shape[1:]) if dim is not None]
        if any(dim not in allowed for dim in inner):
            return no(f"{tensor.name} is {'×'.join(map(str, inner))}; a dimension must be {allowed}", _HEAD_FIX)
    return None


@rule("general.type", GUIDE)
def dtype(node: Node, target: Target) -> Verdict | None:
    """Require FP16 or INT8, the only types that the DLA computes in."""
    tensors = data_inputs(node) if node.op in COMPARISONS else data_tensors(node)
    odd = next((tensor for tensor in tensors if tensor.dtype not in _COMPUTED), None)
    if odd is None:
        return None
    return no(f"{odd.name} is {odd.dtype}; the DLA computes in FP16 and INT8", "compute it before or after the network")


@rule("general.planar", GUIDE)
def planar(node: Node, target: Target) -> Verdict | None:
    """Require two-dimensional layers: batch, channels, height, width."""
    odd = next((tensor for tensor in data_tensors(node) if tensor.rank not in (4, None)), None)
    if odd is None:
        return None
    return no(f"{odd.name} has {odd.rank} dimensions; the layer takes N×C×H×W", _HEAD_FIX)


def fp16_only(what: str, target: Target) -> Verdict | None:
    """Return the verdict on a layer that runs only in FP16; None for an FP16 build."""
    if not target.is_int8:
        return None
    if target.is_typed:
        reason = f"{what} runs in FP16 only, and a typed INT8 region needs one type"
        return verify(reason, "give it FP16 in the graph", "fp16")
    return note(f"{what} runs in FP16 inside an INT8 build", "fp16")


def batch_of(shape: Shape | None) -> int | None:
    """Return the effective batch, which is the product of all dimensions before the last three; None if it is open."""
    outer = () if not shape else shape[:-_INNER] or shape[:1]
    known = [dim for dim in outer if dim is not None]
    return prod(known) if len(known) == len(outer) and shape is not None else None


EVERY = (domain, static, batch, dimension, dtype)
"""Rules for all operators that have a layer."""
