"""A convolution whose channels are taken apart afterwards, as one convolution for each part.

The filters are shared out, so there is as much to multiply as before, and nothing left to slice.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from edgert.graph.dla_rewrites.layout_moves import Tracer
from edgert.graph.dla_rewrites.rearrange import gathered
from edgert.graph.draft import Draft
from edgert.graph.ir import Graph, Node
from edgert.graph.passes.contract import Result

NAME = "conv-parts"
_CUTTERS = ("Slice", "Split")


def part_convolutions(graph: Graph) -> Result:
    """Convs that only Slice and Split along the channels read become one Conv for each of their outputs."""
    draft = Draft(graph, NAME)
    tracer = Tracer(draft)
    for node in graph.nodes:
        if node.op == "Conv" and not node.domain and node.outputs[0] not in graph.output_names:
            _part(draft, tracer, node)
    return draft.done()


def _part(draft: Draft, tracer: Tracer, conv: Node) -> None:
    readers = draft.graph.consumers.get(conv.outputs[0], ())
    if conv.attributes.get("group", 1) != 1 or not readers or any(item.op not in _CUTTERS for item in readers):
        return
    stored = [draft.value(name) for name in conv.inputs[1:] if name]
    names = [name for reader in readers for name in reader.outputs if name]
    ranges = {name: found for name in names if (found := _range(tracer, name)) is not None}
    if len(ranges) < len(names) or any(array is None for array in stored) or _overlaps([*ranges.values()]):
        return
    for reader in readers:
        parts = [_conv(draft, conv, name, ranges[name]) for name in reader.outputs if name]
        draft.put(reader, parts, f"its {len(parts)} part(s) computed by filters of {conv.name!r} of their own")


def _overlaps(ranges: list[range]) -> bool:
    """Whether any channel would be computed twice."""
    found = sorted(ranges, key=lambda item: item.start)
    return any(one.stop > two.start for one, two in pairwise(found))


def _range(tracer: Tracer, name: str) -> range | None:
    """The channels that a slice takes; None where it takes anything else."""
    move = tracer.move(name)
    found = None if move is None else gathered(move)
    if found is None or found.rows * found.columns > 1:
        return None
    first, last = int(found.channel[0]), int(found.channel[-1])
    return range(first, last + 1) if len(found.channel) == last - first + 1 else None


def _conv(draft: Draft, conv: Node, name: str, chosen: range) -> Node:
    """The filters of a Conv for some of its channels."""
    label = draft.label(f"{conv.name}/Conv")
    stored = []
    for given, what in zip(conv.inputs[1:], ("weight", "bias"), strict=False):
        array = draft.value(given) if given else None
        if array is not None:
            stored.append(draft.constant(array[chosen.start : chosen.stop], f"{label}_{what}"))
    return replace(conv, inputs=(conv.inputs[0], *stored), outputs=(name,), name=label)
