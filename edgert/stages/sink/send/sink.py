"""Sink that writes messages into a spool, from which another thread sends them."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from edgert.runtime.records import Result
from edgert.runtime.worker import Worker
from edgert.stages.context import SimpleStage
from edgert.stages.sink.send.messages import Writer
from edgert.stages.sink.send.sender import CLOSE_S, Publisher, Sender
from edgert.stages.sink.send.spool import Spool


class SendSink(SimpleStage):
    """Sink that writes the messages of each result into the spool, before the next result.

    Behind a camera or a program's call, which may be a control loop, a separate thread writes, because writing takes
    several times as long as passing a result on. For files, the calling thread writes, because waking another takes as
    long. Messages with images are always made in the calling thread, while the frames are there.

    Args:
        spool: function that opens the spool; it raises StageError where another process has it.
        hands_over: whether a separate thread writes.

    Attributes:
        closing_s: maximum seconds for :meth:`close`, for which a stop waits.
    """

    closing_s = CLOSE_S

    def __init__(
        self, name: str, writer: Writer, spool: Callable[[], Spool], publisher: Publisher, hands_over: bool = True
    ) -> None:
        self.name, self._writer, self._open_spool, self._publisher = name, writer, spool, publisher
        self._hands_over = hands_over and not writer.needs_frames
        self._spool: Spool | None = None
        self._sender: Sender | None = None
        self._worker: Worker | None = None
        self._last: Future[None] | None = None

    @property
    def effort(self) -> str:
        """How much work one result is."""
        return "much" if self._writer.needs_frames else "little"

    def open(self) -> None:
        """Open the spool. Raises StageError where another process has it."""
        self._spool = self._open_spool()
        self._sender = Sender(f"stages.{self.name}", self._spool, self._publisher)
        if self._hands_over:
            self._worker = Worker(f"edgert-{self.name}-write")
            self._worker.start()

    def process(self, result: Result) -> None:
        """Write a result, or hand it to the thread.

        Raises StageError for a record without a JSON form; with a thread, the next call does.
        """
        if self._worker is None:
            self._write(result)
            return
        self._wait_for_last()
        result.frame.lease.retain()  # the machine that sent the frame waits until its result is written
        self._last = self._worker.submit(partial(self._write_held, result))

    def close(self) -> None:
        """End the thread, the sender and the spool. Raises the error of the last result."""
        worker, self._worker = self._worker, None
        try:
            self._wait_for_last()
        finally:
            if worker is not None:
                worker.stop()
            self._writer.close()
            if self._sender is not None:
                self._sender.close()
                self._sender = self._spool = None

    def _wait_for_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _write_held(self, result: Result) -> None:
        try:
            self._write(result)
        finally:
            result.frame.lease.release()

    def _write(self, result: Result) -> None:
        assert self._spool is not None and self._sender is not None, "open() comes first"
        for message in self._writer.messages(result):
            number = self._spool.put(*message)
            if number is not None and result.frame.delivery is not None:
                self._sender.hold(number, result.frame.lease.retain())
        self._sender.notify()
