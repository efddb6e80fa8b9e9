"""The records of a decision what becomes INT8: points, skipped nodes, and the scheme they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dla import Form
from dla import Target as Dla
from edgert.quantization.fuse import Unit

Target = Literal["ort", "gpu", "dla"]
"""ONNX Runtime's integer kernels; TensorRT on a GPU, strongly typed; TensorRT on a DLA, strongly typed."""

USUAL_DLA = Dla()
"""Whose DLA is meant where nobody says: Orin's, with the TensorRT of JetPack 6."""


@dataclass(frozen=True, slots=True)
class Point:
    """A tensor that is rounded to 8 bits.

    Attributes:
        tensor: its name.
        readers: names of the nodes that read it rounded; others read it as it was.
        is_output: the graph gives it out rounded.
        is_hidden: a Relu or Clip of the same scale reads it and nothing else, so its own range says nothing.
        amax: its largest magnitude where that is known without measuring; 0 where it is not.
    """

    tensor: str
    readers: tuple[str, ...]
    is_output: bool = False
    is_hidden: bool = False
    amax: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node that stays in floating point though one like it could be INT8, and why."""

    node: str
    reason: str


@dataclass(frozen=True, eq=False)
class Scheme:
    """What becomes INT8.

    Attributes:
        target: who runs it.
        units: what runs in INT8, in order; the names are what ``keep`` takes.
        points: tensor → its point, in the order the tensors come to be.
        groups: tensor of a point → the tensors whose values decide its scale. Tensors with one scale have the same.
        direct: nodes that work on the stored integers themselves: they move, pick or bound values.
        kept: units left in higher precision because that was asked for.
        skipped: nodes left in floating point for other reasons.
        forms: node → how the DLA runs it, for target ``dla``; empty for others.
    """

    target: Target
    units: tuple[Unit, ...]
    points: Mapping[str, Point]
    groups: Mapping[str, tuple[str, ...]]
    direct: frozenset[str]
    kept: tuple[Unit, ...]
    skipped: tuple[Skipped, ...]
    forms: Mapping[str, Form] = field(default_factory=dict)

    @property
    def weighted(self) -> frozenset[str]:
        """Names of the nodes whose weights become INT8."""
        return frozenset(unit.name for unit in self.units if unit.weight)

    @property
    def needed(self) -> tuple[str, ...]:
        """Tensors whose range must be known."""
        found = dict.fromkeys(name for group in self.groups.values() for name in group)
        return tuple(name for name in found if not self.points[name].amax)
