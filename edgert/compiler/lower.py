"""A calibrated model in the form that a weakly typed TensorRT takes: a calibration cache, and what stays in FP16."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgert.errors import CalibrationError
from edgert.graph.model import Model
from edgert.graph.node import Graph, read
from edgert.quantize.cache import cache_of, parse_cache
from edgert.quantize.dla_scale import dla_scales
from edgert.quantize.exception import fp16_exceptions, layer_precisions
from edgert.quantize.scheme import Dla, scheme
from edgert.quantize.table import RangeTable


@dataclass(frozen=True, slots=True)
class Weak:
    """What TensorRT up to 10 needs besides the float model.

    Attributes:
        cache: text of the calibration cache.
        half: nodes that stay FP16, in the order they run.
        layer_precisions: the same for trtexec's option of that name; empty where a name cannot be said there.
    """

    cache: str
    half: tuple[str, ...]
    layer_precisions: str


def lower_weak(model: Model, table: RangeTable, keep: Collection[str], dla: Dla) -> Weak:
    """Lowers a float model.

    Args:
        model: prepared, the one the ranges were measured on.
        keep: units that stay in higher precision.
        dla: whose rules hold; its release will read the cache.

    Raises:
        CalibrationError: see :func:`~edgert.quantize.cache.cache_of`.
    """
    graph = read(model)
    plan = scheme(graph, "dla", frozenset(keep), dla)
    half = fp16_exceptions(graph, plan)
    try:
        told = layer_precisions(half)
    except CalibrationError:  # a comma or the like in a name: only the command line cannot say it
        told = ""
    return Weak(cache_of(graph, plan, table.amax, dla.tensorrt), half, told)


def scales_of(graph: Graph, table: RangeTable, keep: Collection[str], dla: Dla) -> Mapping[str, float]:
    """Tensor → its INT8 scale on a DLA."""
    return dla_scales(graph, scheme(graph, "dla", frozenset(keep), dla), table.amax)


def check_weak(cache: str, half: Collection[str], graph: Graph) -> str:
    """Holds a cache to its promise, a scale for every tensor that the graph computes, and says so in a line.

    Raises:
        CalibrationError: the text does not read back, or names a tensor or node that the graph does not have.
    """
    found = parse_cache(cache)
    known = graph.names
    nodes = {node.name for node in graph.nodes}
    for name in (*(set(found.scales) - known), *(set(half) - nodes)):
        raise CalibrationError(f"the calibration cache names {name!r}", why="the model has no such tensor or node")
    return f"{len(found.scales)} scales for TensorRT {found.version}, {len(half)} nodes in FP16"
