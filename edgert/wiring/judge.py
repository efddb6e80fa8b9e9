"""From evidence and what is known beforehand to an answer: right, wrong, or so many more photos."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgert.config.model_section import verb_of
from edgert.wiring.evidence import sameness
from edgert.wiring.prior import FILE, Prior
from edgert.wiring.search import CLEAR, SAME, Ranking, Tally
from edgert.wiring.settings import differs

SOMETHING = 0.05
"""Mean evidence below which a model found nothing that its views agree on."""
_PRACTICALLY, _SEVERAL = 0.95, 4
"""Sameness of answers, and the number of photos with it, that make a setting as good as the known one."""
FITTING = 0.5
"""Fit with a model's stored statistics that is enough for a verdict."""
_NAMED = 4  # classes that are named
_MOST_PHOTOS = 64
"""More photos than are ever given: what they would not decide, labels do."""


@dataclass(frozen=True, slots=True, eq=False)
class Judgment:
    """What photos and prior knowledge show together.

    Attributes:
        chosen: the setting that most speaks for.
        rival: the setting, with other answers, that is least far behind; None where there is none.
        lead: standard errors by which ``chosen`` is ahead of it, what is known beforehand included.
        finds: whether there is anything to judge by.
    """

    ranking: Ranking
    prior: Prior
    chosen: Tally
    rival: Tally | None
    lead: float
    finds: bool

    @property
    def settled(self) -> bool:
        """Whether the chosen setting is surely as good as any."""
        return self.finds and self.lead >= CLEAR

    @property
    def others_find(self) -> bool:
        """Whether any other setting finds something that its views agree on."""
        others = (one for one in self.ranking.tallies if one is not self.chosen and one.evidence)
        return any(self.ranking.answers(one) >= SOMETHING for one in others)

    def behind(self, other: Tally) -> float:
        """Return the standard errors by which a setting is behind the chosen one, prior knowledge included."""
        return lead_of(self.ranking, self.prior, self.chosen, other)

    def as_good(self, other: Tally) -> bool:
        """Return whether a setting is as good as the chosen one."""
        if self.prior.against(other.setting) <= self.prior.against(self.chosen.setting):
            same = alike(self.chosen, other)
        else:
            same = len(other.records) >= _SEVERAL and alike(self.chosen, other, _PRACTICALLY)
        return same or self.ranking.as_good(other, self.chosen)

    @property
    def more_photos(self) -> int | None:
        """How many photos more may settle it; None where it is settled, or more will not do it."""
        if self.settled or self.rival is None or not self.finds:
            return None
        count = len(self.chosen.evidence.keys() & self.rival.evidence.keys())
        errors = self.ranking.gap(self.chosen, self.rival).errors
        wanted = CLEAR - (self.lead - errors)
        if errors <= 0 or wanted <= 0:
            return None
        more = math.ceil(count * ((wanted / errors) ** 2 - 1))
        return max(more, 1) if more <= _MOST_PHOTOS else None


def judge(ranking: Ranking, prior: Prior, favored: Tally) -> Judgment:
    """Weigh the photos against prior knowledge.

    Args:
        ranking: of the settings on the photos.
        prior: the knowledge.
        favored: the setting as known beforehand, everything else as written, or as usual.
    """
    tallies = [tally for tally in ranking.tallies if tally.evidence]
    chosen = favored
    for _ in tallies:  # one thing at a time, so that what photos show well does not take along what they do not
        ahead = {id(one): lead_of(ranking, prior, one, chosen) for one in tallies if one is not chosen}
        step = max((one for one in tallies if id(one) in ahead), key=lambda one: ahead[id(one)], default=chosen)
        single = [one for one in tallies if id(one) in ahead and len(chosen.setting.differing(one.setting)) == 1]
        near = max(single, key=lambda one: ahead[id(one)], default=step)
        if ahead.get(id(near), -1.0) >= _wanted(chosen, near):
            chosen = near
        elif ahead.get(id(step), -1.0) >= _wanted(chosen, step):
            chosen = step
        else:
            break
    others = [one for one in tallies if one is not chosen]
    rivals = [one for one in others if not alike(chosen, one) and not ranking.as_good(chosen, one)]
    leads = [lead_of(ranking, prior, chosen, one) for one in rivals]
    place = int(np.argmin(leads)) if leads else -1
    found = ranking.answers(chosen) >= SOMETHING or max(ranking.fits(chosen), default=0.0) >= FITTING
    return Judgment(
        ranking, prior, chosen, rivals[place] if leads else None, leads[place] if leads else math.inf,
        found or prior.of(chosen.setting.task).margin >= FILE,
    )  # fmt: skip


_AHEAD = 0.5
"""Standard errors by which another setting must lead to be chosen. Placements differ little and must lead clearly."""


def _wanted(chosen: Tally, other: Tally) -> float:
    return CLEAR if differs(chosen.setting, other.setting, "placement") else _AHEAD


def lead_of(ranking: Ranking, prior: Prior, first: Tally, second: Tally) -> float:
    """Return the standard errors by which photos and prior knowledge put one setting before another."""
    return ranking.gap(first, second).errors + prior.against(second.setting) - prior.against(first.setting)


def alike(first: Tally, second: Tally, least: float = SAME) -> bool:
    """Return whether two settings give practically the same answers. Few photos must agree more for it."""
    shared = len(first.records.keys() & second.records.keys())
    return shared > 0 and same_answers(first, second) >= 1 - (1 - least) * shared / (shared + 2)


def same_answers(first: Tally, second: Tally) -> float:
    """Return the mean sameness of two settings' records over the photos both were tried on."""
    shared = first.records.keys() & second.records.keys()
    return float(np.mean([sameness(first.records[n], second.records[n]) for n in shared]))


def kind_of_photo(judgment: Judgment, labels: Sequence[str]) -> str:
    """Return which photos would show the difference, in words."""
    some = ", ".join(labels[:_NAMED]) + (" and others" if len(labels) > _NAMED else "")
    shown = f" ({some})" if labels else ""
    if not judgment.finds:
        return f"of what the model was trained to find{shown}"
    if judgment.rival is None:
        return ""
    first, second = judgment.chosen.setting, judgment.rival.setting
    for group, words in _KINDS.items():
        if group != "task" and differs(first, second, group):
            return words
    return _KINDS["task"] + (shown if verb_of(first.task) != "embed" else "")


_KINDS = {
    "color": "with strong colors, red and blue above all",
    "scale": "bright ones and dark ones",
    "placement": "of other shapes than the network's: upright ones and wide ones",
    "task": "that show several of what it finds",
}
