"""Running a model: on whole frames, or on crops of another stage's detections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgert.backend import Session
from edgert.clock import Clock
from edgert.config import CropConfig
from edgert.policy import Batcher
from edgert.runtime import Crops, Detections, Frame, Record, Result
from edgert.stages.crop import Geometry, crop_boxes
from edgert.stages.decode.decoder import Array, Decoder
from edgert.stages.preprocess import Preprocessor


class Inference(Protocol):
    """A model bound to tensors, with what fills and reads them, wherever they are. For one thread at a time."""

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


class HostInference:
    """An inference slot on the CPU: one set of bound tensors, and what writes and reads it. For one thread at a time.

    Frames are written straight into the session's bound input, so nothing is copied on the way.

    Args:
        session: the tensors; owned by this slot.
        preprocessor: fills the session's image input.
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
        """One image's part of every output; outputs without a batch dimension are whole."""
        return [array[row] if batched else array for array, batched in zip(outputs, self._batched, strict=True)]


class Infer:
    """A stage that adds one model's record to every ``every``-th result; the others pass without."""

    def __init__(self, name: str, inference: Inference, every: int = 1) -> None:
        self.name, self._inference, self._every = name, inference, every

    def open(self) -> None:
        """Warms the engine up."""
        self._inference.warm_up()

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        if result.frame.index % self._every:
            return result
        (record,) = self._inference.run(self._inference.fill(result.frame))
        return result.with_output(self.name, record)

    def close(self) -> None:
        """The engine belongs to the pipeline."""


class InferCrops:
    """A stage that runs a model on crops of the newest detections and adds a :class:`~edgert.runtime.Crops` record.

    Args:
        inference: as many crops are run at once as it has rows.
        crop: which detections.
        every: frames between two runs; the others pass without a record.
    """

    def __init__(self, name: str, inference: Inference, crop: CropConfig, every: int = 1) -> None:
        self.name, self._inference, self._crop, self._every = name, inference, crop, every

    def open(self) -> None:
        """Warms the engine up."""
        self._inference.warm_up()

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        if result.frame.index % self._every:
            return result
        parent, detections = _newest_detections(result)
        rows, boxes = crop_boxes(detections, result.frame, self._crop)
        crops = [result.frame.crop(*box) for box in boxes.tolist()]
        most = self._inference.rows
        batches = (crops[n : n + most] for n in range(0, len(crops), most))
        records = [record for batch in batches for record in self._run(batch)]
        return result.with_output(self.name, Crops(parent, rows, tuple(records)))

    def _run(self, frames: Sequence[Frame]) -> list[Record]:
        return self._inference.run(*(self._inference.fill(frame, row) for row, frame in enumerate(frames)))

    def close(self) -> None:
        """The engine belongs to the pipeline."""


def _newest_detections(result: Result) -> tuple[str, Detections]:
    for stage, record in reversed(list(result.outputs.items())):
        if isinstance(record, Detections):
            return stage, record
    return "", result.detections


# Several models in one place, one of which runs: all are loaded, and one takes over between two frames.


@dataclass(slots=True)
class Choice:
    """How far the models of a pipeline are degraded: 0 is the first of each. Written by whoever governs."""

    level: int = 0


class VariantInference:
    """See :class:`~edgert.stages.infer.Inference`. Every run is of one model, which is chosen when its first row comes.

    Args:
        inferences: one of each model, with its own preprocessor and decoder; the last stands for all further levels.
        choice: looked at before each run; shared by all that change together.
    """

    def __init__(self, inferences: Sequence[Inference], choice: Choice) -> None:
        self._inferences, self._choice = inferences, choice
        self._inference = inferences[0]

    @property
    def rows(self) -> int:
        """The most frames that fit in one run of any of them."""
        return min(inference.rows for inference in self._inferences)

    @property
    def idle(self) -> bool:
        """Whether all of them are: one that was left may still be at its last run."""
        return all(inference.idle for inference in self._inferences)

    def warm_up(self) -> None:
        """Makes the first frame of each no slower than the others."""
        for inference in self._inferences:
            inference.warm_up()

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Takes a frame into a row of the next run, which is of the model chosen when row 0 came."""
        if row == 0:
            self._inference = self._inferences[min(self._choice.level, len(self._inferences) - 1)]
        return self._inference.fill(frame, row)

    def run(self, *geometries: Geometry) -> list[Record]:
        """Runs the rows that were filled; a record for each."""
        return self._inference.run(*geometries)


# Running a model on frames of several cameras at once, without one camera waiting for another.

_LOOK_NS = 300_000


class InferBatch:
    """A stage that adds one model's record to every ``every``-th result of a stream, several results at a time.

    While the engine has nothing to do, a frame is run at once, together with those that have come by then; batches
    form while it works on others, as :class:`edgert.policy.Batcher` decides. Each frame is brought into the input when
    it comes. Results leave in the order in which they came.

    Args:
        most: frames in a full batch; no more than the inference slot has rows.
        wait_s: the longest that the first frame of a batch waits, however busy the engine is.
    """

    def __init__(self, name: str, inference: Inference, most: int, wait_s: float, clock: Clock, every: int = 1) -> None:
        self.name, self._inference, self._clock = name, inference, clock
        self._batch: Batcher[Result] = Batcher(most, round(wait_s * 1e9), every)
        self._geometries: list[Geometry] = []

    def open(self) -> None:
        """Warms the engine up."""
        self._inference.warm_up()

    def process(self, result: Result) -> Result | Iterator[Result]:
        """See :class:`~edgert.runtime.Stage`; nothing comes out until a batch is run."""
        frame, batch = result.frame, self._batch
        if batch.passes(frame.index):
            return result
        frame.lease.retain()
        row = batch.hold(result, frame.index, self._clock.now_ns())
        if row is not None:
            self._geometries.append(self._inference.fill(frame, row))
        return self._run() if batch.is_due(self._clock.now_ns(), idle=False) else iter(())

    def due_ns(self) -> int | None:
        """See :class:`~edgert.runtime.Batching`; while the engine is busy, it is looked at again and again."""
        now = self._clock.now_ns()
        due = self._batch.due(now, self._inference.idle)
        return None if due is None else min(round(due), now + _LOOK_NS)

    def flush(self, last: bool = False) -> Iterator[Result]:
        """Runs what is held and gives it out, if the engine is free, or it is late, or the end."""
        is_due = self._batch.is_due(self._clock.now_ns(), last or self._inference.idle)
        return self._run() if is_due else iter(())

    def close(self) -> None:
        """Lets go of what was held when a pipeline was broken off. The engine belongs to the pipeline."""
        for result, _ in self._batch.take():
            result.frame.lease.release()
        self._geometries = []

    def _run(self) -> Iterator[Result]:
        records = self._inference.run(*self._geometries)
        self._geometries = []
        return self._given(self._batch.take(), records)

    def _given(self, held: Sequence[tuple[Result, bool]], records: Sequence[Record]) -> Iterator[Result]:
        made = iter(records)
        for result, is_wanted in held:
            yield result.with_output(self.name, next(made)) if is_wanted else result
            result.frame.lease.release()
