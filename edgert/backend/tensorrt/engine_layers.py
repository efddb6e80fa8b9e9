"""The layers of a built engine, their accelerators and times, from TensorRT's engine inspector, log and profiler.

The inspector's JSON is that of ``EngineInspector.get_engine_information`` with detailed profiling verbosity, an object
with ``Layers``. For engines built with less verbosity, it lists only names of layers.
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgert.backend.tensorrt.log import LogRecord, foreign_ends, logged_accelerators
from edgert.backend.tensorrt.network import known_names, metadata_names
from edgert.backend.tensorrt.sessions import TrtSession
from edgert.errors import BuildError

Accelerator = Literal["gpu", "dla", ""]
_FUSED = re.compile(r" \+ |PWN\(|, |\)")
_TRANSFER = re.compile(r"^.+ (?:to|from) nvm$|^.+ copy finish$")
"""Layers that copy tensors to or from a DLA; they run no node."""


@dataclass(frozen=True, slots=True)
class EngineLayer:
    """A layer of a built engine.

    A fused layer has the joined names of its parts. ``nodes`` are in TensorRT's form; ``kind`` and ``accelerator`` are
    empty if they are not reported. A transfer only copies a tensor to or from a DLA.
    """

    name: str
    kind: str
    accelerator: Accelerator
    nodes: tuple[str, ...]
    is_reformat: bool
    is_transfer: bool

    @property
    def moves(self) -> bool:
        """Whether the layer runs no node, but only changes a tensor's layout or type, or copies it."""
        return self.is_reformat or self.is_transfer


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Layers of a built engine. ``detailed`` is whether more than the names of layers is reported."""

    layers: tuple[EngineLayer, ...]
    detailed: bool

    @property
    def reformats(self) -> int:
        """Number of layers that only change layout or type."""
        return sum(layer.is_reformat for layer in self.layers)

    @property
    def loadables(self) -> int:
        """Number of DLA programs in the engine: each region on a DLA is one."""
        return sum(layer.accelerator == "dla" and not layer.is_transfer for layer in self.layers)


def engine_facts(text: str) -> EngineFacts:
    """Read an inspector's JSON. Raises BuildError for other text."""
    try:
        layers = json.loads(text)["Layers"]
        facts = tuple(_layer(layer) for layer in layers)
        return EngineFacts(facts, all(isinstance(one, dict) for one in layers))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(
            "cannot read the engine inspector's JSON",
            why=f"{type(error).__name__}: {error}; it begins {text[:60]!r}",
            fix="build with detailed profiling verbosity",
        ) from error


def logged_facts(records: Iterable[LogRecord]) -> EngineFacts:
    """Return the layers in the closing summary of a build's log, for engines that cannot be inspected."""
    layers = []
    for name, kind in logged_accelerators(records).items():
        accelerator: Accelerator = "dla" if kind == "dla" else "gpu"
        reformat, transfer = name.startswith("Reformatting CopyNode"), bool(_TRANSFER.match(name))
        layers.append(EngineLayer(name, "", accelerator, _names(name), reformat, transfer))
    return EngineFacts(tuple(layers), False)


def accelerators(facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]) -> dict[str, Accelerator]:
    """Return accelerators by node, without nodes that have no layer. ``nodes`` are output tensors by node."""
    pairs = zip(facts.layers, layer_nodes(facts, nodes), strict=True)
    return {name: layer.accelerator for layer, names in pairs for name in names}


def layer_nodes(facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of every layer; none for layers that change layouts or copy tensors.

    A DLA region of which TensorRT reports only the first and the last node also gets the nodes between them that no
    other layer has. ``nodes`` are output tensors by node, in execution order.
    """
    producers = {tensor: name for name, outputs in nodes.items() for tensor in outputs if tensor}
    nodes_of = [() if layer.moves else tuple(known_names(layer.nodes, nodes, producers)) for layer in facts.layers]
    assigned = {name for names in nodes_of for name in names}
    order = tuple(nodes)
    for position, layer in enumerate(facts.layers):
        names = nodes_of[position]
        is_range = layer.accelerator == "dla" and layer.nodes == foreign_ends(layer.name)
        if is_range and len(names) > 1:
            first, last = sorted((order.index(names[0]), order.index(names[-1])))
            region = tuple(name for name in order[first : last + 1] if name in names or name not in assigned)
            nodes_of[position] = region
            assigned.update(region)
    return tuple(nodes_of)


def _layer(layer: Any) -> EngineLayer:
    if isinstance(layer, str):
        layer = {"Name": layer}
    name, kind = str(layer["Name"]), str(layer.get("LayerType", ""))
    transfer = bool(_TRANSFER.match(name))
    accelerator: Accelerator = "gpu" if kind or not (foreign_ends(name) or transfer) else ""
    return EngineLayer(
        name,
        kind,
        "dla" if "dla" in kind.lower() else accelerator,
        metadata_names(str(layer.get("Metadata", ""))) or _names(name),
        kind == "Reformat" or name.startswith("Reformatting CopyNode"),
        transfer,
    )


def _names(name: str) -> tuple[str, ...]:
    """Return the layers in a name like ``a + b``, ``PWN(a, b)`` or ``{ForeignNode[a...b]}``."""
    ends = foreign_ends(name)
    return ends or tuple(part.strip() for part in _FUSED.split(name) if part.strip())


# Times of an engine's layers, by TensorRT's profiler, and the ONNX nodes of these layers.

_WARM_UP = 3


def layer_times(session: TrtSession, runs: int) -> dict[str, float]:
    """Return median milliseconds by layer, in execution order. Blocks; later runs of the session are slower.

    If a layer is reported several times in a run, its times are added. Complete runs take longer than the sum of their
    layers, as TensorRT does not report the gaps between them.
    """
    for _ in range(_WARM_UP):
        session.run()
    runs_ms: list[defaultdict[str, float]] = []

    def add(name: str, ms: float) -> None:
        runs_ms[-1][name] += ms

    session.profile(add)
    for _ in range(runs):
        runs_ms.append(defaultdict(float))
        session.run()
    names = dict.fromkeys(name for run_ms in runs_ms for name in run_ms)
    return {name: statistics.median(run_ms[name] for run_ms in runs_ms) for name in names}


def times_with_nodes(
    times: Mapping[str, float], facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Return the layers of :func:`layer_times` with the nodes that they compute, as plain data.

    Nodes and accelerator are empty if they are unknown. ``moves`` is whether the layer only changes a tensor's layout,
    or copies it to or from a DLA. ``nodes`` are output tensors by node, in execution order.
    """
    layers = {layer.name: (layer, names) for layer, names in zip(facts.layers, layer_nodes(facts, nodes), strict=True)}
    unknown = EngineLayer("", "", "", (), False, False)
    found = []
    for name, ms in times.items():
        layer, names = layers.get(name, (unknown, ()))
        where = {"nodes": list(names), "accelerator": layer.accelerator, "moves": layer.moves}
        found.append({"name": name, "median_ms": ms, **where})
    return found
