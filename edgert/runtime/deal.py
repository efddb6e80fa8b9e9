"""Frames dealt to several branches by weight, and put back in order behind them.

A branch is one stage, or a chain of them, with one way in and one way out. Every result is dealt to one branch; behind
the branches stands a :class:`Gather`, which passes results on in the order in which they were dealt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import gcd

from edgert.runtime.record import Result


def turns(weights: Sequence[int]) -> tuple[int, ...]:
    """Whose turn it is, over and over: each branch as often as its weight says, spread as evenly as can be.

    ``(2, 1)`` → ``(0, 1, 0)``. The smooth weighted round robin: each turn every branch earns its weight, and the
    richest pays the sum of all.
    """
    divisor = gcd(*weights)
    shares = [weight // divisor for weight in weights]
    total = sum(shares)
    credit = [0] * len(shares)
    order = []
    for _ in range(total):
        credit = [have + share for have, share in zip(credit, shares, strict=True)]
        branch = credit.index(max(credit))
        credit[branch] -= total
        order.append(branch)
    return tuple(order)


class Dealer:
    """A stage that passes everything on, and says to which branch.

    Args:
        weights: per branch, how many frames it gets of as many as there are weights in sum.
        every: frames of a stream between two that the branches work on; those between cost nothing and use up no turn.
        levels: per branch, the level that it belongs to, from 0; frames are dealt among the branches of one level.
        level: asked for that of every frame; the last one stands for all beyond.
    """

    def __init__(
        self,
        weights: Sequence[int],
        every: int = 1,
        levels: Sequence[int] = (),
        level: Callable[[], int] = lambda: 0,
    ) -> None:
        self._turns, self._every, self._level = _orders(weights, levels or [0] * len(weights)), every, level
        self._turn = 0
        self.dealt: deque[int] = deque()
        """Frames under way, by identity, in order; the gather behind the branches takes them out."""

    def branch(self, result: Result) -> int:
        """The branch of this result, which is now under way."""
        order = self._turns[min(self._level(), len(self._turns) - 1)]
        branch = order[self._turn % len(order)]
        if result.frame.index % self._every == 0:
            self._turn = (self._turn + 1) % len(order)
        self.dealt.append(id(result.frame))
        return branch

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Result:
        """Passes it on; its node asks for the branch."""
        return result

    def close(self) -> None:
        """Has nothing to give back."""


def _orders(weights: Sequence[int], levels: Sequence[int]) -> list[tuple[int, ...]]:
    """Of every level, whose turn it is."""
    orders = []
    for level in range(max(levels) + 1):
        here = [branch for branch, one in enumerate(levels) if one == level]
        orders.append(tuple(here[turn] for turn in turns([weights[branch] for branch in here])))
    return orders


class Gather:
    """The stage behind the branches of a dealer. Holds a result back until those dealt before it have come.

    No more wait here than can be under way in the branches, as a full branch holds up the dealer.
    """

    def __init__(self, dealer: Dealer) -> None:
        self._dealt = dealer.dealt
        self._waiting: dict[int, Result] = {}

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Iterator[Result]:
        """Passes on what is due, this result among it or not."""
        result.frame.lease.retain()
        self._waiting[id(result.frame)] = result
        while self._dealt and (due := self._waiting.pop(self._dealt[0], None)) is not None:
            self._dealt.popleft()
            yield due
            due.frame.lease.release()

    def close(self) -> None:
        """Lets go of what waits for a frame that was lost, as when a pipeline is broken off."""
        for result in self._waiting.values():
            result.frame.lease.release()
        self._waiting.clear()
