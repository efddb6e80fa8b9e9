"""Verdict on a setting, from the evidence of photos and prior knowledge; or the number of photos still needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgert.config.model_section import verb_of
from edgert.wiring.evidence import record_similarity
from edgert.wiring.prior import FILE, Prior
from edgert.wiring.search import CLEAR, SAME, Ranking, Tally
from edgert.wiring.settings import differs

LEAST_ANSWERS = 0.05
"""Mean evidence below which a model finds nothing that its views agree on."""
_NEARLY_SAME, _ENOUGH_PHOTOS = 0.95, 4
"""Similarity of answers, and number of photos with it, from which a setting is as good as the known one."""
GOOD_FIT = 0.5
"""Fit with a model's stored statistics that is enough for a verdict."""
_LISTED_CLASSES = 4  # classes that a sentence lists
_MOST_PHOTOS = 64
"""Largest number of further photos that is worth a suggestion; beyond it, labels are needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Judgment:
    """Result of weighing photos and prior knowledge.

    Attributes:
        ranking: settings with their evidence.
        prior: prior knowledge about the model.
        chosen: best setting.
        rival: next best setting with other answers; None where there is none.
        lead: standard errors by which ``chosen`` is ahead of ``rival``, prior knowledge included.
        finds: whether there is any evidence to judge by.
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
        return any(self.ranking.answers(one) >= LEAST_ANSWERS for one in others)

    def behind(self, other: Tally) -> float:
        """Return the standard errors by which a setting is behind the chosen one, prior knowledge included."""
        return lead_of(self.ranking, self.prior, self.chosen, other)

    def as_good(self, other: Tally) -> bool:
        """Return whether a setting is as good as the chosen one."""
        if self.prior.against(other.setting) <= self.prior.against(self.chosen.setting):
            same = give_same_answers(self.chosen, other)
        else:
            same = len(other.records) >= _ENOUGH_PHOTOS and give_same_answers(self.chosen, other, _NEARLY_SAME)
        return same or self.ranking.as_good(other, self.chosen)

    @property
    def more_photos(self) -> int | None:
        """Estimated number of further photos that settle it; None where it is settled or photos cannot settle it."""
        if self.settled or self.rival is None or not self.finds:
            return None
        count = len(self.chosen.evidence.keys() & self.rival.evidence.keys())
        errors = self.ranking.lead(self.chosen, self.rival)
        wanted = CLEAR - (self.lead - errors)
        if errors <= 0 or wanted <= 0:
            return None
        more = math.ceil(count * ((wanted / errors) ** 2 - 1))
        return max(more, 1) if more <= _MOST_PHOTOS else None


def judge(ranking: Ranking, prior: Prior, favored: Tally) -> Judgment:
    """Choose a setting by the evidence of photos and prior knowledge.

    Args:
        ranking: settings with their evidence.
        prior: prior knowledge about the model.
        favored: setting that the prior knowledge suggests, from which the choice starts.
    """
    tallies = [tally for tally in ranking.tallies if tally.evidence]
    chosen = favored
    for _ in tallies:  # change one group at a time, so that each change is justified by its own evidence
        ahead = {id(one): lead_of(ranking, prior, one, chosen) for one in tallies if one is not chosen}
        step = max((one for one in tallies if id(one) in ahead), key=lambda one: ahead[id(one)], default=chosen)
        single = [one for one in tallies if id(one) in ahead and len(chosen.setting.differing(one.setting)) == 1]
        near = max(single, key=lambda one: ahead[id(one)], default=step)
        if ahead.get(id(near), -1.0) >= _required_lead(chosen, near):
            chosen = near
        elif ahead.get(id(step), -1.0) >= _required_lead(chosen, step):
            chosen = step
        else:
            break
    others = [one for one in tallies if one is not chosen]
    rivals = [one for one in others if not give_same_answers(chosen, one) and not ranking.as_good(chosen, one)]
    leads = [lead_of(ranking, prior, chosen, one) for one in rivals]
    place = int(np.argmin(leads)) if leads else -1
    found = ranking.answers(chosen) >= LEAST_ANSWERS or max(ranking.fits(chosen), default=0.0) >= GOOD_FIT
    return Judgment(
        ranking, prior, chosen, rivals[place] if leads else None, leads[place] if leads else math.inf,
        found or prior.of(chosen.setting.task).margin >= FILE,
    )  # fmt: skip


_LEAST_LEAD = 0.5
"""Standard errors by which another setting must lead to be chosen; another placement must lead by :data:`CLEAR`."""


def _required_lead(chosen: Tally, other: Tally) -> float:
    return CLEAR if differs(chosen.setting, other.setting, "placement") else _LEAST_LEAD


def lead_of(ranking: Ranking, prior: Prior, first: Tally, second: Tally) -> float:
    """Return the standard errors by which photos and prior knowledge put one setting before another."""
    return ranking.lead(first, second) + prior.against(second.setting) - prior.against(first.setting)


def give_same_answers(first: Tally, second: Tally, least: float = SAME) -> bool:
    """Return whether two settings give practically the same answers; the fewer photos, the more they must agree."""
    shared = len(first.records.keys() & second.records.keys())
    return shared > 0 and answer_similarity(first, second) >= 1 - (1 - least) * shared / (shared + 2)


def answer_similarity(first: Tally, second: Tally) -> float:
    """Return the mean similarity of two settings' records over the photos that both were tried on."""
    shared = first.records.keys() & second.records.keys()
    return float(np.mean([record_similarity(first.records[n], second.records[n]) for n in shared]))


def kind_of_photo(judgment: Judgment, labels: Sequence[str]) -> str:
    """Return the kind of photos that would decide, in words such as ``bright ones and dark ones``."""
    some = ", ".join(labels[:_LISTED_CLASSES]) + (" and others" if len(labels) > _LISTED_CLASSES else "")
    shown = f" ({some})" if labels else ""
    if not judgment.finds:
        return f"of what the model was trained to find{shown}"
    if judgment.rival is None:
        return ""
    first, second = judgment.chosen.setting, judgment.rival.setting
    for group, words in _PHOTO_KINDS.items():
        if group != "task" and differs(first, second, group):
            return words
    return _PHOTO_KINDS["task"] + (shown if verb_of(first.task) != "embed" else "")


_PHOTO_KINDS = {
    "color": "with strong colors, red and blue above all",
    "scale": "bright ones and dark ones",
    "placement": "of other shapes than the network's: upright ones and wide ones",
    "task": "that show several of what it finds",
}
