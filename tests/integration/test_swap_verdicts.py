"""A real detector that was made worse is refused within 500 frames, and one that is as good takes over."""

import pytest

from tests.helpers.evaluation_data import data
from tests.helpers.swap_verdicts import LOSS, TERMS, Detector


@pytest.fixture(scope="module")
def detector() -> Detector:
    data("models")  # skips without the evaluation data
    return Detector()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_loss_of_five_points_is_detected_twenty_times_of_twenty(detector: Detector) -> None:
    found = list(detector.worse(20))
    assert all(one.loss >= LOSS and one.frames <= TERMS.shadow for one in found)
    assert [one for one in found if not one.is_refused] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_equal_model_is_refused_no_time_of_twenty(detector: Detector) -> None:
    assert [one for one in detector.equal(20) if one.is_refused] == []
