"""The rules by which a new model takes over, or is refused: decisions without threads and without a clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgert.errors import ConfigError

BATCHES, T_95 = 10, 1.833
"""Consecutive frames resemble each other, so that the agreement on each is no independent sample. The means of ten
batches nearly are (B. Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30,
1982: 10 to 30 batches). Their mean has a one-sided 95 % bound by Student's t with nine degrees of freedom, 1.833."""
LEAST_FRAMES = 20
MOST_FRAMES = 100_000
LONGEST_KEEP_S = 7 * 86_400.0
SHARE = 0.25
"""Most of the time that the shadow works: of a frame's time, on average."""
EARLY = 10
"""Runs after which the time of a run is judged."""
_SLOWER = 1.5
"""A model may take so many times the old one's time, whatever the time of a frame is: runs differ by chance."""
_UNPACED = 4.0
"""Where no camera sets the pace, it may take so many times the old one's time."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Conditions of one swap.

    Attributes:
        shadow: frames on which both models run before the new one takes over; 0: it takes over at once.
        min_agreement: the agreement that it must surely have, 0 to 1.
        keep_s: for how long the old model stays loaded afterwards, to go back to.
    """

    shadow: int
    min_agreement: float
    keep_s: float

    def check(self) -> None:
        """Raise ConfigError for a value out of its range."""
        what, fix = "", ""
        if self.shadow and not LEAST_FRAMES <= self.shadow <= MOST_FRAMES:
            what, fix = f"--shadow {self.shadow} is out of range", f"{LEAST_FRAMES} to {MOST_FRAMES} frames; 0: none"
        elif not 0 <= self.min_agreement <= 1:
            what, fix = f"--min-agreement {self.min_agreement:g} is out of range", "0 to 1"
        elif not 0 <= self.keep_s <= LONGEST_KEEP_S:
            what, fix = f"--keep {self.keep_s:g} s is out of range", "0 s to 7 days"
        if what:
            raise ConfigError(what, fix=fix)


@dataclass(frozen=True, slots=True)
class Bound:
    """Agreement of two models, 0 to 1.

    Attributes:
        mean: over the frames.
        low: what it is at least, with a confidence of 95 %.
    """

    mean: float
    low: float


NOTHING = Bound(0.0, 0.0)
"""Agreement before the first frame."""


def bound_of(values: Sequence[float]) -> Bound:
    """Return the agreement on frames, given that of each frame in order; with fewer than 20 of them, ``low`` is 0."""
    if not values:
        return NOTHING
    mean = float(np.mean(values))
    if len(values) < LEAST_FRAMES:
        return Bound(mean, 0.0)
    means = np.array([float(np.mean(batch)) for batch in np.array_split(np.asarray(values, np.float64), BATCHES)])
    error = float(means.std(ddof=1)) / math.sqrt(BATCHES)
    return Bound(mean, max(float(means.mean()) - T_95 * error, 0.0))


def cannot_agree(values: Sequence[float], terms: Terms) -> bool:
    """Return whether the agreement stays too low even if both models agree on all frames that are left."""
    return math.fsum(values) + terms.shadow - len(values) < terms.min_agreement * terms.shadow


def why_refused(values: Sequence[float], terms: Terms) -> str:
    """Return why a model does not take over after its shadow; empty where it does."""
    found = bound_of(values)
    if found.low >= terms.min_agreement:
        return ""
    if found.mean < terms.min_agreement:
        return f"the agreement on {len(values)} frames is {found.mean:.3f}, and {terms.min_agreement:g} is asked for"
    return (
        f"the agreement on {len(values)} frames is {found.mean:.3f}, but surely only {found.low:.3f}, and "
        f"{terms.min_agreement:g} is asked for"
    )


def allowed_s(old_s: float, interval_s: float | None, latency_s: float | None) -> float:
    """Return how long a run of the new model may take.

    Args:
        old_s: a run of the old one.
        interval_s: time from one frame to the next, where cameras set the pace.
        latency_s: what a latency budget leaves for the model.
    """
    limits = [one for one in (interval_s, latency_s) if one is not None]
    return max(min(limits), _SLOWER * old_s) if limits else _UNPACED * old_s


def has_turn(spent_s: float, elapsed_s: float) -> bool:
    """Return whether a shadow may look at a frame, so that it takes :data:`SHARE` of the time at most.

    Args:
        spent_s: that it worked so far.
        elapsed_s: since it began.
    """
    return spent_s <= SHARE * elapsed_s
