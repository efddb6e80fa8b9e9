"""``sink: ros2``, which publishes records, images and the state of the pipeline as topics."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from edgert.config import stages as section
from edgert.errors import EdgertError
from edgert.recording import definitions
from edgert.recording.cdr import encode
from edgert.runtime.frame import bgr_from
from edgert.runtime.health import status_line, unready_reasons
from edgert.runtime.records import Classification, Detections, Result, label_of
from edgert.stages.context import Context
from edgert.stages.ros2.ros_images import header, image_message, jpeg_message
from edgert.stages.ros2.ros_link import Link, Publisher, Quality
from edgert.stages.ros2.ros_source import SENT, link_to

log = logging.getLogger("edgert.ros2")

_DIAGNOSTICS_S = 1.0
_JOIN_S = 2.0
_NAMESPACE = re.compile(r"(/([A-Za-z_{][A-Za-z0-9_{}]*))+")
_FIELDS = {"pipeline", "stream"}


class Ros2(section.SinkStage):
    """Topics of ROS 2: see [ROS 2](ros2.md)."""

    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    namespace: str = Field(
        default="/{pipeline}/{stream}", description="of the topics; may hold `{pipeline}` and `{stream}`"
    )
    image: Literal["raw", "jpeg"] | None = Field(
        default=None, description="publish images too, with drawings where there are some; default: none"
    )
    frame_id: str = Field(default="", description="of every header; default: the camera's, else the stream")
    reliability: Literal["reliable", "best_effort"] = Field(default="reliable", description="of detections and classes")
    use_sim_time: bool = Field(default=False, description="stamps are of `/clock`, where the source has none of ROS")
    zenoh: str = Field(default="", description="without ROS: a router of rmw_zenoh, such as `ros2+zenoh://localhost`")

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, text: str) -> str:
        unknown = set(re.findall(r"\{(.*?)\}", text)) - _FIELDS
        if unknown or not _NAMESPACE.fullmatch(text):
            raise ValueError("expected names of letters, digits and _ behind slashes, like /{pipeline}/{stream}")
        return text

    @property
    def reads_images(self) -> bool:
        """Whether images are published."""
        return self.image is not None

    def make(self, name: str, context: Context) -> RosSink:
        """Return the sink. Raises DeviceError if rclpy or Zenoh is missing."""
        return RosSink(name, self, context)


def topic_of(pattern: str, pipeline: str, stream: str) -> str:
    """Return the namespace of a stream's topics, with names that ROS 2 allows."""
    plain = {"pipeline": _plain(pipeline), "stream": _plain(stream)}
    return re.sub(r"\{(.*?)\}", lambda match: plain[match[1]], pattern)


def _plain(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "camera"
    return f"_{text}" if text[0].isdigit() else text


@dataclass(slots=True)
class _Stream:
    """Publishers of one stream, by topic, each created with its first message."""

    namespace: str
    publishers: dict[str, Publisher] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


class RosSink:
    """Sink that publishes each result. A thread publishes ``/diagnostics`` once per second."""

    def __init__(self, name: str, config: Ros2, context: Context) -> None:
        self._name, self._config, self._context = name, config, context
        address, where = config.zenoh or "ros2:", f"stages.{name}"
        self._connect = link_to(address, context.pipeline, config.use_sim_time, where, SENT)
        self._streams: dict[str, _Stream] = {}
        self._link: Link | None = None
        self._ends = ExitStack()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Connect. Raises DeviceError."""
        link = self._link = self._connect()
        self._ends.callback(link.close)
        topic = self._create_publisher("/diagnostics", definitions.DIAGNOSTICS, Quality(True, depth=10))
        name = f"edgert-{self._name}-diagnostics"
        self._thread = threading.Thread(target=self._publish_diagnostics, args=(link, topic), name=name, daemon=True)
        self._thread.start()

    def process(self, result: Result) -> None:
        """Publish the records and image of a result. Raises DeviceError."""
        frame = result.frame
        stream = self._streams.get(frame.stream)
        if stream is None:
            namespace = topic_of(self._config.namespace, self._context.pipeline, frame.stream)
            stream = self._streams[frame.stream] = _Stream(namespace)
        fields = self._header(result)
        reliable = Quality(self._config.reliability == "reliable", depth=10)
        if (found := result.latest(Detections)) is not None:
            self._publish_class_names(stream, found.labels, fields)
            self._send(stream, "detections", definitions.DETECTIONS, reliable, detections(found, fields))
        if (best := result.latest(Classification)) is not None:
            self._publish_class_names(stream, best.labels, fields)
            classes = classification(best, fields)
            self._send(stream, "classification", definitions.CLASSIFICATION, reliable, classes)
        if self._config.image is not None:
            self._send_image(stream, result, fields)

    def close(self) -> None:
        """End all topics, and release the connection."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._ends.close()
        self._streams.clear()

    def _header(self, result: Result) -> dict[str, Any]:
        """Return the header: of a frame from ROS its own stamp, else its capture time by the clock of ROS."""
        assert self._link is not None, "open() comes first"
        frame, source = result.frame, self._context.sources.get(result.frame.stream)
        own = getattr(source, "frame_id", None)
        if own is not None and frame.extra.sender_ns is not None:
            time_ns = frame.extra.sender_ns
        else:
            time_ns = self._link.now_ns() - (self._context.clock.now_ns() - frame.timestamp_ns)
        return header(time_ns, self._config.frame_id or own or frame.stream)

    def _publish_class_names(self, stream: _Stream, labels: tuple[str, ...], fields: Mapping[str, Any]) -> None:
        """Publish the names of the classes once, latched for later subscribers."""
        if labels and labels != stream.labels:
            stream.labels = labels
            info = vision_info(labels, self._context.pipeline, fields)
            self._send(stream, "vision_info", definitions.VISION_INFO, Quality(True, latched=True), info)

    def _send_image(self, stream: _Stream, result: Result, fields: Mapping[str, Any]) -> None:
        quality, counter = Quality(False), self._context.counter
        if self._config.image == "raw":
            pieces = image_message(result.frame if result.image is None else result.image, fields, counter)
            counter.copied(sum(map(len, pieces)))  # joined for the network
            self._publisher(stream, "image", definitions.IMAGE, quality).publish(pieces)
        else:
            message = jpeg_message(bgr_from(result.frame) if result.image is None else result.image, fields)
            self._publisher(stream, "image/compressed", definitions.COMPRESSED_IMAGE, quality).publish(message)

    def _send(self, stream: _Stream, topic: str, kind: str, quality: Quality, fields: Mapping[str, Any]) -> None:
        self._publisher(stream, topic, kind, quality).publish(encode(kind, fields))

    def _publisher(self, stream: _Stream, topic: str, kind: str, quality: Quality) -> Publisher:
        if topic not in stream.publishers:
            stream.publishers[topic] = self._create_publisher(f"{stream.namespace}/{topic}", kind, quality)
        return stream.publishers[topic]

    def _create_publisher(self, topic: str, kind: str, quality: Quality) -> Publisher:
        assert self._link is not None, "open() comes first"
        publisher = self._link.publisher(topic, kind, quality)
        self._ends.callback(publisher.close)
        return publisher

    def _publish_diagnostics(self, link: Link, publisher: Publisher) -> None:
        trouble = ""
        while not self._closing.wait(_DIAGNOSTICS_S):
            before, trouble = trouble, link.trouble
            if trouble != before:
                code = {"code": "send.failed" if trouble else "send.recovered"}
                log.warning("stages.%s: %s", self._name, trouble or "messages reach subscribers again", extra=code)
            state = diagnostics(self._context.stats(), header(link.now_ns(), ""))
            try:
                publisher.publish(encode(definitions.DIAGNOSTICS, state))
            except EdgertError as error:
                log.warning("stages.%s: /diagnostics: %s", self._name, error)


# Conversion of records to the fields of messages.

_OK, _ERROR = 0, 2


def detections(found: Detections, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Detection2DArray.

    Boxes are in pixels of the image, oriented ones with their angle. A class is its label, or its number if the model
    has no labels; the id is the track number. Positions are in meters, in the camera's optical frame.
    """
    centers, sizes, angles = _geometry(found)
    classes, scores = _labels(found), found.scores.tolist()
    ids = [""] * len(found) if found.ids is None else [str(one) for one in found.ids.tolist()]
    rows = zip(centers, sizes, angles, classes, scores, ids, strict=True)
    boxes = [
        {
            **header,
            "results": [{"hypothesis.class_id": name, "hypothesis.score": score}],
            "bbox.center.position.x": x,
            "bbox.center.position.y": y,
            "bbox.center.theta": angle,
            "bbox.size_x": width,
            "bbox.size_y": height,
            "id": number,
        }
        for (x, y), (width, height), angle, name, score, number in rows
    ]
    if found.positions is not None:
        for box, (right, down, forward) in zip(boxes, found.positions.tolist(), strict=True):
            place = {"x": right, "y": down, "z": forward}
            box["results"][0] |= {f"pose.pose.position.{axis}": value for axis, value in place.items()}
    return {**header, "detections": boxes}


def _geometry(found: Detections) -> tuple[list[list[float]], list[list[float]], list[float]]:
    if found.corners is None:
        boxes = found.boxes.astype(np.float64)
        low, high = boxes[:, :2], boxes[:, 2:]
        return ((low + high) / 2).tolist(), (high - low).tolist(), [0.0] * len(found)
    corners = found.corners.astype(np.float64)
    along, across = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 1]
    sizes = np.stack([np.hypot(*along.T), np.hypot(*across.T)], axis=1)
    return corners.mean(axis=1).tolist(), sizes.tolist(), np.arctan2(along[:, 1], along[:, 0]).tolist()


def classification(found: Classification, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Classification: the best classes, best first."""
    pairs = zip(_labels(found), found.scores.tolist(), strict=True)
    return {**header, "results": [{"class_id": name, "score": score} for name, score in pairs]}


def _labels(found: Detections | Classification) -> list[str]:
    return [label_of(found.labels, one) for one in found.classes.tolist()]


def vision_info(labels: Sequence[str], pipeline: str, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a VisionInfo: the class names as a JSON array, in the order of the model."""
    names = json.dumps(list(labels), ensure_ascii=False)
    return {**header, "method": pipeline, "database_location": names, "database_version": 1}


def diagnostics(stats: Mapping[str, Any], header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a DiagnosticArray: the pipeline, and each of its sources.

    Args:
        stats: state of the run, as :meth:`edgert.Pipeline.state` returns it.
        header: header of the message.
    """
    name, missing = f"edgert: {stats.get('name', 'pipeline')}", unready_reasons(stats)
    recent = stats.get("recent") or {}
    latency = recent.get("latency_ms") or {}
    values = {
        "fps": recent.get("fps"),
        "latency p99 ms": latency.get("p99"),
        "dropped in the last minute": sum((recent.get("dropped") or {}).values()),
        "dropped": stats.get("dropped"),
    }
    rows = [_status(_ERROR if missing else _OK, name, status_line(stats), values)]
    for stage, of in stats.get("stages", {}).items():
        if (source := of.get("source")) is not None:
            away = source.get("up") is False
            about = {
                "frames": of.get("results_out"),
                **{key: source.get(key) for key in ("lost", "skipped", "reconnects")},
            }
            message = source.get("reason") or ("no frame yet" if away else "running")
            rows.append(_status(_ERROR if away else _OK, f"{name}: {stage}", message, about))
    return {**header, "status": rows}


def _status(level: int, name: str, message: str, values: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [{"key": key, "value": f"{value:.6g}" if isinstance(value, float) else str(value)}
             for key, value in values.items() if value is not None]  # fmt: skip
    return {"level": level, "name": name, "message": message, "hardware_id": "", "values": pairs}
