"""A graph under construction: nodes as they come, stored tensors, names that nothing else has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph.node import Graph, Names, Node

Array = npt.NDArray[Any]
Scales = npt.NDArray[np.float32]


class Builder:
    """Collects the nodes of a new graph; equal tensors stored under one wanted name are stored once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self._constants: dict[str, Array] = {}
        self._stored: dict[tuple[str, str, bytes], str] = {}
        self._names = Names(graph)
        self._node_names = _NodeNames(graph)

    def name(self, wanted: str) -> str:
        """A tensor name like the wanted one."""
        return self._names.new(wanted)

    def store(self, array: Array, wanted: str) -> str:
        """Stores a tensor; returns its name."""
        key = (wanted, f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._stored:
            name = self._stored[key] = self.name(wanted)
            self._constants[name] = array
        return self._stored[key]

    def add(self, op: str, inputs: list[str], output: str, attributes: Mapping[str, Any] | None = None) -> str:
        """Adds a node named after its output; returns the output."""
        self.nodes.append(Node(op, tuple(inputs), (output,), attributes or {}, self._node_names.new(f"{output}_{op}")))
        return output

    def finish(self) -> Graph:
        """The new graph."""
        constants = {**self.graph.constants, **self._constants}
        return replace(self.graph, nodes=tuple(self.nodes), constants=constants)


class _NodeNames:
    def __init__(self, graph: Graph) -> None:
        self._taken = {node.name for node in graph.nodes}

    def new(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name


class Rounding:
    """Q and DQ nodes of one scale each.

    Attributes:
        scale: float32 scalar.
        zero: zero point, a scalar of the stored type.
    """

    def __init__(self, scale: float, zero: np.int8 | np.uint8) -> None:
        self.scale = np.float32(scale)
        self.zero = zero

    def quantize(self, builder: Builder, tensor: str, output: str, label: str) -> str:
        """Adds the Q from a tensor to ``output``."""
        return builder.add("QuantizeLinear", [tensor, *self._parameters(builder, label)], output)

    def dequantize(self, builder: Builder, stored: str, output: str, label: str) -> str:
        """Adds the DQ from a stored tensor to ``output``."""
        return builder.add("DequantizeLinear", [stored, *self._parameters(builder, label)], output)

    def integer(self, value: float) -> Array:
        """The stored form of a value, clipped to what can be stored."""
        bounds = np.iinfo(self.zero.dtype)
        step = np.rint(np.float64(value) / np.float64(self.scale)) + int(self.zero)
        return np.asarray(np.clip(step, bounds.min, bounds.max)).astype(self.zero.dtype)

    def _parameters(self, builder: Builder, label: str) -> list[str]:
        scale = builder.store(np.asarray(self.scale, np.float32), f"{label}_scale")
        return [scale, builder.store(np.asarray(self.zero), f"{label}_zero_point")]


def store_dequantized(builder: Builder, values: Array, scales: Scales, axis: int | None, label: str) -> str:
    """Stores integers behind a DQ, zero point 0, one scale or one per index of ``axis``; returns the DQ's output."""
    stored = builder.store(values, f"{label}_quantized")
    steps = builder.store(scales, f"{label}_scale")
    zeros = builder.store(np.zeros(scales.shape, values.dtype), f"{label}_zero_point")
    attributes = {} if axis is None else {"axis": axis}
    return builder.add("DequantizeLinear", [stored, steps, zeros], builder.name(f"{label}_dequantized"), attributes)
