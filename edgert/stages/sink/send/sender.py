"""The thread that sends the spool's messages, in order, until they are acknowledged."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from edgert.errors import cause, printable
from edgert.memory import Lease
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.spool import Spool

log = logging.getLogger("edgert.send")

BATCH = 256
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_REMIND_S = 300.0
_IDLE_S, _SECURE_S = 0.5, 1.0
CLOSE_S = 3.0
"""Seconds at the end of a run for sending the rest; later messages wait in the spool."""
_DISCONNECT_S = 0.4
"""Part of :data:`CLOSE_S` for closing the connection."""
_TRIES = 5
"""Tries for a message whose sending fails for another reason than the connection."""


class RefusedError(Exception):
    """A permanent refusal of a message. It is dropped, so that it does not block later ones."""

    def __init__(self, why: str, message: Message) -> None:
        super().__init__(why)
        self.message = message


class Publisher(Protocol):
    """A connection to one server. All methods are called in one thread.

    Attributes:
        name: the server without credentials, for log lines.
        stable_s: seconds after an acknowledgement within which a killed server may still lose the message.
        stays: whether it stays connected while there is nothing to send, to show that this client is online.
    """

    name: str
    stable_s: float = 0.0
    stays: bool = False

    def connect(self) -> None:
        """Connect to the server. Raises OSError where it refuses or does not answer."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order, and wait until all are acknowledged. Without messages, only check the connection.

        Raises:
            OSError: the connection is lost; any of the messages may have arrived.
            RefusedError: the server refuses a message; those before it were acknowledged.
        """

    def close(self) -> None:
        """Close the connection, even if it is lost."""


class Sender:
    """Thread that sends a spool's messages through a publisher, and closes both at the end.

    An acknowledged message stays in the spool until the connection has lasted for another ``stable_s``. If it breaks
    before, or this process is killed, all these messages are sent again, the oldest first, so that their order is kept.

    Trouble is logged when it begins, every few minutes with its present reason, and when it is over.
    """

    def __init__(self, name: str, spool: Spool, publisher: Publisher) -> None:
        self._name, self._spool, self._publisher = name, spool, publisher
        self._news, self._ends = threading.Event(), threading.Event()
        self._is_open, self._down_since, self._reminded = False, 0.0, 0.0
        self._secured = time.monotonic()
        self._refused, self._is_spool_odd = 0, False
        self._sent, self._acknowledged = -1, deque[tuple[float, Message]]()
        self._held, self._arrived, self._holding = deque[tuple[int, Lease]](), -1, threading.Lock()
        self._suspects, self._failed, self._tries, self._rejected = -1, -1, 0, -1  # numbers of messages, and a count
        self._has_connected, self._left, self._leaving = False, threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"edgert-{name}", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Wake the thread, because there is a new message."""
        if not self._news.is_set():
            self._news.set()

    def hold(self, number: int, lease: Lease) -> None:
        """Release a lease once the message of a number has arrived, for which the frame's sender waits."""
        with self._holding:
            if number > self._arrived:
                self._held.append((number, lease))
                return
        lease.release()

    def close(self) -> None:
        """Send messages for up to :data:`CLOSE_S`, then close the spool, where the rest waits.

        A server that does not answer is not waited for; the thread ends when its call returns.
        """
        self._ends.set()
        self._news.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("%s: %s does not answer; no longer waiting for it", self._name, self._publisher.name)
            self._close_spool()

    def _run(self) -> None:
        wait_s, deadline = _FIRST_WAIT_S, float("inf")
        while not self._left.is_set():
            if self._ends.is_set():
                deadline = min(deadline, time.monotonic() + CLOSE_S - _DISCONNECT_S)
                must_connect = self._publisher.stays and not self._has_connected  # once, to show that it was online
                if time.monotonic() > deadline or not (self._spool.count or must_connect):
                    break
            try:
                if not self._step():
                    self._news.wait(self._idle_s())
                    self._news.clear()
                wait_s = _FIRST_WAIT_S
            except Exception as error:  # of the protocol's package; the next try may succeed
                if self._left.is_set():
                    break
                known = cause(error) if isinstance(error, OSError) else ""
                log.debug("%s: %s", self._name, self._publisher.name, exc_info=error)
                self._is_open, self._sent = False, -1
                self._acknowledged.clear()
                self._close_publisher()
                self._report(printable(known or f"{type(error).__name__}: {error}"))
                if self._ends.is_set():
                    break
                self._pause(wait_s * random.uniform(0.7, 1.3))  # noqa: S311 - so that boards do not reconnect at once
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            self._maintain_spool()
        self._close_publisher()
        self._close_spool()

    def _idle_s(self) -> float:
        """Return how long to wait for a message: until the next acknowledgement is final, at most 0.5 s."""
        if not self._acknowledged:
            return _IDLE_S
        return min(max(self._acknowledged[0][0] - time.monotonic(), 0.0) + 0.001, _IDLE_S)

    def _step(self) -> bool:
        """Send some messages; return whether there were any."""
        count = 1 if self._sent < self._suspects else BATCH
        messages = self._spool.oldest(count, self._sent)
        if not messages and not self._acknowledged and not self._publisher.stays:
            return False
        if not self._is_open:
            self._has_connected = True
            self._publisher.connect()
            self._is_open = True
        if messages and messages[0].number == self._rejected:
            self._acknowledge(messages[:1])
            return True
        try:
            self._publisher.send(messages)
        except RefusedError as error:
            if not self._refused:
                text = "%s: %s refuses a message, which is dropped: %s"
                log.warning(text, self._name, self._publisher.name, error, extra={"code": "send.refused"})
            self._refused += 1
            messages = messages[: messages.index(error.message) + 1]
        except OSError:
            raise
        except Exception as error:
            self._suspect(messages, error)
            raise
        self._acknowledge(messages)
        if (messages or self._publisher.stays) and self._down_since:
            about = self._name, self._publisher.name, self._spool.count
            log.info("%s: sending to %s again; %d messages wait", *about, extra={"code": "send.recovered"})
            self._down_since = 0.0
        return bool(messages)

    def _suspect(self, messages: Sequence[Message], error: Exception) -> None:
        """Handle a batch with a message that fails for another reason than the connection.

        From now on each message of the batch is sent alone. One that fails repeatedly is set aside, so that it blocks
        no other.
        """
        if not messages:
            return
        self._suspects = max(self._suspects, messages[-1].number)
        first = messages[0]
        if len(messages) > 1 or first.number != self._failed:
            self._failed, self._tries = first.number if len(messages) == 1 else -1, 0
        self._tries += 1
        if self._failed == first.number and self._tries >= _TRIES:
            self._rejected, place = first.number, self._spool.keep_aside(first)
            what = (
                f"a message of {first.stream!r} cannot be sent, tried {_TRIES} times: {type(error).__name__}: {error}"
            )
            about = self._name, printable(what), f"kept in {place}" if place else "dropped"
            log.warning("%s: %s; it is %s", *about, extra={"code": "send.refused"})

    def _acknowledge(self, messages: Sequence[Message]) -> None:
        """Record acknowledged messages; remove those from the spool whose acknowledgement is final."""
        now = time.monotonic()
        if messages:
            self._sent = messages[-1].number
            self._acknowledged.append((now + self._publisher.stable_s, messages[-1]))
        while self._acknowledged and self._acknowledged[0][0] <= now:
            last = self._acknowledged.popleft()[1]
            self._spool.remove([last])
            self._release(last.number)

    def _release(self, arrived: int) -> None:
        """Release the leases that are held for messages up to a number."""
        with self._holding:
            self._arrived = arrived
            done = []
            while self._held and self._held[0][0] <= arrived:
                done.append(self._held.popleft()[1])
        for lease in done:
            lease.release()

    def _report(self, why: str) -> None:
        now = time.monotonic()
        if self._down_since and now - self._reminded < _REMIND_S:
            return
        for_s = f" for {now - self._down_since:.0f} s" if self._down_since else ""
        waiting = "1 message waits" if self._spool.count == 1 else f"{self._spool.count} messages wait"
        waiting += f", {self._spool.dropped} dropped" if self._spool.dropped else ""
        about = self._name, self._publisher.name, for_s, why, waiting
        log.warning("%s: cannot send to %s%s: %s; %s", *about, extra={"code": "send.failed"})
        self._down_since, self._reminded = self._down_since or now, now

    def _pause(self, seconds: float) -> None:
        """Wait until the next try or the end, and secure new messages meanwhile."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0 and not self._ends.wait(min(left_s, _SECURE_S)):
            self._maintain_spool()

    def _maintain_spool(self) -> None:
        """Trim and secure the spool, when it is time."""
        if time.monotonic() - self._secured <= _SECURE_S:
            return
        self._secured = time.monotonic()
        try:
            self._spool.trim()
            self._spool.secure(self._sent)
        except OSError as error:  # a full disk, for instance; sending goes on, which makes room
            if not self._is_spool_odd:
                log.warning("%s: the spool %s: %s; sending goes on", self._name, self._spool.path, cause(error))
            self._is_spool_odd = True

    def _close_publisher(self) -> None:
        try:
            self._publisher.close()
        except Exception as error:  # closing a lost connection may fail
            log.debug("%s: %s cannot be closed", self._name, self._publisher.name, exc_info=error)

    def _close_spool(self) -> None:
        """Close the spool, once, and log what is left in it."""
        with self._leaving:
            if self._left.is_set():
                return
            self._secured = 0.0
            self._maintain_spool()
            self._left.set()
        self._release(1 << 62)
        spool = self._spool
        spool.close()
        if spool.count:
            place = f"in {spool.path} for the next run" if spool.path else "in memory alone, and are lost"
            log.warning("%s: %d messages were not sent; they wait %s", self._name, spool.count, place)
        if spool.dropped or self._refused:
            log.warning("%s: %d messages were dropped, %d refused", self._name, spool.dropped, self._refused)
