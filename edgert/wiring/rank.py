"""Adding evidence up over photographs, and saying when it is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgert.config.model import verb_of
from edgert.runtime import Record
from edgert.wiring.candidate import Setting
from edgert.wiring.evidence import Evidence, relative
from edgert.wiring.training import Memory

F64 = npt.NDArray[np.float64]
PRIOR_SPREAD, PRIOR_PHOTOS = 0.25, 4
"""How far one kind of evidence is taken to vary from photograph to photograph before any has been seen, and
how many photographs that belief weighs as much as. On its own, one photograph then has to show half of what it can."""
CLEAR = 2.0
"""Standard errors between two settings that are told apart."""
DOUBT = 1.25
"""Standard errors from which on one photograph more is worth taking."""
HOPELESS = 3.5
"""Standard errors at which a setting is not tried on further photographs; after one, only if that showed nothing."""
SAME = 0.9
"""Sameness of records from which on it does not matter which of two settings is used."""


@dataclass(slots=True, eq=False)
class Tally:
    """What is known about one setting so far, by number of the photograph."""

    setting: Setting
    evidence: dict[int, Evidence] = field(default_factory=dict)
    looks: dict[int, tuple[F64, ...]] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gap:
    """How far one setting is ahead of another: mean difference, and in standard errors."""

    mean: float
    errors: float

    @property
    def clear(self) -> bool:
        """Whether the photographs tell the two apart."""
        return self.errors >= CLEAR


class Ranking:
    """All settings and their evidence."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self.memories = memories
        self.tallies: list[Tally] = []

    def find(self, setting: Setting) -> Tally | None:
        """The tally of an equal setting."""
        return next((tally for tally in self.tallies if tally.setting.key == setting.key), None)

    def add(self, setting: Setting) -> Tally:
        """The tally of a setting, new where there is none."""
        found = self.find(setting)
        if found is None:
            found = Tally(setting)
            self.tallies.append(found)
        return found

    def best(self) -> Tally:
        """The setting with the highest mean, of those that were tried on most photographs."""
        most = max(len(tally.evidence) for tally in self.tallies)
        return max((tally for tally in self.tallies if len(tally.evidence) == most), key=self.mean)

    def mean(self, tally: Tally) -> float:
        """Mean over its photographs of the answers' evidence plus the fit with each memory."""
        return float(self.values(tally, sorted(tally.evidence)).mean()) if tally.evidence else -math.inf

    def answers(self, tally: Tally) -> float:
        """The part of the mean that comes from the model's answers."""
        return float(np.mean([self._relative(tally, photo) for photo in tally.evidence]))

    def fits(self, tally: Tally) -> tuple[float, ...]:
        """The fit with each memory, over all of its photographs at once."""
        looks = list(tally.looks.values())
        return tuple(memory.fit([look[n] for look in looks]) for n, memory in enumerate(self.memories))

    def gap(self, first: Tally, second: Tally) -> Gap:
        """How far ``first`` is ahead, on the photographs that both were tried on.

        The standard error is that of paired differences, drawn towards a prior as long as photographs are few
        (Smyth, "Linear Models and Empirical Bayes Methods", 2004: the moderated t).
        """
        photos = sorted(first.evidence.keys() & second.evidence.keys())
        differences = self.values(first, photos) - self.values(second, photos)
        count, mean = len(photos), float(differences.mean())
        kinds = 1 if first.setting.input == second.setting.input else 1 + len(self.memories)
        prior = PRIOR_SPREAD**2 * kinds  # each adds what a single photograph can get wrong
        squares = PRIOR_PHOTOS * prior + float(((differences - mean) ** 2).sum())
        error = math.sqrt(squares / (PRIOR_PHOTOS + count - 1) / count)
        return Gap(mean, mean / error)

    def values(self, tally: Tally, photos: Sequence[int]) -> F64:
        """One value per photograph: answers plus memory."""
        answers = np.array([self._relative(tally, photo) for photo in photos])
        memory = [_pseudo_values(m, [tally.looks[photo][n] for photo in photos]) for n, m in enumerate(self.memories)]
        total: F64 = np.sum([answers, *memory], axis=0)
        return total

    def _relative(self, tally: Tally, photo: int) -> float:
        every = [other.evidence[photo].value for other in self.tallies if photo in other.evidence]
        own = tally.evidence[photo].value
        return relative([own, *every], verb_of(tally.setting.task))[0]


def _pseudo_values(memory: Memory, looks: Sequence[F64]) -> F64:
    """One value per photograph of a fit that only all photographs have together: the jackknife's.

    Their mean is the fit, less its bias; their spread tells how much single photographs sway it (Efron, "The Jackknife,
    the Bootstrap and Other Resampling Plans", 1982).
    """
    count, whole = len(looks), memory.fit(looks)
    if count == 1:
        return np.array([whole])
    left_out = [memory.fit([*looks[:n], *looks[n + 1 :]]) for n in range(count)]
    return count * whole - (count - 1) * np.array(left_out)
