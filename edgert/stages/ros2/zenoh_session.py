"""Zenoh session that is compatible with rmw_zenoh, for machines without ROS; shared by all stages of a pipeline.

Keys, attachments and tokens are those of rmw_zenoh 0.2.4, by its documentation and sources (attachment_helpers.cpp,
liveliness_utils.cpp). None of this has run against rmw_zenoh_cpp itself. There are two forms of attachments: releases
0.2.0 to 0.2.3 name each field.
"""

import hashlib
import json
import logging
import re
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from edgert import installation
from edgert.errors import ConfigError, DeviceError, raised_as
from edgert.recording import definitions
from edgert.stages.ros2.ros_link import Link, Publisher, Quality, Subscription, Take, keep_freed_memory
from edgert.stages.source.live import FinalError

log = logging.getLogger("edgert.ros2")

HASHES = {
    definitions.IMAGE: "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47",
    definitions.COMPRESSED_IMAGE: "RIHS01_15640771531571185e2efc8a100baf923961a4d15d5569652e6cb6691e8e371a",
    definitions.CAMERA_INFO: "RIHS01_b3dfd68ff46c9d56c80fd3bd4ed22c7a4ddce8c8348f2f59c299e73118e7e275",
    definitions.DETECTIONS: "RIHS01_214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968",
    definitions.CLASSIFICATION: "RIHS01_f74db28d0eaef3afb78f48bf2161cd709a1383a0309d3454383b25be11345143",
    definitions.VISION_INFO: "RIHS01_95d3116a17484ad91c9a2686e1d54890bbfc3ff6c6a2de137738c4950d45d284",
    definitions.DIAGNOSTICS: "RIHS01_5a8a36efb05fb25070fa0fb3810290c0e6cd4862b54a8fb975a1ee8dc55a333e",
}
"""Message type → its hash (REP 2011)."""
_TYPE = re.compile(r"([a-z][a-z0-9_]*)::msg::dds_::([A-Za-z0-9]+)_")
_GID_BYTES = 16
_NAMED = (b"sequence_number", b"source_timestamp", b"source_gid")
_TOKEN_PARTS = 13
_MOST_KEY = 1024


@dataclass(frozen=True, slots=True)
class Attachment:
    """Metadata of a message.

    Attributes:
        sequence: number of the message, from 1, by its publisher.
        time_ns: time of publication in ns since 1970.
        gid: identity of the publisher, 16 bytes.
    """

    sequence: int
    time_ns: int
    gid: bytes

    def to_bytes(self) -> bytes:
        """Return the attachment in the newer form, 33 bytes."""
        return struct.pack("<qqB", self.sequence, self.time_ns, _GID_BYTES) + self.gid


def read_attachment(data: bytes) -> Attachment | None:
    """Return an attachment of either form; None for other bytes."""
    if len(data) == struct.calcsize("<qqB") + _GID_BYTES and data[16] == _GID_BYTES:
        sequence, time_ns, _ = struct.unpack_from("<qqB", data)
        return Attachment(sequence, time_ns, data[17:])
    parts = list[bytes]()
    for name, size in zip(_NAMED, (8, 8, 1 + _GID_BYTES), strict=True):
        head = bytes([len(name)]) + name
        if not data.startswith(head) or len(data) < len(head) + size:
            return None
        parts.append(data[len(head) : len(head) + size])
        data = data[len(head) + size :]
    if data or parts[2][0] != _GID_BYTES:
        return None
    sequence, time_ns = struct.unpack("<qq", parts[0] + parts[1])
    return Attachment(sequence, time_ns, parts[2][1:])


def dds_type(kind: str) -> str:
    """Return a message type as keys have it: ``sensor_msgs::msg::dds_::Image_``."""
    package, _, name = kind.partition("/msg/")
    return f"{package}::msg::dds_::{name}_"


def kind_of_dds(text: str) -> str:
    """Return the message type in a part of a key; empty for other text."""
    match = _TYPE.fullmatch(text)
    return f"{match[1]}/msg/{match[2]}" if match else ""


def topic_key(domain: int, topic: str, kind: str = "") -> str:
    """Return the key of a topic; without a type, the key to subscribe to any type and hash."""
    rest = f"{dds_type(kind)}/{HASHES[kind]}" if kind else "*/*"
    return f"{domain}/{topic.strip('/')}/{rest}"


def kind_of_key(key: str) -> str:
    """Return the message type in the key of a message; empty for another key."""
    parts = key[-_MOST_KEY:].rsplit("/", 2)
    return kind_of_dds(parts[1]) if len(parts) == 3 else ""


def token(domain: int, session: str, entity: int, role: str, node: str, topic: str, kind: str, quality: Quality) -> str:
    """Return the liveliness token that announces a node, a publisher or a subscription.

    Args:
        domain: ROS domain.
        session: Zenoh's id of the session.
        entity: number within the session; the node is 0.
        role: NN for the node, MP for a publisher, MS for a subscription.
        node: name of the node.
        topic: topic with its first slash; empty for the node.
        kind: message type.
        quality: quality of service.
    """
    begin = f"@ros2_lv/{domain}/{session}/0/{entity}/{role}/%/%/{node}"
    if not topic:
        return begin
    return f"{begin}/{topic.replace('/', '%')}/{dds_type(kind)}/{HASHES[kind]}/{_qos_text(quality)}"


def parse_publisher_token(text: str) -> tuple[str, str] | None:
    """Return topic and message type of a publisher's token; None for other tokens."""
    parts = text.split("/")
    if len(text) > _MOST_KEY or len(parts) != _TOKEN_PARTS or parts[5] != "MP":
        return None
    kind = kind_of_dds(parts[10])
    return (parts[9].replace("%", "/"), kind) if kind else None


def _qos_text(quality: Quality) -> str:
    """Return a quality of service as tokens have it, without defaults."""
    reliability, durability = "" if quality.reliable else "2", "1" if quality.latched else ""
    return f"{reliability}:{durability}:,{quality.depth}:,:,:,,"


# The session.

PORT = 7447
_MOST_BYTES = 128 * 2**20
"""Largest message that is read: an 8K image in color is 100 MB."""
_LOOK_S = 1.0


def require_zenoh(where: str) -> None:
    """Raise FinalError if the package eclipse-zenoh is not installed."""
    if find_spec("zenoh") is None:
        raise FinalError("ROS 2 over Zenoh needs eclipse-zenoh", where=where, fix=installation.command("zenoh"))


def endpoint_of(address: str, where: str) -> str:
    """Return Zenoh's endpoint of the router in an address. Raises ConfigError."""
    with raised_as(ConfigError, "the address of the Zenoh router is malformed", of=ValueError, where=where):
        parts = urlsplit(address)
        host, port = parts.hostname if parts.scheme == "ros2+zenoh" else None, parts.port or PORT
    if not host:
        fix = "write it like ros2+zenoh://localhost/camera/image_raw; rmw_zenohd listens on port 7447"
        raise ConfigError("the address names no Zenoh router", where=where, fix=fix)
    return f"tcp/{f'[{host}]' if ':' in host else host}:{port}"


class ZenohSession(Link):
    """Session with a router.

    Args:
        node: name of the node that others see.
        endpoint: Zenoh's endpoint of the router.

    Raises:
        DeviceError: there is no router.
    """

    def __init__(self, node: str, endpoint: str, domain: int, where: str) -> None:
        import zenoh

        keep_freed_memory()
        self._node, self._domain, self._endpoint = node, domain, endpoint
        config = zenoh.Config()
        for key, value in (
            ("mode", "client"),
            ("connect/endpoints", [endpoint]),
            ("scouting/multicast/enabled", False),
            ("timestamping/enabled", True),  # the cache of latched topics is ordered by timestamps
        ):
            config.insert_json5(key, json.dumps(value))
        try:
            self._session = zenoh.open(config)
        except zenoh.ZError as error:
            why = str(error).partition(" at /")[0]
            fix = "start it: ros2 run rmw_zenoh_cpp rmw_zenohd"
            raise DeviceError(f"no Zenoh router at {endpoint}", why=why, where=where, fix=fix) from error
        self._entities, self._turn = 0, threading.Lock()
        self._token = self.declare_token("NN", "", "", Quality(True))[0]

    @property
    def trouble(self) -> str:
        return "" if self._session.info.routers_zid() else f"no Zenoh router at {self._endpoint}; messages are lost"

    def now_ns(self) -> int:
        """Return the time of this machine, because ``/clock`` is not read over Zenoh."""
        return time.time_ns()

    def topics(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for reply in self._session.liveliness().get(f"@ros2_lv/{self._domain}/**", timeout=_LOOK_S):
            if reply.ok is not None and (known := parse_publisher_token(str(reply.ok.key_expr))) is not None:
                found.setdefault(known[0], []).append(known[1])
        return found

    def subscribe(self, topic: str, kind: str, quality: Quality, take: Take) -> Subscription:
        key = topic_key(self._domain, topic)
        return _Subscription(self, self._session, key, (topic, kind), quality, take)

    def publisher(self, topic: str, kind: str, quality: Quality) -> Publisher:
        return _Publisher(self, self._session, topic_key(self._domain, topic, kind), (topic, kind), quality)

    def declare_token(self, role: str, topic: str, kind: str, quality: Quality) -> tuple[Any, bytes]:
        """Declare a token; return it, for undeclaring, and the identity that follows from it."""
        with self._turn:
            entity, self._entities = self._entities, self._entities + 1
        text = token(self._domain, str(self._session.info.zid()), entity, role, self._node, topic, kind, quality)
        return self._session.liveliness().declare_token(text), hashlib.blake2b(text.encode(), digest_size=16).digest()

    def disconnect(self) -> None:
        self._session.close()


def shared_session(pipeline: str, endpoint: str, domain: int, where: str) -> Link:
    """Return the session of a pipeline with a router, opened by the first stage that needs it. Raises DeviceError."""
    node = f"edgert_{re.sub(r'[^A-Za-z0-9]+', '_', pipeline)}"
    return Link.share((pipeline, endpoint, domain), lambda: ZenohSession(node, endpoint, domain, where))


class _Subscription:
    def __init__(
        self, owner: ZenohSession, session: Any, key: str, about: tuple[str, str], quality: Quality, take: Take
    ) -> None:
        self.trouble, self._take, (self._topic, self._kind) = "", take, about
        self._last: tuple[bytes, int] = (b"", 0)
        self._token, _ = owner.declare_token("MS", *about, quality)
        self._subscriber = session.declare_subscriber(key, self._on_sample)

    def _on_sample(self, sample: Any) -> None:
        """Receive a message, in Zenoh's thread; skip one that is too large, or of another type."""
        if len(sample.payload) > _MOST_BYTES:
            log.debug("%s: a message of %d bytes is skipped", self._topic, len(sample.payload))
            return
        if (kind := kind_of_key(str(sample.key_expr))) != self._kind:
            self.trouble = f"its messages are of type {kind or str(sample.key_expr)[:80]}, not {self._kind}"
            return
        attachment = read_attachment(sample.attachment.to_bytes()) if sample.attachment is not None else None
        self._take(sample.payload.to_bytes(), self._count_lost(attachment))

    def _count_lost(self, attachment: Attachment | None) -> int:
        """Return the number of a publisher's messages that are missing before this one."""
        if attachment is None:
            return 0
        (gid, last), self._last = self._last, (attachment.gid, attachment.sequence)
        gap = attachment.sequence - last - 1
        return gap if gid == attachment.gid and 0 < gap < 1_000_000 else 0

    def close(self) -> None:
        """End it."""
        self._subscriber.undeclare()
        self._token.undeclare()


class _Publisher(Publisher):
    def __init__(self, owner: ZenohSession, session: Any, key: str, about: tuple[str, str], quality: Quality) -> None:
        self._token, self._gid = owner.declare_token("MP", *about, quality)
        self._sequence, self._turn = 0, threading.Lock()
        self._publisher = _declare_publisher(session, key, quality)

    def publish(self, pieces: Sequence[bytes | memoryview]) -> None:
        data = b"".join(pieces)
        with self._turn:  # keeps messages in the order of their numbers
            self._sequence += 1
            attachment = Attachment(self._sequence, time.time_ns(), self._gid).to_bytes()
            self._publisher.put(data, attachment=attachment)

    def close(self) -> None:
        """End it."""
        self._publisher.undeclare()
        self._token.undeclare()


def _declare_publisher(session: Any, key: str, quality: Quality) -> Any:
    """Return Zenoh's publisher; that of a latched topic has a cache for later subscribers."""
    import zenoh

    control = zenoh.CongestionControl.BLOCK if quality.reliable else zenoh.CongestionControl.DROP
    options = {"encoding": "application/cdr", "congestion_control": control}
    if not quality.latched:
        return session.declare_publisher(key, **options)
    from zenoh.ext import CacheConfig, declare_advanced_publisher

    cache = CacheConfig(max_samples=quality.depth)
    return declare_advanced_publisher(session, key, cache=cache, publisher_detection=True, **options)
