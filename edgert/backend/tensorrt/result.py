"""Which layers of TensorRT an ONNX node became.

TensorRT's parser writes ``[ONNX Layer: name]`` into a layer's metadata, one for each node where several were fused,
with a record separator between them. A node without a name is called ``node_of_`` and its first output. Layers that
the parser adds (constants, casts, reshapes that broadcast) have no metadata: they belong to whoever reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgert.backend.tensorrt.log import LogRecord
from edgert.backend.tensorrt.trt_types import ILayer, INetworkDefinition, ITensor
from edgert.errors import BuildError

_MARK = "[ONNX Layer: "
_SPLIT = re.compile(r"\]?\x1e?\[ONNX Layer: ")
_UNNAMED = "node_of_"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the network that the parser made.

    Attributes:
        name, kind, metadata: as TensorRT tells them; the kind is ``CONVOLUTION`` and the like.
        inputs, outputs: tensor names.
        dtype: of its first output, ``FLOAT``; empty without one.
    """

    name: str
    kind: str
    metadata: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Layers and nodes.

    Attributes:
        nodes_of: for every layer, in order, the nodes it belongs to.
        own: for every layer, whether it computes a node, and does not only help one.
        layers_of: node → positions of its layers.
        folded: nodes that became no layer: constants, and what does nothing.
        stray: positions of layers that belong to no node.
    """

    nodes_of: tuple[tuple[str, ...], ...]
    own: tuple[bool, ...]
    layers_of: Mapping[str, tuple[int, ...]]
    folded: tuple[str, ...]
    stray: tuple[int, ...]


def network_layers(network: INetworkDefinition) -> tuple[Layer, ...]:
    """The layers of a parsed network."""
    return tuple(_layer(network.get_layer(index)) for index in range(network.num_layers))


def metadata_names(metadata: str) -> tuple[str, ...]:
    """The names in a layer's metadata; a name may itself have brackets."""
    if _MARK not in metadata:
        return ()
    parts = _SPLIT.split(metadata)[1:]
    return tuple(dict.fromkeys(part.removesuffix("]") for part in parts))


def correspond(layers: Sequence[Layer], nodes: Mapping[str, tuple[str, ...]]) -> Correspondence:
    """Matches layers with nodes.

    Args:
        layers: in the network's order.
        nodes: node → its output tensors.
    """
    makers = {tensor: name for name, outputs in nodes.items() for tensor in outputs if tensor}
    direct = [_direct(layer, nodes, makers) for layer in layers]
    readers: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor, []).append(position)
    nodes_of = _helped(layers, direct, readers)
    layers_of: dict[str, list[int]] = {}
    for position, names in enumerate(nodes_of):
        for name in names:
            layers_of.setdefault(name, []).append(position)
    return Correspondence(
        tuple(nodes_of),
        tuple(bool(names) for names in direct),
        {name: tuple(found) for name, found in layers_of.items()},
        tuple(name for name in nodes if name not in layers_of),
        tuple(position for position, names in enumerate(nodes_of) if not names),
    )


def known_names(names: Sequence[str], nodes: Mapping[str, object], makers: Mapping[str, str]) -> Iterator[str]:
    """The nodes that TensorRT's names for them mean; unknown ones are left out."""
    for name in names:
        if name in nodes:
            yield name
        elif name.removeprefix(_UNNAMED) in makers and name.startswith(_UNNAMED):
            yield makers[name.removeprefix(_UNNAMED)]


def _direct(layer: Layer, nodes: Mapping[str, object], makers: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes a layer computes: told by its metadata, by its name, or by the tensor that it leaves."""
    told = metadata_names(layer.metadata) or (layer.name,)
    found = tuple(known_names(told, nodes, makers))
    return found or tuple(dict.fromkeys(makers[tensor] for tensor in layer.outputs if tensor in makers))


def _helped(
    layers: Sequence[Layer], direct: Sequence[tuple[str, ...]], readers: Mapping[str, list[int]]
) -> list[tuple[str, ...]]:
    """The nodes of every layer, those of a helper being its readers'; layers stand in the order they run, or nearly."""
    found = list(direct)
    changed = True
    while changed:
        changed = False
        for position in range(len(layers) - 1, -1, -1):
            if not found[position]:
                following = [reader for tensor in layers[position].outputs for reader in readers.get(tensor, ())]
                names = tuple(dict.fromkeys(name for reader in following for name in found[reader]))
                found[position], changed = names, changed or bool(names)
    return found


def _layer(layer: ILayer) -> Layer:
    outputs = tuple(_name(layer.get_output(index)) for index in range(layer.num_outputs))
    return Layer(
        layer.name,
        layer.type.name,
        layer.metadata or "",
        tuple(_name(layer.get_input(index)) for index in range(layer.num_inputs)),
        outputs,
        layer.get_output(0).dtype.name if outputs else "",
    )


def _name(tensor: ITensor) -> str:
    """Empty for an optional input that is left out."""
    return "" if tensor is None else str(tensor.name)


# The error of a build that TensorRT began and did not finish; unlike a refusal, it may help to try otherwise.


class CompileError(BuildError):
    """TensorRT's compiler failed, or crashed.

    Attributes:
        log: what it said.
        crashed: whether it took its process down.
    """

    log: Sequence[LogRecord] = ()
    crashed: bool = False


# What a build gives, and what it says on the way.


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a phase; phases are nested.

    Attributes:
        phase: what TensorRT calls it.
        parent: the phase it is part of, empty for none.
        step, steps: how far it is; ``step == steps`` ends it.
    """

    phase: str
    parent: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """An engine and how it came about.

    Attributes:
        plan: the serialized engine.
        timing_cache: what was measured, for the next build; empty where this TensorRT measures nothing.
        log: what TensorRT said, without the verbose lines that mean nothing to edgert.
        inspector: its own JSON about the engine's layers; empty where the engine cannot be opened, as without a GPU.
        layers: of the network that TensorRT's parser made.
        refused: nodes placed on a DLA whose layers TensorRT says cannot run there, before building.
        library: ``TensorRT 10.3.0``.
        seconds: spent building.
    """

    plan: bytes
    timing_cache: bytes
    log: tuple[LogRecord, ...]
    inspector: str
    layers: tuple[Layer, ...]
    refused: tuple[str, ...]
    library: str
    seconds: float
