"""Small networks of the shapes that vision models are made of, none of which needs a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from edgert.graph import Model
from tests.helpers.models import make

Node = Any
SHAPE = (1, 8, 16, 16)


def weights(*shape: int) -> np.ndarray:
    return (0.2 * np.random.default_rng(len(shape)).standard_normal(shape)).astype(np.float32)


def network(nodes: list[Node], constants: Mapping[str, np.ndarray], shape: tuple[int | str, ...] = SHAPE) -> Model:
    """From ``x`` to ``y``; nodes are named after their outputs."""
    for node in nodes:
        node.name = f"/net/{node.output[0]}"
    return make(nodes, {"x": (shape, TensorProto.FLOAT)}, {"y": (None, TensorProto.FLOAT)}, constants)


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
    limits = {"low": np.float32(0), "high": np.float32(6)}
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


TOPOLOGIES: Mapping[str, Callable[[], Model]] = {
    each.__name__: each
    for each in (
        residual,
        depthwise,
        inception,
        pyramid,
        decoder,
        swish,
        classifier,
        attention,
        shuffle,
        normalized,
    )
}
