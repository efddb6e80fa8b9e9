"""How long each layer of an engine takes, told by TensorRT's profiler, and which ONNX nodes that time is of."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from edgert.backend.trt.inspect import Accelerator, EngineFacts, layer_nodes
from edgert.backend.trt.session import TrtSession

_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer of a built engine.

    Attributes:
        name: TensorRT's.
        median_ms: of a run.
        nodes: the ONNX nodes in it; empty where nobody knows, and for what runs no node.
        accelerator: where it runs; empty where nobody knows.
        moves: whether it only changes a tensor's layout, or hands it to a DLA or back.
    """

    name: str
    median_ms: float
    nodes: tuple[str, ...]
    accelerator: Accelerator
    moves: bool


def layer_times(session: TrtSession, runs: int) -> dict[str, float]:
    """Layer → median milliseconds, in the order they run. Blocks; the session runs slower from now on.

    A layer that is told several times in a run counts with their sum. Whole runs take longer than the sum of their
    layers: TensorRT times each by itself, with the gaps between them left out.
    """
    for _ in range(_WARM_UP):
        session.run()
    taken: list[defaultdict[str, float]] = []

    def told(name: str, ms: float) -> None:
        taken[-1][name] += ms

    session.profile(told)
    for _ in range(runs):
        taken.append(defaultdict(float))
        session.run()
    names = dict.fromkeys(name for one in taken for name in one)
    return {name: statistics.median(one[name] for one in taken) for name in names}


def mapped(times: Mapping[str, float], facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]) -> list[LayerTime]:
    """The layers with the nodes that they are of.

    Args:
        times: of :func:`layer_times`.
        facts: of the engine.
        nodes: ONNX node → its outputs, in the order they run.
    """
    known = {layer.name: (layer, names) for layer, names in zip(facts.layers, layer_nodes(facts, nodes), strict=True)}
    found = []
    for name, ms in times.items():
        if name not in known:
            found.append(LayerTime(name, ms, (), "", False))
            continue
        layer, names = known[name]
        found.append(LayerTime(name, ms, names, layer.accelerator, layer.moves))
    return found
