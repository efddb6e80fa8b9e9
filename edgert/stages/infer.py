"""Running a model: on whole frames, or on crops of another stage's detections."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.backend import Session
from edgert.config import CropConfig
from edgert.runtime import Crops, Detections, Frame, Record, Result
from edgert.stages.decode.base import Array, Decoder
from edgert.stages.geometry import Geometry
from edgert.stages.preprocess import Preprocessor
from edgert.stages.region import crop_boxes


class Infer:
    """A stage that adds one model's record to every ``every``-th result.

    The frame is written straight into the session's bound input, so nothing is copied on the way.

    Args:
        name: of the stage; the key of its record.
        session: the bound tensors to run on; owned by this stage.
        preprocessor: fills the session's picture input.
        decoder: reads its outputs.
        batched: for every output, whether its first dimension is the batch.
        every: frames between two runs; the others pass without a record.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        preprocessor: Preprocessor,
        decoder: Decoder,
        batched: tuple[bool, ...],
        every: int = 1,
    ) -> None:
        self.name, self._session, self._preprocessor, self._decoder = name, session, preprocessor, decoder
        self._batched, self._every = batched, every

    def open(self) -> None:
        """Runs the engine once, so that the first frame does not pay for binding and lazy set-up."""
        self._session.run(1)

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        if result.frame.index % self._every:
            return result
        return result.with_output(self.name, self.infer(result.frame))

    def infer(self, frame: Frame) -> Record:
        """The record of one frame or crop."""
        geometry = self._preprocessor.into(0, frame)
        return self._decoder(self._row(self._session.run(1), 0), geometry)

    def infer_batch(self, frames: Sequence[Frame]) -> list[Record]:
        """The records of up to a batch of frames in one run, for a session whose batch size is dynamic."""
        geometries: list[Geometry] = [self._preprocessor.into(row, frame) for row, frame in enumerate(frames)]
        outputs = self._session.run(len(frames))
        return [self._decoder(self._row(outputs, n), geometry) for n, geometry in enumerate(geometries)]

    def close(self) -> None:
        """The engine belongs to the pipeline."""

    def _row(self, outputs: Sequence[Array], row: int) -> list[Array]:
        """One picture's part of every output; outputs without a batch dimension are whole."""
        return [array[row] if batched else array for array, batched in zip(outputs, self._batched, strict=True)]


class InferCrops:
    """A stage that runs a model on crops of the newest detections and adds a :class:`~edgert.runtime.Crops` record.

    Args:
        inner: how the model is run.
        parent: name of the stage whose detections are cropped, for the record.
        crop: which detections.
        batch: crops per run; 1 for a model of static batch.
    """

    def __init__(self, inner: Infer, crop: CropConfig, batch: int) -> None:
        self.name, self._inner, self._crop, self._batch = inner.name, inner, crop, batch

    def open(self) -> None:
        """Warms the engine up."""
        self._inner.open()

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        parent, detections = _newest_detections(result)
        rows, boxes = crop_boxes(detections, result.frame, self._crop)
        crops = [result.frame.crop(*box) for box in boxes.tolist()]
        return result.with_output(self.name, Crops(parent, rows, tuple(self._records(crops))))

    def _records(self, crops: Sequence[Frame]) -> list[Record]:
        if self._batch == 1:
            return [self._inner.infer(crop) for crop in crops]
        batches = (crops[n : n + self._batch] for n in range(0, len(crops), self._batch))
        return [record for batch in batches for record in self._inner.infer_batch(batch)]

    def close(self) -> None:
        """Nothing of its own."""


def _newest_detections(result: Result) -> tuple[str, Detections]:
    for stage, record in reversed(list(result.outputs.items())):
        if isinstance(record, Detections):
            return stage, record
    return "", result.detections
