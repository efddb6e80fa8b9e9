"""Small networks of the shapes that vision models are made of, none of which needs a plugin."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.graph import Model
from tests.helpers.models import make

Node = Any
SHAPE = (1, 8, 16, 16)


def weights(*shape: int) -> np.ndarray:
    return (0.2 * np.random.default_rng(len(shape)).standard_normal(shape)).astype(np.float32)


def network(nodes: list[Node], constants: Mapping[str, np.ndarray], shape: tuple[int | str, ...] = SHAPE) -> Model:
    for node in nodes:
        node.name = f"/net/{node.output[0]}"
    return make(nodes, {"x": shape}, {"y": None}, constants)


def conv(source: str, target: str, weight: str, **attributes: Any) -> Node:
    return helper.make_node("Conv", [source, weight], [target], **attributes)


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Node:
    return helper.make_node(operator, inputs.split(), output.split(), **attributes)


def residual() -> Model:
    nodes = [
        conv("x", "a", "w", pads=[1] * 4),
        node("Relu", "a", "b"),
        conv("b", "c", "w", pads=[1] * 4),
        node("Add", "c x", "d"),
        node("Relu", "d", "y"),
    ]
    return network(nodes, {"w": weights(8, 8, 3, 3)})


def depthwise() -> Model:
    nodes = [conv("x", "a", "w", pads=[1] * 4, group=8), node("Clip", "a low high", "b"), conv("b", "y", "p")]
    limits = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    return network(nodes, {"w": weights(8, 1, 3, 3), "p": weights(16, 8, 1, 1), **limits})


def inception() -> Model:
    nodes = [
        conv("x", "a", "w1"),
        conv("x", "b", "w3", pads=[1] * 4),
        node("MaxPool", "x", "c", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
        node("Concat", "a b c", "y", axis=1),
    ]
    return network(nodes, {"w1": weights(4, 8, 1, 1), "w3": weights(4, 8, 3, 3)})


def pyramid() -> Model:
    nodes = [
        conv("x", "a", "w", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], mode="nearest"),
        node("Concat", "b x", "y", axis=1),
    ]
    return network(nodes, {"w": weights(8, 8, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)})


def decoder() -> Model:
    nodes = [node("ConvTranspose", "x w", "a", strides=[2, 2]), node("Sigmoid", "a", "y")]
    return network(nodes, {"w": weights(8, 4, 2, 2)})


def swish() -> Model:
    nodes = [conv("x", "a", "w"), node("Sigmoid", "a", "s"), node("Mul", "a s", "y")]
    return network(nodes, {"w": weights(8, 8, 1, 1)})


def classifier() -> Model:
    nodes = [
        conv("x", "a", "w", strides=[2, 2]),
        node("GlobalAveragePool", "a", "b"),
        node("Flatten", "b", "c"),
        node("Gemm", "c g", "d"),
        node("Softmax", "d", "y", axis=1),
    ]
    return network(nodes, {"w": weights(8, 8, 1, 1), "g": weights(8, 10)})


def attention() -> Model:
    nodes = [
        node("Reshape", "x tokens", "a"),
        node("Transpose", "a", "t", perm=[0, 2, 1]),
        node("MatMul", "t w", "q"),
        node("MatMul", "q a", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p t", "y"),
    ]
    return network(nodes, {"tokens": np.array([1, 8, 256], np.int64), "w": weights(8, 8)})


def shuffle() -> Model:
    nodes = [
        node("Split", "x halves", "a b", axis=1),
        conv("a", "c", "w"),
        node("Concat", "c b", "d", axis=1),
        node("Reshape", "d groups", "e"),
        node("Transpose", "e", "f", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "f back", "y"),
    ]
    shapes = {"groups": np.array([1, 2, 4, 16, 16], np.int64), "back": np.array(SHAPE, np.int64)}
    return network(nodes, {"halves": np.array([4, 4], np.int64), "w": weights(4, 4, 1, 1), **shapes})


def normalized() -> Model:
    ones = {"scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32)}
    nodes = [
        node("InstanceNormalization", "x scale bias", "a"),
        node("LeakyRelu", "a", "b"),
        node("HardSwish", "b", "y"),
    ]
    return network(nodes, ones)


def dynamic() -> Model:
    return network(
        [conv("x", "a", "w", pads=[1] * 4), node("Relu", "a", "y")], {"w": weights(4, 8, 3, 3)}, ("n", 8, "h", "w_")
    )


def fp8_request(*compute: str) -> BuildRequest:
    """x (16, 64) · w (64, 32), both rounded to FP8 (E4M3), in units of 1/64 and 1/512."""
    numbers = np.random.default_rng(3).uniform(-0.5, 0.5, 64 * 32)
    held = [
        helper.make_tensor("one", TensorProto.FLOAT, [], [1 / 64]),
        helper.make_tensor("other", TensorProto.FLOAT, [], [1 / 512]),
        helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]),
        helper.make_tensor("w", TensorProto.FLOAT, [64, 32], numbers),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["xq"], name="x rounded"),
        helper.make_node("DequantizeLinear", ["xq", "one", "zero"], ["xd"], name="x read"),
        helper.make_node("QuantizeLinear", ["w", "other", "zero"], ["wq"], name="w rounded"),
        helper.make_node("DequantizeLinear", ["wq", "other", "zero"], ["wd"], name="w read"),
        helper.make_node("MatMul", ["xd", "wd"], ["y"], name="product"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (16, 64)), ("y", (16, 32)))
    ]
    graph = helper.make_graph(nodes, "fp8", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    names = {node.name: tuple(node.output) for node in nodes}
    return BuildRequest(made.SerializeToString(), names, "fp8", 19, explicit=True, compute=compute)


TOPOLOGIES: Mapping[str, Callable[[], Model]] = {
    each.__name__: each
    for each in (residual, depthwise, inception, pyramid, decoder, swish, classifier, attention, shuffle, normalized)
}
