"""The scale of every tensor on a DLA: one set of numbers for the calibration cache, the Q/DQ form and the emulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edgert.graph.node import Graph
from edgert.quantize.operator import CLIPS, data_inputs, data_outputs
from edgert.quantize.point import Scheme
from edgert.quantize.prepare import calibrated
from edgert.quantize.scheme_trt import commutes
from edgert.quantize.share import Sharing
from edgert.quantize.weight import LIMIT

Amax = Callable[[tuple[str, ...]], float]


class DlaScales:
    """Tensor → scale, amax / 127 in float32; found when asked for.

    A tensor that the Q/DQ form rounds has the scale it has there. The others, which that form leaves in FP16 and a
    calibration cache names all the same, have that of the tensors they must share one with, or a range of their own.

    Args:
        graph: of a prepared model.
        scheme: for target ``dla``.
        amax: threshold of the tensors that share a scale.
    """

    def __init__(self, graph: Graph, scheme: Scheme, amax: Amax) -> None:
        self._scheme, self._amax = scheme, amax
        self._groups = dla_groups(graph)
        self._hidden = hidden(graph)
        self._known: dict[str, np.float32] = {}

    def __getitem__(self, tensor: str) -> np.float32:
        """Raises what ``amax`` raises for a tensor without a range."""
        if tensor not in self._known:
            self._known[tensor] = np.float32(self._threshold(tensor)) / np.float32(LIMIT)
        return self._known[tensor]

    def _threshold(self, tensor: str) -> float:
        own = self._rounded(tensor)
        if own:
            return own
        group = self._groups.get(tensor, (tensor,))
        shared = max(map(self._rounded, group))
        return shared or self._amax(tuple(name for name in group if name not in self._hidden) or group)

    def _rounded(self, tensor: str) -> float:
        """The threshold that the Q/DQ form has for a tensor, 0 where it does not round it."""
        point, group = self._scheme.points.get(tensor), self._scheme.groups.get(tensor)
        if point is None or not (point.amax or group):
            return 0.0
        return point.amax or self._amax(group or ())


def dla_scales(graph: Graph, scheme: Scheme, amax: Amax) -> Mapping[str, float]:
    """Scales of all float32 tensors whose values depend on what is fed, in the order they come to be; see
    :class:`DlaScales`."""
    scales = DlaScales(graph, scheme, amax)
    return {name: float(scales[name]) for name in calibrated(graph)}


def dla_groups(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Tensor → the tensors that must have its scale, itself among them: a DLA moves, pools, concatenates and bounds
    integers as they are."""
    sharing = Sharing()
    for node in graph.nodes:
        if not node.domain and (commutes(graph, node) or node.op in CLIPS):
            sharing.join([*data_inputs(graph, node), *data_outputs(graph, node)])
    return sharing.groups(calibrated(graph))


def hidden(graph: Graph) -> frozenset[str]:
    """Tensors that only a Relu or Clip reads: their own range says nothing of what is kept of them."""
    return frozenset(
        name
        for name, readers in graph.consumers.items()
        if name in graph.producers and graph.is_private(name) and readers[0].op in CLIPS and not readers[0].domain
    )
