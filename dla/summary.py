"""Counts of nodes and shares of work for a graph."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dla.node import Node, Verdict
from dla.region import Region


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why nodes do not run, or may not run, on the DLA.

    Attributes:
        rule: name of the rule.
        nodes: number of nodes.
        macs: share of the graph's multiply-adds, 0 to 1.
        example: name of the first node.
        reason: reason for the first node.
        fix: fix for the first node.
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
        nodes: number of nodes without folded ones.
        yes: nodes that can run on the DLA.
        verify: nodes that only the device can decide about.
        no: nodes that cannot run on the DLA.
        folded: nodes that are removed before the network runs.
        macs: multiply-adds of the graph; 0 if unknown.
        macs_yes: share of the multiply-adds in nodes with answer yes, 0 to 1.
        macs_verify: share of the multiply-adds in nodes with answer verify, 0 to 1.
        segments: number of loadables with the nodes that certainly run.
        segments_hoped: number of loadables if the device accepts all doubtful nodes.
        refusals: reasons of refusals by rule, those with the most work first.
        doubts: reasons of doubts by rule, those with the most work first.
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
    """Return the summary of a graph.

    Args:
        nodes: nodes in topological order.
        verdicts: one per node.
        sure: regions of the nodes that certainly run.
        hoped: regions if doubtful nodes run, too.
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
    """Return reasons grouped by rule. Operators without a layer are grouped by operator, which decides the fix."""
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
