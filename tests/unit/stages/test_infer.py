"""The stage that runs a model, and the smaller model that takes its place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgert.backend import EngineOptions, Session, backend
from edgert.config import CropConfig, InputConfig
from edgert.runtime import Crops, Frame, Result
from edgert.runtime.branches import ModelLevel
from edgert.stages.crop import Geometry
from edgert.stages.infer import HostInference, Infer, InferBatch, InferCrops, VariantInference
from edgert.stages.preprocess import Preprocessor
from tests.helpers import models
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.stages import Rows
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.written import opened

CONFIG = InputConfig(resize="stretch")


class Means:
    """A session whose outputs are the mean level of every row that was run, one without a batch, and the rows run."""

    def __init__(self, rows: int = 1, size: int = 4) -> None:
        self.inputs = {"x": np.zeros((rows, 3, size, size), np.float32)}
        self.runs: list[int | None] = []

    def run(self, rows: int | None = None) -> Sequence[Any]:
        self.runs.append(rows)
        used = self.inputs["x"][: rows or len(self.inputs["x"])]
        return [used.mean(axis=(1, 2, 3))[:, None], np.array([7.0])]


def level(outputs: Sequence[Any], geometry: Geometry) -> tuple[float, float, Geometry]:
    """What a row says, what is there for all, and the geometry."""
    (mean,), (whole,) = outputs
    return round(float(mean), 3), float(whole), geometry


def inference(session: Session) -> HostInference:
    return HostInference(session, Preprocessor(CONFIG, session.inputs["x"]), level, (True, False))


def flat(value: int, index: int = 0, width: int = 16, height: int = 12) -> Frame:
    return frame_of(width, height, pixels=(np.full((height, width, 3), value, np.uint8),), index=index)


def test_a_frame_gets_the_record_of_its_own_pixels() -> None:
    session = Means()
    with opened(Infer("find", inference(session))) as stage:
        assert session.runs == [1]
        for value in (10, 200):
            out = stage.process(result_of(flat(value), {"before": 1}))
            mean, whole, geometry = out.outputs["find"]
            assert (mean, whole, geometry.scale_x, geometry.scale_y) == (value, 7, 4, 3)
            assert list(out.outputs) == ["before", "find"]


def test_every_third_frame_is_looked_at_and_the_others_pass() -> None:
    stage = Infer("find", inference(Means()), every=3)
    found = ["find" in stage.process(result_of(flat(9, index))).outputs for index in range(7)]
    assert found == [True, False, False, True, False, False, True]


class TestCrops:
    def found(self, count: int) -> Any:
        boxes = [(10 * n, 0, 10 * n + 10, 12) for n in range(count)]
        return detections(*boxes)  # scores fall, so the order stays

    def striped(self, count: int) -> Frame:
        frame = flat(0, width=10 * count)
        for n in range(count):
            frame.planes[0][:, 10 * n : 10 * n + 10] = n + 1
        return frame

    @pytest.mark.parametrize("rows", [1, 2, 3, 8])
    def test_every_crop_gets_its_own_record_however_they_are_batched(self, rows: int) -> None:
        session = Means(rows)
        stage = InferCrops("read", inference(session), CropConfig())
        stage.open()
        session.runs.clear()
        out = stage.process(result_of(self.striped(5), {"find": self.found(5)}))
        crops = out.outputs["read"]
        assert isinstance(crops, Crops) and crops.parent == "find" and crops.rows.tolist() == [0, 1, 2, 3, 4]
        assert [record[0] for record in crops.records] == [1, 2, 3, 4, 5]
        assert [record[2].bounds[0] for record in crops.records] == [0, 10, 20, 30, 40]
        assert sum(run or 0 for run in session.runs) == 5 and len(session.runs) == -(-5 // rows)

    def test_no_detections_no_run(self) -> None:
        session = Means(2)
        stage = InferCrops("read", inference(session), CropConfig())
        for outputs in ({}, {"find": detections()}):
            out = stage.process(result_of(flat(1), outputs))
            assert out.outputs["read"].records == () and len(out.outputs["read"].rows) == 0
        assert session.runs == []

    def test_the_newest_detections_are_cropped(self) -> None:
        outputs = {"find": self.found(3), "track": self.found(1)}
        out = InferCrops("read", inference(Means()), CropConfig()).process(result_of(self.striped(3), outputs))
        assert out.outputs["read"].parent == "track" and len(out.outputs["read"].records) == 1

    def test_frames_between_pass_without_a_record(self) -> None:
        stage = InferCrops("read", inference(Means()), CropConfig(), every=2)
        for index in (0, 1, 2):
            frame = flat(1, index, width=20)
            assert ("read" in stage.process(result_of(frame, {"find": self.found(1)})).outputs) == (index % 2 == 0)


@pytest.mark.parametrize("batch", [1, "n"])
def test_nothing_is_copied_on_the_way_into_a_real_session(batch: int | str) -> None:
    engine = backend("null").compile(models.conv((batch, 3, 8, 8)), EngineOptions(1))
    session = engine.session()
    seen: list[Any] = []
    stage = Infer(
        "find",
        HostInference(session, Preprocessor(CONFIG, session.inputs["x"]), lambda o, g: seen.append(o), engine.batched),
    )
    frame = frame_of(32, 32)
    stage.process(result_of(frame))
    assert session.inputs["x"].any()
    assert frame.lease.counter.read().copies == 0
    assert [array.shape for array in seen[0]] == [(4, 8, 8), (4, 1, 1)]
    assert all(np.shares_memory(row, whole) for row, whole in zip(seen[0], session.run(1), strict=True))


def test_the_next_frame_is_of_the_model_that_was_chosen() -> None:
    choice, inferences = ModelLevel(), [Rows("large "), Rows("small ")]
    stage = Infer("find", VariantInference(inferences, choice))
    stage.open()
    assert [inference.runs for inference in inferences] == [[0], [0]]
    found = []
    for level in (0, 1, 2, 0):  # 2: another model of the pipeline can still be degraded
        choice.level = level
        found.append(stage.process(result_of(frame_of(4, 4))).outputs["find"])
    assert found == ["large camera0", "small camera0", "small camera0", "large camera0"]


def test_a_batch_that_has_begun_is_finished_by_the_model_that_began_it() -> None:
    choice, inferences = ModelLevel(), [Rows("large ", 2), Rows("small ", 4, idle=True)]
    inference = VariantInference(inferences, choice)
    stage = InferBatch("find", inference, 2, 9.0, VirtualClock())
    assert (inference.rows, inference.idle) == (2, False)
    assert offered(stage, 0) == []
    choice.level = 1
    assert [result.outputs["find"] for result in offered(stage, 1)] == ["large camera0", "large camera1"]
    again = [*offered(stage, 2), *offered(stage, 3)]
    assert [result.outputs["find"] for result in again] == ["small camera2", "small camera3"]


def offered(stage: InferBatch, index: int) -> list[Result]:
    """Submit one frame; return what is done without waiting."""
    result = result_of(frame_of(4, 4, index=index))
    stage.submit((result,), (result,))
    return stage.collect(wait=False)
