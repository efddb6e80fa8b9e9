"""Inference on the CPU: on frames, on crops of detections, in batches, or segment by segment."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgert.backend import Session
from edgert.board.host import pin, unpin
from edgert.clock import Clock
from edgert.config import CropConfig
from edgert.placement.segment_engines import Chain
from edgert.policy import Batcher
from edgert.runtime import Crops, Detections, Frame, Record, Result, Stage
from edgert.stages.context import SimpleStage
from edgert.stages.crop import Geometry, crop_boxes, upright
from edgert.stages.decode.decoder import Decoder, of_one_image
from edgert.stages.preprocess import Preprocessor
from edgert.tracing import HERE


class Inference(Protocol):
    """A model bound to tensors, with what fills and reads them, wherever they are. For one thread at a time."""

    @property
    def rows(self) -> int:
        """The most frames that fit in one run."""

    @property
    def idle(self) -> bool:
        """Whether everything that was given to the engine is done."""

    def warm_up(self) -> None:
        """Make the first frame no slower than the others."""

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Take a frame into a row of the next run; return the way back to source pixels. The frame may be released."""

    def run(self, *geometries: Geometry) -> Iterable[Record]:
        """Run the rows that were filled; return a record for each."""


class PendingRecords(ABC):
    """Records of a run that has not ended."""

    @abstractmethod
    def __iter__(self) -> Iterator[Record]: ...

    @abstractmethod
    def records(self) -> Sequence[Record]:
        """Wait for the run, and return its records. Raises EdgertError when the run failed."""


class HostInference:
    """An inference slot on the CPU: one set of bound tensors, and what writes and reads it. For one thread at a time.

    Frames are written straight into the session's bound input, so nothing is copied on the way.

    Args:
        session: the tensors; owned by this slot.
        preprocessor: fills the session's image input.
        decoder: reads its outputs.
        batched: for every output, whether its first dimension is the batch.

    Attributes:
        network: (width, height) of the input, pixels.
    """

    def __init__(
        self, session: Session, preprocessor: Preprocessor, decoder: Decoder, batched: tuple[bool, ...]
    ) -> None:
        self._session, self._preprocessor, self._decoder, self._batched = session, preprocessor, decoder, batched
        self.rows, self.network = preprocessor.rows, preprocessor.network
        self.idle = True  # runs are waited for

    def warm_up(self) -> None:
        """Run once, so that the first frame does not pay for binding and lazy set-up."""
        self._session.run(1)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        if (ring := HERE.ring) is None:
            return self._preprocessor.into(row, frame)
        began_ns = ring.now_ns()
        geometry = self._preprocessor.into(row, frame)
        ring.part("preprocess", began_ns)
        return geometry

    def interrupt(self) -> None:
        """End a run under way, from any thread, where its engine can."""
        getattr(self._session, "interrupt", bool)()

    def run(self, *geometries: Geometry) -> list[Record]:
        ring = HERE.ring
        began_ns = 0 if ring is None else ring.now_ns()
        outputs = self._session.run(len(geometries))
        if ring is not None:
            began_ns = ring.part("engine", began_ns)
        records = [
            self._decoder(of_one_image(outputs, self._batched, row), geometry)
            for row, geometry in enumerate(geometries)
        ]
        if ring is not None:
            ring.part("decode", began_ns)
        return records


class Infer(SimpleStage):
    """A stage that adds one model's record to every ``every``-th result; the others pass without.

    The engine belongs to the pipeline, here and in the stages below: closing a stage leaves it as it is.

    Attributes:
        every: may be set while it runs.
    """

    def __init__(self, name: str, inference: Inference, every: int = 1) -> None:
        self.name, self._inference, self.every = name, inference, every

    def interrupt(self) -> None:
        """End a run under way, from any thread, where its engine can."""
        getattr(self._inference, "interrupt", bool)()

    def open(self) -> None:
        self._inference.warm_up()

    def process(self, result: Result) -> Result:
        if result.frame.index % self.every:
            return result
        (record,) = self._inference.run(self._inference.fill(result.frame))
        return result.with_output(self.name, record)

    def _run_crops(self, crops: Sequence[Frame]) -> list[Record]:
        """Return the record of each crop, running as many at once as the model has rows."""
        runs = []
        for start in range(0, len(crops), self._inference.rows):
            batch = enumerate(crops[start : start + self._inference.rows])
            runs.append(self._inference.run(*(self._inference.fill(crop, row) for row, crop in batch)))
        # The first run is collected after the last has begun, so that a GPU works while further crops are uploaded.
        return [one for run in runs for one in (run.records() if isinstance(run, PendingRecords) else run)]


def newest_detections(result: Result) -> tuple[str, Detections]:
    """Return the stage with the newest detections, and these; crops are cut from them."""
    outputs = reversed(list(result.outputs.items()))
    found = ((stage, record) for stage, record in outputs if isinstance(record, Detections))
    return next(found, ("", result.detections))


class InferCrops(Infer):
    """A stage that runs a model on crops of the newest detections and adds a :class:`~edgert.runtime.Crops` record.

    Args:
        inference: as many crops are run at once as it has rows.
        crop: which detections.
        every: frames between two runs; the others pass without a record.
        upright: whether turned boxes are cut out turned upright; what such a model finds has no place in the frame.
    """

    def __init__(
        self, name: str, inference: Inference, crop: CropConfig, every: int = 1, upright: bool = False
    ) -> None:
        super().__init__(name, inference, every)
        self._crop, self._upright = crop, upright

    def process(self, result: Result) -> Result:
        if result.frame.index % self.every:
            return result
        parent, detections = newest_detections(result)
        rows, boxes = crop_boxes(detections, result.frame, self._crop)
        if self._upright and detections.corners is not None:
            crops = [upright(result.frame, corners, self._crop.margin) for corners in detections.corners[rows]]
        else:
            crops = [result.frame.crop(*box) for box in boxes.tolist()]
        return result.with_output(self.name, Crops(parent, rows, tuple(self._run_crops(crops))))


@dataclass(slots=True)
class Choice:
    """Degradation level of a pipeline's models, written by the governor; 0 is the first model of each."""

    level: int = 0


class VariantInference:
    """Several models, all loaded, of which one runs: every run is of the one that is chosen when its first row comes.

    Args:
        inferences: one of each model, with its own preprocessor and decoder; the last stands for all further levels.
        choice: looked at before each run; shared by all that change together.
    """

    def __init__(self, inferences: Sequence[Inference], choice: Choice) -> None:
        self._inferences, self._choice = inferences, choice
        self._inference = inferences[0]
        self.rows = min(inference.rows for inference in inferences)

    @property
    def idle(self) -> bool:
        """Whether all of them are: one that was left may still be at its last run."""
        return all(inference.idle for inference in self._inferences)

    def warm_up(self) -> None:
        for inference in self._inferences:
            inference.warm_up()

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Take a frame into a row of the next run, which is of the model chosen when row 0 came."""
        if row == 0:
            self._inference = self._inferences[min(self._choice.level, len(self._inferences) - 1)]
        return self._inference.fill(frame, row)

    def interrupt(self) -> None:
        """End a run under way, from any thread, where its engine can."""
        getattr(self._inference, "interrupt", bool)()

    def run(self, *geometries: Geometry) -> Iterable[Record]:
        return self._inference.run(*geometries)


# Running a model on frames of several cameras at once, without one camera waiting for another.

_POLL_NS, _LONG_NS = 300_000, 3_600_000_000_000


class BatchedStage(SimpleStage):
    """A stage whose frames wait in a batcher, and what may be set of it while it runs."""

    _batch: Batcher[Result]

    @property
    def every(self) -> int:
        """Frames of a stream between two that the model looks at."""
        return self._batch.every

    @every.setter
    def every(self, every: int) -> None:
        self._batch.every = every

    def hold_until_full(self) -> None:
        """Run only full batches from now on; the last, partial one runs at the end."""
        self._batch.wait = float("inf")


class InferBatch(BatchedStage):
    """A stage that adds one model's record to every ``every``-th result of a stream, several results at a time.

    An idle engine runs a frame at once, together with all that have arrived. Batches form while it is busy, as
    :class:`edgert.policy.Batcher` decides. Each frame is preprocessed on arrival. Results leave in order of arrival.

    Args:
        most: frames in a full batch; no more than the inference slot has rows.
        wait_s: the longest that the first frame of a batch waits, however busy the engine is.
        fills: whether a free engine waits for a full batch as well, as long as frames come.
    """

    limit, in_flight = 1, 0  # runs are waited for

    def __init__(
        self,
        name: str,
        inference: Inference,
        most: int,
        wait_s: float,
        clock: Clock,
        every: int = 1,
        fills: bool = False,
    ) -> None:
        self.name, self._inference, self._clock = name, inference, clock
        self._batch = Batcher(most, round(wait_s * 1e9), every, fills)
        self._geometries: list[Geometry] = []
        self._leaving = deque[tuple[Result, bool]]()  # of the batch that is run, and those that pass without

    def interrupt(self) -> None:
        """End a run under way, from any thread, where its engine can."""
        getattr(self._inference, "interrupt", bool)()

    def open(self) -> None:
        self._inference.warm_up()

    @property
    def is_ready(self) -> bool:
        """Whether a batch is full, or waits no longer, or frames pass without one."""
        return bool(self._leaving) or self._batch.is_due(self._clock.now_ns(), idle=False)

    def room(self) -> int:
        """Return how many rows of the batch are left."""
        return self._batch.most - self._batch.rows

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """See :class:`~edgert.runtime.AsyncStage`."""
        batch, now_ns = self._batch, self._clock.now_ns()
        for result, kept in zip(results, onward, strict=True):
            kept.frame.lease.retain()
            index = result.frame.index
            if batch.passes(index):
                self._leaving.append((kept, False))
            elif (row := batch.hold(kept, index, now_ns)) is not None:
                self._geometries.append(self._inference.fill(result.frame, row))

    def process(self, result: Result) -> list[Result]:
        """Run what is held together with one more result, and return all."""
        self.submit((result,), (result,))
        return self.collect(wait=True)

    def due_ns(self) -> int | None:
        """Return when to look whether the batch is to be run; again and again where a free engine runs it at once."""
        batch, now = self._batch, self._clock.now_ns()
        if batch.is_patient or not batch.held:
            due = batch.due(now, idle=False)
            return now if self._leaving else None if due is None else round(min(due, now + _LONG_NS))
        return round(min(batch.due(now, self._inference.idle) or now, now + _POLL_NS))

    def collect(self, wait: bool) -> list[Result]:
        """Run the batch if it is due, the engine is free, or it is waited for; return what leaves with it."""
        batch = self._batch
        idle = not batch.is_patient and self._inference.idle
        if batch.is_due(self._clock.now_ns(), idle, last=wait):
            records = iter(self._inference.run(*self._geometries))
            self._geometries = []
            self._leaving.extend(batch.take())
        else:
            records = iter(())
        out = [one.with_output(self.name, next(records)) if is_wanted else one for one, is_wanted in self._leaving]
        self._leaving.clear()
        return out

    def close(self) -> None:
        """Release what was held when a pipeline was broken off."""
        for result in self.give_up():
            result.frame.lease.release()

    def give_up(self) -> Sequence[Result]:
        """See :class:`~edgert.runtime.AsyncStage`."""
        held = [result for result, _ in (*self._leaving, *self._batch.take())]
        self._leaving.clear()
        self._geometries = []
        return held


# A model cut into segments, each a stage of its own, and stages that stay on one core.


@dataclass(frozen=True, slots=True)
class Handover:
    """Result of one segment for the next: the location of the frame's tensors, and how to return them."""

    slot: int
    geometry: Geometry


class InferSegment(SimpleStage):
    """One segment of a split model. The first fills the input, the last turns the outputs into a record.

    While frame n is in the next segment, this one works on frame n + 1, in another slot of the chain.

    Args:
        name: of the stage in the pipeline file, under which the record is kept.
        chain: shared by the segments of one inference slot.
        number: of the segment.
    """

    def __init__(self, name: str, chain: Chain, number: int) -> None:
        self.name, self._chain, self._number = name, chain, number

    def open(self) -> None:
        """Run every slot once, so that the first frames do not pay for lazy set-up."""
        for slot in range(self._chain.slots):
            self._chain.run(self._number, slot)

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`; frames that the first segment left out pass."""
        handover = result.outputs.get(self.name)
        if isinstance(handover, Handover):
            self._chain.run(self._number, handover.slot)
        return result


class FirstSegment(InferSegment):
    """The segment that takes frames, every ``every``-th of a stream.

    Args:
        preprocessors: one per slot, or one for all where they share the input.
    """

    def __init__(self, name: str, chain: Chain, preprocessors: Sequence[Preprocessor], every: int = 1) -> None:
        super().__init__(name, chain, 0)
        self._preprocessors, self.every, self._turn = preprocessors, every, 0

    def process(self, result: Result) -> Result:
        if result.frame.index % self.every:
            return result
        slot = self._turn
        self._turn = (slot + 1) % self._chain.slots
        geometry = self._preprocessors[slot % len(self._preprocessors)].into(0, result.frame)
        self._chain.run(0, slot)
        return result.with_output(self.name, Handover(slot, geometry))


class LastSegment(InferSegment):
    """The segment whose outputs become the record, in the place of the handover."""

    def __init__(self, name: str, chain: Chain, decoder: Decoder, batched: Sequence[bool]) -> None:
        super().__init__(name, chain, chain.segments - 1)
        self._decoder, self._batched = decoder, batched

    def process(self, result: Result) -> Result:
        handover = result.outputs.get(self.name)
        if not isinstance(handover, Handover):
            return result
        self._chain.run(self._number, handover.slot)
        outputs = of_one_image(self._chain.outputs(handover.slot), self._batched, 0)
        return result.with_output(self.name, self._decoder(outputs, handover.geometry))


class Pinned:
    """A stage whose thread stays on one core from its opening to its closing."""

    def __init__(self, stage: Stage, core: int) -> None:
        self.stage, self._core = stage, core
        self._before: frozenset[int] = frozenset()

    def open(self) -> None:
        """Pin the thread, then open the stage, so that it allocates memory near that core."""
        self._before = pin(self._core)
        self.stage.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        return self.stage.process(result)

    def interrupt(self) -> None:
        """End a run under way, from any thread, where its engine can."""
        getattr(self.stage, "interrupt", bool)()

    def close(self) -> None:
        try:
            self.stage.close()
        finally:
            unpin(self._before)
