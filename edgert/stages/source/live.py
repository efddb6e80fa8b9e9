"""Live sources, which can break and come back: a reader thread, reconnection, and media time across connections."""

from __future__ import annotations

import logging
import queue
import random
import re
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Literal

from edgert.clock import Clock
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.packets import Tap
from edgert.stages.source.timeline import Image, Timeline

_NAMES_OF_SECRETS = r"(?:pass(?:word|wd)?|pwd|pw|token|secret|api[_-]?key|key|auth|signature|sig)"
# Matches up to the last @ before a space, because a password may hold an unescaped @, : or /.
_USERINFO = re.compile(r"(?<=://)[^\s'\"]*@")
_VALUE = re.compile(rf"(?i)((?:^|[^a-z]){_NAMES_OF_SECRETS}=)(\"[^\"]*\"|'[^']*'|[^\s&'\"]+)")


def redact(text: str) -> str:
    """Hide user and password of every URL in ``text``: ``rtsp://user:secret@host/x`` → ``rtsp://***@host/x``.

    Also hides the values of parameters such as ``password=`` and ``user-pw=``. In doubt it hides more.
    """
    return _VALUE.sub(r"\1***", _USERINFO.sub("***@", text))


log = logging.getLogger("edgert.source")

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 1.25
"""Longest wait between two tries. A camera that comes back is found within 2 s; a failed try costs next to nothing."""
LONGEST_DAEMON_WAIT_S = 30.0
"""Longest wait for a camera behind a daemon, which takes seconds for each try."""
FIRST_LOGIN_WAIT_S, LONGEST_LOGIN_WAIT_S = 60.0, 240.0
"""Waits after a refused user or password: cameras lock an account or address after a few failed logins."""
JITTER = 0.25
"""Largest random reduction of a wait, so that the cameras of a switch are not all tried at once."""
REMIND_S = 300.0
"""Seconds between two log lines about the same reason of a lost camera."""
MOST_LINES = 10
"""Most reasons, and losses, that are logged within ``REMIND_S``."""
POLL_S = 0.1
"""Seconds between two checks of ``stop``."""
MOST_ABANDONED = 2
"""Most abandoned connections that the other side keeps open without data."""
JOIN_S = 0.2
"""Seconds that closing waits for the reader; a reader in a dead connection ends by its own time-out."""


class FinalError(DeviceError):
    """Error that another try does not cure: a wrong path, a missing permission, a missing library."""


class MismatchError(FinalError):
    """Error of a source that can never be used, such as a topic of another type, even after a reconnection."""


class LoginError(DeviceError):
    """Error of a camera that refuses this user or password."""


class Device(ABC):
    """Open connection to a camera. Used by the reader thread only, but for what any thread may read.

    Attributes:
        skipped: number of damaged images so far.
        waiting_since_ns: start of the current wait for the network, ns; None while there is none. For any thread.
        ending: message that the stream has ended, once its announced length has come; its end is then not a loss.
            Empty before that, and for streams that announce no length. For any thread.
    """

    skipped: int = 0
    waiting_since_ns: int | None = None
    ending: str = ""

    @abstractmethod
    def images(self) -> Iterator[Image]:
        """Yield images, blocking for each, until the stream ends. Raises DeviceError when it is lost."""

    @abstractmethod
    def close(self) -> None:
        """Release the device."""


Message = Image | EdgertError | Literal["connected", "ended"]


class Connection:
    """State of the connection to one camera, across its readers. Written by the reader, read from any thread.

    Attributes:
        stage, title: name of the stage, and of the device in messages.
        is_up: whether the camera gives images.
        reason: why it gives none; empty while it does, and before the first try has failed.
        has_ended: whether the stream reached its end, which is not a loss.
        reconnects: number of times that images came again.
        frame_ns: time of the newest image; None before the first.
        changed_ns: time of the last change of ``is_up``.
    """

    def __init__(self, stage: str, title: str, clock: Clock, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        self.stage, self.title, self.clock, self._longest_wait_s = stage, title, clock, longest_wait_s
        self.is_up, self.reason, self.has_ended, self.reconnects = False, "", False, 0
        self.frame_ns: int | None = None
        self.changed_ns = clock.now_ns()
        self._logged_ns: dict[str, int] = {}
        self._losses_ns: deque[int] = deque(maxlen=MOST_LINES)
        self._next_s: dict[bool, float] = {}
        self._stopped_ns: int | None = None

    def record_image(self) -> None:
        """Record that an image came."""
        now_ns = self.clock.now_ns()
        if not self.is_up:
            if self._logged_ns:
                away_s = (now_ns - self.changed_ns) / 1e9
                is_back = "is back" if self.frame_ns is not None else "is there"
                level = logging.DEBUG if self._flaps(now_ns) else logging.WARNING
                about = self.stage, self.title, is_back, away_s
                log.log(level, "%s: %s %s after %.1f s", *about, extra={"code": "source.recovered"})
            self.reconnects += self.frame_ns is not None
            self.is_up, self.reason, self.changed_ns = True, "", now_ns
            self._next_s = {}
            if not self._flaps(now_ns):
                self._logged_ns = {}
        self.frame_ns = now_ns

    def record_loss(self, loss: DeviceError) -> float:
        """Record a loss, and return the seconds to wait before the next try.

        The loss is logged when it begins, when its reason is a new one, and every few minutes.
        """
        now_ns = self.clock.now_ns()
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
        about = self.stage, what, self.title, since, self.reason, fix, wait_s
        log.log(level, "%s: %s %s%s: %s%s; trying again in %.1f s", *about, extra={"code": "source.lost"})
        return wait_s

    def _is_news(self, now_ns: int) -> bool:
        """Return whether to log the reason, and record that: it is new in the last minutes, and they had few others."""
        fresh = {reason: at_ns for reason, at_ns in self._logged_ns.items() if now_ns - at_ns < REMIND_S * 1e9}
        is_news = self.reason not in fresh and len(fresh) < MOST_LINES
        self._logged_ns = fresh | ({self.reason: now_ns} if is_news else {})
        return is_news

    def _flaps(self, now_ns: int) -> bool:
        """Return whether the camera was lost many times in the last minutes."""
        return len(self._losses_ns) == MOST_LINES and now_ns - self._losses_ns[0] < REMIND_S * 1e9

    def record_end(self, ending: str) -> None:
        """Record and log the end of the stream; ``ending`` is :attr:`Device.ending`, or empty."""
        self.is_up, self.has_ended, self.changed_ns = False, True, self.clock.now_ns()
        self.reason = ending or "its stream ended"
        log.warning("%s: %s", self.stage, self.reason, extra={"code": "source.ended"})

    def stop(self) -> None:
        """Freeze the times of :meth:`stats`, because no reader is left."""
        self._stopped_ns = self._stopped_ns or self.clock.now_ns()

    def stats(self, skipped: int, lost: int) -> SourceStats:
        """Return the statistics at this moment."""
        now_ns = self._stopped_ns or self.clock.now_ns()
        age_s = None if self.frame_ns is None else (now_ns - self.frame_ns) / 1e9
        since_s = (now_ns - self.changed_ns) / 1e9
        return SourceStats(skipped, self.reconnects, lost, self.is_up, since_s, age_s, self.reason, self.has_ended)

    def _wait_s(self, is_login: bool) -> float:
        """Return seconds until the next try, each time twice as many, with jitter."""
        first_s, most_s = FIRST_WAIT_S, self._longest_wait_s
        if is_login:
            first_s, most_s = FIRST_LOGIN_WAIT_S, LONGEST_LOGIN_WAIT_S
        wait_s = self._next_s.get(is_login, first_s)
        self._next_s[is_login] = min(wait_s * 2, most_s)
        return wait_s * random.uniform(1 - JITTER, 1)  # noqa: S311 - no secret


class LiveSource:
    """Source of frames from a camera that may disconnect.

    Opening and reading block for as long as the network takes, and no library lets another thread interrupt them. So a
    reader thread does both. The source's thread waits for the reader, at most 0.1 s at a time, and returns when
    ``stop`` is set. The reader then ends with its next packet or time-out and closes the connection.

    A loss is logged, and the camera is tried again after a quarter of a second. Waits double up to 1.25 s (30 s for a
    CSI camera); after a refused password they are minutes. Index and media time continue.
    ``reconnect=False`` makes the first loss final. ``start="wait"`` also retries the first connection, unless the very
    first answer is a FinalError. With ``"fail"`` the first connection must succeed. None means ``"wait"`` with
    ``reconnect``, else ``"fail"``.

    Args:
        name: name of the stage.
        title: name of the device in messages, without secrets.
        connect: function that opens the device, on the GPU that :meth:`on_gpu` has chosen, if any; raises DeviceError.
        why_not: function that returns why the device cannot give its images on a GPU; empty when it can. None: never.
        silence_s: seconds without a packet until another connection is made; None for devices that detect it.
        tap: tap that the device's packets pass through; None where it gives images only.
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
        silence_s: float | None = None,
        tap: Tap | None = None,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._silence_s, self.tap, self._longest_wait_s = silence_s, tap, longest_wait_s
        self.live, self._name, self._title, self._timeline, self._clock = live, name, title, timeline, clock
        self._connect, self._why_not = connect, why_not
        self._reconnect, self._waits = reconnect, reconnect if start is None else start == "wait"
        self._device: CudaDevice | None = None
        self._reader: Reader | None = None
        self._lost = 0

    def on_gpu(self, device: CudaDevice) -> str:
        """Give images on this GPU from now on, or return why that is not possible. Call it before the start."""
        reason = self._why_not(device) if self._why_not else "its images come in host memory"
        self._device = None if reason else device
        return reason

    def share(self, device: CudaDevice) -> None:
        """Copy frames to memory that this GPU reads, and count that. Call it before the start."""
        self._timeline.share(device)

    def thin(self, fps: float | None) -> None:
        self._timeline.thin(fps)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        connect = partial(self._connect, self._device)
        connection = Connection(self._name, self._title, self._clock, self._longest_wait_s)
        self._reader = Reader(connect, connection, self._reconnect, self._waits)
        self._reader.start()
        try:
            with closing(self._images(self._reader, stop)) as images:
                yield from self._timeline.frames(images, stop)
        finally:
            self._reader.end()
            if stop.is_set() or connection.is_up:  # else a lost camera's times continue while other sources run
                connection.stop()

    def stats(self) -> SourceStats:
        reader = self._reader
        return reader.connection.stats(reader.skipped, self._lost) if reader else SourceStats()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.end()

    def _images(self, reader: Reader, stop: threading.Event) -> Generator[Image, None, None]:
        while not stop.is_set():
            alive = reader.is_alive()  # read before take(), which may return what the reader put just before it ended
            message = reader.take(POLL_S)
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
                raise StageError(f"the reader thread of {self._title} crashed", where=f"stages.{self._name}")
            elif self._silence_s is not None and reader.has_waited(self._silence_s):
                if ending := reader.ending:  # a server may keep the connection open after it has sent everything
                    reader.connection.record_end(ending)
                    return
                reader = self._reader = reader.replace(self._silence_s)


class Reader(threading.Thread):
    """Thread that keeps one device open and passes its images on, one at a time.

    They pass through a ``queue.SimpleQueue``, whose put and get run in C. A condition variable takes several times as
    long.
    """

    def __init__(self, connect: Callable[[], Device], connection: Connection, reconnect: bool, waits: bool) -> None:
        # A daemon thread, so that a dead connection does not keep the program from ending.
        super().__init__(name=f"edgert-{connection.stage}-reader", daemon=True)
        self._messages, self._room = queue.SimpleQueue[Message](), queue.SimpleQueue[None]()
        self._room.put(None)
        self.skipped, self.connection, self._clock = 0, connection, connection.clock
        self._connect, self._reconnect, self._waits = connect, reconnect, waits
        self._ended = threading.Event()
        self._start_delay_s = 0.0
        self._has_connected = self._has_failed = False
        self._device: Device | None = None
        self._ending = ""
        self._abandoned: list[Reader] = []

    def take(self, timeout_s: float) -> Message | None:
        """Return the next image or event, or None when none came in time. The caller owns the image."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._room.put(None)
        return message

    def has_waited(self, silence_s: float) -> bool:
        """Return whether the connected device has waited for the network for ``silence_s`` or longer."""
        device = self._device
        waiting_since_ns = device.waiting_since_ns if device is not None else None
        return waiting_since_ns is not None and self._clock.now_ns() - waiting_since_ns > silence_s * 1e9

    @property
    def ending(self) -> str:
        """Reason why the connected device ended; see :attr:`Device.ending`."""
        device = self._device
        return device.ending if device is not None else self._ending

    def replace(self, silence_s: float) -> Reader:
        """Start and return a new reader; this one ends and closes its device when its read returns.

        Raises DeviceError where one loss is final.
        """
        why, fix = f"nothing came for {silence_s:g} s", "check the network, or raise timeout:"
        connection = self.connection
        loss = DeviceError(f"lost {connection.title}", why=why, where=f"stages.{connection.stage}", fix=fix)
        if self._is_final(loss):
            raise loss
        reader = Reader(self._connect, connection, self._reconnect, self._waits)
        reader.skipped, reader._has_connected, reader._has_failed = self.skipped, True, True
        reader._abandoned = [*(one for one in self._abandoned if one.is_alive()), self]
        self._end()
        reader._start_delay_s = connection.record_loss(loss)
        reader.start()
        return reader

    def end(self) -> None:
        """Stop the reader, drop a waiting image, and join the thread for a moment. May be called twice."""
        if self._ended.is_set():
            return
        self._end()
        if self.is_alive():
            self.join(JOIN_S)

    def _end(self) -> None:
        self._ended.set()
        self._room.put(None)  # unblocks a reader that waits for room
        self._drop_message()

    def _put(self, message: Message) -> bool:
        """Wait until the last message was taken; return whether this one is passed on. False once the reader ended."""
        self._room.get()
        if self._ended.is_set():
            self._room.put(None)
            return False
        self._messages.put(message)
        return True

    def _drop_message(self) -> None:
        with suppress(queue.Empty):
            if isinstance(message := self._messages.get_nowait(), Image):
                message.lease.release()

    def run(self) -> None:
        try:
            self._read_connections()
        finally:
            if self._ended.is_set():  # an image may have been put just after end() looked
                self._drop_message()

    def _read_connections(self) -> None:
        if self._start_delay_s:
            self._clock.wait(self._ended, self._start_delay_s)
        while sum(one.is_alive() for one in self._abandoned) > MOST_ABANDONED:
            if self._clock.wait(self._ended, POLL_S):
                return
        while not self._ended.is_set():
            try:
                loss = self._read(self._connect())
            except DeviceError as error:
                loss = error
            if self._ended.is_set():  # another reader may have replaced this one
                return
            if loss is None:
                self.connection.record_end(self._ending)
                self._put("ended")
                return
            if self._is_final(loss):
                self._put(loss)
                return
            wait_s = self.connection.record_loss(loss)
            del loss  # its traceback holds a decoder and its images
            self._clock.wait(self._ended, wait_s)

    def _is_final(self, loss: DeviceError) -> bool:
        """Return whether a loss is final."""
        is_first, self._has_failed = not self._has_failed, True
        if isinstance(loss, MismatchError):
            return True
        if self.connection.frame_ns is not None or not self._waits:
            return not (self._has_connected and self._reconnect)
        return is_first and isinstance(loss, FinalError)

    def _read(self, device: Device) -> DeviceError | None:
        """Read until the stream ends, and return the loss; None for a regular end."""
        skipped, self._has_connected = self.skipped, True
        self._put("connected")
        self._device = device
        try:
            for image in device.images():
                self.skipped = skipped + device.skipped
                if not self._ended.is_set():
                    self.connection.record_image()
                if not self._put(image):
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
