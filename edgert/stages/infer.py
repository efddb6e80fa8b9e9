"""Running a model: on whole frames, or on crops of another stage's detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgert.backend import Session
from edgert.config import CropConfig
from edgert.runtime import Crops, Detections, Frame, Record, Result
from edgert.stages.decode.base import Array, Decoder
from edgert.stages.geometry import Geometry
from edgert.stages.preprocess import Preprocessor
from edgert.stages.region import crop_boxes


class AnyLane(Protocol):
    """What stages ask of a lane, wherever its tensors are. For one thread at a time."""

    @property
    def rows(self) -> int:
        """The most frames that fit in one run."""
        ...

    @property
    def idle(self) -> bool:
        """Whether everything that was given to the engine is done."""
        ...

    def warm_up(self) -> None:
        """Makes the first frame no slower than the others."""
        ...

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Takes a frame into a row of the next run; it may be released then. The way back to source pixels."""
        ...

    def run(self, *geometries: Geometry) -> list[Record]:
        """Runs the rows that were filled; a record for each."""
        ...


class Lane:
    """One set of bound tensors, and what writes and reads it. For one thread at a time.

    Frames are written straight into the session's bound input, so nothing is copied on the way.

    Args:
        session: the tensors; owned by this lane.
        preprocessor: fills the session's picture input.
        decoder: reads its outputs.
        batched: for every output, whether its first dimension is the batch.
    """

    def __init__(
        self, session: Session, preprocessor: Preprocessor, decoder: Decoder, batched: tuple[bool, ...]
    ) -> None:
        self._session, self._preprocessor, self._decoder, self._batched = session, preprocessor, decoder, batched

    @property
    def rows(self) -> int:
        """Rows of the input: the most frames that fit in one run."""
        return self._preprocessor.rows

    @property
    def network(self) -> tuple[int, int]:
        """(width, height) of the input, pixels."""
        return self._preprocessor.network

    @property
    def idle(self) -> bool:
        """Always: runs are waited for."""
        return True

    def warm_up(self) -> None:
        """Runs once, so that the first frame does not pay for binding and lazy set-up."""
        self._session.run(1)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Writes a frame into a row of the input; returns the way back to source pixels."""
        return self._preprocessor.into(row, frame)

    def run(self, *geometries: Geometry) -> list[Record]:
        """Runs the rows that were filled, and reads a record for each."""
        outputs = self._session.run(len(geometries))
        return [self._decoder(self._row(outputs, row), geometry) for row, geometry in enumerate(geometries)]

    def _row(self, outputs: Sequence[Array], row: int) -> list[Array]:
        """One picture's part of every output; outputs without a batch dimension are whole."""
        return [array[row] if batched else array for array, batched in zip(outputs, self._batched, strict=True)]


class Infer:
    """A stage that adds one model's record to every ``every``-th result; the others pass without."""

    def __init__(self, name: str, lane: AnyLane, every: int = 1) -> None:
        self.name, self._lane, self._every = name, lane, every

    def open(self) -> None:
        """Warms the engine up."""
        self._lane.warm_up()

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        if result.frame.index % self._every:
            return result
        (record,) = self._lane.run(self._lane.fill(result.frame))
        return result.with_output(self.name, record)

    def close(self) -> None:
        """The engine belongs to the pipeline."""


class InferCrops:
    """A stage that runs a model on crops of the newest detections and adds a :class:`~edgert.runtime.Crops` record.

    Args:
        lane: as many crops are run at once as it has rows.
        crop: which detections.
        every: frames between two runs; the others pass without a record.
    """

    def __init__(self, name: str, lane: AnyLane, crop: CropConfig, every: int = 1) -> None:
        self.name, self._lane, self._crop, self._every = name, lane, crop, every

    def open(self) -> None:
        """Warms the engine up."""
        self._lane.warm_up()

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        if result.frame.index % self._every:
            return result
        parent, detections = _newest_detections(result)
        rows, boxes = crop_boxes(detections, result.frame, self._crop)
        crops = [result.frame.crop(*box) for box in boxes.tolist()]
        most = self._lane.rows
        batches = (crops[n : n + most] for n in range(0, len(crops), most))
        records = [record for batch in batches for record in self._run(batch)]
        return result.with_output(self.name, Crops(parent, rows, tuple(records)))

    def _run(self, frames: Sequence[Frame]) -> list[Record]:
        return self._lane.run(*(self._lane.fill(frame, row) for row, frame in enumerate(frames)))

    def close(self) -> None:
        """The engine belongs to the pipeline."""


def _newest_detections(result: Result) -> tuple[str, Detections]:
    for stage, record in reversed(list(result.outputs.items())):
        if isinstance(record, Detections):
            return stage, record
    return "", result.detections
