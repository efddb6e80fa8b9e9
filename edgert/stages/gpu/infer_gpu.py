"""Inference on the GPU: preprocessing, engine and decoding in slots, so that the host prepares frames meanwhile."""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from edgert.backend.gpu import GpuSession, Refinement
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import Event, Graph, SharedLease, Stream
from edgert.policy import run_sizes
from edgert.runtime import Frame, Record
from edgert.stages.crop import Geometry
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, ReadyFrame, hold
from edgert.stages.gpu.gpu_reader import Reader
from edgert.stages.gpu.upload import Uploader, is_shared
from edgert.stages.gpu.waiting import RunTimer, WaitMode, wait_methods
from edgert.tracing import HERE

log = logging.getLogger("edgert.gpu")

SLOTS = 3
"""Number of sets of tensors: one is read, one may wait to be read, and one is filled."""


_PAUSES_S = 0.0, 0.0, 0.01
"""Pauses before each attempt to record a CUDA graph. A call of another thread, or of a library in this one, may disturb
a recording, usually once: for example a decoder that allocates its first memory."""


class InferenceSlot:
    """One set of tensors, from image to outputs, with the CUDA graphs of its work. For one batch at a time.

    The kernel that reads the frames is launched separately, so that frames are free before the engine has run: cameras
    and decoders own few buffers. On a separate stream, it runs beside the engine's work on the previous batch. The rest
    is recorded as a CUDA graph, one for each number of rows. Where decoding has a separate stream, it is a second
    graph, so that a batch is decoded while the engine works on the next. Work that cannot be recorded is enqueued call
    by call.

    Args:
        reading: stream that decodes, which may be the session's.
        feeding: stream that preprocesses frames, such as the one that uploads them; None: the session's.
        check: function that returns the record to use for each record and its geometry; None: the record itself.
        reader_for: function that makes a reader for another decoder, and says why the host decodes; None: the first
            reader accepts all decoders.
    """

    def __init__(
        self,
        session: GpuSession,
        preprocessor: GpuPreprocessor,
        reader: Reader,
        reading: Stream,
        feeding: Stream | None = None,
        check: Callable[[Record, Geometry], Record] | None = None,
        reader_for: Callable[[Any], tuple[Reader, str]] | None = None,
    ) -> None:
        device, self._check, self._reader_for = session.device, check, reader_for
        self.session = session
        self.preprocessor, self._reader = preprocessor, reader
        self._reading, self._is_beside = reading, reading is not session.stream
        self._feeding = feeding or session.stream
        self.rows, self.network, self.plans = preprocessor.target.rows, preprocessor.network, preprocessor.plans
        self.sizes = run_sizes(self.rows, session.dynamic)
        self._size_of = [next(size for size in self.sizes if size >= count) for count in range(self.rows + 1)]
        self._fed, self._ran = device.event(), device.event()
        self._waits = wait_methods(device)
        self._done, self._done_rows = self._waits["block"], 0
        self._graphs: dict[int, tuple[Graph, ...]] = {}
        self._warm: set[int] = set()
        self._renewed: set[int] = getattr(session, "renewed", set())  # of engines that become faster while they run
        self.late: set[int] = set()
        """Batch sizes that are prepared while batches of other sizes run; until then, they run as the next larger size.

        Sizes in the session's ``renewed`` are recorded when the slot is used next, one each time.
        """
        self.no_graph = "" if session.recordable else "runs of this engine cannot be recorded"
        self.timer: RunTimer | None = None  # made for the first trace
        self.name = "model"

    @property
    def idle(self) -> bool:
        """Whether the last batch is done."""
        return self._done.event.passed()

    def warm_up(self, rows: int) -> None:
        """Run one of :attr:`sizes` once, and record it. Blocks. Raises BuildError if a kernel does not compile."""
        if rows in self._warm:
            return
        self._warm.add(rows)
        with self.session.device.recording, self.session.exclusive:  # in this order everywhere, against a deadlock
            self.session.enqueue(rows)
            self.session.stream.synchronize()
            self._reader.enqueue(rows, self._reading)
            self._reading.synchronize()
            if not self.session.recordable:
                return
            self.preprocessor.compile()  # here, as its error is not one of the recording
            for pause_s in _PAUSES_S:
                time.sleep(pause_s)
                try:
                    self._graphs[rows] = self._record_graphs(rows)
                    return
                except (DeviceError, BuildError) as error:
                    reason = f"{error.what} ({error.why})"
                    log.info("a CUDA graph could not be recorded: %s", reason)
                    # CUDA reports a failed recording once more, in the next call of this thread.
                    try:
                        self.session.enqueue(rows)
                    except BuildError as again:
                        log.debug("reported once more: %s", again.why)
                    self.session.stream.synchronize()
            self.no_graph = reason

    def enqueue(self, frames: Sequence[ReadyFrame], mode: WaitMode = "block") -> None:
        """Enqueue a batch, and the event that :meth:`read` waits for. Raises StageError, DeviceError.

        ``mode`` is the way in which :meth:`read` waits.
        """
        preprocessor, stream, feeding = self.preprocessor, self.session.stream, self._feeding
        launches = preprocessor.launches(frames)
        rows = self._ready(len(frames))
        self._reader.set_transforms([frame.plan.geometry for frame in frames])
        with self.session.exclusive:
            preprocessor.wait_for(frames, feeding)
            for launch in launches:  # several for images of several formats
                launch.enqueue(feeding)
            hold(frames, feeding, self._fed.record(feeding))  # nothing after this reads them
            if feeding is not stream:
                stream.wait(self._fed)
            self._run(rows, mode)

    def enqueue_filled(self, geometries: Sequence[Geometry], written: Event, mode: WaitMode = "block") -> None:
        """Enqueue a batch whose rows are filled when the event ``written`` has passed. Raises DeviceError."""
        rows = self._ready(len(geometries))
        self._reader.set_transforms(geometries)
        with self.session.exclusive:
            self.session.stream.wait(written)
            self._run(rows, mode)

    def _ready(self, count: int) -> int:
        rows = self._size_of[count]
        if not self.late and rows not in self._renewed:
            return rows
        recording = self.session.device.recording
        if self.late:
            rows = next(size for size in self.sizes if size >= rows and size not in self.late)
        renewed = rows if rows in self._renewed else max(self.late & self._renewed, default=0)
        if renewed and recording.acquire(blocking=False):  # else at a later batch, as frames must not wait for it
            try:
                self._renewed.discard(renewed)
                self._warm.discard(renewed)
                self.warm_up(renewed)
                self.late.discard(renewed)
            finally:
                recording.release()
        return rows

    def _run(self, rows: int, mode: WaitMode) -> None:
        graphs = self._graphs.get(rows)
        if (ring := HERE.ring) is not None:
            self.timer = self.timer or RunTimer(self.session.device, self.session.stream)
            self.timer.begin(ring, rows)
        if graphs is None:
            self.session.enqueue(rows)
        else:
            graphs[0]()
        self._decode(rows, graphs)
        if ring is not None and self.timer is not None:
            self.timer.end(self._reading)
        self._done, self._done_rows = self._waits[mode], rows
        self._done.event.record(self._reading)

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """Wait for the GPU, and return the records. Raises DeviceError if the work failed."""
        self._done.wait(self._done_rows)
        self._fed.note_passed()
        if self.timer is not None:
            self.timer.add(self.name)
        records = self._reader.read(geometries)
        return records if self._check is None else list(map(self._check, records, geometries))

    def new_reader(self, decoder: Any) -> Reader | None:
        """Return a reader for another decoder; None if the present one accepts it. Raises DeviceError."""
        return None if self._reader_for is None or self._reader.accepts(decoder) else self._reader_for(decoder)[0]

    def switch_decoder(self, decoder: Any, reader: Reader | None) -> None:
        """Read as another decoder does from now on. The last batch must have been read.

        With a new reader, each size is recorded again when it is next used; see :meth:`_ready`.
        """
        with self.session.exclusive:
            if reader is None:
                self._reader.switch_decoder(decoder)
                return
            before, self._reader = self._reader, reader
            self._graphs.clear()
            self._renewed |= self._warm
            before.close()

    def close(self) -> None:
        """Wait for the GPU, and free the graphs and the reader. May be called twice."""
        self.session.device.drain()
        self._graphs.clear()
        self._reader.close()

    def _decode(self, rows: int, graphs: tuple[Graph, ...] | None) -> None:
        if self._is_beside:
            self._reading.wait(self._ran.record(self.session.stream))
        if graphs is None:
            self._reader.enqueue(rows, self._reading)
            return
        for graph in graphs[1:]:
            graph()
        for nbytes in self._reader.copy_sizes(rows):
            self.session.device.counter.copied(nbytes)

    def _record_graphs(self, rows: int) -> tuple[Graph, ...]:
        device, stream = self.session.device, self.session.stream

        def decode() -> None:
            self._reader.enqueue(rows, self._reading)

        def run() -> None:
            self.session.enqueue(rows)
            if not self._is_beside:
                decode()

        whole = device.capture(stream, run)
        return (whole, device.capture(self._reading, decode)) if self._is_beside else (whole,)


class Batch:
    """Pending records of frames that the GPU processes together. Any thread may read them."""

    __slots__ = ("_records", "_turn", "geometries", "slot")

    def __init__(self, slot: InferenceSlot, geometries: Sequence[Geometry]) -> None:
        self.slot, self.geometries = slot, geometries
        self._records: list[Record] = []
        self._turn = threading.Lock()

    @property
    def is_read(self) -> bool:
        """Whether a thread has waited for the records."""
        return bool(self._records)

    @property
    def is_done(self) -> bool:
        """Whether the GPU has finished the batch. Does not wait."""
        return bool(self._records) or self.slot.idle

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def records(self) -> list[Record]:
        """Return a record per frame; wait for the GPU the first time. Raises DeviceError if the work failed."""
        with self._turn:
            if not self._records:
                self._records = self.slot.read(self.geometries)
        return self._records


class GpuInference:
    """Inference of one model on the GPU, with slots used in turn. One thread fills and submits; another may wait.

    Host frames are uploaded in their own pixel format, such as YUV planes, on a separate stream. Frames already on the
    GPU are read in place. Batches run in order, or in parallel where slots have separate streams.

    Args:
        uploader: uploader of host frames, owned by this object.
        without_graph: function that :meth:`warm_up` calls with the reason if the work is not recorded as a CUDA graph.
        refine: function that prepares batch sizes of the engine while it runs: a TensorRT engine's ``refine``.

    Attributes:
        is_patient: whether :meth:`run` sleeps while it waits, as it should beside cameras.
    """

    is_patient, model = False, ""

    def __init__(
        self,
        slots: Sequence[InferenceSlot],
        uploader: Uploader,
        without_graph: Callable[[str], None] = lambda reason: None,
        refine: Callable[[Sequence[int]], Refinement | None] | None = None,
    ) -> None:
        self._slots, self._uploader, self.device = slots, uploader, uploader.device
        self._without_graph, self._refine = without_graph, refine
        self._refining: Refinement | None = None
        self._is_warm = False
        self._frames: dict[int, ReadyFrame] = {}
        self._batches: dict[int, Batch] = {}
        self._newest: Batch | None = None
        self._changes = deque[tuple[Any, list[Reader | None]]]()
        self._turn = 0
        self.rows, self.network, self.preprocessor = slots[0].rows, slots[0].network, slots[0].preprocessor
        self._plans = slots[0].plans  # all have the same
        self._lasts = range(1, 1 + len({id(slot.session.stream) for slot in slots}))  # slots before these are done

    def wait_mode(self, patient: bool) -> WaitMode:
        """Return how to wait for the next run: behind another run, its duration is unknown, so blocking is better."""
        is_behind = self._newest is not None and not self._newest.is_read  # batches end in order
        return "block" if patient and self.is_patient and is_behind else "poll"

    @property
    def idle(self) -> bool:
        """Whether the GPU has finished all batches. Does not wait. Raises DeviceError if one failed."""
        return all(self._slots[self._turn - last].idle for last in self._lasts)

    def warm_up(self) -> None:
        """Run and record every batch size once, so that the first frames are not delayed. May be called twice.

        If the engine can prepare sizes while it runs, only full batches are prepared here.
        """
        if self._is_warm:
            return
        self._is_warm = True
        for slot in self._slots:
            slot.name = self.model or slot.name
        gc.collect()  # once instead of for each graph: freeing GPU memory would disturb a recording
        sizes, refine = self._slots[0].sizes, self._refine
        # Size by size, as an engine may plan again when the size changes; full batches first, for which it was opened.
        self._warm_up(sizes[-1:])
        reason, late = next((slot.no_graph for slot in self._slots if slot.no_graph), ""), sizes[:-1]
        if reason or refine is None:  # without graphs, runs would disturb the preparation
            self._warm_up(late)
            late = ()
        if reason := reason or next((slot.no_graph for slot in self._slots if slot.no_graph), ""):
            self._without_graph(reason)
        if refine is not None:
            for slot in self._slots:
                slot.late.update(late)
            self._refining = refine(late)

    def _warm_up(self, sizes: Sequence[int]) -> None:
        for rows in reversed(sizes):
            for slot in self._slots:
                slot.warm_up(rows)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        """Copy a frame to the GPU if necessary, for a row of the next batch. The caller may release it at once."""
        frame, writer = self.readable_frame(frame)
        try:
            ready = self._frames[row] = self._plans.ready(frame, writer)
        except BaseException:
            frame.lease.release()
            raise
        return ready.plan.geometry

    def fill_batch(self, frames: Sequence[Frame]) -> list[Geometry]:
        """Do :meth:`fill` for the rows from 0 on. Frames that share one host buffer are uploaded in one copy."""
        lease = frames[0].lease
        if not is_shared(frames[0], self.device) or any(frame.lease is not lease for frame in frames):
            return [self.fill(frame, row) for row, frame in enumerate(frames)]
        lease.retain(len(frames))
        try:
            writer = cast("SharedLease", lease).send(self._uploader.stream, is_read=True)
            ready = [self._plans.ready(frame, writer) for frame in frames]
        except BaseException:
            lease.release(len(frames))
            raise
        self._frames.update(enumerate(ready))
        return [one.plan.geometry for one in ready]

    def readable_frame(self, frame: Frame) -> tuple[Frame, Stream | None]:
        """Return the frame in memory that the GPU reads, with a lease to release, and the stream that copies it.

        The stream is None if the frame is there already. Mark work that reads it by :func:`hold`.
        """
        first: object = frame.planes[0]
        writer: Stream | None
        if isinstance(first, np.ndarray):
            frame = self._uploader.shared_frame(frame)
            lease: Any = frame.lease  # a SharedLease
            writer = lease.send(self._uploader.stream, is_read=True)
        else:
            frame.lease.retain()
            stream = getattr(first, "stream", None)
            writer = stream if isinstance(stream, Stream) else None  # unknown for memory of another library
        return frame, writer

    def submit_batch(self, geometries: Sequence[Geometry], *, patient: bool = True) -> Batch:
        """Enqueue the filled rows, and return the pending batch. Does not wait.

        ``patient``: the waiting thread may sleep, and be a little late; see :meth:`wait_mode`.
        """
        frames = [self._frames.pop(row) for row in range(len(geometries))]
        try:
            with self.device:  # once, instead of around every call
                slot = self.next_slot()
                slot.enqueue(frames, self.wait_mode(patient))
        except BaseException:
            self.device.drain()  # no event marks the end of copies that may be in progress
            raise
        finally:
            for frame in frames:
                frame.lease.release()
        return self.new_batch(geometries)

    def switch_decoder(self, decoder: Any) -> None:
        """Read batches as another decoder of the same outputs does, from the next one on. Callable from any thread.

        Raises DeviceError: there is too little memory for more boxes. Nothing has changed then.
        """
        from edgert.stages.gpu.readers import decoder_of  # with all decoders

        decoder, readers = decoder_of(decoder), list[Reader | None]()
        try:
            for slot in self._slots:
                readers.append(slot.new_reader(decoder))
        except BaseException:
            _close(readers)
            raise
        self._changes.append((decoder, readers))

    def _apply_switch(self) -> None:
        """Read batches in flight with the old decoder, and later ones with that of :meth:`switch_decoder`."""
        decoder, readers = self._changes.popleft()
        for batch in self._batches.values():
            batch.records()
        for slot, reader in zip(self._slots, readers, strict=True):
            slot.switch_decoder(decoder, reader)

    def next_slot(self) -> InferenceSlot:
        """Return the slot of the next batch, after its last batch is read."""
        while self._changes:
            self._apply_switch()
        if self._turn in self._batches:
            self._batches.pop(self._turn).records()
        return self._slots[self._turn]

    def new_batch(self, geometries: Sequence[Geometry]) -> Batch:
        """Return the batch that was enqueued on :meth:`next_slot`; the next slot is then the following one."""
        batch = self._newest = self._batches[self._turn] = Batch(self._slots[self._turn], geometries)
        self._turn = (self._turn + 1) % len(self._slots)
        return batch

    def run(self, *geometries: Geometry) -> list[Record]:
        """Submit the filled rows, wait, and return their records."""
        return self.submit_batch(geometries, patient=self.is_patient).records()

    def close(self) -> None:
        """Free slots and uploader, which no thread may use any more. May be called twice."""
        if self._refining is not None:
            self._refining.close()
        if self._frames:
            self.device.drain()  # copies of them may be in progress
        for frame in self._frames.values():
            frame.lease.release()
        self._frames.clear()
        self._uploader.close()
        for slot in self._slots:
            slot.close()
        while self._changes:
            _close(self._changes.popleft()[1])


def _close(readers: Sequence[Reader | None]) -> None:
    for reader in readers:
        if reader is not None:
            reader.close()


class PendingInference:
    """Inference whose runs return pending records, for several runs on one frame, such as on its crops."""

    def __init__(self, inference: GpuInference) -> None:
        self._inference = inference
        self.rows, self.warm_up, self.fill = inference.rows, inference.warm_up, inference.fill

    @property
    def idle(self) -> bool:
        return self._inference.idle

    def run(self, *geometries: Geometry) -> Batch:
        """Submit the filled rows; see :meth:`GpuInference.submit_batch`."""
        return self._inference.submit_batch(geometries, patient=self._inference.is_patient)
