"""The nodes that stay in FP16 where TensorRT up to 10 builds in INT8, and how trtexec is told."""

from __future__ import annotations

from collections.abc import Iterable

from edgert.errors import CalibrationError
from edgert.graph.node import Graph
from edgert.quantize.point import Scheme

_RESERVED = (",", "'", "*")
"""trtexec splits its list at commas, takes quotes for its own, and matches a star with anything."""


def fp16_exceptions(graph: Graph, scheme: Scheme) -> tuple[str, ...]:
    """Names of the nodes of all units that are kept in higher precision, in the order they run.

    TensorRT's ONNX parser names a layer after its node. Where a node becomes several layers, the further ones get a
    number behind the name, and a name that is there twice gets one as well: hence unique names (preparing a model gives
    them), and a look at the built engine's layers for what one node became.
    """
    kept = {name for unit in scheme.kept for name in unit.nodes}
    return tuple(node.name for node in graph.nodes if node.name in kept)


def is_sayable(name: str) -> bool:
    """Whether a node or tensor can be named on trtexec's command line."""
    return bool(name) and not any(mark in name for mark in _RESERVED)


def layer_precisions(nodes: Iterable[str], precision: str = "fp16") -> str:
    """The value of trtexec's ``--layerPrecisions``, ``"a:fp16,b:fp16"``; with ``--precisionConstraints=obey`` and
    ``--int8 --fp16``. Names may have colons: trtexec splits at the last one.

    Raises:
        CalibrationError: a name has a comma, a quote or a star in it, which trtexec would read as its own.
    """
    pairs = []
    for name in nodes:
        if not is_sayable(name):
            raise CalibrationError(
                f"node {name!r} cannot be named on trtexec's command line",
                why="commas, single quotes and stars have a meaning there",
                fix="rename it, or set layer.precision from Python",
            )
        pairs.append(f"{name}:{precision}")
    return ",".join(pairs)
