"""The layers of a built engine, where they run and how long: from TensorRT's engine inspector, log and profiler.

The JSON is that of ``EngineInspector.get_engine_information`` with detailed profiling verbosity, an object with
``Layers`` and ``Bindings``. An engine built with less verbosity lists names only; then everything else is unknown.
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgert.backend.tensorrt.log import LogRecord, foreign_ends, summary
from edgert.backend.tensorrt.network import known_names, metadata_names
from edgert.backend.tensorrt.sessions import TrtSession
from edgert.errors import BuildError

Accelerator = Literal["gpu", "dla", ""]
_FUSED = re.compile(r" \+ |PWN\(|, |\)")
_TRANSFER = re.compile(r"^.+ (?:to|from) nvm$|^.+ copy finish$")
"""Layers that copy tensors to or from a DLA; they run no node."""


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor as one layer sees it: its name, shape, and TensorRT's words for layout and type."""

    tensor: str
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True, slots=True)
class EngineLayer:
    """A layer of a built engine.

    Attributes:
        name: several names joined where it is fused.
        kind: TensorRT's name for it, empty where it is not reported.
        accelerator: where it runs; empty where that is not reported.
        nodes: names of the ONNX nodes in it, as TensorRT writes them.
        inputs, outputs: its tensors.
        is_reformat: whether it only changes layout or type.
        is_transfer: whether it only hands a tensor to a DLA or back.
    """

    name: str
    kind: str
    accelerator: Accelerator
    nodes: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    is_reformat: bool
    is_transfer: bool

    @property
    def moves(self) -> bool:
        """Whether it runs no node: it changes a tensor's layout or type, or hands it over."""
        return self.is_reformat or self.is_transfer


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """A built engine.

    Attributes:
        layers: in the order they run.
        bindings: names of its inputs and outputs.
        detailed: whether layers are reported with more than their names.
    """

    layers: tuple[EngineLayer, ...]
    bindings: tuple[str, ...]
    detailed: bool

    @property
    def reformats(self) -> int:
        """Layers that only change layout or type."""
        return sum(layer.is_reformat for layer in self.layers)

    @property
    def loadables(self) -> int:
        """DLA programs in the engine: each region on a DLA is one."""
        return sum(layer.accelerator == "dla" and not layer.is_transfer for layer in self.layers)


def engine_facts(text: str) -> EngineFacts:
    """Read an inspector's JSON. Raises BuildError for other text."""
    try:
        content = json.loads(text)
        layers = content["Layers"]
        facts = tuple(_layer(layer) for layer in layers)
        return EngineFacts(facts, tuple(content.get("Bindings", ())), all(isinstance(one, dict) for one in layers))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(
            "the engine inspector's answer cannot be read",
            why=f"{type(error).__name__}: {error}; it begins {text[:60]!r}",
            fix="build with detailed profiling verbosity",
        ) from error


def logged_facts(records: Iterable[LogRecord]) -> EngineFacts:
    """Return the layers in the summary at the end of a build's log, for engines without inspector; else none."""
    layers = []
    for name, kind in summary(records).items():
        accelerator: Accelerator = "dla" if kind == "dla" else "gpu"
        reformat, transfer = name.startswith("Reformatting CopyNode"), bool(_TRANSFER.match(name))
        layers.append(EngineLayer(name, "", accelerator, _names(name), (), (), reformat, transfer))
    return EngineFacts(tuple(layers), (), False)


def accelerators(facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]) -> dict[str, Accelerator]:
    """Return node → accelerator; nodes whose layers were folded away are absent. ``nodes``: see :func:`layer_nodes`."""
    pairs = zip(facts.layers, layer_nodes(facts, nodes), strict=True)
    return {name: layer.accelerator for layer, names in pairs for name in names}


def layer_nodes(facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of every layer; none for layers that change layouts or copy tensors.

    A region that lists its first and last node only has the nodes between them that no other layer claims. ``nodes`` is
    node → its outputs, in the order they run.
    """
    makers = {tensor: name for name, outputs in nodes.items() for tensor in outputs if tensor}
    found = [() if layer.moves else tuple(known_names(layer.nodes, nodes, makers)) for layer in facts.layers]
    claimed = {name for names in found for name in names}
    order = tuple(nodes)
    for at, layer in enumerate(facts.layers):
        is_range = layer.accelerator == "dla" and layer.nodes == foreign_ends(layer.name)
        if is_range and len(found[at]) > 1:
            first, last = sorted((order.index(found[at][0]), order.index(found[at][-1])))
            found[at] = tuple(name for name in order[first : last + 1] if name in found[at] or name not in claimed)
            claimed.update(found[at])
    return tuple(found)


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
        tuple(map(_port, layer.get("Inputs", ()))),
        tuple(map(_port, layer.get("Outputs", ()))),
        kind == "Reformat" or name.startswith("Reformatting CopyNode"),
        transfer,
    )


def _names(name: str) -> tuple[str, ...]:
    """Return the layers in a name like ``a + b``, ``PWN(a, b)`` or ``{ForeignNode[a...b]}``."""
    ends = foreign_ends(name)
    return ends or tuple(part.strip() for part in _FUSED.split(name) if part.strip())


def _port(port: Mapping[str, Any]) -> Port:
    shape = tuple(int(dim) for dim in port.get("Dimensions", ()))
    return Port(str(port.get("Name", "")), shape, str(port.get("Format/Datatype", port.get("Format", ""))))


# How long each layer of an engine takes, by TensorRT's profiler, and which ONNX nodes that time is of.

_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer of a built engine.

    Attributes:
        name: TensorRT's.
        median_ms: of a run.
        nodes: the ONNX nodes in it; empty where that is unknown, and for what runs no node.
        accelerator: where it runs; empty where that is unknown.
        moves: whether it only changes a tensor's layout, or hands it to a DLA or back.
    """

    name: str
    median_ms: float
    nodes: tuple[str, ...]
    accelerator: Accelerator
    moves: bool


def layer_times(session: TrtSession, runs: int) -> dict[str, float]:
    """Return layer → median milliseconds, in the order they run. Blocks; the session runs slower from now on.

    A layer that is reported several times in a run counts with their sum. Complete runs take longer than the sum of
    their layers, because TensorRT leaves out the gaps between them.
    """
    for _ in range(_WARM_UP):
        session.run()
    taken: list[defaultdict[str, float]] = []

    def add(name: str, ms: float) -> None:
        taken[-1][name] += ms

    session.profile(add)
    for _ in range(runs):
        taken.append(defaultdict(float))
        session.run()
    names = dict.fromkeys(name for one in taken for name in one)
    return {name: statistics.median(one[name] for one in taken) for name in names}


def mapped(times: Mapping[str, float], facts: EngineFacts, nodes: Mapping[str, tuple[str, ...]]) -> list[LayerTime]:
    """Return the layers of :func:`layer_times`, with the nodes that they compute.

    ``nodes`` is ONNX node → its outputs, in the order they run.
    """
    known = {layer.name: (layer, names) for layer, names in zip(facts.layers, layer_nodes(facts, nodes), strict=True)}
    unknown = EngineLayer("", "", "", (), (), (), False, False)
    found = []
    for name, ms in times.items():
        layer, names = known.get(name, (unknown, ()))
        found.append(LayerTime(name, ms, names, layer.accelerator, layer.moves))
    return found
