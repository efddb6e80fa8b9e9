"""Rules about a node and its neighbors."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dla.limit import ELEMENTWISE, GUIDE, HEADER, ISSUE_RESHAPE, TYPED
from dla.node import Node, Verdict, Wiring, data_inputs, data_tensors
from dla.rule import Target
from dla.rules.general import COMPARISONS, INSTEAD

_JOINTS = ("Slice", "Split", "Concat")
_ONE_RANGE = ("Concat", "MaxPool", "AveragePool")
_LIKE_RANGES = ("Add", "Sub", "Mul", "Sum", "Max", "Min")
_SHARE_FIX = "give them one scale: edgert quantize --target dla does"

Found = Iterator[tuple[int, Verdict]]


@dataclass(frozen=True, slots=True)
class Context:
    """A graph with the current verdicts on its nodes.

    Attributes:
        nodes: nodes in topological order.
        verdicts: one per node; the rules change them.
        target: generation, release of TensorRT and precision.
        scaled: tensors with an INT8 scale, or a mapping from tensor to scale; None if unknown.
        wiring: edges between the remaining nodes; folded nodes are skipped.
    """

    nodes: Sequence[Node]
    verdicts: Sequence[Verdict]
    target: Target
    scaled: Collection[str] | None
    wiring: Wiring

    def places(self, *ops: str) -> Iterator[tuple[int, Node]]:
        """Yield position and node of the remaining nodes with these operators."""
        for place, node in enumerate(self.nodes):
            if node.op in ops and not self.wiring.folded[place]:
                yield place, node

    def lacks_scale(self, place: int) -> bool:
        """Return whether a node that may run on the DLA has a tensor without an INT8 scale."""
        if self.scaled is None or self.wiring.folded[place] or self.verdicts[place].answer == "no":
            return False
        return any(tensor.name not in self.scaled for tensor in data_tensors(self.nodes[place]))

    def scales(self, names: Sequence[str]) -> set[float]:
        """Return the distinct known INT8 scales of tensors; none for FP16."""
        known = self.scaled if self.target.is_int8 and isinstance(self.scaled, Mapping) else {}
        return {float(known[name]) for name in names if name in known}


@dataclass(frozen=True, slots=True)
class ContextRule:
    """A rule about a node and its neighbors; otherwise like :class:`~dla.rule.Rule`.

    ``test`` yields the positions of nodes, with a verdict on each.
    """

    name: str
    source: str
    about: str
    test: Callable[[Context], Found]


def reshape_beside_slice(context: Context) -> Found:
    """Refuse a Reshape directly before or behind a Slice, Split or Concat."""
    wiring = context.wiring
    for place, _ in context.places("Reshape"):
        touching = (*wiring.before[place], *wiring.after[place])
        joint = next((context.nodes[other] for other in touching if context.nodes[other].op in _JOINTS), None)
        if joint is not None:
            reason = f"it is directly before or behind {joint.op} {joint.name}, which the DLA refuses"
            yield place, Verdict("no", "context.reshape", reason, "move the reshape out of the network")


def comparison(context: Context) -> Found:
    """Require a comparison to be followed by a cast, and by nothing else."""
    for place, _ in context.places(*COMPARISONS):
        readers = context.wiring.after[place]
        casts = [reader for reader in readers if context.nodes[reader].op == "Cast"]
        if not casts:
            reason = "its result must be cast to FP16 or INT8 immediately"
            yield place, Verdict("no", "context.comparison", reason, "put a Cast to float behind it")
        elif len(readers) > 1:
            yield place, Verdict("verify", "context.comparison", "nodes other than its cast read the result")


def cast(context: Context) -> Found:
    """Place a cast where the comparison before it runs."""
    for place, node in context.places("Cast"):
        sources = context.wiring.before[place]
        if any(context.nodes[one].op in COMPARISONS and context.verdicts[one].answer != "no" for one in sources):
            continue
        yield place, Verdict("no", "context.cast", "there is no comparison on the DLA before it", INSTEAD[node.op])


def shared_scale(context: Context) -> Found:
    """Require one scale in INT8 for everything that a Concat or pooling reads and writes."""
    for place, node in context.places(*_ONE_RANGE):
        scales = context.scales([tensor.name for tensor in data_tensors(node)])
        if len(scales) > 1:
            reason = f"its inputs and outputs must have one scale, but have {len(scales)}"
            yield place, Verdict("no", "context.scale", reason, _SHARE_FIX)


def operand_scales(context: Context) -> Found:
    """Mark a sum or product whose operands have different INT8 scales."""
    for place, node in context.places(*_LIKE_RANGES):
        if len(context.scales([tensor.name for tensor in data_inputs(node)])) > 1:
            reason = "its operands have two scales; the larger is used for both"
            yield place, Verdict("verify", "context.operands", reason, _SHARE_FIX)


def region_without_scale(context: Context) -> Found:
    """Question INT8 for a whole region of a typed network if one of its tensors lacks a scale."""
    if not (context.target.is_typed and context.target.is_int8):
        return
    lacking = [place for place in range(len(context.nodes)) if context.lacks_scale(place)]
    for place in _region_of(context, lacking):
        reason = f"its region holds {context.nodes[lacking[0]].name}, which lacks an INT8 scale"
        yield place, Verdict("verify", "context.region", reason, "calibrate every tensor: edgert quantize --target dla")


def _region_of(context: Context, places: Sequence[int]) -> list[int]:
    """Return the other nodes that would run on the DLA and are connected to these nodes."""
    reached, waiting = set(places), list(places)
    while waiting:
        place = waiting.pop()
        for other in (*context.wiring.before[place], *context.wiring.after[place]):
            if other not in reached and context.verdicts[other].answer == "yes":
                reached.add(other)
                waiting.append(other)
    return sorted(reached - set(places))


def _rule(name: str, source: str, test: Callable[[Context], Found]) -> ContextRule:
    return ContextRule(f"context.{name}", source, (test.__doc__ or "").strip(), test)


CONTEXT = (
    _rule("reshape", ISSUE_RESHAPE, reshape_beside_slice),
    _rule("comparison", ELEMENTWISE, comparison),
    _rule("cast", ELEMENTWISE, cast),
    _rule("scale", GUIDE, shared_scale),
    _rule("operands", HEADER, operand_scales),
    _rule("region", TYPED, region_without_scale),
)
"""All context rules, in the order in which they are applied."""
