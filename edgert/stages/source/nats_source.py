"""``source: nats``: images that other machines send through JetStream, shared between boards."""

import logging
import math
import queue
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from edgert import installation, limits
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError, nearest, printable, raised_as
from edgert.memory import Receipt, lend
from edgert.runtime.frame import U8, Delivery, Frame, FrameExtra
from edgert.runtime.stage import SourceStats
from edgert.stages.context import Context
from edgert.stages.sink.send.nats import PORT, NatsConnection, reason
from edgert.stages.sink.send.server import TIMEOUT_S, Server, Tls
from edgert.stages.source.live import POLL_S, Connection, redact
from edgert.stages.source.nats_group import Group, ReceivedMessage
from edgert.stages.source.sent_images import SentImage, decode_jpeg, read_images

log = logging.getLogger("edgert.source")

_LAST_S = 5.0
"""Longest wait for the work on the last frames when ``limit`` is reached."""
_REMIND_S = 60.0
DEFAULT_SUBJECT, DEFAULT_GROUP = "edgert.*.*.crops", "edgert"


class NatsSource:
    """Source of frames from cameras of other machines. None is lost: the server keeps messages until they are taken.

    Connecting may block for long, so another thread does it.
    """

    live = False

    def __init__(
        self, name: str, server: Server, subject: str, group: str, config: SourceStage, context: Context
    ) -> None:
        self._where, self._server, self._config = f"stages.{name}", server, config
        self._counter, self._clock = context.counter, context.clock
        self._title, self._address = f"edgert {name}", server.name(PORT)
        self._connection = Connection(self._where, self._address, context.clock)
        self._make_group = partial(Group, subject=subject, name=group)
        self._group: Group | None = None
        self._outcomes: queue.SimpleQueue[Group | OSError] = queue.SimpleQueue()
        self._is_trying, self._next_s = False, 0.0
        self._over, self._in_work, self._turn = threading.Event(), 0, threading.Lock()
        self._skipped, self._warned_s = 0, -math.inf

    def stats(self) -> SourceStats:
        return self._connection.stats(self._skipped, 0)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        limit = self._config.limit or math.inf
        self._over.clear()
        try:
            while limit and not stop.is_set():
                if self._group is None:
                    self._connect_or_wait(stop)
                elif (arrived := self._next_message(self._group)) is not None:
                    for frame in self._frames_of(arrived, self._group, stop):
                        limit -= 1
                        yield frame
                        if not limit:
                            break
            until_s = time.monotonic() + _LAST_S
            while self._in_work and not stop.is_set() and time.monotonic() < until_s:
                stop.wait(POLL_S)
        finally:
            self._over.set()

    def close(self) -> None:
        """Leave the group. Messages that are not acknowledged go to another board."""
        self._over.set()
        self._leave()
        while not self._outcomes.empty():  # a connection that was made while frames() ended
            if isinstance(outcome := self._outcomes.get(), Group):
                outcome.close()

    # The connection.

    def _connect_or_wait(self, stop: threading.Event) -> None:
        """Start to connect, or take the outcome of a started try, waiting for a moment."""
        if not self._is_trying:
            if time.monotonic() < self._next_s:
                stop.wait(POLL_S)
                return
            self._is_trying = True
            threading.Thread(target=self._connect, name=f"{self._title} connects", daemon=True).start()
        try:
            outcome = self._outcomes.get(timeout=POLL_S)
        except queue.Empty:
            return
        self._is_trying = False
        if isinstance(outcome, OSError):
            self._lost(outcome)
        else:
            self._group = outcome
            self._connection.record_image()  # the source is up, even while the cameras send nothing

    def _connect(self) -> None:
        connection = NatsConnection(self._server, self._title, 2 * limits.PACKET_BYTES)
        group = self._make_group(connection)
        try:
            connection.open()
            connection.wait(group.begin(connection.client), 2 * TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - nats-py raises anything for a server's answer; it is tried again
            group.close()
            self._outcomes.put(error if isinstance(error, OSError) else OSError(reason(error)))
        else:
            self._outcomes.put(group)
            if self._over.is_set():
                group.close()

    def _next_message(self, group: Group) -> ReceivedMessage | None:
        """Return the next message; None where none comes soon, or the connection is lost."""
        try:
            arrived = group.arrived.get(timeout=POLL_S)
        except queue.Empty:
            arrived = None
        if group.failure is not None:
            self._leave()
            self._lost(group.failure)
            return None
        if arrived is not None:
            self._connection.record_image()
        return arrived

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _lost(self, error: OSError) -> None:
        """Schedule the next try. Raises DeviceError where none is wanted."""
        loss = DeviceError(f"no messages from {self._address}", why=printable(str(error)), where=self._where)
        if (self._connection.frame_ns is None and self._config.start == "fail") or not self._config.reconnect:
            raise loss
        self._next_s = time.monotonic() + self._connection.record_loss(loss)

    # Messages.

    def _frames_of(self, arrived: ReceivedMessage, group: Group, stop: threading.Event) -> Iterator[Frame]:
        """Yield the frames of a message; terminate and count a message without any."""
        try:
            images = [(one, decode_jpeg(one.jpeg)) for one in read_images(arrived.body)]
        except ValueError as error:
            group.acknowledge(arrived, b"+TERM")
            self._skip_message(arrived, error)
            return
        receipt = Receipt(partial(self._finish_message, arrived, group))
        with self._turn:
            self._in_work += 1
        taken = 0
        try:
            for image, pixels in images:
                if stop.is_set():
                    break
                taken += 1  # before the frame is passed on: a limit may end this generator there
                yield self._frame(arrived, image, pixels, receipt)
        finally:
            if taken < len(images):  # the message goes to another board
                receipt.refuse()
            receipt.release()

    def _frame(self, arrived: ReceivedMessage, image: SentImage, pixels: U8, receipt: Receipt) -> Frame:
        height, width = pixels.shape[:2]
        delivery = Delivery(arrived.trace, image.about, receipt, arrived.parent, arrived.is_sampled)
        return Frame(
            arrived.camera.name, image.index, self._clock.now_ns(), image.media_ns, width, height, "bgr", (pixels,),
            receipt.cover(lend(pixels, self._counter)), extra=FrameExtra(sender_ns=image.sender_ns, delivery=delivery),
        )  # fmt: skip

    def _finish_message(self, arrived: ReceivedMessage, group: Group, is_refused: bool) -> None:
        """Acknowledge a finished message. Frames that end by a stop are not finished, and go to another board."""
        if not is_refused and not self._over.is_set():
            group.acknowledge(arrived, b"+ACK")
        with self._turn:
            self._in_work -= 1

    def _skip_message(self, arrived: ReceivedMessage, error: ValueError) -> None:
        self._skipped += 1
        now_s = time.monotonic()
        if now_s - self._warned_s > _REMIND_S:
            self._warned_s = now_s
            what = f"a message of {arrived.camera.subject} is skipped: {printable(str(error))}"
            log.warning("%s: %s (%d so far)", self._where, what, self._skipped)


def nats_source(name: str, config: SourceStage, context: Context) -> NatsSource:
    """Return the source of an address like ``nats://USER:PASSWORD@HOST:4222/SUBJECT``.

    Raises ConfigError: the address is malformed, an option is unknown, or the package nats-py is not installed.
    """
    where, example = f"stages.{name}.source", "nats://10.0.0.5:4222/edgert.*.*.crops"
    options = dict(config.options)
    group, tls = options.pop("group", DEFAULT_GROUP), options.pop("tls", None)
    if options:
        first = next(iter(options))
        what = f"source: nats has no option {first!r}{nearest(str(first), ('group', 'tls'))}"
        raise ConfigError(what, where=f"stages.{name}.options", fix="options: {group: NAME, tls: {ca: FILE}}")
    if not isinstance(group, str) or not re.fullmatch(r"[\w-]{1,50}", group):
        fix = "up to 50 letters, digits, _ and -, like group: plates"
        raise ConfigError("source: nats needs a name for its group", where=f"stages.{name}.options", fix=fix)
    with raised_as(ConfigError, "source: nats cannot be used", of=ValueError, where=where, fix=f"like {example}"):
        parts = urlsplit(config.source)
        host, _ = parts.hostname, parts.port
        certificates = Tls.model_validate(tls or {})
    subject = parts.path.lstrip("/") or DEFAULT_SUBJECT
    if not host or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", subject):
        what = f"{redact(config.source)!r} is not the address of a NATS server and a subject"
        raise ConfigError(what, where=where, fix=f"like {example}")
    if find_spec("nats") is None:
        raise ConfigError("source: nats needs the package nats-py", where=where, fix=installation.command("nats"))
    address = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port or PORT}"
    server = Server(address, unquote(parts.username or ""), unquote(parts.password or ""), certificates)
    return NatsSource(name, server, subject, group, config, context)
