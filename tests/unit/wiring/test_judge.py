"""From evidence and what is known to a verdict."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from edgert.config import InputConfig, TaskConfig
from edgert.runtime import Detections
from edgert.wiring.evidence import Evidence
from edgert.wiring.exporter_metadata import DeclaredSettings
from edgert.wiring.judge import Judgment, judge
from edgert.wiring.prior import prior_of
from edgert.wiring.search import Ranking, Tally
from edgert.wiring.settings import Setting

YOLOX, YOLOV5 = (TypeAdapter[TaskConfig](TaskConfig).validate_python({"detect": kind}) for kind in ("yolox", "yolov5"))
PRIORS = {f"detect: {one.detect}": prior_of(DeclaredSettings(), one, ["images"], ["output"]) for one in (YOLOX, YOLOV5)}  # type: ignore[union-attr]
FED = PRIORS["detect: yolox"].applied(InputConfig())


def boxes(width: float) -> Detections:
    return Detections(np.array([[0, 0, width, 10]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int32))


def tally(ranking: Ranking, config: InputConfig, task: TaskConfig, value: float, count: int, width: float) -> Tally:
    made = ranking.add(Setting(config, task))
    for number in range(count):
        made.evidence[number] = Evidence(value, value, 0.0, value)
        made.records[number], made.looks[number] = boxes(width), ()
    return made


def judged(count: int, width: float) -> tuple[Judgment, Tally]:
    """The family's own way, and a strange placement whose boxes are ``width`` wide instead of 100."""
    ranking = Ranking(())
    known = tally(ranking, FED, YOLOX, 0.9, count, 100)
    strange = tally(ranking, FED.model_copy(update={"anchor": "center"}), YOLOX, 0.9, count, width)
    return judge(ranking, PRIORS["detect: yolox"], known), strange


@pytest.mark.parametrize(
    ("count", "width", "as_good"), [(1, 100, False), (4, 100, True), (16, 97, True), (16, 93, False)]
)
def test_what_is_not_known_of_a_model_must_answer_the_same_on_several_photos(
    count: int, width: float, as_good: bool
) -> None:
    judgment, strange = judged(count, width)
    assert judgment.chosen is not strange
    assert judgment.as_good(strange) == as_good


def test_a_wrong_readings_family_does_not_speak_against_the_right_one() -> None:
    ranking, prior = Ranking(()), PRIORS["detect: yolov5"]
    favored = tally(ranking, prior.applied(InputConfig()), YOLOV5, 0.0, 4, 100)
    right = tally(ranking, FED, YOLOX, 0.9, 4, 100)
    assert judge(ranking, prior, favored).chosen is favored
    assert judge(ranking, replace(prior, others=PRIORS), favored).chosen is right
