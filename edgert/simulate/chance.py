"""How long things take this time."""

from __future__ import annotations

from random import Random

from edgert.jitter import SLOT_MS, Jitter, Quantiles, draw
from edgert.place.event import Timeline


class Chance:
    """Draws from what was measured: single times anew each time, and slow phases as they came, from a moment of the
    measured run that is drawn once. So these last as long as they did, and strike threads together where they did.
    """

    def __init__(self, random: Random, timeline: Timeline) -> None:
        self._random, self.timeline = random, timeline
        self._start = random.random()

    def of(self, quantiles: Quantiles) -> float:
        """A time, or a ratio, of those at :data:`edgert.jitter.AT`."""
        return draw(quantiles, self._random)

    def now(self, jitter: Jitter) -> float:
        """What something takes that begins now, as a ratio to its usual time."""
        slow_phases = jitter.slow_phases
        if not slow_phases:
            return self.of(jitter.quantiles)
        slot = int(self.timeline.now_ms / SLOT_MS + self._start * len(slow_phases)) % len(slow_phases)
        return self.of(jitter.quantiles) * slow_phases[slot]
