"""A group of boards that share cameras: which board requests which camera's messages from JetStream.

Every camera has a subject, and every subject one durable consumer for all boards of a group. JetStream itself pins that
consumer to one board at a time (priority policy ``pinned_client``). It delivers one message at a time
(``max_ack_pending: 1``), which is acknowledged when the work on it is done. So the order of a camera holds across
boards. A board that crashes stops requesting: its pin ends, and its unfinished message goes to the next board.

Each board computes the same assignment of cameras to boards, from the names of the boards that announce themselves.
"""

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
from edgert.stages.source.sent_images import parse_traceparent

log = logging.getLogger("edgert.source")

_TICK_S, _AWAY_S = 0.5, 2.0
"""Seconds between two announcements of a board, and without any until it counts as gone."""
_PIN_S, _ACK_S = 2.0, 2.0
"""Seconds without a request until a consumer is unpinned, and without an answer until a message comes again."""
_FIND_S = 2.0
"""Seconds between two searches for new cameras."""
_ATTEMPTS = 5
"""Deliveries of a message, in case it crashes every board."""
_AT_ONCE = 256
"""Messages per request."""
_LEAVE_S = 0.4
"""Longest wait for the last announcement to the group."""
_ANNOUNCEMENT_BYTES = 1024
"""Bytes that are read of another board's announcement."""
_GROUP = "work"
"""Name of the only priority group of each consumer."""


def assign_cameras(cameras: Collection[str], boards: Collection[str]) -> dict[str, str]:
    """Return camera → board: balanced, the same on every board, and stable when a board comes or goes."""
    most = math.ceil(len(cameras) / max(len(boards), 1))
    room = dict.fromkeys(sorted(boards), most)
    found = {}
    for camera in sorted(cameras):
        best = max((one for one, left in room.items() if left), key=lambda one: _preference(one, camera), default="")
        if best:
            room[best] -= 1
            found[camera] = best
    return found


def _preference(board: str, camera: str) -> bytes:
    return hashlib.blake2b(f"{board}/{camera}".encode(), digest_size=8).digest()


def camera_name(pattern: str, subject: str) -> str:
    """Return a camera's name: the parts of its subject that match the pattern's wildcards; empty without a match."""
    parts = [{"*": r"([^.]+)", ">": r"(.+)"}.get(one, re.escape(one)) for one in pattern.split(".")]
    found = re.fullmatch(r"\.".join(parts), subject)
    return re.sub(r"[^\w-]", "-", "-".join(found.groups()) or subject)[:100] if found else ""


def consumer_name(group: str, camera: str, subject: str) -> str:
    """Return the name of the durable consumer that all boards of a group share for a camera."""
    return f"{group}-{camera}-{hashlib.blake2b(subject.encode(), digest_size=4).hexdigest()}"


@dataclass(slots=True)
class Camera:
    """One camera of the group.

    Attributes:
        name: name of the camera's frames.
        subject: subject of its messages.
        consumer: name of its durable consumer.
        has_consumer: whether the consumer is known to exist.
        inbox: subject on which this board receives the messages.
        pin: id that JetStream gave this board while the consumer is pinned to it.
        ack_subject: subject that acknowledges the message in work; empty while there is none.
    """

    name: str
    subject: str
    consumer: str
    has_consumer: bool = False
    inbox: str = ""
    pin: str = ""
    ack_subject: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """Message of a camera."""

    camera: Camera
    body: bytes
    trace: str
    reply: str
    parent: str = ""
    is_sampled: bool = False


class Group:
    """Membership of this board in a group: its cameras, and the requests for their messages.

    It runs in the connection's thread.

    Attributes:
        arrived: messages to work on, at most one per camera; None after a failure.
        failure: error that ended the membership; None while it runs.
    """

    def __init__(self, connection: NatsConnection, subject: str, name: str) -> None:
        self._connection, self._subject, self._name = connection, subject, name
        self.arrived: queue.SimpleQueue[ReceivedMessage | None] = queue.SimpleQueue()
        self._client: Any = None
        self._board = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"
        self._group_subject, self._boards = f"_EDGERT.group.{name}", dict[str, float]()
        self._cameras, self._searched_s, self._stream = dict[str, Camera](), -math.inf, ""
        self._is_crowded = False
        self._task: asyncio.Future[None] | None = None
        self.failure: OSError | None = None

    def acknowledge(self, arrived: ReceivedMessage, how: bytes) -> None:
        """Send JetStream's verb ``how`` for a message, such as ``+ACK`` or ``+TERM``; from any thread."""
        self._connection.soon(partial(self._acknowledge, arrived, how))

    def close(self) -> None:
        """Leave the group and disconnect; from any thread. May be called twice."""
        try:
            if self._task is not None and self.failure is None:
                self._connection.wait(self._leave(), _LEAVE_S)
            self._connection.close()
        except OSError as error:
            log.debug("%s cannot be closed: %s", self._connection.name, error)

    async def begin(self, client: Any) -> None:
        """Join the group, and request messages from now on. Raises OSError unless one stream has the subject."""
        self._client = client
        names = (await self._call_api("STREAM.NAMES", {"subject": self._subject})).get("streams") or []
        if len(names) != 1:
            several = f"several streams do: {', '.join(map(str, names))}"
            hint = several if names else f"nats stream add --subjects '{self._subject}'"
            raise OSError(f"no single JetStream stream has the subject {self._subject}; {hint}")
        self._stream = str(names[0])
        await self._client.subscribe(self._group_subject, cb=self._on_announcement)
        await self._announce({"board": self._board})
        await asyncio.sleep(_TICK_S)  # every other board announces itself meanwhile
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        """Request messages until the task is cancelled or the connection is lost."""
        try:
            while True:
                if self._client.is_closed or not self._client.is_connected:
                    raise OSError("the connection was lost")
                await self._tick()
                await asyncio.sleep(_TICK_S)
        except Exception as error:  # noqa: BLE001 - the source's thread reports it
            self.failure = OSError(reason(error))
            self.arrived.put(None)

    async def _leave(self) -> None:
        """Give up all cameras, so that other members take them over."""
        if self._task is not None:
            self._task.cancel()
        await self._announce({"board": self._board, "leaves": True})
        await self._client.flush(_LEAVE_S)

    async def _acknowledge(self, arrived: ReceivedMessage, how: bytes) -> None:
        arrived.camera.ack_subject = "" if arrived.camera.ack_subject == arrived.reply else arrived.camera.ack_subject
        if not self._client.is_closed:
            await self._client.publish(arrived.reply, how)

    async def _tick(self) -> None:
        now = time.monotonic()
        await self._announce({"board": self._board})
        if now - self._searched_s >= _FIND_S:
            self._searched_s = now
            await self._find_cameras()
        here = {one for one, seen_s in self._boards.items() if now - seen_s < _AWAY_S} | {self._board}
        self._boards = {one: seen_s for one, seen_s in self._boards.items() if one in here}
        mine = {camera for camera, board in assign_cameras(self._cameras, here).items() if board == self._board}
        for subject, camera in self._cameras.items():
            if camera.ack_subject:
                await self._client.publish(camera.ack_subject, b"+WPI")  # work in progress: no redelivery yet
            if subject in mine:
                await self._request_messages(camera)

    async def _find_cameras(self) -> None:
        """Add the cameras whose subjects the stream has."""
        about = {"subjects_filter": self._subject}
        found = (await self._call_api(f"STREAM.INFO.{self._stream}", about)).get("state", {}).get("subjects") or {}
        for subject in sorted(found):
            name = camera_name(self._subject, subject)
            if subject in self._cameras or not name:
                continue
            if len(self._cameras) >= limits.SENT_CAMERAS:
                if not self._is_crowded:
                    self._is_crowded = True
                    log.warning("%s has more than %d cameras; %s is left out", self._subject, len(self._cameras), name)
                return
            self._cameras[subject] = Camera(name, subject, consumer_name(self._name, name, subject))

    async def _request_messages(self, camera: Camera) -> None:
        """Request the messages of a camera. JetStream holds them back while another board has the consumer's pin."""
        if not camera.inbox:
            camera.inbox = self._client.new_inbox()
            await self._client.subscribe(camera.inbox, cb=partial(self._on_message, camera))
        if not camera.has_consumer:
            await self._create_consumer(camera)
        request: dict[str, Any] = {"batch": _AT_ONCE, "expires": round(2.5 * _TICK_S * 1e9), "group": _GROUP}
        request |= {"id": camera.pin} if camera.pin else {}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{camera.consumer}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=camera.inbox)

    async def _create_consumer(self, camera: Camera) -> None:
        """Create the consumer of a camera, unless it exists. Raises OSError where it exists with other settings."""
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
            made = await self._call_api(place, {"stream_name": self._stream, "config": config, "action": "create"})
        except OSError as error:
            raise OSError(f"consumer {camera.consumer}: {error}; for other work, choose another group:") from error
        if made.get("config", {}).get("priority_policy") != "pinned_client":
            raise OSError("this server cannot pin a camera to a board: source: nats needs NATS server 2.11 or later")
        camera.has_consumer = True

    async def _call_api(self, what: str, about: dict[str, Any]) -> dict[str, Any]:
        """Return JetStream's answer to an API request. Raises OSError with the description of an error."""
        answer = await self._client.request(f"$JS.API.{what}", json.dumps(about).encode(), timeout=TIMEOUT_S / 2)
        found = json.loads(answer.data)
        if not isinstance(found, dict):
            raise OSError("its answer is no JSON object")
        if error := found.get("error"):
            raise OSError(str(error.get("description") if isinstance(error, dict) else error)[:200])
        return found

    async def _announce(self, about: dict[str, Any]) -> None:
        await self._client.publish(self._group_subject, json.dumps(about).encode())

    async def _on_announcement(self, message: Any) -> None:
        """Record that another board is here, or leaves."""
        try:
            about = json.loads(message.data[:_ANNOUNCEMENT_BYTES])
            board = str(about["board"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if about.get("leaves"):
            self._boards.pop(board, None)
        elif board != self._board and (board in self._boards or len(self._boards) < limits.SENT_CAMERAS):
            self._boards[board] = time.monotonic()

    async def _on_message(self, camera: Camera, message: Any) -> None:
        """Queue a message of a camera, or process JetStream's status of a request."""
        headers = message.headers or {}
        if status := headers.get("Status"):
            if status == "423":  # pinned to another board meanwhile
                camera.pin = ""
            elif status in ("404", "409", "503"):  # for example, somebody deleted the consumer
                camera.has_consumer = False
            return
        if not message.reply or self.arrived.qsize() > 2 * limits.SENT_CAMERAS:
            return
        trace, parent, is_sampled = parse_traceparent(headers.get("traceparent", ""))
        if not trace:  # the metadata raises for a message that JetStream did not send, which is then dropped
            place = f"{self._stream}/{message.metadata.sequence.stream}"
            trace = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        camera.pin, camera.ack_subject = headers.get("Nats-Pin-Id", camera.pin), message.reply
        self.arrived.put(ReceivedMessage(camera, message.data, trace, message.reply, parent, is_sampled))
