"""Frames in, records out, and everything between on the GPU; while it works, the host gets the next frames ready."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgert.config import InputConfig
from edgert.runtime import Frame, Record, Result
from edgert.stages.crop import Geometry
from edgert.stages.gpu.inference_slot import InferenceSlot
from edgert.stages.gpu.upload import Uploader
from edgert.stages.resampling import place

SLOTS = 3
"""Sets of tensors: one is being read, one may wait to be, one is being filled."""


@dataclass(slots=True, eq=False)
class Batch:
    """Frames that the GPU works on together. From any thread."""

    slot: InferenceSlot
    geometries: Sequence[Geometry]
    _records: list[Record] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def records(self) -> list[Record]:
        """One per frame; waits for the GPU the first time. Raises DeviceError when its work failed."""
        with self._turn:
            if not self._records:
                self._records = self.slot.read(self.geometries)
        return self._records


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """What stands in for a record while the GPU makes it."""

    batch: Batch
    row: int

    def record(self) -> Record:
        """The record; waits for the GPU. Raises DeviceError when its work failed."""
        return self.batch.records()[self.row]


class GpuInference:
    """Inference on the GPU: some slots of tensors, used in turn. One thread fills and submits; another may wait.

    Host frames are uploaded as they are, YUV planes and not BGR, on a stream of their own; frames that are on the GPU
    already are read where they lie. What was submitted is done in order.

    Args:
        slots: used in turn. A batch that nobody has waited for is read when its slot has its next turn.
        uploader: owned by this.
    """

    def __init__(self, slots: Sequence[InferenceSlot], config: InputConfig, uploader: Uploader) -> None:
        self._slots, self._config, self._uploader, self._device = slots, config, uploader, uploader.device
        self._frames: dict[int, Frame] = {}
        self._batches: dict[int, Batch] = {}
        self._turn = 0

    @property
    def rows(self) -> int:
        """Rows of the input: the most frames that fit in one run."""
        return self._slots[0].rows

    @property
    def network(self) -> tuple[int, int]:
        """(width, height) of the input, pixels."""
        return self._slots[0].network

    @property
    def idle(self) -> bool:
        """Whether the GPU has done all that was submitted. Does not wait; raises DeviceError when it failed."""
        return self._slots[self._turn - 1].idle  # the last; the others are done before it

    def warm_up(self) -> None:
        """Runs and records every number of rows once, so that the first frames do not pay for that."""
        for rows in self._slots[0].sizes:  # one after another: an engine may plan anew whenever the number changes
            for slot in self._slots:
                slot.warm_up(rows)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Brings a frame to the GPU for a row of the next batch; the host's may be released at once."""
        if hasattr(frame.planes[0], "__cuda_array_interface__"):
            frame.lease.retain()
            on_gpu = frame
        else:
            with self._device:
                on_gpu = self._uploader.upload(frame)
        self._frames[row] = on_gpu
        return place(on_gpu, self.network, self._config).geometry

    def submit(self, *geometries: Geometry) -> list[Pending]:
        """Puts the rows that were filled on the stream, from image to outputs. Does not wait."""
        frames = [self._frames.pop(row) for row in range(len(geometries))]
        slot, turn = self._slots[self._turn], self._turn
        self._turn = (turn + 1) % len(self._slots)
        try:
            with self._device:  # once, instead of around every call
                if turn in self._batches:
                    self._batches.pop(turn).records()
                slot.enqueue(frames)
        finally:
            for frame in frames:
                frame.lease.release()
        batch = self._batches[turn] = Batch(slot, geometries)
        return [Pending(batch, row) for row in range(len(geometries))]

    def run(self, *geometries: Geometry) -> list[Record]:
        """Like :meth:`submit`, and waits for the records."""
        return [pending.record() for pending in self.submit(*geometries)]

    def close(self) -> None:
        """Frees what the inference slot allocated; no thread may use it any more. Twice is once."""
        for frame in self._frames.values():
            frame.lease.release()
        self._frames.clear()
        self._uploader.close()
        for slot in self._slots:
            slot.close()


class Submitting:
    """Inference whose records are still pending: what :class:`~edgert.stages.infer.Infer` runs before a collector."""

    def __init__(self, inference: GpuInference) -> None:
        self._inference = inference
        self.rows, self.warm_up, self.fill = inference.rows, inference.warm_up, inference.fill  # what stays the same

    @property
    def idle(self) -> bool:
        """See :class:`GpuInference`."""
        return self._inference.idle

    def run(self, *geometries: Geometry) -> list[Record]:
        """Submits; see :class:`GpuInference`."""
        return list(self._inference.submit(*geometries))


class Collect:
    """The stage behind: puts records in the place of what is pending, in order."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Result:
        """Waits for the GPU; frames that the model left out pass."""
        pending = result.outputs.get(self.name)
        return result.with_output(self.name, pending.record()) if isinstance(pending, Pending) else result

    def close(self) -> None:
        """The inference slot belongs to the pipeline."""
