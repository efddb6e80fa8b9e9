"""A graph cut where the accelerator changes: parts in an order in which they can run, and each as a model.

A part is a segment as ONNX nodes and tensors; only too many of them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgert.errors import ModelError, PlacementError
from edgert.graph.model import Model
from edgert.graph.node import Graph, extract, write
from edgert.graph.part import Part, parts
from edgert.graph.spec import TensorSpec

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
    """A part as a model whose inputs and outputs are the tensors it is handed and hands on.

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
            raise _not_there(part, _told(spec))
    return write(found, like)


def _told(spec: TensorSpec) -> str:
    return f"tensor {spec} has a size that is not known before the model runs"


def _not_there(part: Part, why: str) -> PlacementError:
    fix = "keep the nodes on both sides of that tensor on one accelerator"
    return PlacementError(f"the model cannot be cut around its {part}", why=why, fix=fix)
