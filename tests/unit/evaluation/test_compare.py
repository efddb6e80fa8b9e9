"""Comparisons: the drop, how sure it is, and the budget."""

from dataclasses import replace

import numpy as np
import pytest

from edgert.errors import ConfigError
from edgert.evaluation.coco_metric import precision
from edgert.evaluation.compare import Comparison, chosen_metric, compare
from edgert.evaluation.evaluate_model import Accuracy
from edgert.evaluation.score import ImageScores, mean_of
from tests.unit.evaluation.detections import scene


def result(**scores: ImageScores) -> Accuracy:
    values = {name: one.value for name, one in scores.items()}
    images = len(next(iter(scores.values())).right) if scores else 0  # type: ignore[attr-defined]
    return Accuracy("x", images, values, scores, 1.0, 1.0, 1, ())


def right(count: int, part: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(count) < part).astype(np.float64)


def test_the_same_model_loses_nothing() -> None:
    one = result(top1=mean_of(right(100, 0.6)))
    found = compare(one, one)
    assert (found.metric, found.drop, found.low, found.high, found.images) == ("top1", 0, 0, 0, 100)
    assert found.within is None and found.verdict == ""


def test_the_interval_is_that_of_paired_differences() -> None:
    before = right(400, 0.7)
    after = before.copy()
    after[:20] = 1 - after[:20]
    found = compare(result(top1=mean_of(before)), result(top1=mean_of(after)))
    difference = before - after
    error = difference.std() / np.sqrt(400)
    assert found.drop == pytest.approx(difference.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert found.low < found.drop < found.high
    assert compare(result(top1=mean_of(before)), result(top1=mean_of(after))) == found, "draws are seeded"


@pytest.mark.parametrize(
    ("flips", "max_drop", "verdict"),
    [(0, 0.0, "within"), (2, 0.01, "probably within"), (2, 0.004, "probably missed"), (60, 0.01, "missed")],
)
def test_the_verdict_says_how_sure_it_is(flips: int, max_drop: float, verdict: str) -> None:
    before = np.ones(400)
    after = before.copy()
    after[:flips] = 0
    found = compare(result(top1=mean_of(before)), result(top1=mean_of(after)), max_drop=max_drop)
    assert found.verdict == verdict
    assert found.within is ("within" in verdict)
    assert found.to_json()["verdict"] == verdict


def test_a_drop_of_the_whole_budget_is_within_it_whatever_its_last_bit() -> None:
    found = replace(
        compare(result(top1=mean_of([1.0])), result(top1=mean_of([1.0]))), drop=0.702 - 0.692, max_drop=0.01
    )
    assert found.drop > 0.01 and found.within and replace(found, high=found.drop).verdict == "within"
    assert not replace(found, drop=0.0101).within


def test_agreement_is_compared_with_itself() -> None:
    found = compare(Accuracy("fp32", 4, {}, {}, 1, 1, 1, ()), result(agreement=mean_of([1.0, 1.0, 0.5, 1.0])))
    assert (found.reference, found.other, found.drop) == (1.0, 0.875, 0.125)
    assert 0 <= found.low <= 0.125 <= found.high


def test_average_precision_is_resampled() -> None:
    ground_truth, found = scene(40, seed=3)
    worse = [one[np.arange(len(one)) % 4 != 0] for one in found]
    images = len(ground_truth.images)
    results = [
        Accuracy(name, images, {key: m.value for key, m in scores.items()}, scores, 1, 1, 1, ())
        for name, scores in (("a", precision(ground_truth, found)), ("b", precision(ground_truth, worse)))
    ]
    one = compare(*results, "map", max_drop=0.05)
    assert one.low < one.drop < one.high
    assert one.low > 0 and one.verdict in ("missed", "probably missed")


def test_metrics_that_are_not_there_are_named() -> None:
    one = result(top1=mean_of([1.0]), top5=mean_of([1.0]))
    with pytest.raises(ConfigError, match="did you mean 'top1'"):
        compare(one, one, "top11")
    with pytest.raises(ConfigError, match="cannot compare without labels or a reference"):
        chosen_metric({}, None)
    with pytest.raises(ConfigError, match="1 and 2 images"):
        compare(one, result(top1=mean_of([1.0, 0.0])))


def test_a_comparison_is_plain_data() -> None:
    found = Comparison("map", 0.5, 0.49, 0.01, 0.0, 0.02, 64, 0.02)
    assert found.to_json() == {
        "metric": "map", "reference": 0.5, "other": 0.49, "drop": 0.01, "low": 0.0, "high": 0.02, "images": 64,
        "max_drop": 0.02, "within": True, "verdict": "within",
    }  # fmt: skip
