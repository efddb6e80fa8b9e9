"""Small graphs to quantize, named node by node, and the ranges that small arrays give them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from edgert.backend.ort import Function
from edgert.graph import Graph, Model, extract, infer, read, write
from tests.helpers.models import make, node, weights

Array = np.ndarray[Any, Any]
Amax = Callable[[tuple[str, ...]], float]


def conv(name: str, source: str, output: str, *, bias: bool = True, **attributes: Any) -> onnx.NodeProto:
    """A Conv with weight ``<name>.w`` and bias ``<name>.b``."""
    inputs = [source, f"{name}.w", *([f"{name}.b"] if bias else [])]
    return node("Conv", inputs, [output], name=name, **attributes)


def stored(**shapes: Sequence[int]) -> dict[str, Array]:
    """Weights and biases of convolutions by name: ``c=(8, 4, 3, 3)``."""
    found = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        found[f"{name}.w"] = weights(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:])))
        found[f"{name}.b"] = weights(shape[0], seed=seed + 100) / 4
    return found


def graph_of(model: Model) -> Graph:
    return read(infer(model))


def feeds_of(model: Model, seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {item.name: rng.standard_normal(item.shape).astype(np.float32) for item in graph_of(model).inputs}  # type: ignore[arg-type]


def values_of(model: Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every float32 tensor that is fed or computed."""
    graph = graph_of(model)
    names = [name for one in graph.nodes for name in one.outputs if name and graph.specs[name].dtype == "float32"]
    return {**feeds, **Function(write(extract(graph, names), model))(feeds)}


def amax_of(model: Model, feeds: Mapping[str, Array]) -> Amax:
    """The largest magnitude of a group of tensors."""
    peaks = {name: float(np.abs(value).max()) for name, value in values_of(model, feeds).items()}
    return lambda names: max(peaks[name] for name in names)


def run(graph: Graph, like: Model, feeds: Mapping[str, Array], wanted: Sequence[str] = ()) -> dict[str, Array]:
    """Outputs, or the named tensors, of a lowered graph, every node as the standard has it."""
    model = write(graph, like)
    if wanted:
        model = write(extract(graph_of(model), wanted), model)
    return Function(model, fused=False)(feeds)


def after_conv(*nodes: Any, shape: Sequence[int] = (1, 4, 6, 6), **constants: Any) -> Model:
    """x → convolution ``a`` → t → the nodes; where these make u rather than y, → convolution ``b`` → y."""
    ends = [] if any("y" in one.output for one in nodes) else [conv("b", "u", "y")]
    tensors = stored(**dict.fromkeys(["a", *(one.name for one in ends)], (4, 4, 1, 1)))
    return make([conv("a", "x", "t"), *nodes, *ends], {"x": shape}, {"y": None}, tensors | constants)


def residual(channels: int = 4) -> Model:
    """input → c0 → relu0 → (c1 → relu1 → c2) + relu0 → relu2 → c3."""
    nodes = [
        conv("c0", "x", "t0"),
        node("Relu", ["t0"], ["r0"], name="relu0"),
        conv("c1", "r0", "t1"),
        node("Relu", ["t1"], ["r1"], name="relu1"),
        conv("c2", "r1", "t2"),
        node("Add", ["t2", "r0"], ["s"], name="add"),
        node("Relu", ["s"], ["r2"], name="relu2"),
        conv("c3", "r2", "y"),
    ]
    shape = (channels, channels, 1, 1)
    return make(
        nodes, {"x": [1, channels, 6, 6]}, {"y": [1, channels, 6, 6]}, stored(c0=shape, c1=shape, c2=shape, c3=shape)
    )


_JOINED = (
    conv("c0", "x", "t0", pads=[1, 1, 1, 1]),
    node("Relu", ["t0"], ["r0"], name="relu0"),
    node("MaxPool", ["r0"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    conv("c1", "p", "t1"),
    conv("c2", "p", "t2"),
    node("Concat", ["t1", "t2"], ["j"], name="join", axis=1),
)


def branches() -> Model:
    """input → c0 → relu → maxpool; c1 and c2 of it joined by a Concat, shuffled, c3."""
    nodes = [
        *_JOINED,
        node("Reshape", ["j", "apart"], ["k"], name="apart_"),
        node("Transpose", ["k"], ["l"], name="swap", perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["l", "together"], ["m"], name="together_"),
        conv("c3", "m", "y"),
    ]
    tensors = stored(c0=(4, 4, 3, 3), c1=(4, 4, 1, 1), c2=(4, 4, 1, 1), c3=(8, 8, 1, 1))
    tensors |= {"apart": np.array([1, 2, 4, 3, 3]), "together": np.array([1, 8, 3, 3])}
    return make(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 8, 3, 3]}, tensors)


def shuffled() -> Model:
    """input → c0 → relu → maxpool; c1 and c2 of it joined by a Concat, c3, shuffled, c4. Unlike in :func:`branches`, no
    Reshape stands beside the Concat, which a DLA refuses."""
    nodes = [
        *_JOINED,
        conv("c3", "j", "t3"),
        node("Reshape", ["t3", "apart"], ["k"], name="apart_"),
        node("Transpose", ["k"], ["l"], name="swap", perm=[0, 2, 1, 3]),
        node("Reshape", ["l", "together"], ["m"], name="together_"),
        conv("c4", "m", "y"),
    ]
    tensors = stored(c0=(4, 4, 3, 3), c1=(4, 4, 1, 1), c2=(4, 4, 1, 1), c3=(8, 8, 1, 1), c4=(8, 8, 1, 1))
    tensors |= {"apart": np.array([1, 2, 4, 9]), "together": np.array([1, 8, 3, 3])}
    return make(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 8, 3, 3]}, tensors)
