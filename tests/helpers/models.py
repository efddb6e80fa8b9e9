"""Small ONNX models for tests, and the reference evaluator as the judge of what they compute."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgert.graph import Change, Graph, Model, Pass, from_proto, infer, inputs, write
from edgert.graph.ir import run as run_passes
from edgert.graph.model import Array, element_type
from edgert.graph.onnx_convert import to_graph

Dims = Sequence[int | str | None]
IMAGE: Dims = (1, 3, 8, 8)
node = helper.make_node


class Typed(NamedTuple):
    """Element type of a tensor that is not float32, as NumPy's name or ONNX's number, and its shape."""

    dtype: str | int
    shape: Dims | None


End = Dims | Typed | onnx.ValueInfoProto | None
"""Shape of an input or output, float32 by default; None for an unknown one."""


def value(name: str, shape: Dims | None, dtype: str | int = "float32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(dtype) if isinstance(dtype, str) else dtype, shape)


def choice(
    condition: str, output: str, *inner: onnx.NodeProto, shape: Dims | None = None, name: str = ""
) -> onnx.NodeProto:
    """An If whose branches are the same nodes; the last of them computes the float32 output."""
    body = helper.make_graph(list(inner), "body", [], [value(inner[-1].output[0], shape)])
    return node("If", [condition], [output], name, then_branch=body, else_branch=body)


def weights(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Values around 0, never all the same."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def make_proto(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, End],
    results: Mapping[str, End],
    stored: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    listed: bool = False,
) -> onnx.ModelProto:
    """``listed`` also lists the stored tensors as inputs."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (stored or {}).items()]
    values = [_value(name, end) for name, end in feeds.items()]
    if listed:
        values += [helper.make_tensor_value_info(item.name, item.data_type, list(item.dims)) for item in tensors]
    graph = helper.make_graph(list(nodes), "g", values, [_value(name, end) for name, end in results.items()], tensors)
    domains = {"": opset, **{item.domain: 1 for item in nodes if item.domain}}
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(name, to) for name, to in domains.items()])
    proto.ir_version = ir
    return proto


def make(*args: Any, **options: Any) -> Model:
    return from_proto(make_proto(*args, **options), "test.onnx")


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, End],
    outputs: Mapping[str, End],
    weights: Mapping[str, Any] | None = None,
    **metadata: str,
) -> Path:
    proto = make_proto(nodes, inputs, outputs, weights)
    helper.set_model_props(proto, metadata)
    onnx.save(proto, path)
    return path


def _value(name: str, end: End) -> onnx.ValueInfoProto:
    if isinstance(end, onnx.ValueInfoProto):
        return end
    return value(name, end.shape, end.dtype) if isinstance(end, Typed) else value(name, end)


def constant(
    outputs: Mapping[str, Any], shape: Dims = (1, 3, 64, 64), kind: int = TensorProto.FLOAT, name: str = "images"
) -> Model:
    """Float outputs that are the same for every image; all depend on the input, so that nothing folds them."""
    nodes = [
        node("Cast", [name], ["real"], to=TensorProto.FLOAT),
        node("ReduceMean", ["real"], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["nothing"]),
        *(node("Add", [f"{one}_values", "nothing"], [one]) for one in outputs),
    ]
    values = {f"{one}_values": np.asarray(array, np.float32) for one, array in outputs.items()}
    ends = {one: np.shape(array) for one, array in outputs.items()}
    return make(nodes, {name: Typed(kind, shape)}, ends, {"zero": np.float32(0), **values})


def yolo_columns(*boxes: Sequence[float], cells: int = 84) -> Any:
    """[1, numbers, cells], as YOLOv8 writes center x, y, width, height and a score of each class; the rest is 0."""
    table = np.zeros((1, len(boxes[0]), cells), np.float32)
    table[0, :, : len(boxes)] = np.array(boxes, np.float32).T
    return table


def conv(shape: Dims = IMAGE, seed: int = 0) -> Model:
    """``y`` = ReLU(3×3 convolution of ``x`` to 4 channels), ``mean`` = its average per channel."""
    random = np.random.default_rng(seed)
    stored = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4"), "b": random.standard_normal(4).astype("f4")}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["y"]),
        node("GlobalAveragePool", ["y"], ["mean"]),
    ]
    return make(nodes, {"x": shape}, {"y": (shape[0], 4, *shape[2:]), "mean": (shape[0], 4, 1, 1)}, stored)


def means(shape: Dims = IMAGE) -> Model:
    """``y`` [N, 3] = the average of each channel of ``x``."""
    return make([node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)], {"x": shape}, {"y": shape[:2]})


def two_inputs() -> Model:
    """``y`` = ``a`` + ``b``, float32 [2, 3] and [3]; ``n`` = int64 count of the entries."""
    nodes = [node("Add", ["a", "b"], ["y"]), node("Size", ["y"], ["n"])]
    return make(nodes, {"a": (2, 3), "b": (3,)}, {"y": (2, 3), "n": Typed("int64", ())})


def stacked() -> Model:
    """``y`` = the rows of ``a`` [n, 3] and then those of ``b`` [m, 3]."""
    return make([node("Concat", ["a", "b"], ["y"], axis=0)], {"a": ("n", 3), "b": ("m", 3)}, {"y": ("both", 3)})


def keep_above(threshold: float = 0.5, columns: int = 6) -> Model:
    """An end-to-end detector's tail: the rows of ``x`` [1, 10, columns] whose first value is above a threshold, so that
    ``rows`` has as many rows as there are."""
    nodes = [
        node("Squeeze", ["x", "axis"], ["flat"]),
        node("Gather", ["flat", "zero"], ["scores"], axis=1),
        node("Greater", ["scores", "limit"], ["mask"]),
        node("Compress", ["flat", "mask"], ["rows"], axis=0),
    ]
    stored = {"axis": np.array([0], np.int64), "zero": np.array(0, np.int64), "limit": np.array(threshold, np.float32)}
    return make(nodes, {"x": (1, 10, columns)}, {"rows": ("kept", columns)}, stored)


def suppress(count: int = 10) -> Model:
    """ONNX NonMaxSuppression: ``boxes`` [1, count, 4] and ``scores`` [1, 2, count] to ``kept`` [?, 3] int64."""
    last = node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["kept"])
    half = np.array([0.5], np.float32)
    inputs = {"boxes": (1, count, 4), "scores": (1, 2, count)}
    results = {"kept": Typed("int64", (None, 3))}
    return make([last], inputs, results, {"most": np.array([count], np.int64), "iou": half, "least": half})


def unknown_operator() -> Model:
    return make([node("Frobnicate", ["x"], ["y"], name="the_odd_one")], {"x": IMAGE}, {"y": IMAGE})


def bad_shapes() -> Model:
    return make([node("Conv", ["x", "w"], ["y"])], {"x": IMAGE}, {"y": None}, {"w": np.zeros((4, 5, 3, 3), "f4")})


def texts() -> Model:
    return of_type(TensorProto.STRING, (1,))


def of_type(kind: int, shape: Dims = (2, 3)) -> Model:
    return make([node("Identity", ["x"], ["y"])], {"x": Typed(kind, shape)}, {"y": Typed(kind, shape)})


def with_constants(graph: Graph, changed: Mapping[str, Array]) -> Graph:
    return replace(graph, constants={**graph.constants, **changed})


def ops(model: Model) -> list[str]:
    return [item.op_type for item in model.proto.graph.node]


def applied(step: Pass, model: Model) -> tuple[Model, tuple[Change, ...]]:
    """The model after one pass; the very same where the pass had nothing to do."""
    graph, changes = run_passes(to_graph(model.proto)[0], [step])
    return (write(graph, model, typed=True) if changes else model), changes


def becomes(step: Pass, model: Model, left: list[str]) -> tuple[Model, tuple[Change, ...]]:
    """The model after one pass, which leaves these operators and computes the same."""
    made, changes = applied(step, model)
    assert ops(made) == left
    assert_same(model, made)
    return made, changes


def run(model: Model, seed: int = 1) -> list[Any]:
    """The outputs for random inputs, as the ONNX reference evaluator computes them."""
    rng = np.random.default_rng(seed)
    feeds = {spec.name: rng.standard_normal(spec.shape).astype(spec.dtype) for spec in inputs(model)}  # type: ignore[arg-type]
    return list(ReferenceEvaluator(model.proto).run(None, feeds))


def assert_same(before: Model, after: Model, rtol: float = 1e-4) -> None:
    """Both compute the same, within ``rtol`` of the largest value, and the result is a valid model."""
    onnx.checker.check_model(infer(after).proto)  # which wants output shapes
    for first, second in zip(run(before), run(after), strict=True):
        assert first.shape == second.shape
        assert first.dtype == second.dtype
        np.testing.assert_allclose(second, first, rtol=0, atol=rtol * float(np.abs(first).max(initial=0)))
