"""The ``placement:`` section of a model, checked against its nodes and this machine's accelerators."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate

from edgert.config.engine_choice import PlacementConfig, ReplicateConfig
from edgert.errors import PlacementError, nearest
from edgert.graph import Graph, Node


def weights_of(placement: PlacementConfig) -> Mapping[str, int]:
    """Accelerator → weight, for a model that runs whole on each; empty for one that is cut, or ``auto``."""
    if isinstance(placement, ReplicateConfig):
        return placement.replicate
    return {placement: 1} if isinstance(placement, str) and placement != "auto" else {}


def accelerators_of(placement: PlacementConfig) -> tuple[str, ...]:
    """All that it names."""
    named = placement.values() if isinstance(placement, dict) else weights_of(placement)
    return tuple(dict.fromkeys(named))


def check_accelerators(wanted: Collection[str], known: Collection[str]) -> None:
    """Raises PlacementError for an accelerator that this machine does not have, or that edgert cannot use here."""
    for name in wanted:
        if name not in known:
            raise _no_accelerator(name, known)


def assign(graph: Graph, globs: Mapping[str, str], original: Collection[str]) -> dict[str, str]:
    """Node → accelerator. The last glob that fits decides; what none fits goes where the first one puts it.

    Nodes of a quantized model that the file does not know stay with those they serve: QuantizeLinear with what it
    reads, DequantizeLinear with what reads it, so that bytes go between accelerators and not floats.

    Args:
        graph: the model as it will run.
        original: names of the file's nodes, of which ``graph`` may have folded some and added others.

    Raises:
        PlacementError: a glob fits no node.
    """
    names = [node.name for node in graph.nodes]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in (*names, *original)):
            raise no_node(glob, [*original, *names])
    usual = next(iter(globs.values()))
    found = {name: [place for glob, place in globs.items() if fnmatchcase(name, glob)] for name in names}
    places = {name: (fits or [usual])[-1] for name, fits in found.items()}
    own = set(original)
    for node in graph.nodes:
        if node.op == "QuantizeLinear" and node.name not in own and node.inputs[0] in graph.producers:
            places[node.name] = places[graph.producers[node.inputs[0]].name]
    for node in reversed(graph.nodes):
        if node.op == "DequantizeLinear" and node.name not in own and _readers(graph, node):
            places[node.name] = places[_readers(graph, node)[0].name]
    return places


def _readers(graph: Graph, node: Node) -> tuple[Node, ...]:
    return graph.consumers.get(node.outputs[0], ())


def _no_accelerator(name: str, known: Collection[str]) -> PlacementError:
    have = ", ".join(sorted(known)) or "none: this system cannot keep a thread on a core"
    if name.startswith(("gpu", "dla")):
        return PlacementError(
            f"this machine has no {name} that models can be placed on",
            why=f"its accelerators: {have}",
            fix="placement: auto here; 'edgert plan --board NAME' shows what a Jetson would do with it",
        )
    return PlacementError(
        f"this machine has no accelerator {name!r}{nearest(name, known)}",
        why=f"there is one for every core this process may use: {have}",
        fix="name one of them, or placement: auto",
    )


def no_node(glob: str, names: Collection[str]) -> PlacementError:
    """The error for a glob that fits none of these names."""
    plain = glob.strip("*/")
    inside = [name for name in dict.fromkeys(names) if plain and plain.casefold() in name.casefold()]
    shown = ", ".join((inside or list(dict.fromkeys(names)))[:5])
    scopes = dict.fromkeys(scope for name in names for scope in accumulate(name.strip("/").split("/"), "{}/{}".format))
    return PlacementError(
        f"placement {glob!r} fits no node{nearest(plain, scopes)}",
        why=f"{'nodes like it' if inside else 'its nodes'}: {shown} …",
        fix="globs know * ? and [abc], and mind upper and lower case; a viewer such as Netron shows the names",
    )
