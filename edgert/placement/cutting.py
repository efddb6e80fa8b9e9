"""Checks of a model's ``placement:`` section, and the model cut where its accelerators change, part by part.

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
"""Most parts of a model: each is a thread with tensors of its own, and more threads would mostly wait."""


def partition(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """Return the fewest parts, in an order in which each follows those it reads.

    Args:
        graph: the graph.
        accelerators: node name → accelerator, for every node.

    Raises:
        PlacementError: more than :data:`MOST_PARTS`.
    """
    found = parts(graph, accelerators)
    if len(found) > MOST_PARTS:
        ends = ", ".join(f"{part.nodes[0]} ({part.accelerator})" for part in found[:6])
        raise PlacementError(
            f"this placement cuts the model into {len(found)} segments",
            why=f"each is a thread of its own, and at most {MOST_PARTS} are allowed; they begin at {ends} …",
            fix="assign larger connected parts: a glob for a whole block, such as '/head/*'",
        )
    return found


def cut(graph: Graph, part: Part, like: Model) -> Model:
    """Return a part as a model whose inputs and outputs are the tensors that it reads and writes.

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


# The section of the pipeline file.


def weights_of(placement: PlacementConfig) -> Mapping[str, int]:
    """Return accelerator → weight for a model that runs completely on each; empty for a cut model or ``auto``."""
    if isinstance(placement, ReplicateConfig):
        return placement.replicate
    return {placement: 1} if isinstance(placement, str) and placement != "auto" else {}


def accelerators_of(placement: PlacementConfig) -> tuple[str, ...]:
    """Return all accelerators that the section names."""
    named = placement.values() if isinstance(placement, dict) else weights_of(placement)
    return tuple(dict.fromkeys(named))


def check_accelerators(wanted: Collection[str], known: Collection[str]) -> None:
    """Raise PlacementError for an accelerator that this machine does not have, or that edgert cannot use here."""
    name = next((name for name in wanted if name not in known), None)
    if name is None:
        return
    have = ", ".join(sorted(known)) or "none: this system cannot pin a thread to a core"
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
    """Return node → accelerator: the last glob that matches decides; other nodes go where the first glob does.

    Nodes of a quantized model that the file does not name stay with those they serve: QuantizeLinear with the node
    before it, DequantizeLinear with the node behind it. So bytes go between accelerators and not floats.

    Args:
        graph: the model as it will run.
        globs: glob of node names → accelerator.
        original: names of the file's nodes, of which ``graph`` may have folded some and added others.

    Raises:
        PlacementError: a glob matches no node.
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
    """Return the error for a glob that matches none of these names."""
    plain = glob.strip("*/")
    inside = [name for name in dict.fromkeys(names) if plain and plain.casefold() in name.casefold()]
    shown = ", ".join((inside or list(dict.fromkeys(names)))[:5])
    scopes = dict.fromkeys(scope for name in names for scope in accumulate(name.strip("/").split("/"), "{}/{}".format))
    return PlacementError(
        f"placement {glob!r} matches no node{nearest(plain, scopes)}",
        why=f"{'similar nodes' if inside else 'its nodes'}: {shown} …",
        fix="correct the glob: it may have * ? and [abc], and its case counts; Netron shows the names of nodes",
    )
