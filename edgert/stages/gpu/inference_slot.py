"""One set of tensors on the GPU, from image to outputs, and the CUDA graphs of the way through it."""

import logging
from collections.abc import Sequence
from typing import Protocol

from edgert.backend.gpu import GpuSession
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import Graph, Launch, Stream
from edgert.runtime import Frame, Record
from edgert.stages.crop import Geometry
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, hold

log = logging.getLogger("edgert.gpu")


class Reader(Protocol):
    """Brings what is wanted of the outputs to the host, and makes records of it."""

    def enqueue(self, rows: int, stream: Stream) -> None:
        """Puts its part on the stream. Does not wait."""
        ...

    def copied(self, rows: int) -> Sequence[int]:
        """Bytes of each copy to the host that :meth:`enqueue` puts on the stream."""
        ...

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """The records, once the stream has passed; new memory throughout."""
        ...

    def close(self) -> None:
        """Frees its memory."""
        ...


class InferenceSlot:
    """Takes frames through preprocessing, engine and decoder; for one batch at a time.

    For each number of rows, what the GPU does is recorded as a CUDA graph, which is updated each time with where
    frames lie and how they are scaled. Where decoding has a stream of its own, it is a graph of its own, too, so that a
    batch is decoded while the engine works on the next. Work that cannot be recorded is put on the streams piece by
    piece.

    Args:
        reading: the stream that decodes: the session's, or another.
    """

    def __init__(self, session: GpuSession, preprocessor: GpuPreprocessor, reader: Reader, reading: Stream) -> None:
        self._session, self._preprocessor, self._reader = session, preprocessor, reader
        self._reading, self._is_beside = reading, reading is not session.stream
        self.rows, self.network = preprocessor.target.rows, preprocessor.network
        self.sizes = run_sizes(self.rows, session.dynamic)
        self._ran, self._done = session.device.event(), session.device.event()
        self._graphs: dict[int, tuple[Graph, ...]] = {}
        self._warm: set[int] = set()

    @property
    def idle(self) -> bool:
        """Whether the last batch is done."""
        return self._done.passed()

    def warm_up(self, rows: int) -> None:
        """Runs one of :attr:`sizes` once, and records it; blocks. Raises BuildError when a kernel does not compile."""
        if rows in self._warm:
            return
        self._warm.add(rows)
        with self._session.exclusive:
            self._session.enqueue(rows)
            self._session.stream.synchronize()
            self._reader.enqueue(rows, self._reading)
            self._reading.synchronize()
            if not self._session.recordable:
                return
            first = self._preprocessor.any_launch()  # a kernel that does not compile is no reason to go without a graph
            try:
                self._graphs[rows] = self._recorded(rows, first)
            except (DeviceError, BuildError) as error:
                log.info("no CUDA graph: %s (%s)", error.what, error.why)
                self._forget_failure(rows)

    def enqueue(self, frames: Sequence[Frame]) -> None:
        """Puts everything on the streams, and the event that :meth:`read` waits for. Raises StageError, DeviceError."""
        stream = self._session.stream
        launches, _ = self._preprocessor.launches(frames)
        self._preprocessor.wait_for(frames, stream)
        rows = next(size for size in self.sizes if size >= len(frames))
        with self._session.exclusive:
            self._run(rows, launches)
            hold(frames, stream)
            self._decode(rows)
        self._done.record(self._reading)

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """Waits for the GPU, and makes the records. Raises DeviceError when its work failed."""
        self._done.synchronize()
        return self._reader.read(geometries)

    def close(self) -> None:
        """Frees what the session does not own, once the GPU is done. Twice is once."""
        self._session.device.settle()
        self._graphs.clear()
        self._reader.close()

    def _forget_failure(self, rows: int) -> None:
        """Runs once more: CUDA reports a recording that failed a second time, to whoever asks next in this thread."""
        try:
            self._session.enqueue(rows)
        except BuildError as error:
            log.debug("reported once more: %s", error.why)
        self._session.stream.synchronize()

    def _run(self, rows: int, launches: Sequence[Launch]) -> None:
        """Images of several formats take several launches; the last is the one in the graph."""
        stream, graphs = self._session.stream, self._graphs.get(rows)
        for launch in launches if graphs is None else launches[:-1]:
            launch.enqueue(stream)
        if graphs is None:
            self._session.enqueue(rows)
        else:
            graphs[0].start_with(launches[-1])
            graphs[0]()

    def _decode(self, rows: int) -> None:
        graphs = self._graphs.get(rows)
        if self._is_beside:
            self._reading.wait(self._ran.record(self._session.stream))
        if graphs is None:
            self._reader.enqueue(rows, self._reading)
            return
        for graph in graphs[1:]:
            graph()
        for nbytes in self._reader.copied(rows):
            self._session.device.counter.copied(nbytes)

    def _recorded(self, rows: int, first: Launch) -> tuple[Graph, ...]:
        device, stream = self._session.device, self._session.stream

        def run() -> None:
            first.enqueue(stream)
            self._session.enqueue(rows)

        def decode() -> None:
            self._reader.enqueue(rows, self._reading)

        def whole() -> None:
            run()
            decode()

        if self._is_beside:
            return device.capture(stream, run), device.capture(self._reading, decode)
        return (device.capture(stream, whole),)


def run_sizes(rows: int, dynamic: bool) -> tuple[int, ...]:
    """How many rows are run: powers of two and all, where the engine can run fewer; each is a graph of its own."""
    if not dynamic:
        return (rows,)
    return (*(1 << power for power in range((rows - 1).bit_length())), rows)
