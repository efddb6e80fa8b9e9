"""Small ONNX models for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgert.graph import Graph, Model, from_proto
from edgert.graph.model import Array

Dims = Sequence[int | str | None]
IMAGE: Dims = (1, 3, 8, 8)


def make(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[Dims, int]],
    outputs: Mapping[str, tuple[Dims | None, int]],
    weights: Mapping[str, Any] | None = None,
) -> Model:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, (shape, kind) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (shape, kind) in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return from_proto(proto, Path("test.onnx"))


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Dims],
    outputs: Mapping[str, Dims | None],
    weights: Mapping[str, Any] | None = None,
    **metadata: str,
) -> Path:
    given = {name: (shape, TensorProto.FLOAT) for name, shape in inputs.items()}
    proto = make(nodes, given, {name: (shape, TensorProto.FLOAT) for name, shape in outputs.items()}, weights).proto
    helper.set_model_props(proto, metadata)
    onnx.save(proto, path)
    return path


def constant(
    outputs: Mapping[str, Any], shape: Dims = (1, 3, 64, 64), kind: int = TensorProto.FLOAT, name: str = "images"
) -> Model:
    """Float outputs that are the same for every image; all depend on the input, so that nothing folds them."""
    nodes = [
        helper.make_node("Cast", [name], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        *(helper.make_node("Add", [f"{one}_values", "nothing"], [one]) for one in outputs),
    ]
    values = {f"{one}_values": np.asarray(array, np.float32) for one, array in outputs.items()}
    ends = {one: (np.shape(array), TensorProto.FLOAT) for one, array in outputs.items()}
    return make(nodes, {name: (shape, kind)}, ends, {"zero": np.float32(0), **values})


def yolo_columns(*boxes: Sequence[float], cells: int = 84) -> Any:
    """[1, numbers, cells], as YOLOv8 writes center x, y, width, height and a score of each class; the rest is 0."""
    table = np.zeros((1, len(boxes[0]), cells), np.float32)
    table[0, :, : len(boxes)] = np.array(boxes, np.float32).T
    return table


def conv(shape: Dims = IMAGE, seed: int = 0) -> Model:
    """``y`` = ReLU(3×3 convolution of ``x`` to 4 channels), ``mean`` = its average per channel."""
    random = np.random.default_rng(seed)
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4"), "b": random.standard_normal(4).astype("f4")}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("GlobalAveragePool", ["y"], ["mean"]),
    ]
    outputs = {"y": ((shape[0], 4, *shape[2:]), TensorProto.FLOAT), "mean": ((shape[0], 4, 1, 1), TensorProto.FLOAT)}
    return make(nodes, {"x": (shape, TensorProto.FLOAT)}, outputs, weights)


def means(shape: Dims = IMAGE) -> Model:
    """``y`` [N, 3] = the average of each channel of ``x``."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)]
    return make(nodes, {"x": (shape, TensorProto.FLOAT)}, {"y": (shape[:2], TensorProto.FLOAT)})


def two_inputs() -> Model:
    """``y`` = ``a`` + ``b``, float32 [2, 3] and [3]; ``n`` = int64 count of the entries."""
    nodes = [helper.make_node("Add", ["a", "b"], ["y"]), helper.make_node("Size", ["y"], ["n"])]
    inputs = {"a": ((2, 3), TensorProto.FLOAT), "b": ((3,), TensorProto.FLOAT)}
    return make(nodes, inputs, {"y": ((2, 3), TensorProto.FLOAT), "n": ((), TensorProto.INT64)})


def stacked() -> Model:
    """``y`` = the rows of ``a`` [n, 3] and then those of ``b`` [m, 3]."""
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    inputs = {"a": (("n", 3), TensorProto.FLOAT), "b": (("m", 3), TensorProto.FLOAT)}
    return make([node], inputs, {"y": (("both", 3), TensorProto.FLOAT)})


def keep_above(threshold: float = 0.5, columns: int = 6) -> Model:
    """An end-to-end detector's tail: the rows of ``x`` [1, 10, columns] whose first value is above a threshold, so that
    ``rows`` has as many rows as there are."""
    nodes = [
        helper.make_node("Squeeze", ["x", "axis"], ["flat"]),
        helper.make_node("Gather", ["flat", "zero"], ["scores"], axis=1),
        helper.make_node("Greater", ["scores", "limit"], ["mask"]),
        helper.make_node("Compress", ["flat", "mask"], ["rows"], axis=0),
    ]
    weights = {"axis": np.array([0], np.int64), "zero": np.array(0, np.int64), "limit": np.array(threshold, np.float32)}
    outputs = {"rows": (("kept", columns), TensorProto.FLOAT)}
    return make(nodes, {"x": ((1, 10, columns), TensorProto.FLOAT)}, outputs, weights)


def suppress(count: int = 10) -> Model:
    """ONNX NonMaxSuppression: ``boxes`` [1, count, 4] and ``scores`` [1, 2, count] to ``kept`` [?, 3] int64."""
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["kept"])
    weights = {
        "most": np.array([count], np.int64),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.5], np.float32),
    }
    inputs = {"boxes": ((1, count, 4), TensorProto.FLOAT), "scores": ((1, 2, count), TensorProto.FLOAT)}
    return make([node], inputs, {"kept": ((None, 3), TensorProto.INT64)}, weights)


def unknown_operator() -> Model:
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="the_odd_one")
    return make([node], {"x": (IMAGE, TensorProto.FLOAT)}, {"y": (IMAGE, TensorProto.FLOAT)})


def bad_shapes() -> Model:
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    weights = {"w": np.zeros((4, 5, 3, 3), np.float32)}
    return make([node], {"x": (IMAGE, TensorProto.FLOAT)}, {"y": (None, TensorProto.FLOAT)}, weights)


def texts() -> Model:
    node = helper.make_node("Identity", ["x"], ["y"])
    return make([node], {"x": ((1,), TensorProto.STRING)}, {"y": ((1,), TensorProto.STRING)})


def of_type(kind: int) -> Model:
    node = helper.make_node("Identity", ["x"], ["y"])
    return make([node], {"x": ((2, 3), kind)}, {"y": ((2, 3), kind)})


def with_constants(graph: Graph, changed: Mapping[str, Array]) -> Graph:
    return replace(graph, constants={**graph.constants, **changed})
