"""Who reads whom, with nodes that leave no layer behind skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from dla.node import Node
from dla.verdict import Verdict


class Wiring:
    """Edges between the nodes that remain.

    Args:
        nodes: each after those it reads.
        verdicts: of the nodes; folded ones are looked through.
    """

    def __init__(self, nodes: Sequence[Node], verdicts: Sequence[Verdict]) -> None:
        self.nodes = nodes
        self.folded = [verdict.is_folded for verdict in verdicts]
        self.producers = {
            tensor.name: place for place, node in enumerate(nodes) for tensor in node.outputs if tensor is not None
        }

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the remaining nodes whose results it reads; nothing for a folded one."""
        return tuple(
            () if self.folded[place] else tuple(dict.fromkeys(self._sources(place))) for place in range(len(self.nodes))
        )

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the remaining nodes that read its results."""
        readers: list[list[int]] = [[] for _ in self.nodes]
        for place, sources in enumerate(self.before):
            for source in sources:
                readers[source].append(place)
        return tuple(map(tuple, readers))

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Tensor → every node that names it among its inputs, folded ones too."""
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(filter(None, node.inputs)):
                found.setdefault(tensor.name, []).append(place)
        return found

    def _sources(self, place: int) -> Iterator[int]:
        waiting = [place]
        while waiting:
            for tensor in self.nodes[waiting.pop()].inputs:
                source = None if tensor is None or tensor.is_constant else self.producers.get(tensor.name)
                if source is None:
                    continue
                if self.folded[source]:
                    waiting.append(source)
                else:
                    yield source
