"""A scheme and its ranges put into a graph, as QuantizeLinear and DequantizeLinear nodes and stored integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from edgert.errors import ModelError
from edgert.graph.node import Graph
from edgert.quantize.align import align
from edgert.quantize.lower_ort import lower_ort
from edgert.quantize.lower_trt import lower_trt
from edgert.quantize.point import Scheme
from edgert.quantize.storage import Activation, Span, Storage, absorb, roundings

Array = npt.NDArray[Any]

_OPSET = 13
"""The first in which DequantizeLinear takes one scale per channel."""


def lower(
    graph: Graph,
    scheme: Scheme,
    amax: Callable[[tuple[str, ...]], float],
    *,
    storage: Storage = "int8",
    activation: Activation = "symmetric",
    per_channel: bool = True,
    aligned: bool = False,
    rounded: Mapping[str, Array] = {},
    span: Span | None = None,
) -> Graph:
    """The graph with its weights as integers and its activations rounded where the scheme says.

    Graph inputs and outputs keep their names, as does the output of every weighted node, in front of its rounding.
    A rounded tensor ``x`` is stored as ``x_quantized`` and read as ``x_dequantized``; where nothing computes ``x``
    itself in floating point any more, what is read is called ``x``.

    Args:
        graph: the one the scheme was made for, or one with the same names and other values.
        amax: threshold of the tensors that share a scale: values beyond it are clipped.
        storage: how ONNX Runtime's form stores activations. ``uint8`` has zero point 128 and so stands for the same
            numbers as ``int8``; x86 multiplies uint8 by int8. TensorRT's forms are int8.
        activation: ``unsigned`` gives uint8 tensors that are never negative all 255 steps, zero point 0, where
            TensorRT has 127. ``affine`` gives every tensor all of them, between its own ends, as ONNX Runtime's
            quantiser does; it needs ``span``. ONNX Runtime's form only.
        per_channel: one scale per output channel of a weight, else one per weight.
        aligned: adds channels of zeros where that lets ONNX Runtime use its fast kernels (see
            :mod:`edgert.quantize.align`): the same numbers, but inner tensors are wider than in ``graph``.
        rounded: weight name → int8 values of its shape decided elsewhere, for the scales of
            :func:`~edgert.quantize.weight.weight_scales`.
        span: smallest and largest value of the tensors that share a scale.

    Raises:
        ValueError: ``affine`` without ``span``.
        ModelError: the graph is older than opset 13.
    """
    if graph.opset < _OPSET:
        raise ModelError(
            f"opset {graph.opset} cannot hold one weight scale per channel",
            why=f"DequantizeLinear takes them from opset {_OPSET} on",
            fix="convert the model first (prepare does)",
        )
    if scheme.target == "ort":
        if activation == "affine" and span is None:
            raise ValueError("affine storage needs the smallest and largest values: span")
        if aligned:
            graph, rounded = align(graph, rounded)
        stored = roundings(graph, scheme, amax, storage, activation, span)
        return lower_ort(graph, absorb(graph, scheme, stored), stored, per_channel, rounded)
    return lower_trt(graph, scheme, amax, per_channel, rounded)
