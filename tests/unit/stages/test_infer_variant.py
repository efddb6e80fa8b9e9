from __future__ import annotations

from dataclasses import dataclass, field

from edgert.runtime import Frame, Record, Result
from edgert.stages.crop import Geometry
from edgert.stages.infer import Choice, Infer, InferBatch, VariantInference
from tests.helpers.frames import frame_of, result_of
from tests.helpers.virtual_clock import VirtualClock


@dataclass
class Named:
    """An inference slot whose records are its name and how many rows were run."""

    name: str
    rows: int = 1
    idle: bool = True
    filled: list[int] = field(default_factory=list)
    warm: int = 0

    def warm_up(self) -> None:
        self.warm += 1

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        self.filled.append(row)
        return Geometry(1.0, 1.0, 0.0, 0.0, 4, 4)

    def run(self, *geometries: Geometry) -> list[Record]:
        count, self.filled = len(self.filled), []
        assert count == len(geometries)
        return [f"{self.name} of {count}"] * count  # type: ignore[list-item]


def test_the_next_frame_is_of_the_model_that_was_chosen() -> None:
    choice, inferences = Choice(), [Named("large"), Named("small")]
    stage = Infer("find", VariantInference(inferences, choice))
    stage.open()
    assert [inference.warm for inference in inferences] == [1, 1]
    found = []
    for level in (0, 1, 2, 0):  # 2: another model of the pipeline can still be degraded
        choice.level = level
        found.append(stage.process(result_of(frame_of(4, 4))).outputs["find"])
    assert found == ["large of 1", "small of 1", "small of 1", "large of 1"]


def test_a_batch_that_has_begun_is_finished_by_the_model_that_began_it() -> None:
    choice, inferences = Choice(), [Named("large", 2), Named("small", 4)]
    inference = VariantInference(inferences, choice)
    inferences[0].idle = False
    stage = InferBatch("find", inference, 2, 9.0, VirtualClock())
    assert (inference.rows, inference.idle) == (2, False)
    assert offered(stage, 0) == []
    choice.level = 1
    assert [result.outputs["find"] for result in offered(stage, 1)] == ["large of 2"] * 2
    again = [*offered(stage, 2), *offered(stage, 3)]
    assert [result.outputs["find"] for result in again] == ["small of 2"] * 2


def offered(stage: InferBatch, index: int) -> list[Result]:
    """Submit one frame; return what is done without waiting."""
    result = result_of(frame_of(4, 4, index=index))
    stage.submit((result,), (result,))
    return stage.collect(wait=False)
