"""Streams that can break and come back: a reader thread, reconnection, and a clock that survives it."""

from __future__ import annotations

import logging
import queue
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

from edgert.clock import Clock
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.packets import Tap
from edgert.stages.source.timeline import Image, Timeline

_NAMES_OF_SECRETS = r"(?:pass(?:word|wd)?|pwd|pw|token|secret|api[_-]?key|key|auth|signature|sig)"
# Up to the last @ without a space in between: a password may itself hold @, : or / that nobody escaped.
_USERINFO = re.compile(r"(?<=://)[^\s'\"]*@")
_VALUE = re.compile(rf"(?i)((?:^|[^a-z]){_NAMES_OF_SECRETS}=)(\"[^\"]*\"|'[^']*'|[^\s&'\"]+)")


def redact(text: str) -> str:
    """Hide user and password of every URL in ``text``: ``rtsp://user:secret@host/x`` → ``rtsp://***@host/x``.

    Also hides the values of parameters such as ``password=`` and ``user-pw=``, and rather too much than too little.
    """
    return _VALUE.sub(r"\1***", _USERINFO.sub("***@", text))


T = TypeVar("T")


class Slot(Generic[T]):
    """Handover of single items between two threads; the taker may close it.

    Built on ``queue.SimpleQueue``, whose put and get run in C: a condition variable takes several times as long.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._room.put(None)
        self._closed = threading.Event()

    def put(self, item: T) -> bool:
        """Wait until the slot is empty.

        Returns whether the item now belongs to the taker; False once the slot is closed.
        """
        self._room.get()
        if not self._closed.is_set():
            self._items.put(item)
            # Closed just now: either close() found the item, or it is here and nobody will come for it.
            if not self._closed.is_set() or self._left() is None:
                return True
        self._room.put(None)
        return False

    def take(self, timeout_s: float) -> T | None:
        """Return the item, or None when none came in time."""
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._room.put(None)
        return item

    def close(self) -> T | None:
        """Close the slot, unblock a waiting producer, and return the item that was not taken."""
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

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 1.25
"""Longest wait: a camera that comes back is seen within 2 s; a failed try costs next to nothing."""
LONGEST_DAEMON_WAIT_S = 30.0
"""Longest wait for a camera behind a daemon, which takes seconds for each try."""
FIRST_LOGIN_WAIT_S, LONGEST_LOGIN_WAIT_S = 60.0, 240.0
"""Waits after a refused user or password: cameras lock an account, or an address, after a few of those."""
JITTER = 0.25
"""Largest random reduction of a wait, so that the cameras of a switch are not tried at once."""
REMIND_S = 300.0
"""Seconds between two log lines about a camera that is away."""
MOST_LINES = 10
"""Most reasons, and losses, that are logged in that time."""
POLL_S = 0.1
"""Seconds between two checks of ``stop``."""
MOST_LEFT = 2
"""Most abandoned connections that their other side keeps open without data."""
JOIN_S = 0.2
"""Seconds that closing waits for the reader; one in a dead connection ends by its own time-out."""


class FinalError(DeviceError):
    """Trying again does not help: a wrong path, no right to open it, a library that is missing."""


class MismatchError(FinalError):
    """What is there can never be used, such as a topic of another type: an error whenever it shows."""


class LoginError(DeviceError):
    """The camera refuses this user or password."""


class Device(Protocol):
    """One opened connection to a camera. Used by the reader thread only."""

    @property
    def skipped(self) -> int:
        """Damaged images so far."""
        ...

    @property
    def waiting_since_ns(self) -> int | None:
        """Since when the network is waited for; None while it is not. Read from any thread."""
        ...

    @property
    def ending(self) -> str:
        """The stream's length, once all that it announced has come: its end is then no loss.

        Empty before, and for streams that announce no length. Read from any thread.
        """
        ...

    def images(self) -> Iterator[Image]:
        """Yield images, blocking for each, until the stream ends. Raises DeviceError when it is lost."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


Message = Image | EdgertError | Literal["connected", "ended"]


class Connection:
    """State of the connection to one camera; it outlives its readers. Written by the reader, read from any thread.

    Attributes:
        is_up: whether it gives images.
        reason: why not; empty while it does, and before the first try has failed.
        has_ended: whether its stream came to its end, which is no loss.
        reconnects: times that it gave images again.
        frame_ns: when its newest image came; None before the first.
        changed_ns: when ``is_up`` changed last.
    """

    def __init__(self, stage: str, title: str, clock: Clock, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        self._longest_wait_s = longest_wait_s
        self.is_up, self.reason, self.has_ended, self.reconnects = False, "", False, 0
        self.frame_ns: int | None = None
        self.changed_ns = clock.now_ns()
        self._stage, self._title, self._clock = stage, title, clock
        self._logged_ns: dict[str, int] = {}
        self._losses_ns: deque[int] = deque(maxlen=MOST_LINES)
        self._next_s: dict[bool, float] = {}
        self._stopped_ns: int | None = None

    def gave_image(self) -> None:
        """Record that an image came."""
        now_ns = self._clock.now_ns()
        if not self.is_up:
            if self._logged_ns:
                away_s = (now_ns - self.changed_ns) / 1e9
                is_back = "is back" if self.frame_ns is not None else "is there"
                level = logging.DEBUG if self._flaps(now_ns) else logging.WARNING
                log.log(level, "%s: %s %s after %.1f s", self._stage, self._title, is_back, away_s)
            self.reconnects += self.frame_ns is not None
            self.is_up, self.reason, self.changed_ns = True, "", now_ns
            self._next_s = {}
            if not self._flaps(now_ns):
                self._logged_ns = {}
        self.frame_ns = now_ns

    def lost(self, loss: DeviceError) -> float:
        """Record a loss. Logs it when it begins, when the reason is a new one, and every few minutes.

        Returns:
            Seconds to wait before the next try.
        """
        now_ns = self._clock.now_ns()
        is_new = self.is_up or (self.frame_ns is None and not self._logged_ns)
        if self.is_up:
            self.is_up, self.changed_ns = False, now_ns
            self._losses_ns.append(now_ns)
        self.reason, wait_s = loss.why or loss.what, self._wait_s(isinstance(loss, LoginError))
        what = "no" if self.frame_ns is None else "lost" if is_new else "still no"
        away_s = (now_ns - self.changed_ns) / 1e9
        since = "" if is_new or away_s < 1 else f" for {away_s:.0f} s"
        fix = f" ({loss.fix})" if is_new and loss.fix and self.frame_ns is None else ""
        if is_new and self._flaps(now_ns):
            since = f" {MOST_LINES} times in {(now_ns - self._losses_ns[0]) / 1e9:.0f} s"
        level = logging.WARNING if self._is_news(now_ns) else logging.DEBUG
        message = "%s: %s %s%s: %s%s; trying again in %.1f s"
        log.log(level, message, self._stage, what, self._title, since, self.reason, fix, wait_s)
        return wait_s

    def _is_news(self, now_ns: int) -> bool:
        """Return whether to log the reason: it is not among those of the last minutes, nor are these too many.

        Records it.
        """
        fresh = {reason: at_ns for reason, at_ns in self._logged_ns.items() if now_ns - at_ns < REMIND_S * 1e9}
        is_news = self.reason not in fresh and len(fresh) < MOST_LINES
        self._logged_ns = fresh | ({self.reason: now_ns} if is_news else {})
        return is_news

    def _flaps(self, now_ns: int) -> bool:
        """Return whether it was lost many times in the last minutes."""
        return len(self._losses_ns) == MOST_LINES and now_ns - self._losses_ns[0] < REMIND_S * 1e9

    def ended(self, ending: str) -> None:
        """Record and log the end of the stream; ``ending`` is the device's, or empty."""
        self.is_up, self.has_ended, self.changed_ns = False, True, self._clock.now_ns()
        self.reason = ending or "its stream ended"
        log.warning("%s: %s", self._stage, self.reason)

    def stop(self) -> None:
        """Stop its times: no reader is left."""
        self._stopped_ns = self._stopped_ns or self._clock.now_ns()

    def stats(self, skipped: int, lost: int) -> SourceStats:
        """Return the statistics at this moment."""
        now_ns = self._stopped_ns or self._clock.now_ns()
        age_s = None if self.frame_ns is None else (now_ns - self.frame_ns) / 1e9
        since_s = (now_ns - self.changed_ns) / 1e9
        return SourceStats(skipped, self.reconnects, lost, self.is_up, since_s, age_s, self.reason, self.has_ended)

    def _wait_s(self, is_login: bool) -> float:
        """Return seconds until the next try; each is twice the last, with jitter."""
        of_logins, of_others = (FIRST_LOGIN_WAIT_S, LONGEST_LOGIN_WAIT_S), (FIRST_WAIT_S, self._longest_wait_s)
        first_s, most_s = of_logins if is_login else of_others
        wait_s = self._next_s.get(is_login, first_s)
        self._next_s[is_login] = min(wait_s * 2, most_s)
        return wait_s * random.uniform(1 - JITTER, 1)  # noqa: S311 - no secret


class LiveSource:
    """Frames of a camera that may go away.

    Opening and reading block for as long as the network takes, and no library lets another thread interrupt them. So a
    reader thread does it. This one waits for it, at most 0.1 s at a time, and returns when ``stop`` is set. The reader
    then ends with its next packet or time-out and closes the connection.

    After a loss it is logged and retried after a quarter of a second, then twice as long each time, at most 1.25 s (30
    s for a CSI camera). After a refused password it waits minutes. Index and media time continue. ``reconnect=False``
    makes the first loss final. ``start="wait"`` also retries the first connection, unless the very first answer is a
    FinalError. With ``"fail"`` the first connection must succeed. None waits if it reconnects.

    Args:
        name: of the stage. title: the device's name in messages, without secrets.
        connect: opens the device, on the GPU that :meth:`on_gpu` has chosen, if any; raises DeviceError.
        why_not: why the device cannot give its images on a GPU; empty when it can. Without it, it never can.
        share: makes devices that are opened from now on write where a GPU reads, too.
        wait_s: seconds without a packet until another connection is made; None for devices that detect it.
        tap: through which the device's packets pass; None where it gives images only.
        longest_wait_s: longest wait before another try.
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
        start: Literal["wait", "fail"] | None = "fail",
        why_not: Callable[[CudaDevice], str] | None = None,
        share: Callable[[CudaDevice], None] | None = None,
        wait_s: float | None = None,
        tap: Tap | None = None,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._wait_s, self.tap, self._longest_wait_s = wait_s, tap, longest_wait_s
        self.live, self._name, self._title, self._timeline, self._clock = live, name, title, timeline, clock
        self._connect, self._why_not, self._share = connect, why_not, share
        self._reconnect, self._waits = reconnect, reconnect if start is None else start == "wait"
        self._device: CudaDevice | None = None
        self._reader: Reader | None = None
        self._lost = 0

    def on_gpu(self, device: CudaDevice) -> str:
        """Give images on this GPU from now on; return why not otherwise. Call it before the start."""
        reason = self._why_not(device) if self._why_not else "its images come in memory of the host"
        self._device = None if reason else device
        return reason

    def share(self, device: CudaDevice) -> None:
        """Give frames in memory that this GPU reads. Call it before the start.

        Where the device cannot write there, frames are copied, and that is counted.
        """
        if self._share is not None:
            self._share(device)
        self._timeline.share(device)

    def thin(self, fps: float | None) -> None:
        """See :meth:`~edgert.stages.source.timeline.Timeline.thin`."""
        self._timeline.thin(fps)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until the stream ends or ``stop`` is set. Raises DeviceError."""
        connect = partial(self._connect, self._device)
        way = Connection(self._name, self._title, self._clock, self._longest_wait_s)
        self._reader = Reader(self._name, self._title, connect, way, self._clock, self._reconnect, self._waits)
        self._reader.start()
        try:
            with closing(self._images(self._reader, stop)) as images:
                yield from self._timeline.frames(images, stop)
        finally:
            self._reader.end()
            if stop.is_set() or way.is_up:  # else its times go on: others may run without it
                way.stop()

    def stats(self) -> SourceStats:
        reader = self._reader
        return reader.way.stats(reader.skipped, self._lost) if reader else SourceStats()

    def close(self) -> None:
        """Release the device; may be called twice."""
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
                if ending := reader.ending:  # a server that has sent everything need not say so
                    reader.way.ended(ending)
                    return
                reader = self._reader = reader.replaced(self._wait_s)


class Reader(threading.Thread):
    """Thread that keeps one device open and puts its images into :attr:`slot`, one at a time."""

    def __init__(
        self,
        name: str,
        title: str,
        connect: Callable[[], Device],
        way: Connection,
        clock: Clock,
        reconnect: bool,
        waits: bool,
    ) -> None:
        # A daemon, since a dead connection must not keep the program from ending.
        super().__init__(name=f"edgert-{name}-reader", daemon=True)
        self.slot: Slot[Message] = Slot()
        self.skipped, self.way = 0, way
        self._stage, self._title, self._connect, self._clock = name, title, connect, clock
        self._reconnect, self._waits = reconnect, waits
        self._ended = threading.Event()
        self._begins_in_s = 0.0
        self._has_connected = self._has_failed = False
        self._device: Device | None = None
        self._ending = ""
        self._left: list[Reader] = []

    def waits_longer(self, wait_s: float) -> bool:
        """Return whether its connected device has waited for the network for ``wait_s``."""
        device = self._device
        waiting_since_ns = device.waiting_since_ns if device is not None else None
        return waiting_since_ns is not None and self._clock.now_ns() - waiting_since_ns > wait_s * 1e9

    @property
    def ending(self) -> str:
        """Reason why the connected device ended; see :attr:`Device.ending`."""
        device = self._device
        return device.ending if device is not None else self._ending

    def replaced(self, wait_s: float) -> Reader:
        """Return a new reader in place of this one, which ends and closes its device when its read returns.

        Raises DeviceError where one loss is final.
        """
        why, fix = f"nothing came for {wait_s:g} s", "check the network, or raise timeout:"
        loss = DeviceError(f"lost {self._title}", why=why, where=f"stages.{self._stage}", fix=fix)
        if self._gives_up(loss):
            raise loss
        made = Reader(self._stage, self._title, self._connect, self.way, self._clock, self._reconnect, self._waits)
        made.skipped, made._has_connected, made._has_failed = self.skipped, True, True
        made._left = [*(one for one in self._left if one.is_alive()), self]
        self._end()
        made._begins_in_s = self.way.lost(loss)
        made.start()
        return made

    def end(self) -> None:
        """Stop the reader, drop what waits, and join it for a moment, the first time."""
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
        if self._begins_in_s:
            self._clock.wait(self._ended, self._begins_in_s)
        while sum(one.is_alive() for one in self._left) > MOST_LEFT and not self._clock.wait(self._ended, POLL_S):
            pass
        while not self._ended.is_set():
            try:
                loss = self._read(self._connect())
            except DeviceError as error:
                loss = error
            if self._ended.is_set():  # and perhaps another one reads by now
                return
            if loss is None:
                self.way.ended(self._ending)
                self.slot.put("ended")
                return
            if self._gives_up(loss):
                self.slot.put(loss)
                return
            wait_s = self.way.lost(loss)
            del loss  # and what its traceback holds: a decoder and its images
            self._clock.wait(self._ended, wait_s)

    def _gives_up(self, loss: DeviceError) -> bool:
        """Return whether a loss is final."""
        is_first, self._has_failed = not self._has_failed, True
        if isinstance(loss, MismatchError):
            return True
        if self.way.frame_ns is not None or not self._waits:
            return not (self._has_connected and self._reconnect)
        return is_first and isinstance(loss, FinalError)

    def _read(self, device: Device) -> DeviceError | None:
        """Read until the stream ends (None) or is lost."""
        skipped, self._has_connected = self.skipped, True
        self.slot.put("connected")
        self._device = device
        try:
            for image in device.images():
                self.skipped = skipped + device.skipped
                if not self._ended.is_set():
                    self.way.gave_image()
                if not self.slot.put(image):
                    image.lease.release()
                    return None
                del image
        except DeviceError as error:
            return error
        finally:
            self._ending, self._device = device.ending, None
            self.skipped = skipped + device.skipped
            device.close()
        return None
