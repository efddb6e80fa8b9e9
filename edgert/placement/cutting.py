"""Checks of a model's ``placement:`` section, and models cut into parts where the accelerator changes.

A part is a connected set of ONNX nodes on one accelerator. Parts are listed in an order in which they can run.
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
"""Maximum number of parts of a model: each has its own thread and tensors, and more threads would mostly wait."""


def partition(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """Return the fewest possible parts, each after those whose results it reads.

    Args:
        graph: graph of the model.
        accelerators: node name → accelerator, for every node.

    Raises:
        PlacementError: there are more than :data:`MOST_PARTS` parts.
    """
    found = parts(graph, accelerators)
    if len(found) > MOST_PARTS:
        ends = ", ".join(f"{part.nodes[0]} ({part.accelerator})" for part in found[:6])
        raise PlacementError(
            f"this placement cuts the model into {len(found)} segments",
            why=f"each segment needs its own thread, and at most {MOST_PARTS} are allowed; they begin at {ends} …",
            fix="assign larger connected parts: a glob for a complete block, such as '/head/*'",
        )
    return found


def cut(graph: Graph, part: Part, like: Model) -> Model:
    """Return a part as a model whose inputs and outputs are the tensors at its cuts.

    Raises:
        PlacementError: the type or size of one of these tensors is known only when the model runs.
    """
    try:
        found = extract(graph, part.outputs, part.inputs)
    except ModelError as error:
        raise _uncuttable_error(part, error.what) from error
    ends = {spec.name for spec in (*graph.inputs, *graph.outputs)}
    for spec in (*found.inputs, *found.outputs):
        if spec.name not in ends and not spec.is_static:
            raise _uncuttable_error(part, f"the size of tensor {spec} is known only when the model runs")
    return write(found, like)


def _uncuttable_error(part: Part, why: str) -> PlacementError:
    fix = "keep the nodes on both sides of that tensor on one accelerator"
    return PlacementError(f"the model cannot be cut around its {part}", why=why, fix=fix)


# The section of the pipeline file.


def weights_of(placement: PlacementConfig) -> Mapping[str, int]:
    """Return accelerator → weight of its copy of the model; empty for a cut model or ``auto``."""
    if isinstance(placement, ReplicateConfig):
        return placement.replicate
    return {placement: 1} if isinstance(placement, str) and placement != "auto" else {}


def accelerators_of(placement: PlacementConfig) -> tuple[str, ...]:
    """Return all accelerators named in the section."""
    named = placement.values() if isinstance(placement, dict) else weights_of(placement)
    return tuple(dict.fromkeys(named))


def check_accelerators(wanted: Collection[str], known: Collection[str]) -> None:
    """Raise PlacementError for an accelerator that this machine lacks or that edgert cannot use here."""
    name = next((name for name in wanted if name not in known), None)
    if name is None:
        return
    have = ", ".join(sorted(known)) or "none: this system cannot pin a thread to a core"
    if name.startswith(("gpu", "dla")):
        raise PlacementError(
            f"this machine has no {name} that models can be placed on",
            why=f"available accelerators: {have}",
            fix="placement: auto here; 'edgert plan --board NAME' shows what a Jetson would do with it",
        )
    raise PlacementError(
        f"this machine has no accelerator {name!r}{nearest(name, known)}",
        why=f"there is one accelerator for every core this process may use: {have}",
        fix="name one of them, or placement: auto",
    )


def assign(graph: Graph, globs: Mapping[str, str], original: Collection[str]) -> dict[str, str]:
    """Return node → accelerator by the last matching glob; other nodes go to the first glob's accelerator.

    Added QuantizeLinear nodes stay with the node before them, and added DequantizeLinear nodes with the node after
    them. So accelerators exchange INT8 tensors instead of floats.

    Args:
        graph: graph of the model as it will run.
        globs: glob of node names → accelerator.
        original: node names of the model file; ``graph`` may have folded some and added others.

    Raises:
        PlacementError: a glob matches no node.
    """
    names = [node.name for node in graph.nodes]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in (*names, *original)):
            raise unmatched_glob_error(glob, [*original, *names])
    default = next(iter(globs.values()))
    found = {name: [place for glob, place in globs.items() if fnmatchcase(name, glob)] for name in names}
    places = {name: (fits or [default])[-1] for name, fits in found.items()}
    own = set(original)
    for node in graph.nodes:
        if node.op == "QuantizeLinear" and node.name not in own and node.inputs[0] in graph.producers:
            places[node.name] = places[graph.producers[node.inputs[0]].name]
    for node in reversed(graph.nodes):
        readers = graph.consumers.get(node.outputs[0], ())
        if node.op == "DequantizeLinear" and node.name not in own and readers:
            places[node.name] = places[readers[0].name]
    return places


def unmatched_glob_error(glob: str, names: Collection[str]) -> PlacementError:
    """Return the error for a glob that matches none of these names."""
    plain = glob.strip("*/")
    inside = [name for name in dict.fromkeys(names) if plain and plain.casefold() in name.casefold()]
    shown = ", ".join((inside or list(dict.fromkeys(names)))[:5])
    scopes = dict.fromkeys(scope for name in names for scope in accumulate(name.strip("/").split("/"), "{}/{}".format))
    return PlacementError(
        f"placement {glob!r} matches no node{nearest(plain, scopes)}",
        why=f"{'similar nodes' if inside else 'its nodes'}: {shown} …",
        fix="correct the glob: it may contain * ? and [abc], and is case-sensitive; Netron shows node names",
    )
