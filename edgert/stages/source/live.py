"""Streams that can break and come back: a reader thread, reconnection, and a clock that survives it."""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

from edgert.clock import Clock
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.timeline import Image, Timeline

_NAMES_OF_SECRETS = r"(?:pass(?:word|wd)?|pwd|pw|token|secret|api[_-]?key|key|auth|signature|sig)"
# Up to the last @ without a space in between: a password may itself hold @, : or / that nobody escaped.
_USERINFO = re.compile(r"(?<=://)[^\s'\"]*@")
_VALUE = re.compile(rf"(?i)((?:^|[^a-z]){_NAMES_OF_SECRETS}=)(\"[^\"]*\"|'[^']*'|[^\s&'\"]+)")


def redact(text: str) -> str:
    """``rtsp://user:secret@host/x`` → ``rtsp://***@host/x``, for every URL in ``text``; also the values of
    parameters such as ``password=`` and ``user-pw=``. More is hidden than needed rather than less."""
    return _VALUE.sub(r"\1***", _USERINFO.sub("***@", text))


T = TypeVar("T")


class Slot(Generic[T]):
    """Hands one item at a time from a thread that puts to one that takes; the taker may close it.

    Built on ``queue.SimpleQueue``, whose put and get run in C: a condition variable takes several times as long.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._room.put(None)
        self._closed = threading.Event()

    def put(self, item: T) -> bool:
        """Waits until the slot is empty. Returns whether the item is the taker's now; false once the slot is closed."""
        self._room.get()
        if not self._closed.is_set():
            self._items.put(item)
            # Closed just now: either close() found the item, or it is here and nobody will come for it.
            if not self._closed.is_set() or self._left() is None:
                return True
        self._room.put(None)
        return False

    def take(self, timeout_s: float) -> T | None:
        """The item, or None when none came in time."""
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._room.put(None)
        return item

    def close(self) -> T | None:
        """Nothing can be put any more, and a waiting producer goes on; returns what nobody took."""
        self._closed.set()
        left = self._left()
        self._room.put(None)
        return left

    def _left(self) -> T | None:
        try:
            return self._items.get_nowait()
        except queue.Empty:
            return None


log = logging.getLogger("edgert.source")

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
POLL_S = 0.1
"""How often a waiting source looks at ``stop``."""
MOST_LEFT = 2
"""Connections that are kept open by their other side, give nothing, and were left for another one, at a time."""
JOIN_S = 0.2
"""How long closing waits for the reader; one that hangs in a dead connection ends by its own time-out."""


class Device(Protocol):
    """One opened connection to a camera. Used by the reader thread only."""

    @property
    def skipped(self) -> int:
        """Damaged images so far."""
        ...

    @property
    def asked_ns(self) -> int | None:
        """Since when the network is waited for; None while it is not. Read from any thread."""
        ...

    def images(self) -> Iterator[Image]:
        """Blocks for each image. Ends with the stream; raises DeviceError when it is lost."""
        ...

    def close(self) -> None:
        """Gives the device back."""
        ...


Message = Image | EdgertError | Literal["connected", "ended"]


class LiveSource:
    """Frames of a camera that may go away.

    Opening and reading block for as long as the network likes, and no library lets another thread interrupt them. So
    a thread of its own reads; this one waits for it, at most 0.1 s at a time, and leaves when ``stop`` is set. The
    reader then ends with its next packet or its time-out, whichever is first, and closes the connection itself.

    The first connection must succeed. Later losses are logged once and answered by trying again after 0.5 s, then
    twice as long each time, at most 10 s; index and media time go on. ``reconnect=False`` makes the first loss final.

    Args:
        name: of the stage. title: how messages call the device, without secrets.
        connect: opens the device, on the GPU that :meth:`on_gpu` has chosen, if any; raises DeviceError.
        why_not: why the device cannot give its images on a GPU; empty when it can. Without it, it never can.
        share: makes devices that are opened from now on write where a GPU reads, too.
        wait_s: after how long without a packet another connection is made; None for devices that find out themselves.
    """

    def __init__(
        self,
        name: str,
        title: str,
        connect: Callable[[CudaDevice | None], Device],
        timeline: Timeline,
        clock: Clock,
        *,
        live: bool,
        reconnect: bool,
        why_not: Callable[[CudaDevice], str] | None = None,
        share: Callable[[CudaDevice], None] | None = None,
        wait_s: float | None = None,
    ) -> None:
        self._wait_s = wait_s
        self.live, self._name, self._title, self._timeline, self._clock = live, name, title, timeline, clock
        self._connect, self._reconnect, self._why_not, self._share = connect, reconnect, why_not, share
        self._device: CudaDevice | None = None
        self._reader: Reader | None = None
        self._lost = 0

    def on_gpu(self, device: CudaDevice) -> str:
        """Images come on this GPU from now on; or returns why not. Ask before the start."""
        reason = self._why_not(device) if self._why_not else "its images come in memory of the host"
        self._device = None if reason else device
        return reason

    def share(self, device: CudaDevice) -> None:
        """Frames lie in memory that this GPU reads; where the device cannot write there, they are copied, and that is
        counted. Ask before the start."""
        if self._share is not None:
            self._share(device)
        self._timeline.share(device)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Frames until the stream ends or ``stop`` is set. Raises DeviceError."""
        connect = partial(self._connect, self._device)
        self._reader = Reader(self._name, self._title, connect, self._reconnect, self._clock)
        self._reader.start()
        try:
            with closing(self._images(self._reader, stop)) as images:
                yield from self._timeline.frames(images, stop)
        finally:
            self._reader.end()

    def stats(self) -> SourceStats:
        reader = self._reader
        return SourceStats(reader.skipped, reader.reconnects, self._lost) if reader else SourceStats()

    def close(self) -> None:
        """Lets the device go; may be called twice."""
        if self._reader is not None:
            self._reader.end()

    def _images(self, reader: Reader, stop: threading.Event) -> Generator[Image, None, None]:
        while not stop.is_set():
            alive = reader.is_alive()  # asked first: what a reader puts before it ends must not look like its death
            message = reader.slot.take(POLL_S)
            if isinstance(message, Image):
                self._lost += message.lost
                yield message
                del message  # a camera's buffer goes back when its frame is released, not one frame later
            elif isinstance(message, EdgertError):
                raise message
            elif message == "connected":
                self._timeline.media.restart()
            elif message == "ended":
                return
            elif not alive:
                raise StageError(f"the reader of {self._title} died", where=f"stages.{self._name}")
            elif self._wait_s is not None and reader.waits_longer(self._wait_s):
                reader = self._reader = reader.replaced(self._wait_s)


class Reader(threading.Thread):
    """Keeps one device open and puts what it gives into :attr:`slot`, one image at a time."""

    def __init__(self, name: str, title: str, connect: Callable[[], Device], reconnect: bool, clock: Clock) -> None:
        # A daemon, since a dead connection must not keep the program from ending.
        super().__init__(name=f"edgert-{name}-reader", daemon=True)
        self.slot: Slot[Message] = Slot()
        self.skipped = self.reconnects = 0
        self._stage, self._title, self._connect, self._reconnect = name, title, connect, reconnect
        self._clock, self._ended = clock, threading.Event()
        self._wait_s = FIRST_WAIT_S
        self._lost_ns: int | None = None
        self._has_connected = False
        self._device: Device | None = None
        self._left: list[Reader] = []

    def waits_longer(self, wait_s: float) -> bool:
        """Whether its connected device has waited for the network so long."""
        device = self._device
        asked_ns = device.asked_ns if device is not None else None
        return asked_ns is not None and self._clock.now_ns() - asked_ns > wait_s * 1e9

    def replaced(self, wait_s: float) -> Reader:
        """Another one in place of this, which ends, and closes its device, when that gives something after all or gives
        up. Raises DeviceError where one loss is the end."""
        why, fix = f"nothing came for {wait_s:g} s", "check the network, or raise timeout:"
        loss = DeviceError(f"lost {self._title}", why=why, where=f"stages.{self._stage}", fix=fix)
        if not self._reconnect:
            raise loss
        made = Reader(self._stage, self._title, self._connect, True, self._clock)
        made.skipped, made.reconnects, made._has_connected = self.skipped, self.reconnects, True
        made._lost_ns, made._wait_s = self._lost_ns, self._wait_s
        made._left = [*(one for one in self._left if one.is_alive()), self]
        made._note(loss)
        self._end()
        made.start()
        return made

    def end(self) -> None:
        """Asks the reader to stop, drops what waits, and gives it a moment, the first time."""
        if self._ended.is_set():
            return
        self._end()
        if self.is_alive():
            self.join(JOIN_S)

    def _end(self) -> None:
        self._ended.set()
        left = self.slot.close()
        if isinstance(left, Image):
            left.lease.release()

    def run(self) -> None:
        if self._left:
            self._clock.wait(self._ended, self._wait_s)
        while sum(one.is_alive() for one in self._left) > MOST_LEFT and not self._clock.wait(self._ended, POLL_S):
            pass
        while not self._ended.is_set():
            try:
                device = self._connect()
            except DeviceError as error:
                loss: DeviceError | None = error
            else:
                self._has_connected = True
                loss = self._read(device)
            if loss is None:
                self.slot.put("ended")
                return
            if not (self._has_connected and self._reconnect):
                self.slot.put(loss)
                return
            if self._ended.is_set():
                return
            self._note(loss)
            self._clock.wait(self._ended, self._wait_s)
            self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)

    def _note(self, loss: DeviceError) -> None:
        level, what = (logging.WARNING, "lost %s") if self._lost_ns is None else (logging.DEBUG, "no %s yet")
        message = f"%s: {what}: %s; trying again in %.1f s"
        log.log(level, message, self._stage, self._title, loss.why, self._wait_s)
        self._lost_ns = self._lost_ns or self._clock.now_ns()

    def _read(self, device: Device) -> DeviceError | None:
        """Reads until the stream ends (None) or is lost."""
        skipped = self.skipped
        self.slot.put("connected")
        self._device = device
        try:
            for image in device.images():
                self.skipped = skipped + device.skipped
                if self._lost_ns is not None:
                    gone_s = (self._clock.now_ns() - self._lost_ns) / 1e9
                    log.warning("%s: %s is back after %.1f s", self._stage, self._title, gone_s)
                    self.reconnects += 1
                    self._lost_ns, self._wait_s = None, FIRST_WAIT_S
                if not self.slot.put(image):
                    image.lease.release()
                    return None
                del image
        except DeviceError as error:
            return error
        finally:
            self._device = None
            self.skipped = skipped + device.skipped
            device.close()
        return None
