"""The sending sink: it writes messages into a spool, from which another thread sends them."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

from edgert.runtime.records import Result
from edgert.stages.context import SimpleStage
from edgert.stages.sink.send.messages import Writer
from edgert.stages.sink.send.sender import CLOSE_S, Publisher, Sender
from edgert.stages.sink.send.spool import Spool


class SendSink(SimpleStage):
    """Writer of each result's messages into the spool, before the next result.

    Behind a camera or a program's call, which may be a control loop, a separate thread writes; after a pause that takes
    several times as long as the handover. For files the calling thread writes, because waking another takes as long.
    Images are encoded at once, while their frames are there.

    Args:
        hands_over: whether a separate thread writes.

    Attributes:
        closing_s: how long :meth:`close` may take; a stop waits for it.
    """

    closing_s = CLOSE_S

    def __init__(
        self, name: str, writer: Writer, spool: SpoolOf, publisher: Publisher, hands_over: bool = True
    ) -> None:
        self.name, self._writer, self._spool_of, self._publisher = name, writer, spool, publisher
        self._hands_over = hands_over and not writer.needs_frames
        self._spool: Spool | None = None
        self._sender: Sender | None = None
        self._handed, self._written = SimpleQueue[Result | None](), SimpleQueue[Exception | None]()
        self._thread: threading.Thread | None = None

    @property
    def effort(self) -> str:
        """Cost of one result; low without an image."""
        return "much" if self._writer.needs_frames else "little"

    def open(self) -> None:
        """Open the spool. Raises StageError when another process has it."""
        self._spool = self._spool_of()
        self._sender = Sender(f"stages.{self.name}", self._spool, self._publisher)
        if self._hands_over:
            self._thread = threading.Thread(target=self._write_all, name=f"edgert-{self.name}-write", daemon=True)
            self._thread.start()
            self._written.put(None)

    def process(self, result: Result) -> None:
        """Write or hand over a result.

        Raises StageError for a record without a JSON form, with a thread one call later.
        """
        if self._thread is None:
            self._write(result)
            return
        error = self._written.get()
        if error is not None:
            self._written.put(None)
            raise error
        result.frame.lease.retain()  # the machine that sent the frame waits until its result is written
        self._handed.put(result)

    def close(self) -> None:
        """Close thread, sender and spool. Raises the error of the last result."""
        error, thread, self._thread = None, self._thread, None
        if thread is not None:
            error = self._written.get()
            self._handed.put(None)
            thread.join()
        self._writer.close()
        if self._sender is not None:
            self._sender.close()
            self._sender = self._spool = None
        if error is not None:
            raise error

    def _write_all(self) -> None:
        while (result := self._handed.get()) is not None:
            try:
                self._write(result)
            except Exception as error:  # noqa: BLE001 - the stage's own thread raises it
                self._written.put(error)
            else:
                self._written.put(None)
            finally:
                result.frame.lease.release()

    def _write(self, result: Result) -> None:
        assert self._spool is not None and self._sender is not None, "open() comes first"
        for message in self._writer.messages(result):
            number = self._spool.put(*message)
            if number is not None and result.frame.delivery is not None:
                self._sender.hold(number, result.frame.lease.retain())
        self._sender.notify()


class SpoolOf(Protocol):
    """Function that opens the spool."""

    def __call__(self) -> Spool:
        """Return the spool. Raises StageError when another process has it."""
        ...
