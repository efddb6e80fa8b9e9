"""One set of tensors on the GPU, from picture to outputs, and the CUDA graphs of the way through it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from edgert.backend.gpu import GpuSession
from edgert.errors import DeviceError
from edgert.memory.cuda import Graph, Kernel, Launch, Stream
from edgert.runtime import Frame, Record
from edgert.stages.geometry import Geometry
from edgert.stages.gpu.preprocess import GpuPreprocessor, hold

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


class Slot:
    """Takes frames through preprocessing, engine and decoder; for one batch at a time.

    What the GPU does for a number of rows is recorded as a CUDA graph the second time it is done, and launched as one
    from then on; where the next frames lie and how they are scaled is told to the graph's first kernel. Frames of
    another format are another graph. Work that cannot be recorded is put on the stream piece by piece.
    """

    def __init__(self, session: GpuSession, preprocessor: GpuPreprocessor, reader: Reader) -> None:
        self._session, self._preprocessor, self._reader = session, preprocessor, reader
        self.rows, self.network = preprocessor.target.rows, preprocessor.network
        self.sizes = run_sizes(self.rows, session.dynamic)
        self._done = session.device.event()
        self._graphs: dict[tuple[int, Kernel], Graph | None] = {}
        self._recordable = True

    def warm_up(self) -> None:
        """Runs every size once; blocks."""
        for rows in self.sizes:
            self._session.enqueue(rows)
            self._reader.enqueue(rows, self._session.stream)
        self._session.stream.synchronize()

    def enqueue(self, frames: Sequence[Frame]) -> None:
        """Puts everything on the stream, and the event that :meth:`read` waits for. Raises StageError, DeviceError."""
        stream = self._session.stream
        launches, _ = self._preprocessor.launches(frames)
        self._preprocessor.wait_for(frames, stream)
        rows = next(size for size in self.sizes if size >= len(frames))
        with self._session.exclusive:
            graph = self._graph(rows, launches)
            if graph is None:
                self._put(rows, launches)
            else:
                graph.start_with(launches[0])
                graph()
        hold(frames, stream)
        self._done.record(stream)

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """Waits for the GPU, and makes the records. Raises DeviceError when its work failed."""
        self._done.synchronize()
        return self._reader.read(geometries)

    def close(self) -> None:
        """Frees what the session does not own, once the GPU is done. Twice is once."""
        self._session.device.settle()
        self._graphs.clear()
        self._reader.close()

    def _put(self, rows: int, launches: Sequence[Launch]) -> None:
        for launch in launches:
            launch.enqueue(self._session.stream)
        self._session.enqueue(rows)
        self._reader.enqueue(rows, self._session.stream)

    def _graph(self, rows: int, launches: Sequence[Launch]) -> Graph | None:
        """The graph for this work; None the first time, and where there can be none."""
        if not self._recordable or len(launches) != 1:
            return None
        key = (rows, launches[0].kernel)
        if key not in self._graphs:
            self._graphs[key] = None  # kernels load, and ONNX Runtime allocates, in a first run that is not recorded
            return None
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._record(rows, launches)
        else:
            for nbytes in self._reader.copied(rows):  # those of the recording were counted when it was made
                self._session.device.counter.copied(nbytes)
        return graph

    def _record(self, rows: int, launches: Sequence[Launch]) -> Graph | None:
        try:
            return self._session.device.capture(self._session.stream, lambda: self._put(rows, launches))
        except DeviceError as error:
            log.info("no CUDA graph: %s (%s)", error.what, error.why)
            self._recordable = False
            return None


def run_sizes(rows: int, dynamic: bool) -> tuple[int, ...]:
    """How many rows are run: powers of two and all, where the engine can run fewer; each is a graph of its own."""
    if not dynamic:
        return (rows,)
    return (*(1 << power for power in range((rows - 1).bit_length())), rows)
