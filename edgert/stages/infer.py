"""Inference stages on the CPU: on frames, on crops of detections, in batches, or segment by segment."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgert.backend import Session
from edgert.board.host import pin, unpin
from edgert.clock import Clock
from edgert.config import CropConfig
from edgert.placement.segment_engines import Chain
from edgert.policy import Batcher
from edgert.runtime import AsyncStage, Crops, Detections, Frame, Record, Result, Stage
from edgert.runtime.branches import ModelLevel
from edgert.stages.context import SimpleStage
from edgert.stages.crop import Geometry, crop_boxes, upright
from edgert.stages.decode.decoder import Decoder, image_outputs
from edgert.stages.preprocess import Preprocessor
from edgert.tracing import HERE


class Inference(Protocol):
    """A model's bound tensors, with their preprocessor and decoder, on the host or a GPU. For one thread at a time."""

    @property
    def rows(self) -> int:
        """Maximum number of frames in one run."""

    @property
    def idle(self) -> bool:
        """Whether the engine has no run in progress."""

    def warm_up(self) -> None:
        """Run once, so that the first frame is as fast as the others."""

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Write a frame into a row of the next run; return the map to source pixels. The frame may then be released."""

    def run(self, *geometries: Geometry) -> Iterable[Record]:
        """Run the filled rows; return a record for each. Iterating over them may wait for the run."""


class HostInference:
    """Inference slot on the CPU: one set of bound tensors with its preprocessor and decoder. For one thread at a time.

    Frames are preprocessed straight into the session's bound input, without a further copy.
    """

    def __init__(
        self, session: Session, preprocessor: Preprocessor, decoder: Decoder, batched: tuple[bool, ...]
    ) -> None:
        self._session, self._preprocessor, self._decoder, self._batched = session, preprocessor, decoder, batched
        self.rows, self.network = preprocessor.rows, preprocessor.network
        self.idle = True  # run() returns when the run has ended

    def warm_up(self) -> None:
        """Run once, so that the first frame does not wait for lazy initialization."""
        self._session.run(1)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        if (ring := HERE.ring) is None:
            return self._preprocessor.into(row, frame)
        began_ns = ring.now_ns()
        geometry = self._preprocessor.into(row, frame)
        ring.part("preprocess", began_ns)
        return geometry

    def interrupt(self) -> None:
        getattr(self._session, "interrupt", bool)()

    def run(self, *geometries: Geometry) -> list[Record]:
        ring = HERE.ring
        began_ns = 0 if ring is None else ring.now_ns()
        outputs = self._session.run(len(geometries))
        if ring is not None:
            began_ns = ring.part("engine", began_ns)
        records = [
            self._decoder(image_outputs(outputs, self._batched, row), geometry)
            for row, geometry in enumerate(geometries)
        ]
        if ring is not None:
            ring.part("decode", began_ns)
        return records


class Infer(SimpleStage):
    """Stage that adds one model's record to every ``every``-th result; the others pass without one.

    The engine belongs to the pipeline, here and in the stages below: closing a stage does not close it.
    """

    def __init__(self, name: str, inference: Inference, every: int = 1) -> None:
        self.name, self.inference, self.every = name, inference, every

    def interrupt(self) -> None:
        getattr(self.inference, "interrupt", bool)()

    def open(self) -> None:
        self.inference.warm_up()

    def process(self, result: Result) -> Result:
        if result.frame.index % self.every:
            return result
        (record,) = self.inference.run(self.inference.fill(result.frame))
        return result.with_output(self.name, record)

    def _run_crops(self, crops: Sequence[Frame]) -> list[Record]:
        """Return the record of each crop, running as many at once as the model has rows."""
        runs = []
        for start in range(0, len(crops), self.inference.rows):
            batch = enumerate(crops[start : start + self.inference.rows])
            runs.append(self.inference.run(*(self.inference.fill(crop, row) for row, crop in batch)))
        # The first run is collected after the last has begun, so that a GPU works while further crops are uploaded.
        return [one for run in runs for one in run]


def newest_detections(result: Result) -> tuple[str, Detections]:
    """Return the stage with the newest detections, and these detections, from which crops are made."""
    outputs = reversed(list(result.outputs.items()))
    found = ((stage, record) for stage, record in outputs if isinstance(record, Detections))
    return next(found, ("", result.detections))


class InferCrops(Infer):
    """Stage that runs a model on crops of the newest detections and adds a :class:`~edgert.runtime.Crops` record.

    With ``upright``, rotated boxes are cropped upright; results then have no position in the frame.
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


class VariantInference:
    """Slots of several loaded models, of which one runs: the one that is chosen when the first row of a run is filled.

    The last one serves all further levels.
    """

    def __init__(self, inferences: Sequence[Inference], choice: ModelLevel) -> None:
        self.inferences, self._choice = inferences, choice
        self._inference = inferences[0]
        self.rows = min(inference.rows for inference in inferences)

    @property
    def idle(self) -> bool:
        """Whether no model has a run in progress; the previously chosen one may still have."""
        return all(inference.idle for inference in self.inferences)

    def warm_up(self) -> None:
        for inference in self.inferences:
            inference.warm_up()

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Write a frame into a row of the next run, of the model that is chosen at row 0."""
        if row == 0:
            self._inference = self.inferences[min(self._choice.level, len(self.inferences) - 1)]
        return self._inference.fill(frame, row)

    def interrupt(self) -> None:
        getattr(self._inference, "interrupt", bool)()

    def run(self, *geometries: Geometry) -> Iterable[Record]:
        return self._inference.run(*geometries)


# Batches of frames of several cameras, without one camera waiting for another.

_POLL_NS, _LONG_NS = 300_000, 3_600_000_000_000


class BatchedStage(SimpleStage):
    """Base of stages whose frames wait in a batcher, with the settings that may change while they run."""

    _batch: Batcher[Result]

    @property
    def every(self) -> int:
        """Number of a stream's frames from one run to the next."""
        return self._batch.every

    @every.setter
    def every(self, every: int) -> None:
        self._batch.every = every

    def hold_until_full(self) -> None:
        """Run only full batches from now on, except for the last one."""
        self._batch.wait = float("inf")

    def room(self) -> int:
        """Return how many rows of the batch are left."""
        return self._batch.most - self._batch.rows

    def process(self: AsyncStage, result: Result) -> list[Result]:
        """Run the held results together with one more, wait, and return all that is done."""
        self.submit((result,), (result,))
        return self.collect(wait=True)

    def close(self: AsyncStage) -> None:
        """Release the results that are still held after an interrupted run."""
        for result in self.give_up():
            result.frame.lease.release()


class InferBatch(BatchedStage):
    """Stage that adds one model's record to every ``every``-th result of a stream, several results at a time.

    An idle engine runs a frame at once, together with all others that have arrived. Batches form while it is busy, as
    :class:`edgert.policy.Batcher` decides. Each frame is preprocessed on arrival. Results leave in order of arrival.

    Args:
        most: number of frames in a full batch; no more than the inference slot has rows.
        wait_s: longest wait of a batch's first frame, however busy the engine is.
        fills: whether an idle engine also waits for a full batch while frames come.
    """

    limit, in_flight = 1, 0  # collect() returns when the run has ended

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
        self.name, self.inference, self._clock = name, inference, clock
        self._batch = Batcher(most, round(wait_s * 1e9), every, fills)
        self._geometries: list[Geometry] = []
        self._leaving = deque[tuple[Result, bool]]()  # (result, whether it gets a record), in order of arrival

    def interrupt(self) -> None:
        getattr(self.inference, "interrupt", bool)()

    def open(self) -> None:
        self.inference.warm_up()

    @property
    def is_ready(self) -> bool:
        """Whether a batch is full or has waited long enough, or frames pass without a run."""
        return bool(self._leaving) or self._batch.is_due(self._clock.now_ns(), idle=False)

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        batch, now_ns = self._batch, self._clock.now_ns()
        for result, kept in zip(results, onward, strict=True):
            kept.frame.lease.retain()
            index = result.frame.index
            if batch.passes(index):
                self._leaving.append((kept, False))
            elif (row := batch.hold(kept, index, now_ns)) is not None:
                self._geometries.append(self.inference.fill(result.frame, row))

    def due_ns(self) -> int | None:
        """Return when to check whether the batch must run; soon and repeatedly while it waits for an idle engine."""
        batch, now = self._batch, self._clock.now_ns()
        if batch.is_patient or not batch.held:
            due = batch.due(now, idle=False)
            return now if self._leaving else None if due is None else round(min(due, now + _LONG_NS))
        return round(min(batch.due(now, self.inference.idle) or now, now + _POLL_NS))

    def collect(self, wait: bool) -> list[Result]:
        """Run the batch if it is due, the engine is idle, or ``wait`` is set; return the results that are done."""
        batch = self._batch
        idle = not batch.is_patient and self.inference.idle
        if batch.is_due(self._clock.now_ns(), idle, last=wait):
            records = iter(self.inference.run(*self._geometries))
            self._geometries = []
            self._leaving.extend(batch.take())
        else:
            records = iter(())
        out = [one.with_output(self.name, next(records)) if is_wanted else one for one, is_wanted in self._leaving]
        self._leaving.clear()
        return out

    def give_up(self) -> Sequence[Result]:
        held = [result for result, _ in (*self._leaving, *self._batch.take())]
        self._leaving.clear()
        self._geometries = []
        return held


# Models split into segments, each a stage of its own, and stages pinned to one core.


@dataclass(frozen=True, slots=True)
class Handover:
    """Output of one segment for the next: the chain's slot with the frame's tensors, and the map to source pixels."""

    slot: int
    geometry: Geometry


class InferSegment(SimpleStage):
    """Stage that runs one segment of a split model. The first fills the input, the last decodes the outputs.

    While frame n is in the next segment, this one works on frame n + 1, in another slot of the chain.
    """

    def __init__(self, name: str, chain: Chain, number: int) -> None:
        self.name, self._chain, self._number = name, chain, number

    def open(self) -> None:
        """Run every slot once, so that the first frames do not wait for lazy initialization."""
        for slot in range(self._chain.slots):
            self._chain.run(self._number, slot)

    def process(self, result: Result) -> Result:
        """Run the segment; frames that the first segment left out pass."""
        handover = result.outputs.get(self.name)
        if isinstance(handover, Handover):
            self._chain.run(self._number, handover.slot)
        return result


class FirstSegment(InferSegment):
    """First segment, which takes every ``every``-th frame of a stream.

    There is one preprocessor per slot, or one in all if the slots share the input.
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
    """Last segment, whose decoded outputs replace the handover as the stage's record."""

    def __init__(self, name: str, chain: Chain, decoder: Decoder, batched: Sequence[bool]) -> None:
        super().__init__(name, chain, chain.segments - 1)
        self._decoder, self._batched = decoder, batched

    def process(self, result: Result) -> Result:
        handover = result.outputs.get(self.name)
        if not isinstance(handover, Handover):
            return result
        self._chain.run(self._number, handover.slot)
        outputs = image_outputs(self._chain.outputs(handover.slot), self._batched, 0)
        return result.with_output(self.name, self._decoder(outputs, handover.geometry))


class Pinned:
    """Stage wrapper that pins the stage's thread to one core from its opening to its closing."""

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
        getattr(self.stage, "interrupt", bool)()

    def close(self) -> None:
        try:
            self.stage.close()
        finally:
            unpin(self._before)
