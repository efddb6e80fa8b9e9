"""Bringing together what several stages said about the same frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgert.runtime.record import Result


class Join:
    """Passes a frame on when every edge that carries its stream has delivered it.

    Where the edges of a stage carry different streams this is a plain merge. Each edge keeps the order of a stream,
    so once it delivers frame n, frames before n that still wait for it were dropped on the way and are given up. An
    edge may also fall silent, when a filter lets nothing pass: then the oldest frame is given up beyond ``limit``.

    Args:
        carried: for every edge, the streams it carries.
        limit: frames of one stream that may wait; at least as many as can be under way to the slowest edge.
    """

    def __init__(self, carried: Sequence[frozenset[str]], limit: int) -> None:
        self._limit = limit
        self._edges_of: Mapping[str, frozenset[int]] = {
            stream: frozenset(edge for edge, streams in enumerate(carried) if stream in streams)
            for stream in frozenset().union(*carried)
        }
        self._pending: dict[str, dict[int, tuple[Result, set[int]]]] = {stream: {} for stream in self._edges_of}

    def add(self, edge: int, result: Result) -> tuple[Result | None, list[Result]]:
        """One delivery.

        Returns:
            The joined result if it is complete now (it carries one hold on the lease), and the results given up
            (one hold each, to be released by the caller).
        """
        stream, index = result.frame.stream, result.frame.index
        needed = self._edges_of[stream]
        if len(needed) == 1:
            return result, []
        pending = self._pending[stream]
        given_up = [pending.pop(n)[0] for n in sorted(pending) if n < index and edge not in pending[n][1]]
        if index not in pending:
            pending[index] = (result, {edge})
            if len(pending) > self._limit:
                given_up.append(pending.pop(min(pending))[0])
            return None, given_up
        first, seen = pending[index]
        joined = first.merged(result)
        result.frame.lease.release()  # two holds came in, one goes out
        seen.add(edge)
        if seen != needed:
            pending[index] = (joined, seen)
            return None, given_up
        del pending[index]
        return joined, given_up

    def drain(self) -> list[Result]:
        """What still waits at the end, to be released by the caller."""
        left = [result for pending in self._pending.values() for result, _ in pending.values()]
        for pending in self._pending.values():
            pending.clear()
        return left
