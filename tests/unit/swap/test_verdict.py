"""The rules of a swap: a bound that holds for frames that resemble each other, and the time that a run may take."""

import numpy as np
import pytest

from edgert.errors import ConfigError
from edgert.runtime import Classification, Crops, Detections, Embedding, Segmentation
from edgert.swap.shadow import agreement_of
from edgert.swap.verdict import SHADOW_SHARE, Terms, agreement_bound, allowed_s, cannot_agree, has_turn, why_refused

TERMS = Terms(500, 0.97, 600.0)


def similar(count: int, mean: float, seed: int, memory: float = 0.9) -> list[float]:
    """Agreement on consecutive frames: each resembles the one before."""
    random, level, values = np.random.default_rng(seed), 0.0, []
    for _ in range(count):
        level = memory * level + random.normal(0, 0.02)
        values.append(mean + level)
    return values


def test_the_bound_lies_below_the_truth_as_often_as_it_says() -> None:
    held = [agreement_bound(similar(500, 0.9, seed)).low <= 0.9 for seed in range(200)]
    assert 0.91 <= np.mean(held) <= 0.97
    # One that takes frames for independent says so far less often.
    naive = [(values := similar(500, 0.9, seed)) and np.mean(values) - 1.65 * np.std(values) / 500**0.5 <= 0.9
             for seed in range(200)]  # fmt: skip
    assert np.mean(naive) < 0.8


def test_few_frames_are_sure_of_nothing() -> None:
    assert agreement_bound([]).mean == agreement_bound([]).low == agreement_bound([1.0] * 19).low == 0.0
    assert agreement_bound([1.0] * 20).low == 1.0


def test_a_model_takes_over_only_where_it_surely_agrees() -> None:
    assert why_refused([0.99, 1.0] * 250, TERMS) == ""
    assert "0.950, but 0.97 is required" in why_refused([0.95] * 500, TERMS)
    doubtful = [1.0] * 460 + [0.7] * 40
    assert "but surely only" in why_refused(doubtful, TERMS)


def test_what_can_no_longer_agree_is_ended_early() -> None:
    assert not cannot_agree([1.0] * 10, TERMS) and not cannot_agree([], Terms(0, 0.97, 0))
    assert not cannot_agree([0.0] * 14, TERMS) and cannot_agree([0.0] * 16, TERMS)


@pytest.mark.parametrize("terms", [Terms(19, 0.9, 1), Terms(10**6, 0.9, 1), Terms(20, 1.1, 1), Terms(20, 0.9, 1e7)])
def test_terms_out_of_range(terms: Terms) -> None:
    with pytest.raises(ConfigError, match="is out of range"):
        terms.check()
    Terms(0, 1.0, 0.0).check()


def test_the_time_of_a_run() -> None:
    assert allowed_s(0.01, 1 / 30, None) == 1 / 30  # a camera's frame
    assert allowed_s(0.01, 1 / 30, 0.02) == 0.02  # a latency budget
    assert allowed_s(0.04, 1 / 30, 0.02) == pytest.approx(0.06)  # the old one is as slow
    assert allowed_s(0.01, None, None) == 0.04  # a file


@pytest.mark.parametrize("run_s", [0.001, 0.01, 0.1, 1.0])
def test_the_shadow_takes_its_share_at_most(run_s: float) -> None:
    spent_s, looks = 0.0, 0
    for frame in range(3000):
        if has_turn(spent_s, frame / 30):
            spent_s, looks = spent_s + run_s, looks + 1
    assert spent_s <= SHADOW_SHARE * 100 + run_s and looks >= min(SHADOW_SHARE * 100 / run_s, 3000) - 1


def boxes(*corners: tuple[float, ...]) -> Detections:
    found = np.array(corners, np.float32).reshape(-1, 4)
    return Detections(found, np.full(len(found), 0.9, np.float32), np.zeros(len(found), np.int32), ("bolt",))


def test_agreement_is_that_of_eval() -> None:
    one, other = boxes((0, 0, 10, 10), (20, 20, 30, 30)), boxes((0, 0, 10, 11))
    assert agreement_of(one, one) == 1 and agreement_of(one, other) == pytest.approx(2 / 3)
    assert agreement_of(boxes(), boxes()) is None and agreement_of(boxes(), one) == 0
    classes = [Classification(np.ones(1, np.float32), np.array([number], np.int32), ("a", "b")) for number in (0, 1)]
    assert agreement_of(classes[0], classes[0]) == 1 and agreement_of(*classes) == 0
    vectors = [Embedding(np.array(one, np.float32)) for one in ((1, 0), (0, 1), (1, 0, 0), (np.nan, 0))]
    assert agreement_of(vectors[0], vectors[0]) == pytest.approx(1)
    assert [agreement_of(vectors[0], one) for one in vectors[1:]] == [0, 0, 0]
    masks = [Segmentation(np.zeros(size, np.uint8), (0, 0, 4, 4), ("a",)) for size in ((4, 4), (8, 8))]
    assert agreement_of(masks[0], masks[0]) == 1 and agreement_of(*masks) == 0
    crops = [Crops("find", np.arange(2, dtype=np.int32), (some, classes[0])) for some in classes]
    assert agreement_of(*crops) == 0.5 and agreement_of(Crops("find", np.zeros(0, np.int32), ()), crops[0]) == 0
