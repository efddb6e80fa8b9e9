"""Several models in one place, one of which runs: all are loaded, and one takes over between two frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgert.runtime import Frame, Record
from edgert.stages.geometry import Geometry
from edgert.stages.infer import AnyLane


@dataclass(slots=True)
class Choice:
    """How far the models of a pipeline are degraded: 0 is the first of each. Written by whoever governs."""

    level: int = 0


class VariantLane:
    """See :class:`~edgert.stages.infer.AnyLane`. Every run is of one model, which is chosen when its first row comes.

    Args:
        lanes: one of each model, with its own preprocessor and decoder; the last stands for all further levels.
        choice: looked at before each run; shared by all that change together.
    """

    def __init__(self, lanes: Sequence[AnyLane], choice: Choice) -> None:
        self._lanes, self._choice = lanes, choice
        self._lane = lanes[0]

    @property
    def rows(self) -> int:
        """The most frames that fit in one run of any of them."""
        return min(lane.rows for lane in self._lanes)

    @property
    def idle(self) -> bool:
        """Whether all of them are: one that was left may still be at its last run."""
        return all(lane.idle for lane in self._lanes)

    def warm_up(self) -> None:
        """Makes the first frame of each no slower than the others."""
        for lane in self._lanes:
            lane.warm_up()

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Takes a frame into a row of the next run, which is of the model chosen when row 0 came."""
        if row == 0:
            self._lane = self._lanes[min(self._choice.level, len(self._lanes) - 1)]
        return self._lane.fill(frame, row)

    def run(self, *geometries: Geometry) -> list[Record]:
        """Runs the rows that were filled; a record for each."""
        return self._lane.run(*geometries)
