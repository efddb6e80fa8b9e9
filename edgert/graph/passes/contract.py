"""What a pass over a graph is, what it promises, and the one driver that runs passes.

A pass is a function from a graph to a new graph and the list of what changed. It promises that

- inputs and outputs keep their names, order, types and shapes;
- the outputs stay equal, up to rounding where weights are multiplied into each other (shown by tests that run both);
- every node stands after those it reads, no tensor is computed twice, and everything that is read is there;
- what is known of the type and shape of a tensor that stays is not lost or changed;
- no change is left out: the given graph itself comes back where, and only where, there was nothing to do.

With EDGERT_CHECK_PASSES=1 in the environment, as in all tests, :func:`run` checks every one of these but the second.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from edgert.graph.ir import Graph

MAX_ROUNDS = 64
"""The deepest chain of rewrites in real models takes six rounds; a bound in case two passes are at odds."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing a pass did: ``rule`` is the pass's name, ``subject`` a node or tensor, ``detail`` what became of it."""

    rule: str
    subject: str
    detail: str


Result = tuple[Graph, tuple[Change, ...]]
"""What a pass gives: the very graph it was given, and no change, where it does not apply."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewrite that keeps a graph's meaning.

    Attributes:
        name: to choose it by; changes are filed under it.
        does: what becomes of which nodes; everything else stays.
        because: what it is good for.
        apply: graph → graph and changes.
        grows: whether there may be more nodes afterwards; other passes only remove.
    """

    name: str
    does: str
    because: str
    apply: Callable[[Graph], Result]
    grows: bool = False


def run(graph: Graph, passes: Iterable[Pass]) -> Result:
    """Runs passes in order, round after round, until none finds anything left to do.

    Returns:
        The new graph (the given one when nothing changed) and every change, in order.

    Raises:
        ModelError: the graph is broken: two nodes compute one tensor, one reads what nothing makes, or a cycle.
    """
    chosen = tuple(passes)
    changes: list[Change] = []
    for _ in range(MAX_ROUNDS):
        before = graph
        for step in chosen:
            after, found = step.apply(graph)
            if _CHECKED:
                check(step, graph, after, found)
            graph = after
            changes += found
        if graph is before:
            break
    return graph, tuple(changes)


def check(step: Pass, before: Graph, after: Graph, changes: tuple[Change, ...]) -> None:
    """Holds a pass to what it promises. Raises RuntimeError naming the pass and the promise."""
    broken = next(_broken(step, before, after, changes), "")
    if broken:
        raise RuntimeError(f"pass {step.name!r} {broken}")


def _broken(step: Pass, before: Graph, after: Graph, changes: tuple[Change, ...]) -> Iterator[str]:
    if (after is before) != (not changes):
        yield "changed something and reports nothing, or the other way round"
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        yield "changed the inputs or outputs"
    if not step.grows and len(after.nodes) > len(before.nodes):
        yield f"added nodes ({len(before.nodes)} before, {len(after.nodes)} after)"
    if _unmade(after) and not _unmade(before):
        yield f"left nodes that read what is not made before them: {', '.join(sorted(_unmade(after)))}"
    for name in after.producers.keys() & before.producers.keys() & before.specs.keys():
        if after.specs.get(name) != before.specs[name]:
            yield f"lost or changed the type of {name!r}: {before.specs[name]}, now {after.specs.get(name)}"


def _unmade(graph: Graph) -> set[str]:
    """What is read, or given out, before it is there."""
    known = {spec.name for spec in graph.inputs} | graph.constants.keys()
    missing: set[str] = set()
    for node in graph.nodes:
        missing.update(set(node.reads) - known)
        known.update(node.outputs)
    return missing | (graph.output_names - known)


_CHECKED = os.environ.get("EDGERT_CHECK_PASSES", "") == "1"
