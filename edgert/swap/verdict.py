"""The rules by which a new model takes over or is refused, as pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgert.errors import ConfigError

BATCHES, T_95 = 10, 1.833
"""Consecutive frames are alike, so their agreements are not independent samples. The means of ten batches nearly are
(B. Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30, 1982: 10 to 30
batches). Student's t with nine degrees of freedom, 1.833, gives a one-sided 95 % bound of their mean."""
LEAST_FRAMES = 20
MOST_FRAMES = 100_000
LONGEST_KEEP_S = 7 * 86_400.0
SHADOW_SHARE = 0.25
"""Largest fraction of time in which the shadow works."""
JUDGED_RUNS = 10
"""Number of runs after which the time of a run is judged."""
_ALWAYS_ALLOWED = 1.5
"""Multiple of the old model's time that is always allowed, because times of runs vary."""
_UNPACED_ALLOWED = 4.0
"""Multiple of the old model's time that is allowed where neither a camera nor a budget limits it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Conditions of one swap.

    Attributes:
        shadow: number of frames on which both models run before the new one takes over; 0: it takes over at once.
        min_agreement: least agreement, 0 to 1, which the lower bound must reach.
        keep_s: seconds for which the old model stays loaded afterwards.
    """

    shadow: int
    min_agreement: float
    keep_s: float

    def check(self) -> None:
        """Check the values. Raises ConfigError: one is out of range."""
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
    """Mean agreement of two models over frames, 0 to 1, and its lower bound with a confidence of 95 %."""

    mean: float
    low: float


NO_AGREEMENT = Bound(0.0, 0.0)
"""Agreement before the first frame."""


def agreement_bound(values: Sequence[float]) -> Bound:
    """Return the agreement over frames, given that of each frame in order; ``low`` is 0 for fewer than 20 frames."""
    if not values:
        return NO_AGREEMENT
    mean = float(np.mean(values))
    if len(values) < LEAST_FRAMES:
        return Bound(mean, 0.0)
    means = np.array([float(np.mean(batch)) for batch in np.array_split(np.asarray(values, np.float64), BATCHES)])
    error = float(means.std(ddof=1)) / math.sqrt(BATCHES)
    return Bound(mean, max(float(means.mean()) - T_95 * error, 0.0))


def cannot_agree(values: Sequence[float], terms: Terms) -> bool:
    """Return whether the agreement stays too low even if both models agree on all remaining frames."""
    return math.fsum(values) + terms.shadow - len(values) < terms.min_agreement * terms.shadow


def why_refused(values: Sequence[float], terms: Terms) -> str:
    """Return why a model does not take over after its shadow; empty where it does."""
    found = agreement_bound(values)
    if found.low >= terms.min_agreement:
        return ""
    if found.mean < terms.min_agreement:
        return f"the agreement on {len(values)} frames is {found.mean:.3f}, but {terms.min_agreement:g} is required"
    return (
        f"the agreement on {len(values)} frames is {found.mean:.3f}, but surely only {found.low:.3f}, and "
        f"{terms.min_agreement:g} is required"
    )


def allowed_s(old_s: float, interval_s: float | None, latency_s: float | None) -> float:
    """Return the longest time of a new model's run, by the old one's, the time between frames and the latency left."""
    limits = [one for one in (interval_s, latency_s) if one is not None]
    return max(min(limits), _ALWAYS_ALLOWED * old_s) if limits else _UNPACED_ALLOWED * old_s


def has_turn(spent_s: float, elapsed_s: float) -> bool:
    """Return whether a shadow that has worked for ``spent_s`` may run: it works :data:`SHADOW_SHARE` of the time."""
    return spent_s <= SHADOW_SHARE * elapsed_s
