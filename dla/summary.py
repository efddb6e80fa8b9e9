"""Summary of a graph in a few numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dla.node import Node, Verdict
from dla.region import Region


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why nodes do not, or may not, run on the DLA.

    Attributes:
        rule: that objected.
        nodes: how many it objected to.
        macs: their share of the work, 0 to 1.
        example: name of the first one.
        reason: of the first one.
        fix: of the first one.
    """

    rule: str
    nodes: int
    macs: float
    example: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and shares of a graph's verdicts.

    Attributes:
        nodes: number of nodes that have a layer, without folded ones.
        yes: nodes that can run on the DLA.
        verify: nodes that only the device can decide about.
        no: nodes that cannot run on the DLA.
        folded: nodes that are removed before anything runs.
        macs: multiply-adds of the graph; 0 where they are not known.
        macs_yes: share of nodes with answer yes, 0 to 1.
        macs_verify: share of nodes with answer verify, 0 to 1.
        segments: loadables of the nodes that are sure to run.
        segments_hoped: loadables if every doubt were settled with yes.
        refusals: reasons by rule, those with most work first.
        doubts: reasons by rule, those with most work first.
    """

    nodes: int
    yes: int
    verify: int
    no: int
    folded: int
    macs: int
    macs_yes: float
    macs_verify: float
    segments: int
    segments_hoped: int
    refusals: tuple[Reason, ...]
    doubts: tuple[Reason, ...]


def summarize(
    nodes: Sequence[Node],
    verdicts: Sequence[Verdict],
    sure: Sequence[Region],
    hoped: Sequence[Region],
    macs: Mapping[str, int],
) -> Summary:
    """Return the numbers of one graph.

    Args:
        nodes: each after those it reads.
        verdicts: one per node.
        sure: regions of the nodes that are sure.
        hoped: regions if doubtful ones run, too.
        macs: node name → multiply-adds.
    """
    pairs = [(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True) if not verdict.is_folded]
    counts = Counter(verdict.answer for _, verdict in pairs)
    total = sum(macs.get(node.name, 0) for node in nodes)

    def share(answer: str) -> float:
        work = sum(macs.get(node.name, 0) for node, verdict in pairs if verdict.answer == answer)
        return work / total if total else 0.0

    return Summary(
        nodes=len(pairs),
        yes=counts["yes"],
        verify=counts["verify"],
        no=counts["no"],
        folded=len(nodes) - len(pairs),
        macs=total,
        macs_yes=share("yes"),
        macs_verify=share("verify"),
        segments=len(sure),
        segments_hoped=len(hoped),
        refusals=_reasons(pairs, "no", macs, total),
        doubts=_reasons(pairs, "verify", macs, total),
    )


def _reasons(
    pairs: Sequence[tuple[Node, Verdict]], answer: str, macs: Mapping[str, int], total: int
) -> tuple[Reason, ...]:
    """Return reasons grouped by rule; absent operators are grouped by operator, since the fix depends on it."""
    groups: dict[tuple[str, str], list[tuple[Node, Verdict]]] = {}
    for node, verdict in pairs:
        if verdict.answer == answer:
            op = node.op if verdict.rule == "general.operator" else ""
            groups.setdefault((verdict.rule, op), []).append((node, verdict))
    found = []
    for (rule, _), group in groups.items():
        work = sum(macs.get(node.name, 0) for node, _ in group)
        node, verdict = group[0]
        share = work / total if total else 0.0
        found.append(Reason(rule, len(group), share, node.name, verdict.reason, verdict.fix))
    return tuple(sorted(found, key=lambda one: (-one.macs, -one.nodes, one.rule)))
