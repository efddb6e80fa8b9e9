"""How long things take this time."""

from __future__ import annotations

from random import Random

from edgert.place.event import Timeline
from edgert.spread import SLOT_MS, Scatter, Spread, draw


class Chance:
    """Draws from what was measured: single times anew each time, and slow spells as they came, from a moment of the
    measured run that is drawn once. So spells last as long as they did, and strike threads together where they did.
    """

    def __init__(self, random: Random, timeline: Timeline) -> None:
        self._random, self.timeline = random, timeline
        self._start = random.random()

    def of(self, quantiles: Spread) -> float:
        """A time, or a ratio, of those at :data:`edgert.spread.AT`."""
        return draw(quantiles, self._random)

    def now(self, scatter: Scatter) -> float:
        """What something takes that begins now, as a ratio to its usual time."""
        spells = scatter.spells
        if not spells:
            return self.of(scatter.spread)
        slot = int(self.timeline.now_ms / SLOT_MS + self._start * len(spells)) % len(spells)
        return self.of(scatter.spread) * spells[slot]
