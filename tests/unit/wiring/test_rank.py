"""When evidence is enough."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from edgert.config import ClassifyTask, InputConfig
from edgert.wiring.evidence import Evidence
from edgert.wiring.search import CLEAR, Ranking, Tally
from edgert.wiring.settings import Setting

TASK = ClassifyTask(classify="auto")


@dataclass
class Average:
    """A memory whose fit is the mean of what it saw."""

    source: str = "average"

    def look(self, config: InputConfig, view: object) -> np.ndarray:
        return np.zeros(1)

    def fit(self, looks: Sequence[np.ndarray]) -> float:
        return float(np.mean(looks))


def tally(ranking: Ranking, pad: int, values: Sequence[float], looks: Sequence[float] = ()) -> Tally:
    made = ranking.add(Setting(InputConfig(pad=pad), TASK))
    made.evidence = {n: Evidence(1, 1, 0, value) for n, value in enumerate(values)}
    made.looks = {n: tuple(np.array([look]) for look in looks[n : n + 1]) for n in range(len(values))}
    return made


def test_one_photo_tells_only_large_differences_apart() -> None:
    ranking = Ranking(())
    best, near, far = (tally(ranking, pad, [value]) for pad, value in enumerate((0.9, 0.6, 0.1)))
    assert ranking.best() is best
    assert ranking.lead(best, near) < CLEAR
    assert ranking.lead(best, far) >= CLEAR


def test_many_photos_that_agree_tell_small_ones() -> None:
    ranking = Ranking(())
    steady = np.linspace(0.5, 0.9, 8)
    best, other = tally(ranking, 0, steady), tally(ranking, 1, steady - 0.2)
    assert ranking.lead(best, other) >= CLEAR
    assert ranking.lead(other, best) == pytest.approx(-ranking.lead(best, other))


def test_photos_of_one_video_count_as_one() -> None:
    steady = np.linspace(0.5, 0.9, 8)
    leads = list[float]()
    for ranking, values in ((Ranking(()), steady.mean(keepdims=True)), (Ranking((), [0] * 8), steady)):
        leads.append(ranking.lead(tally(ranking, 0, values), tally(ranking, 1, values - 0.2)))
    assert leads[1] == pytest.approx(leads[0]) and leads[1] < CLEAR


def test_photos_that_disagree_are_a_tie() -> None:
    ranking = Ranking(())
    best = tally(ranking, 0, [0.9, 0.1, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9])
    other = tally(ranking, 1, [0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.9, 0.1])
    assert 0 < ranking.lead(best, other) < 2


def test_settings_are_compared_on_the_photos_they_share() -> None:
    ranking = Ranking(())
    best, dropped = tally(ranking, 0, [0.5, 0.0, 0.0]), tally(ranking, 1, [0.5])
    assert ranking.lead(best, dropped) == 0
    assert ranking.best() is best


def test_a_memory_adds_its_fit_and_its_spread() -> None:
    ranking = Ranking((Average(),))
    first = tally(ranking, 0, [0.5, 0.5, 0.5], [0.2, 0.4, 0.9])
    assert ranking.values(first, [0, 1, 2]) == pytest.approx([0.7, 0.9, 1.4])
    assert ranking.mean(first) == pytest.approx(1.0)
    assert ranking.fits(first) == pytest.approx((0.5,))
    assert ranking.answers(first) == pytest.approx(0.5)


def test_a_memory_of_color_and_scale_says_nothing_of_a_placement() -> None:
    ranking = Ranking((Average(),))
    first, placed = (tally(ranking, pad, [0.5] * 4, [look] * 4) for pad, look in ((0, 0.9), (1, 0.1)))
    turned = ranking.add(Setting(InputConfig(pad=0, color="bgr"), TASK))
    turned.evidence, turned.looks = dict(first.evidence), dict(placed.looks)
    assert ranking.lead(first, placed) == 0
    assert ranking.lead(first, turned) >= CLEAR


def test_an_equal_setting_has_one_tally() -> None:
    ranking = Ranking(())
    first = ranking.add(Setting(InputConfig(), TASK))
    assert ranking.add(Setting(InputConfig(), TASK)) is first
    assert ranking.find(Setting(InputConfig(pad=1), TASK)) is None
