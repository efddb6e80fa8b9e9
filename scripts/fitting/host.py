"""What networks take of one core of this machine, by a few rates that are fitted to networks that were measured on it.

ONNX Runtime rewrites a network before it runs it, and its file of what became of it names the kernels; their times are
known from its profiler, by the same names. A kernel takes so many nanoseconds for each thing it does, so many times:

- Convolutions work on blocks of 16 channels (nchwc_transformer.cc, mlas/lib/snchwc.cpp of ONNX Runtime): a call makes a
  row of up to four blocks of results from one block that is read, so that it multiplies, spreads each value that is
  read over a block once for these four, adds to what is in memory, and begins. What is read in fewer channels than a
  block lies in planes; depthwise ones have one block. Channels that no block fits (nchwc_transformer.cc asks for a
  multiple of four) are copied beside one another and multiplied as matrices (mlas/lib/convolve.cpp).
- Activations but ReLU pass over the result once more.
- Element by element, operands that are repeated begin anew wherever they do (core/providers/cpu/math).
- Whatever else moves values takes a time for each; and every kernel one to start.

What the profiler adds to each kernel is fitted, too, so that a network's own time is that of its kernels without.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from edgert.backend.ort.cpu import Kernel, content, prepared
from edgert.backend.ort.runtime import open_session, session_settings
from edgert.graph import Graph, Model, Node, load, read
from edgert.graph.onnx_convert import to_graph
from edgert.placement.cost.work import Numbers

RATES_NS = {
    "windows": 1 / 60,  # multiply-adds of blocked convolutions wider than 1x1
    "points": 1 / 60,  # of 1x1
    "planes": 1 / 40,  # of those that read planes
    "depthwise": 1 / 15,
    "matrices": 1 / 25,
    "spread": 0.1,  # values read over a block of results
    "added": 0.03,  # results that others are added to
    "row": 5.0,
    "unrolled": 0.3,  # values copied for a product of matrices
    "moved": 0.03,  # values read and written
    "weights": 0.1,
    "mapped": 0.1,  # values read and written element by element
    "stretch": 10.0,  # over which a repeated operand is repeated
    "curved": 0.5,  # through a sigmoid or its like
    "summed": 0.2,
    "softmax": 2.0,
    "copied": 0.2,
    "transposed": 1.0,
    "reordered": 0.2,  # between blocks and planes
    "resized": 1.0,
    "pooled": 0.1,  # values of all windows, in blocks
    "pooled_planes": 1.0,
    "start": 500.0,
    "conv_start": 1000.0,
    "copy_start": 1000.0,
    "profiled": 1500.0,  # what the profiler adds to a kernel
}
"""Nanoseconds of each, where the fit has nothing else to go by: it is weakly drawn to them."""
_PULL, _LEAST = 0.1, 1e-3
"""Kernels below this share of a network's time count as if they had it."""
_BLOCK, _BLOCKS, _DEPTH = 16, 4, 128
"""Channels of a block, with AVX-512; blocks of results of one call; channels that a call of a 1x1 convolution reads."""
_OWN = {
    **dict.fromkeys(("Concat", "Split", "Slice", "Gather", "SpaceToDepth", "DepthToSpace", "Pad", "Expand"), "copied"),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Constant", "Identity"), ""),
    **dict.fromkeys(("ReorderInput", "ReorderOutput"), "reordered"),
    **dict.fromkeys(("Softmax", "LogSoftmax"), "softmax"),
    **dict.fromkeys(("Resize", "Upsample"), "resized"),
    **dict.fromkeys(("Sigmoid", "Tanh", "Erf", "Exp", "Gelu", "QuickGelu", "HardSigmoid", "Softplus", "Pow", "Sqrt",
                     "Log", "LeakyRelu", "PRelu"), "curved"),
    "Transpose": "transposed",
}  # fmt: skip
_PASSED = {b"LeakyRelu": 2, b"Clip": 2}
_COPIES = ("copied", "transposed", "")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """A network's kernels, with how often each does what there is a rate for (the order is that of the rates)."""

    names: tuple[str, ...]
    amounts: Numbers

    def kernels(self, times_ms: Numbers) -> tuple[Kernel, ...]:
        """With these times."""
        return tuple(Kernel(name, float(ms)) for name, ms in zip(self.names, times_ms, strict=True))


@dataclass(frozen=True, slots=True)
class Timed:
    """A network with what its profiler says of its kernels, and milliseconds of a run that nobody profiles."""

    columns: Columns
    kernels_ms: Numbers
    whole_ms: float


def columns(model: Model) -> Columns:
    """Of a static, clean model."""
    known = {name: _dims(spec.shape) for name, spec in read(model).specs.items()}
    graph = rewritten(model)
    known.update({name: _dims(spec.shape) for name, spec in graph.specs.items() if spec.is_static})
    known.update({name: array.shape for name, array in graph.constants.items()})
    rows = []
    for node in graph.nodes:
        reads = [known.get(name, ()) for name in node.inputs if name]
        for name in node.outputs:
            known.setdefault(name, _written(node, reads, known))
        amounts = _amounts(node, reads, [known[name] for name in node.outputs])
        rows.append([amounts.get(name, 0.0) for name in RATES_NS])
    return Columns(tuple(node.name for node in graph.nodes), np.array(rows))


def rewritten(model: Model) -> Graph:
    """What ONNX Runtime makes of a model."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        settings, path = session_settings(1), Path(folder) / "rewritten.onnx"
        settings.optimized_model_filepath = str(path)
        open_session(content(prepared(model, {})), settings, model)
        return to_graph(load(path).proto)[0]


def _dims(shape: Sequence[int | str | None]) -> Shape:
    return tuple(dim for dim in shape if isinstance(dim, int))


def _written(node: Node, reads: Sequence[Shape], known: Mapping[str, Shape]) -> Shape:
    """The shape of a tensor of blocks, which ONNX Runtime does not record: the kernel is named after what it was."""
    if node.op == "Concat" and all(reads):
        return (reads[0][0], sum(shape[1] for shape in reads), *reads[0][2:])
    return known.get(node.name.removesuffix("_nchwc").removesuffix("_bn")) or next(filter(None, reads), ())


def _amounts(node: Node, reads: Sequence[Shape], written: Sequence[Shape]) -> dict[str, float]:
    """How often a kernel does what."""
    kind, first, count = _OWN.get(node.op), reads[0] if reads else (), math.prod(written[0])
    if node.op in ("Conv", "FusedConv") and len(written[0]) == 4:
        return {"conv_start": 1, **_convolution(node, reads, written[0])}
    if kind in _COPIES:
        return {"copy_start": 1, **({kind: sum(map(math.prod, written))} if kind else {})}
    if kind == "reordered":
        shape = written[0] if node.op == "ReorderOutput" else first
        return {"start": 1, kind: math.prod(shape) / shape[1] * _blocked(shape[1]) if len(shape) == 4 else count}
    if kind:
        return {"start": 1, kind: count}
    if "MatMul" in node.op or "Gemm" in node.op:
        return {"start": 1, "matrices": _macs(node, reads, count), "weights": math.prod(reads[1])}
    if node.op in ("MaxPool", "AveragePool"):
        taps = math.prod(node.attributes.get("kernel_shape", ()))
        return {"start": 1, "pooled" if "nchwc" in node.domain else "pooled_planes": count * taps}
    if node.op.startswith(("Global", "Reduce")):
        return {"start": 1, "summed": math.prod(first)}
    return {"start": 1, **_chained(reads, written[0])}


def _macs(node: Node, reads: Sequence[Shape], results: int) -> float:
    """Of a product of matrices."""
    first = reads[0]
    return results * (first[0] if node.attributes.get("transA") else first[-1] if first else 1)


def _blocked(channels: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK


def _convolution(node: Node, reads: Sequence[Shape], written: Shape) -> dict[str, float]:
    """A convolution with its activation."""
    columns, depth, *window = reads[1]
    groups, taps = int(node.attributes.get("group", 1)), math.prod(window)
    high, results = written[2], math.prod(written[2:])
    act = node.attributes.get("activation", b"")
    moved = math.prod(reads[0]) + math.prod(written) * (2 if len(node.inputs) > 3 else 1)
    found = {
        "moved": moved, "weights": math.prod(reads[1]), "mapped": _PASSED.get(act, 0) * math.prod(written),
        "curved": math.prod(written) * (act in (b"Sigmoid", b"Tanh", b"HardSigmoid")),
    }  # fmt: skip
    macs = columns * depth * taps * results
    if "nchwc" not in node.domain:
        unrolled = depth * taps * results * groups * (taps > 1)
        return {**found, "matrices": macs, "unrolled": unrolled, "conv_start": groups if depth > 1 else 1}
    if depth == 1 and groups > 1:
        return {**found, "depthwise": macs, "row": columns / _BLOCK * high}
    calls = math.ceil(columns / groups / (_BLOCK * _BLOCKS))
    found["spread"] = depth * groups * taps * results * calls
    if depth < _BLOCK and groups == 1:
        return {**found, "planes": macs, "row": calls * high * depth, "added": columns * results * depth}
    if taps == 1:
        return {**found, "points": macs, "added": columns * results * math.ceil(depth / _DEPTH)}
    blocks = depth / _BLOCK
    return {**found, "windows": macs, "row": calls * high * blocks, "added": columns * results * blocks}


def _chained(reads: Sequence[Shape], written: Shape) -> dict[str, float]:
    """Element by element."""
    count, sizes = math.prod(written), [math.prod(shape) for shape in reads]
    repeated = [shape for shape, size in zip(reads, sizes, strict=True) if 1 < size < count]
    if not repeated:
        return {"mapped": count + sum(size for size in sizes if size > 1)}
    return {"mapped": 2 * count, "stretch": max(count / _stretch(shape, written) for shape in repeated)}


def _stretch(shape: Shape, written: Shape) -> int:
    """How many results in a row read one value of an operand, or as many in a row."""
    wide = (1,) * (len(written) - len(shape)) + shape
    pairs = [(one == all_, all_) for one, all_ in zip(reversed(wide), reversed(written), strict=True) if all_ > 1]
    same = next((index for index, (is_whole, _) in enumerate(pairs) if is_whole != pairs[0][0]), len(pairs))
    return math.prod(size for _, size in pairs[:same])


def predict_ms(found: Columns, rates_ns: Mapping[str, float]) -> Numbers:
    """Milliseconds of every kernel on one core that does nothing else, not even profile it."""
    return np.asarray(found.amounts @ [rates_ns[name] for name in RATES_NS]) / 1e6


def fit(networks: Sequence[Timed]) -> dict[str, float]:
    """The rates of this machine, none below zero: those with the least squares of relative errors, of kernels by their
    share of their network, and of whole networks, all of which count the same."""
    start = np.array(list(RATES_NS.values()))
    profiled = np.array([name == "profiled" for name in RATES_NS], float)
    rows, times = [_PULL * np.eye(len(start))], [np.full(len(start), _PULL)]
    for one in networks:
        weight = 1 / np.sqrt(np.maximum(one.kernels_ms, _LEAST * one.whole_ms) * one.whole_ms)
        done = one.columns.amounts * start / 1e6
        rows += [(done + profiled * start / 1e6) * weight[:, None], done.sum(axis=0, keepdims=True) / one.whole_ms]
        times += [one.kernels_ms * weight, np.ones(1)]
    solved = nnls(np.concatenate(rows), np.concatenate(times))[0] * start
    rates = dict(zip(RATES_NS, map(float, solved), strict=True))
    # A kernel's time is a median of runs, a whole network's a mean of them, with what comes between kernels.
    more = [one.whole_ms / float(predict_ms(one.columns, rates).sum()) for one in networks]
    return {name: statistics.median(more or [1.0]) * rate for name, rate in rates.items()}
