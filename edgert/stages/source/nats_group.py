"""The boards of a group and their cameras: who asks JetStream for which messages.

Every camera has a subject, and every subject one durable consumer for all boards of a group. JetStream itself pins that
consumer to one board at a time (priority policy ``pinned_client``). It gives out one message at a time
(``max_ack_pending: 1``), which is acknowledged when the work on it is done. So the order of a camera holds across
boards. A board that dies stops asking: its pin ends, and the message that it had goes to the next one.

Which board asks for which camera is decided by each board for itself, from the names of those that are there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import queue
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgert import limits
from edgert.stages.sink.send.nats import NatsConnection, reason
from edgert.stages.sink.send.server import TIMEOUT_S
from edgert.stages.source.sent_images import trace_in

log = logging.getLogger("edgert.source")

_TICK_S, _AWAY_S = 0.5, 2.0
"""How often a board says that it is there; and after how long without a word it is not."""
_PIN_S, _ACK_S = 2.0, 2.0
"""Time after which a consumer is free whose board does not ask; and after which a message is given out again."""
_LOOK_S = 2.0
"""Seconds between two looks for new cameras."""
_ATTEMPTS = 5
"""Times that a message is given out: one that ends every board is left then."""
_AT_ONCE = 256
"""Messages asked for at a time."""
_LEAVE_S = 0.4
"""Most seconds for a last word to the group."""
_LONGEST_WORD = 1024
"""Bytes that are read of what a board says to its group."""
_GROUP = "work"
"""Name of the only priority group of each consumer."""


def shares(cameras: Collection[str], boards: Collection[str]) -> dict[str, str]:
    """Return camera → board: fair, the same on every board, and changed little by a board that comes or goes."""
    most = math.ceil(len(cameras) / max(len(boards), 1))
    room = dict.fromkeys(sorted(boards), most)
    found = {}
    for camera in sorted(cameras):
        best = max((one for one, left in room.items() if left), key=lambda one: _likes(one, camera), default="")
        if best:
            room[best] -= 1
            found[camera] = best
    return found


def _likes(board: str, camera: str) -> bytes:
    return hashlib.blake2b(f"{board}/{camera}".encode(), digest_size=8).digest()


def camera_of(pattern: str, subject: str) -> str:
    """Return a camera's name: what stands in a subject for the wildcards of its pattern; empty where it differs."""
    parts = [{"*": r"([^.]+)", ">": r"(.+)"}.get(one, re.escape(one)) for one in pattern.split(".")]
    found = re.fullmatch(r"\.".join(parts), subject)
    return re.sub(r"[^\w-]", "-", "-".join(found.groups()) or subject)[:100] if found else ""


def consumer_of(group: str, camera: str, subject: str) -> str:
    """Return the name of the durable consumer that all boards of a group share for a camera."""
    return f"{group}-{camera}-{hashlib.blake2b(subject.encode(), digest_size=4).hexdigest()}"


@dataclass(slots=True)
class Camera:
    """One subject.

    Attributes:
        consumer: name of its durable consumer.
        is_made: whether that is known to exist.
        inbox: subject that its messages come to.
        pin: by which JetStream knows this board while the consumer is pinned to it.
        working: where the message in work is acknowledged; empty while there is none.
    """

    name: str
    subject: str
    consumer: str
    is_made: bool = False
    inbox: str = ""
    pin: str = ""
    working: str = ""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message: whose it is, its place in a trace, and where it is acknowledged."""

    camera: Camera
    body: bytes
    trace: str
    reply: str
    parent: str = ""
    is_sampled: bool = False


class Group:
    """This board as one of a group: its cameras, and the requests for their messages. Runs in the connection's thread.

    Attributes:
        arrived: messages to work on, at most one of each camera; None when there is a failure.
        failure: why it has ended; None while it runs.
    """

    def __init__(self, connection: NatsConnection, subject: str, name: str) -> None:
        self._connection, self._subject, self._name = connection, subject, name
        self.arrived: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()
        self._client: Any = None
        self._board = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"
        self._room, self._boards = f"_EDGERT.group.{name}", dict[str, float]()
        self._cameras, self._looked_s, self._stream = dict[str, Camera](), -math.inf, ""
        self._is_crowded = False
        self._task: asyncio.Future[None] | None = None
        self.failure: OSError | None = None

    def answer(self, arrived: Arrived, how: bytes) -> None:
        """Acknowledge or end a message; from any thread."""
        self._connection.soon(partial(self._answer, arrived, how))

    def close(self) -> None:
        """Leave the group and disconnect; from any thread. Twice is once."""
        try:
            if self._task is not None and self.failure is None:
                self._connection.wait(self._leave(), _LEAVE_S)
            self._connection.close()
        except OSError as error:
            log.debug("%s cannot be closed: %s", self._connection.name, error)

    async def begin(self, client: Any) -> None:
        """Join the group, and ask for messages from now on. Raises OSError where no stream has the subject."""
        self._client = client
        names = (await self._ask("STREAM.NAMES", {"subject": self._subject})).get("streams") or []
        if len(names) != 1:
            several = f"several streams do: {', '.join(map(str, names))}"
            hint = several if names else f"nats stream add --subjects '{self._subject}'"
            raise OSError(f"no single JetStream stream has the subject {self._subject}; {hint}")
        self._stream = str(names[0])
        await self._client.subscribe(self._room, cb=self._hear)
        await self._say({"board": self._board})
        await asyncio.sleep(_TICK_S)  # who is there has answered by then
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        """Ask for messages until :meth:`leave`, or the connection is lost."""
        try:
            while True:
                if self._client.is_closed or not self._client.is_connected:
                    raise OSError("the connection was lost")
                await self._tick()
                await asyncio.sleep(_TICK_S)
        except Exception as error:  # noqa: BLE001 - the source's own thread looks at it
            self.failure = OSError(reason(error))
            self.arrived.put(None)

    async def _leave(self) -> None:
        """Give up all cameras, so that other members take them over."""
        if self._task is not None:
            self._task.cancel()
        await self._say({"board": self._board, "leaves": True})
        await self._client.flush(_LEAVE_S)

    async def _answer(self, arrived: Arrived, how: bytes) -> None:
        arrived.camera.working = "" if arrived.camera.working == arrived.reply else arrived.camera.working
        if not self._client.is_closed:
            await self._client.publish(arrived.reply, how)

    async def _tick(self) -> None:
        now = time.monotonic()
        await self._say({"board": self._board})
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            await self._look()
        here = {one for one, seen_s in self._boards.items() if now - seen_s < _AWAY_S} | {self._board}
        self._boards = {one: seen_s for one, seen_s in self._boards.items() if one in here}
        mine = {camera for camera, board in shares(self._cameras, here).items() if board == self._board}
        for subject, camera in self._cameras.items():
            if camera.working:
                await self._client.publish(camera.working, b"+WPI")  # it is in work
            if subject in mine:
                await self._request(camera)

    async def _look(self) -> None:
        """Find the cameras: the subjects that the stream has."""
        about = {"subjects_filter": self._subject}
        found = (await self._ask(f"STREAM.INFO.{self._stream}", about)).get("state", {}).get("subjects") or {}
        for subject in sorted(found):
            name = camera_of(self._subject, subject)
            if subject in self._cameras or not name:
                continue
            if len(self._cameras) >= limits.SENT_CAMERAS:
                if not self._is_crowded:
                    self._is_crowded = True
                    log.warning("%s has more than %d cameras; %s is left out", self._subject, len(self._cameras), name)
                return
            self._cameras[subject] = Camera(name, subject, consumer_of(self._name, name, subject))

    async def _request(self, camera: Camera) -> None:
        """Ask for the messages of a camera; JetStream waits with them while its consumer is pinned to another board."""
        if not camera.inbox:
            camera.inbox = self._client.new_inbox()
            await self._client.subscribe(camera.inbox, cb=partial(self._take, camera))
        if not camera.is_made:
            await self._make(camera)
        asked: dict[str, Any] = {"batch": _AT_ONCE, "expires": round(2.5 * _TICK_S * 1e9), "group": _GROUP}
        asked |= {"id": camera.pin} if camera.pin else {}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{camera.consumer}"
        await self._client.publish(subject, json.dumps(asked).encode(), reply=camera.inbox)

    async def _make(self, camera: Camera) -> None:
        """Make the consumer of a camera, or find it. Raises OSError for one of that name with other settings."""
        config: dict[str, Any] = {"durable_name": camera.consumer, "filter_subject": camera.subject}
        config |= {"ack_policy": "explicit", "ack_wait": round(_ACK_S * 1e9), "max_ack_pending": 1}
        config |= {"deliver_policy": "all", "max_deliver": _ATTEMPTS}
        config |= {
            "priority_groups": [_GROUP],
            "priority_policy": "pinned_client",
            "priority_timeout": round(_PIN_S * 1e9),
        }
        place = f"CONSUMER.CREATE.{self._stream}.{camera.consumer}.{camera.subject}"
        try:
            made = await self._ask(place, {"stream_name": self._stream, "config": config, "action": "create"})
        except OSError as error:
            raise OSError(f"consumer {camera.consumer}: {error}; for other work, choose another group:") from error
        if made.get("config", {}).get("priority_policy") != "pinned_client":
            raise OSError("this server cannot pin a camera to a board: source: nats needs NATS server 2.11 or later")
        camera.is_made = True

    async def _ask(self, what: str, about: dict[str, Any]) -> dict[str, Any]:
        """Return JetStream's answer. Raises OSError for an error, with its description."""
        answer = await self._client.request(f"$JS.API.{what}", json.dumps(about).encode(), timeout=TIMEOUT_S / 2)
        found = json.loads(answer.data)
        if not isinstance(found, dict):
            raise OSError("its answer is no JSON object")
        if error := found.get("error"):
            raise OSError(str(error.get("description") if isinstance(error, dict) else error)[:200])
        return found

    async def _say(self, about: dict[str, Any]) -> None:
        await self._client.publish(self._room, json.dumps(about).encode())

    async def _hear(self, message: Any) -> None:
        """Note that another board is there, or leaves."""
        try:
            about = json.loads(message.data[:_LONGEST_WORD])
            board = str(about["board"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if about.get("leaves"):
            self._boards.pop(board, None)
        elif board != self._board and (board in self._boards or len(self._boards) < limits.SENT_CAMERAS):
            self._boards[board] = time.monotonic()

    async def _take(self, camera: Camera, message: Any) -> None:
        """Take a message of a camera, or what JetStream says about the request."""
        headers = message.headers or {}
        if status := headers.get("Status"):
            if status == "423":  # pinned to another board meanwhile
                camera.pin = ""
            elif status in ("404", "409", "503"):  # such as a consumer that somebody removed
                camera.is_made = False
            return
        if not message.reply or self.arrived.qsize() > 2 * limits.SENT_CAMERAS:
            return
        trace, parent, is_sampled = trace_in(headers.get("traceparent", ""))
        if not trace:  # raises for what JetStream did not send: then nothing of it is kept
            place = f"{self._stream}/{message.metadata.sequence.stream}"
            trace = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        camera.pin, camera.working = headers.get("Nats-Pin-Id", camera.pin), message.reply
        self.arrived.put(Arrived(camera, message.data, trace, message.reply, parent, is_sampled))
