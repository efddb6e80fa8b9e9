"""Source of a camera's topics: ``ros2:///camera/image_raw`` over rclpy, ``ros2+zenoh://HOST/TOPIC`` over Zenoh."""

from __future__ import annotations

import os
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from edgert.config.fields import Section
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError, nearest
from edgert.memory.cuda import CudaDevice
from edgert.recording.definitions import DETECTIONS, DIAGNOSTICS, IMAGE
from edgert.runtime.frame import Frame
from edgert.stages.context import Context
from edgert.stages.ros2.ros_images import KINDS_OF_ROLE, CameraTopics, Incoming, Role
from edgert.stages.ros2.ros_link import Link, Quality, Subscription
from edgert.stages.source.live import Device, LiveSource, MismatchError
from edgert.stages.source.timeline import Image, MediaClock, Timeline

_TOPIC = re.compile(r"/[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
_TICK_S = 0.05
_DISCOVERY_S = 2.0
"""Longest wait for a topic before the next try; discovery takes up to a second."""
_CLOSE_S = 2.0


class TopicOptions(Section):
    """``options:`` of a camera's topics.

    Attributes:
        depth: topic of depth images that are registered to the color images: 16UC1 or 32FC1.
        info: topic of the CameraInfo, read only with ``depth``; by default ``camera_info`` in the images' namespace.
        reliability: reliability of the subscriptions.
        use_sim_time: whether the time of ROS is that of ``/clock``.
    """

    depth: str = Field(default="", pattern=f"^({_TOPIC.pattern})?$")
    info: str = Field(default="", pattern=f"^({_TOPIC.pattern})?$")
    reliability: Literal["best_effort", "reliable"] = "best_effort"
    use_sim_time: bool = False


def options_of(config: SourceStage, where: str) -> TopicOptions:
    """Return the options of a camera's topics. Raises ConfigError."""
    try:
        return TopicOptions.model_validate(config.options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(("options", *map(str, first["loc"])))
        fix = f"known: {', '.join(TopicOptions.model_fields)}"
        raise ConfigError(f"{key}: {first['msg']}", where=f"{where}.options", fix=fix) from error


def topics_of(image: str, options: TopicOptions, where: str) -> Mapping[Role, str]:
    """Return the topic of each role that has one. Raises ConfigError for a name that ROS 2 does not allow."""
    if not _TOPIC.fullmatch(image):
        why = "names have letters, digits and _ between slashes, and no part begins with a digit"
        fix = "write it as ros2 topic list shows it: source: ros2:///camera/image_raw"
        raise ConfigError(f"{image or 'nothing'!r} is not a topic", why=why, where=f"{where}.source", fix=fix)
    if not options.depth:
        return {"image": image}
    info = options.info or image.rpartition("/")[0] + "/camera_info"
    return {"image": image, "depth": options.depth, "info": info}


def ros_source(name: str, config: SourceStage, context: Context) -> RosSource:
    """Return the source of a ``ros2:`` or ``ros2+zenoh:`` address.

    Raises:
        ConfigError: an invalid topic name or option.
        DeviceError: rclpy or Zenoh is missing; the fix says what to source or install.
    """
    where = f"stages.{name}"
    options = options_of(config, where)
    scheme, _, rest = config.source.partition(":")
    link = link_to(config.source, context.pipeline, options.use_sim_time, where)
    topic = "/" + rest.lstrip("/") if scheme == "ros2" else urlsplit(config.source).path
    return RosSource(name, topics_of(topic, options, where), options, config, context, link)


LinkOf = Callable[[], Link]
SENT = (DETECTIONS, DIAGNOSTICS, IMAGE)
"""Message types, one per package that a sink needs."""


def link_to(address: str, pipeline: str, simulated: bool, where: str, kinds: Sequence[str] = (IMAGE,)) -> LinkOf:
    """Return a function that connects to ``ros2:``, or to the router of ``ros2+zenoh://HOST``.

    Args:
        address: address of a source or sink; a path behind the router's host is ignored.
        pipeline: name of the pipeline, whose stages share one connection.
        simulated: whether the time of ROS is that of ``/clock``.
        where: place of the stage.
        kinds: message types that it needs, whose packages must be installed for rclpy.

    Raises:
        ConfigError: the address of the router is malformed.
        DeviceError: rclpy or Zenoh is missing; the fix says what to source or install.
    """
    if address.startswith("ros2:"):
        from edgert.stages.ros2 import rclpy_node

        rclpy_node.import_rclpy(where, kinds)
        return partial(rclpy_node.shared_node, pipeline, simulated, where)
    from edgert.stages.ros2 import zenoh_session

    zenoh_session.require_zenoh(where)
    endpoint = zenoh_session.endpoint_of(address, where)
    return partial(zenoh_session.shared_session, pipeline, endpoint, domain_id(where), where)


def domain_id(where: str) -> int:
    """Return ``ROS_DOMAIN_ID``, 0 by default. Raises ConfigError if it is not the number of a domain."""
    text = os.environ.get("ROS_DOMAIN_ID", "0") or "0"
    if not text.isdecimal() or int(text) > 232:
        raise ConfigError(f"ROS_DOMAIN_ID={text} is not a domain", why="domains are 0 to 232", where=where)
    return int(text)


class RosSource(LiveSource):
    """Source of frames from a camera's topics; a slow pipeline gets the newest frame."""

    def __init__(
        self,
        name: str,
        topics: Mapping[Role, str],
        options: TopicOptions,
        config: SourceStage,
        context: Context,
        link: LinkOf,
    ) -> None:
        self._topics, self._options, self._config, self._context = topics, options, config, context
        self._where, self._link_of, self._closing = f"stages.{name}", link, threading.Event()
        self._link: Link | None = None
        self._camera: CameraTopics | None = None
        live = True if config.realtime is None else config.realtime
        timeline = Timeline(name, config, context.clock, MediaClock(True), fps=config.fps, paced=False)
        about = name, f"topic {topics['image']}", self._subscribe, timeline, context.clock
        super().__init__(*about, live=live, reconnect=config.reconnect, start=config.start)

    @property
    def frame_id(self) -> str:
        """Coordinate frame of the camera; empty before its first image."""
        return self._camera.frame_id if self._camera is not None else ""

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until ``stop`` is set. Raises DeviceError."""
        self._link = self._link_of()
        yield from super().frames(stop)

    def close(self) -> None:
        """End the subscriptions and release the connection; may be called twice."""
        self._closing.set()
        super().close()
        if self._reader is not None:
            self._reader.join(_CLOSE_S)
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _subscribe(self, _: CudaDevice | None) -> _TopicDevice:
        assert self._link is not None
        kinds = self._discover_types(self._link)
        title, context = f"topic {self._topics['image']}", self._context
        goes_back, has_depth = self._config.reconnect, "depth" in self._topics
        about = title, self._where, has_depth, context.counter, context.clock
        self._camera = CameraTopics(*about, self._link.now_ns, goes_back)
        quality = Quality(self._options.reliability == "reliable")
        device = _TopicDevice(self._camera, self._closing, context, self._config.timeout, self._where)
        try:
            for role, topic in self._topics.items():
                device.listen(self._link, role, topic, kinds[role], quality)
        except BaseException:
            device.close()
            raise
        return device

    def _discover_types(self, link: Link) -> Mapping[Role, str]:
        """Wait until the images are published, and return the type of each topic.

        Raises:
            DeviceError: the images were not published in time.
            MismatchError: a topic has another type.
        """
        wanted, clock = self._topics, self._context.clock
        until_ns = clock.now_ns() + round(_DISCOVERY_S * 1e9)
        while self._topics["image"] not in (found := link.topics()):
            if clock.now_ns() > until_ns or clock.wait(self._closing, _TICK_S):
                why = _why_missing(self._topics["image"], found)
                fix = "start its publisher, or compare with ros2 topic list"
                raise DeviceError(f"no topic {self._topics['image']}", why=why, where=self._where, fix=fix)
        kinds = dict[Role, str]()
        for role, topic in wanted.items():
            known, published = KINDS_OF_ROLE[role], found.get(topic, KINDS_OF_ROLE[role])
            fitting = [kind for kind in known if kind in published]
            if not fitting:
                what = f"topic {topic} is of type {' and '.join(published)}"
                why = f"this needs {' or '.join(known)}"
                fix = f"published of that type: {', '.join(_topics_of_types(known, found)) or 'none'}"
                raise MismatchError(what, why=why, where=self._where, fix=fix)
            kinds[role] = fitting[0]
        return kinds


def _topics_of_types(kinds: Sequence[str], topics: Mapping[str, Sequence[str]]) -> list[str]:
    return sorted(name for name, types in topics.items() if not set(kinds).isdisjoint(types))


def _why_missing(topic: str, topics: Mapping[str, Sequence[str]]) -> str:
    fitting = _topics_of_types(KINDS_OF_ROLE["image"], topics)
    known = f"; published with images: {', '.join(fitting)}" if fitting else ""
    return f"nobody publishes it{nearest(topic, topics)}{known}"


class _Inbox:
    """Queue from the network's thread to the reader: the newest image, and some other messages."""

    def __init__(self) -> None:
        self._image: Incoming | None = None
        self._others = deque[Incoming](maxlen=16)
        self._bell, self._turn = queue.SimpleQueue[None](), threading.Lock()

    def put(self, incoming: Incoming) -> None:
        """Add a message; an image replaces one that is still waiting."""
        with self._turn:
            if incoming.role != "image":
                self._others.append(incoming)
            elif self._image is None:
                self._image = incoming
            else:
                self._image = replace(incoming, lost=incoming.lost + self._image.lost + 1)
                return
        self._bell.put(None)

    def take(self, timeout_s: float) -> Incoming | None:
        """Remove and return the next message; None if none came in time."""
        try:
            self._bell.get(timeout=timeout_s)
        except queue.Empty:
            return None
        with self._turn:
            if self._others:
                return self._others.popleft()
            found, self._image = self._image, None
            return found


class _TopicDevice(Device):
    """Subscriptions of one camera."""

    def __init__(
        self, camera: CameraTopics, closing: threading.Event, context: Context, timeout_s: float, where: str
    ) -> None:
        self._camera, self._closing, self._clock, self._where = camera, closing, context.clock, where
        self._timeout_s, self._inbox, self._ends = timeout_s, _Inbox(), ExitStack()
        self._subscriptions = list[tuple[str, Subscription]]()

    @property
    def skipped(self) -> int:  # type: ignore[override]  # read only
        """Damaged messages so far."""
        return self._camera.skipped

    def listen(self, link: Link, role: Role, topic: str, kind: str, quality: Quality) -> None:
        """Subscribe to one topic."""
        inbox, now_ns = self._inbox, self._clock.now_ns

        def take(data: bytes | memoryview, lost: int) -> None:
            inbox.put(Incoming(role, kind, data, now_ns(), lost))

        subscription = link.subscribe(topic, kind, quality, take)
        self._ends.callback(subscription.close)
        self._subscriptions.append((topic, subscription))

    def images(self) -> Iterator[Image]:
        """Yield images until the source is closed. Raises DeviceError if none comes in time."""
        came_ns = self._clock.now_ns()
        while not self._closing.is_set():
            incoming = self._inbox.take(_TICK_S)
            now_ns = self._clock.now_ns()
            for image in self._camera.images(incoming, now_ns):
                came_ns = now_ns
                yield image
                del image
            if incoming is None:
                self._check_silence(now_ns - came_ns)

    def close(self) -> None:
        """End the subscriptions."""
        self._ends.close()

    def _check_silence(self, silent_ns: int) -> None:
        for topic, subscription in self._subscriptions:
            if trouble := subscription.trouble:
                fix = "set options: {reliability: best_effort}, which works with every publisher"
                raise MismatchError(f"topic {topic} cannot be received", why=trouble, where=self._where, fix=fix)
        if silent_ns > self._timeout_s * 1e9:
            why, fix = f"no image came for {self._timeout_s:g} s", "compare with ros2 topic hz, or raise timeout:"
            raise DeviceError(f"lost topic {self._subscriptions[0][0]}", why=why, where=self._where, fix=fix)
