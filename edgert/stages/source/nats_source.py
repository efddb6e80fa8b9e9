"""``source: nats``: images that other machines send through JetStream, shared between boards."""

from __future__ import annotations

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
from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError, nearest, printable
from edgert.memory import Counter, Receipt, lend
from edgert.runtime.frame import U8, Delivery, Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.sink.send.nats import PORT, NatsConnection, reason
from edgert.stages.sink.send.section import TlsSection
from edgert.stages.sink.send.server import TIMEOUT_S, Server, Tls
from edgert.stages.source.live import POLL_S, Connection, redact
from edgert.stages.source.nats_group import Arrived, Group
from edgert.stages.source.sent_images import SentImage, decoded, images_in

log = logging.getLogger("edgert.source")

_LAST_S = 5.0
"""Seconds at the end by ``limit`` for the work on the last frames."""
_REMIND_S = 60.0
DEFAULT_SUBJECT, DEFAULT_GROUP = "edgert.*.*.crops", "edgert"


class NatsSource:
    """Frames of cameras whose images others send. None is lost: what is not taken stays with the server.

    Connecting may take as long as the network likes, so another thread does it.

    Args:
        subject: of the messages; its wildcards are the camera's name.
        group: boards with the same one share the cameras.
    """

    live = False

    def __init__(
        self, name: str, server: Server, subject: str, group: str, config: SourceStage, counter: Counter, clock: Clock
    ) -> None:
        self._where, self._server, self._config = f"stages.{name}", server, config
        self._counter, self._clock = counter, clock
        self._title, self._address = f"edgert {name}", server.name(PORT)
        self._way = Connection(self._where, self._address, clock)
        self._make = partial(Group, subject=subject, name=group)
        self._group: Group | None = None
        self._outcomes: queue.SimpleQueue[Group | OSError] = queue.SimpleQueue()
        self._is_trying, self._next_s = False, 0.0
        self._over, self._in_work, self._turn = threading.Event(), 0, threading.Lock()
        self._skipped, self._told_s = 0, -math.inf

    def stats(self) -> SourceStats:
        """See :class:`~edgert.runtime.Source`."""
        return self._way.stats(self._skipped, 0)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until ``limit`` or ``stop``. Raises DeviceError where no connection is to be tried again."""
        limit = self._config.limit or math.inf
        self._over.clear()
        try:
            while limit and not stop.is_set():
                if self._group is None:
                    self._try(stop)
                elif (arrived := self._next(self._group)) is not None:
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
        """Leave the group. What is not acknowledged goes to another board."""
        self._over.set()
        self._leave()

    # The connection.

    def _try(self, stop: threading.Event) -> None:
        """Begin to connect, or see what came of it; wait a moment otherwise."""
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
            self._way.gave_image()  # it is up: cameras that send nothing are no trouble of this source

    def _connect(self) -> None:
        connection = NatsConnection(self._server, self._title, 2 * limits.PACKET_BYTES)
        group = self._make(connection)
        try:
            connection.open()
            connection.wait(group.begin(connection.client), 2 * TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - whatever the package makes of what a server sends; it is tried again
            group.close()
            self._outcomes.put(error if isinstance(error, OSError) else OSError(reason(error)))
        else:
            self._outcomes.put(group)
            if self._over.is_set():
                group.close()

    def _next(self, group: Group) -> Arrived | None:
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
            self._way.gave_image()
        return arrived

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _lost(self, error: OSError) -> None:
        """Wait before another try. Raises DeviceError where none is wanted."""
        loss = DeviceError(f"no messages from {self._address}", why=printable(str(error)), where=self._where)
        if (self._way.frame_ns is None and self._config.start == "fail") or not self._config.reconnect:
            raise loss
        self._next_s = time.monotonic() + self._way.lost(loss)

    # Messages.

    def _frames_of(self, arrived: Arrived, group: Group, stop: threading.Event) -> Iterator[Frame]:
        """Yield the frames of a message; one that has none is ended, and counted."""
        try:
            images = [(one, decoded(one.jpeg)) for one in images_in(arrived.body)]
        except ValueError as error:
            group.answer(arrived, b"+TERM")
            self._skip(arrived, error)
            return
        receipt = Receipt(partial(self._done, arrived, group))
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
            if taken < len(images):  # another board does the others
                receipt.refuse()
            receipt.release()

    def _frame(self, arrived: Arrived, image: SentImage, pixels: U8, receipt: Receipt) -> Frame:
        height, width = pixels.shape[:2]
        return Frame(
            arrived.camera.name, image.index, self._clock.now_ns(), image.media_ns, width, height, "bgr", (pixels,),
            receipt.cover(lend(pixels, self._counter)), sender_ns=image.sender_ns,
            delivery=Delivery(arrived.trace, image.about, receipt, arrived.parent, arrived.is_sampled),
        )  # fmt: skip

    def _done(self, arrived: Arrived, group: Group, is_refused: bool) -> None:
        """Acknowledge a message. After a stop, frames end without their work: another board does it."""
        if not is_refused and not self._over.is_set():
            group.answer(arrived, b"+ACK")
        with self._turn:
            self._in_work -= 1

    def _skip(self, arrived: Arrived, error: ValueError) -> None:
        self._skipped += 1
        now_s = time.monotonic()
        if now_s - self._told_s > _REMIND_S:
            self._told_s = now_s
            what = f"a message of {arrived.camera.subject} is left out: {printable(str(error))}"
            log.warning("%s: %s (%d so far)", self._where, what, self._skipped)


def nats_source(name: str, config: SourceStage, counter: Counter, clock: Clock) -> NatsSource:
    """Return the source of an address like ``nats://USER:PASSWORD@HOST:4222/SUBJECT``.

    Raises:
        ConfigError: it is none, an option is unknown, or the package of NATS is not installed.
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
    try:
        parts = urlsplit(config.source)
        host, _ = parts.hostname, parts.port
        certificates = Tls(**TlsSection.model_validate(tls).model_dump()) if tls is not None else Tls()
    except ValueError as error:
        raise ConfigError("source: nats cannot be used", why=str(error), where=where, fix=f"like {example}") from error
    subject = parts.path.lstrip("/") or DEFAULT_SUBJECT
    if not host or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", subject):
        what = f"{redact(config.source)!r} is no address of a NATS server and a subject"
        raise ConfigError(what, where=where, fix=f"like {example}")
    if find_spec("nats") is None:
        raise ConfigError("source: nats needs the package nats-py", where=where, fix=installation.command("nats"))
    address = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port or PORT}"
    server = Server(address, unquote(parts.username or ""), unquote(parts.password or ""), certificates)
    return NatsSource(name, server, subject, group, config, counter, clock)
