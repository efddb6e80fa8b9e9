"""The sink that sends: what it is given goes into a spool, from which a courier takes it."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

from edgert.runtime.passing import parts
from edgert.runtime.records import Result
from edgert.stages.context import SimpleStage
from edgert.stages.sink.send.courier import CLOSE_S, Courier, Door
from edgert.stages.sink.send.messages import Writer
from edgert.stages.sink.send.spool import Spool


class SendSink(SimpleStage):
    """Writes the messages of each result and puts them into the spool, before it takes the next one.

    Behind a camera, or where a program calls that may be a control loop, a thread of its own writes, which after a
    pause takes several times as long as handing over. Of files, whose reader waits anyway, whoever calls writes: waking
    another thread takes about as long again. Where images go along they are made at once, as long as there are frames.

    Args:
        hands_over: whether a thread of its own writes.

    Attributes:
        closing_s: how long :meth:`close` may take; a stop waits for it.
    """

    closing_s = CLOSE_S

    def __init__(self, name: str, writer: Writer, spool: SpoolOf, door: Door, hands_over: bool = True) -> None:
        self.name, self._writer, self._spool_of, self._door = name, writer, spool, door
        self._hands_over = hands_over and not writer.needs_frames
        self._spool: Spool | None = None
        self._courier: Courier | None = None
        self._handed, self._written = SimpleQueue[Result | None](), SimpleQueue[Exception | None]()
        self._thread: threading.Thread | None = None

    @property
    def is_brief(self) -> bool:
        """Whether a result takes little: no image is made of it."""
        return not self._writer.needs_frames

    def open(self) -> None:
        """Raises StageError when another process has the spool."""
        self._spool = self._spool_of()
        self._courier = Courier(f"stages.{self.name}", self._spool, self._door)
        if self._hands_over:
            self._thread = threading.Thread(target=self._write_all, name=f"edgert-{self.name}-write", daemon=True)
            self._thread.start()
            self._written.put(None)

    def process(self, result: Result) -> None:
        """Raises StageError for a record that has no JSON form; of the result before, where a thread writes it."""
        if self._thread is None:
            self._write(result)
            return
        error = self._written.get()
        if error is not None:
            self._written.put(None)
            raise error
        self._handed.put(result)

    def close(self) -> None:
        """Raises the error of the last result."""
        error, thread, self._thread = None, self._thread, None
        if thread is not None:
            error = self._written.get()
            self._handed.put(None)
            thread.join()
        self._writer.close()
        if self._courier is not None:
            self._courier.close()
            self._courier = self._spool = None
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

    def _write(self, result: Result) -> None:
        assert self._spool is not None and self._courier is not None, "open() comes first"
        for one in parts(result):
            for message in self._writer.messages(one):
                self._spool.put(*message)
        self._courier.notify()


class SpoolOf(Protocol):
    """Opens the spool."""

    def __call__(self) -> Spool:
        """Raises StageError when another process has it."""
        ...
