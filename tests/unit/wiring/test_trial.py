"""The model sees exactly what a pipeline would show it, and no run is made twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgert.config import InputConfig
from edgert.stages.preprocess import Preprocessor
from edgert.wiring.photos import with_views
from edgert.wiring.trial import Trial


class Echo:
    """A session whose output is its input."""

    def __init__(self, height: int = 24, width: int = 32) -> None:
        self.inputs = {"x": np.zeros((1, 3, height, width), np.float32)}
        self.runs = 0

    def run(self, rows: int | None = None) -> list[np.ndarray]:
        self.runs += 1
        return [self.inputs["x"]]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


CONTROL = np.zeros((8, 8, 3), np.uint8)
CONFIGS = [
    InputConfig(),
    InputConfig(anchor="top_left", pad=0, color="bgr"),
    InputConfig(resize="stretch", mean=(127.5,), std=(127.5,)),
    InputConfig(resize="center_crop", crop=0.875, color="bgr"),
    InputConfig(resize="center_crop", interpolation="area"),
    InputConfig(color="rgb", mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0)),
]


def test_inputs_are_those_of_the_pipeline_in_any_order() -> None:
    photo = with_views(Path("p"), noise(77, 53), CONTROL, "classify")
    session, counted = Echo(), []
    trial = Trial(session, [True], "m", lambda: counted.append(1))
    for config in [*CONFIGS, *reversed(CONFIGS)]:
        for view in photo.views:
            (given,), geometry = trial.answer(config, view)
            expected = np.zeros((1, 3, 24, 32), np.float32)
            wanted = Preprocessor(config, expected).into(0, view.frame)
            assert np.array_equal(given, expected[0]), config
            assert geometry == wanted
    assert len(counted) == session.runs == len(CONFIGS) * len(photo.views)


def test_settings_that_make_the_same_input_share_a_run() -> None:
    photo = with_views(Path("p"), noise(48, 64), CONTROL, "detect")
    session = Echo()
    trial = Trial(session, [True], "m", lambda: None)
    for config in (InputConfig(), InputConfig(pad=0), InputConfig(anchor="top_left"), InputConfig(resize="stretch")):
        trial.answer(config, photo.views[0])
    assert session.runs == 1
    trial.forget()
    trial.answer(InputConfig(), photo.views[0])
    assert session.runs == 2


def test_answers_are_copies_that_outlive_the_next_run() -> None:
    photo = with_views(Path("p"), noise(48, 64), CONTROL, "detect")
    trial = Trial(Echo(), [True], "m", lambda: None)
    (first,), _ = trial.answer(InputConfig(), photo.views[0])
    before = first.copy()
    trial.answer(InputConfig(std=(255.0,)), photo.views[0])
    assert first == pytest.approx(before)
