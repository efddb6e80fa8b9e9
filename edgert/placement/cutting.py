"""The ``placement:`` section of a model, checked, and the model cut where its accelerators change, part by part.

A part is a segment as ONNX nodes and tensors, in an order in which the parts can run.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate

from edgert.config.engine_choice import PlacementConfig, ReplicateConfig
from edgert.errors import ModelError, PlacementError, nearest
from edgert.graph import Graph, Model, extract, write
from edgert.graph.partition import Part, parts

__all__ = ["MOST_PARTS", "Part", "cut", "partition"]

MOST_PARTS = 16
"""Each is a thread with tensors of its own; beyond this a pipeline of them only waits."""


def partition(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """The fewest parts, in an order in which each follows those it reads.

    Args:
        accelerators: node name → accelerator, for every node.

    Raises:
        PlacementError: more than :data:`MOST_PARTS`.
    """
    found = parts(graph, accelerators)
    if len(found) > MOST_PARTS:
        ends = ", ".join(f"{part.nodes[0]} ({part.accelerator})" for part in found[:6])
        raise PlacementError(
            f"this placement cuts the model into {len(found)} segments",
            why=f"each is a thread of its own, and there are {MOST_PARTS} at most; they begin at {ends} …",
            fix="assign larger connected parts: a glob for a whole block, such as '/head/*'",
        )
    return found


def cut(graph: Graph, part: Part, like: Model) -> Model:
    """A part as a model whose inputs and outputs are the tensors that go into it and out of it.

    Raises:
        PlacementError: the type or size of one of these tensors is not known before the model runs.
    """
    try:
        found = extract(graph, part.outputs, part.inputs)
    except ModelError as error:
        raise _not_there(part, error.what) from error
    ends = {spec.name for spec in (*graph.inputs, *graph.outputs)}
    for spec in (*found.inputs, *found.outputs):
        if spec.name not in ends and not spec.is_static:
            raise _not_there(part, f"tensor {spec} has a size that is not known before the model runs")
    return write(found, like)


def _not_there(part: Part, why: str) -> PlacementError:
    fix = "keep the nodes on both sides of that tensor on one accelerator"
    return PlacementError(f"the model cannot be cut around its {part}", why=why, fix=fix)


# The section.


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
    name = next((name for name in wanted if name not in known), None)
    if name is None:
        return
    have = ", ".join(sorted(known)) or "none: this system cannot keep a thread on a core"
    if name.startswith(("gpu", "dla")):
        raise PlacementError(
            f"this machine has no {name} that models can be placed on",
            why=f"its accelerators: {have}",
            fix="placement: auto here; 'edgert plan --board NAME' shows what a Jetson would do with it",
        )
    raise PlacementError(
        f"this machine has no accelerator {name!r}{nearest(name, known)}",
        why=f"there is one for every core this process may use: {have}",
        fix="name one of them, or placement: auto",
    )


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
        readers = graph.consumers.get(node.outputs[0], ())
        if node.op == "DequantizeLinear" and node.name not in own and readers:
            places[node.name] = places[readers[0].name]
    return places


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
