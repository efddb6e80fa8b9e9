"""Results in simulated time, and how several halves of one become whole again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A result: whose frame it is, when that was captured, and how many objects are on it."""

    stream: str
    index: int
    born_ms: float
    objects: int


class Join:
    """What :class:`edgert.runtime.join.Join` does with results, done with tokens.

    Args:
        carried: for every edge, the streams it carries.
        limit: frames of one stream that may wait.
    """

    def __init__(self, carried: Sequence[frozenset[str]], limit: int) -> None:
        self._limit = limit
        self._edges_of: Mapping[str, frozenset[int]] = {
            stream: frozenset(edge for edge, streams in enumerate(carried) if stream in streams)
            for stream in frozenset().union(*carried)
        }
        self._pending: dict[str, dict[int, set[int]]] = {stream: {} for stream in self._edges_of}

    def add(self, edge: int, token: Token) -> tuple[bool, int]:
        """One delivery: whether the frame is whole now, and how many were given up."""
        needed = self._edges_of[token.stream]
        if len(needed) == 1:
            return True, 0
        pending = self._pending[token.stream]
        lost = [index for index, seen in pending.items() if index < token.index and edge not in seen]
        for index in lost:
            del pending[index]
        seen = pending.setdefault(token.index, set())
        seen.add(edge)
        if seen == needed:
            del pending[token.index]
            return True, len(lost)
        if len(pending) > self._limit:
            del pending[min(pending)]
            return False, len(lost) + 1
        return False, len(lost)
