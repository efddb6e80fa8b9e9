"""How ONNX Runtime's form stores each tensor: type, zero point, scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from edgert.graph.node import Graph, Node
from edgert.graph.value import clip_bounds, non_negative
from edgert.quantize.operator import CLIPS
from edgert.quantize.point import Point, Scheme
from edgert.quantize.rounding import Rounding
from edgert.quantize.weight import LIMIT

Amax = Callable[[tuple[str, ...]], float]
Storage = Literal["int8", "uint8"]
Activation = Literal["symmetric", "unsigned", "affine"]
Span = Callable[[tuple[str, ...]], tuple[float, float]]

_STEPS = 255
"""Steps of 8 bits whose zero point is the smallest of them."""


def roundings(
    graph: Graph, scheme: Scheme, amax: Amax, storage: Storage, activation: Activation, span: Span | None = None
) -> Mapping[str, Rounding]:
    """Tensor of a point → how it is stored.

    Args:
        span: the smallest and largest value of the tensors that share a scale; what ``affine`` needs.
    """
    positive = non_negative(graph) if activation == "unsigned" else frozenset()
    found = {}
    for name, point in scheme.points.items():
        group = scheme.groups[name]
        if activation == "affine" and not point.amax:
            assert span is not None  # lower() asks for it
            found[name] = _affine(np.float32(amax(group)), span(group), storage)
            continue
        found[name] = _rounding(point, amax, group, storage, unsigned=set(group) <= positive)
    return found


def _rounding(point: Point, amax: Amax, group: tuple[str, ...], storage: Storage, *, unsigned: bool) -> Rounding:
    threshold = np.float32(point.amax or amax(group))
    if unsigned or point.amax:  # a known range is that of a sigmoid, which TensorRT does not round: all steps for it
        return Rounding(threshold / np.float32(_STEPS), np.uint8(0) if storage == "uint8" else np.int8(-128))
    return Rounding(threshold / np.float32(LIMIT), np.uint8(128) if storage == "uint8" else np.int8(0))


def _affine(threshold: np.float32, span: tuple[float, float], storage: Storage) -> Rounding:
    """All 255 steps for the values there are: zero is stored exactly, wherever it lies between the two ends."""
    low = max(-float(threshold), min(0.0, span[0]))
    high = min(float(threshold), max(0.0, span[1]))
    if high <= low:  # a tensor of zeros
        low, high = -float(threshold), float(threshold)
    scale = np.float32((high - low) / _STEPS)
    zero = int(np.clip(np.rint(-low / scale), 0, _STEPS))
    return Rounding(scale, np.uint8(zero) if storage == "uint8" else np.int8(zero - 128))


def absorb(graph: Graph, scheme: Scheme, stored: Mapping[str, Rounding]) -> Scheme:
    """The scheme without the roundings in front of a Relu or Clip that the Q behind it does in one: that saturates
    where they bound, as its zero point is the smallest stored value. ONNX Runtime fuses node, Relu and Q then."""
    clips = [node for node in graph.nodes if node.op in CLIPS and _is_absorbed(graph, node, scheme, stored)]
    gone = {node.inputs[0] for node in clips}
    return replace(
        scheme,
        points={name: point for name, point in scheme.points.items() if name not in gone},
        direct=scheme.direct - {node.name for node in clips},
    )


def _is_absorbed(graph: Graph, node: Node, scheme: Scheme, stored: Mapping[str, Rounding]) -> bool:
    point = scheme.points.get(node.inputs[0])
    bounds = clip_bounds(graph, node)
    if point is None or not point.is_hidden or bounds is None:
        return False
    rounding = stored[node.outputs[0]]
    smallest = np.iinfo(rounding.zero.dtype).min
    return int(rounding.zero) == smallest and bounds[0] >= 0 and bounds[1] >= (_STEPS - 0.5) * rounding.scale
