"""Messages of a recording: topics, schemas and payloads, which Foxglove and ROS 2 can read.

Camera data is CDR with ROS 2 message definitions (little endian, OMG DDSI-RTPS 10.2). All other messages are JSON.
"""

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgert.recording.cdr import DamagedMessage, decode, encode
from edgert.recording.definitions import DEFINITIONS, IMAGE, VIDEO, parts_of
from edgert.recording.mcap_file import Topic
from edgert.runtime.json_form import encoded, plain
from edgert.runtime.records import Detections, Result, label_of

RUN, DECISIONS, RESULTS, EVENTS, METRICS = (
    f"/edgert/{name}" for name in ("run", "decisions", "results", "events", "metrics")
)
"""Names of edgert's own topics."""
_OWN = (RUN, DECISIONS, RESULTS, EVENTS, METRICS)
_LINE_LOOP = 2
_GREEN, _WHITE, _SHADE = (
    {"r": r, "g": g, "b": b, "a": a} for r, g, b, a in ((0, 1, 0, 1), (1, 1, 1, 1), (0, 0, 0, 0.6))
)
_ENCODINGS = {"bgr": "bgr8", "rgb": "rgb8", "gray": "mono8", "yuyv": "yuv422_yuy2", "nv12": "nv12", "i420": "i420"}
_ENCODINGS |= {"16UC1": "16UC1", "32FC1": "32FC1"}  # depth in millimeters, and in meters
_CODECS = {"hevc": "h265"}
_CAMERA_TYPES = {"video": VIDEO, "image": IMAGE, "depth": IMAGE}
"""Last part of a camera's topic → message type."""


@cache
def _ros_schema(kind: str) -> bytes:
    """Return the lines of a message type, then those of each type in it, as MCAP's ``ros2msg``."""
    parts = [f"{'=' * 80}\nMSG: {one.replace('/msg/', '/')}\n{DEFINITIONS[one]}" for one in parts_of(kind)[1:]]
    return "\n".join([DEFINITIONS[kind], *parts]).encode()


@cache
def _annotation_schema() -> bytes:
    return (Path(__file__).parent / "schemas" / "ImageAnnotations.json").read_bytes()


def topic_named(name: str) -> Topic | None:
    """Return the topic with this name; None if recordings have no such topic.

    It is one of edgert's own, or of a camera: ``/STREAM/video`` has its packets, ``image`` its images as pixels, and
    ``depth`` its depth images. ``annotations`` has what Foxglove draws over the images.
    """
    stream, _, kind = name[1:].rpartition("/")
    if name in _OWN:
        return Topic(name, f"edgert.{kind.title()}", encoded({"type": "object"}))
    if stream and kind in _CAMERA_TYPES:
        return Topic(name, _CAMERA_TYPES[kind], _ros_schema(_CAMERA_TYPES[kind]), is_cdr=True)
    if stream and kind == "annotations":
        return Topic(name, "foxglove.ImageAnnotations", _annotation_schema())
    return None


def topic(name: str) -> Topic:
    """Return the topic with this name, which recordings have; see :func:`topic_named`."""
    found = topic_named(name)
    assert found is not None, name
    return found


def _stamp(time_ns: int) -> tuple[int, int]:
    return divmod(max(time_ns, 0), 10**9)


def video_message(stream: str, time_ns: int, data: bytes | memoryview, codec: str) -> list[bytes | memoryview]:
    """Return a ``foxglove_msgs/CompressedVideo`` in parts.

    Args:
        stream: name of the stream, which is the frame of reference.
        time_ns: capture time in ns since 1970.
        data: one access unit.
        codec: FFmpeg's name of the codec.
    """
    sec, nanosec = _stamp(time_ns)
    fields = {"timestamp.sec": sec, "timestamp.nanosec": nanosec, "frame_id": stream, "data": data}
    return encode(VIDEO, {**fields, "format": _CODECS.get(codec, codec)})


def image_head(stream: str, time_ns: int, size: tuple[int, int], format: str, nbytes: int) -> bytes:
    """Return a ``sensor_msgs/Image`` up to its pixels, which follow plane by plane without padding.

    Args:
        stream: name of the stream, which is the frame of reference.
        time_ns: capture time in ns since 1970.
        size: (width, height), pixels.
        format: pixel format of the frame.
        nbytes: size of all pixels in bytes.
    """
    (width, height), (sec, nanosec) = size, _stamp(time_ns)
    step = width if format in ("gray", "nv12", "i420") else nbytes // height
    header = {"header.stamp.sec": sec, "header.stamp.nanosec": nanosec, "header.frame_id": stream}
    image = {"height": height, "width": width, "encoding": _ENCODINGS[format], "step": step}
    *head, _, _ = encode(IMAGE, {**header, **image})  # without the length and the bytes of empty pixels
    return b"".join(head) + struct.pack("<I", nbytes)


class Unit(NamedTuple):
    """Camera data of one message.

    Attributes:
        format: FFmpeg's name of the codec, or the pixel format.
        size: (width, height) of an image; (0, 0) for a packet.
        data: packet, or all pixels.
    """

    format: str
    size: tuple[int, int]
    data: memoryview


def read_video(data: memoryview) -> Unit:
    """Return the packet in a message of :func:`video_message`. Raises DamagedMessage."""
    fields = decode(VIDEO, data)
    codec = fields["format"]
    return Unit({new: old for old, new in _CODECS.items()}.get(codec, codec), (0, 0), fields["data"])


def read_image(data: memoryview) -> Unit:
    """Return the pixels in a message of :func:`image_head`. Raises DamagedMessage."""
    fields = decode(IMAGE, data)
    formats = {new: old for old, new in _ENCODINGS.items()}
    if fields["encoding"] not in formats:
        raise DamagedMessage(f"unknown encoding {fields['encoding']!r}")
    return Unit(formats[fields["encoding"]], (fields["width"], fields["height"]), fields["data"])


def drawn(result: Result, time_ns: int) -> bytes | None:
    """Return boxes and labels of a result as ``foxglove.ImageAnnotations``; None without any."""
    found = result.latest(Detections)
    if found is None or not len(found):
        return None
    sec, nsec = _stamp(time_ns)
    stamp = {"sec": sec, "nsec": nsec}
    points, texts = [], []
    for text, (x1, y1, x2, y2) in _labeled(found):
        corners = [{"x": x, "y": y} for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))]
        line = {"outline_color": _GREEN, "outline_colors": [], "fill_color": {**_GREEN, "a": 0}, "thickness": 2}
        points.append({"timestamp": stamp, "type": _LINE_LOOP, "points": corners, **line})
        colors = {"font_size": 14, "text_color": _WHITE, "background_color": _SHADE}
        texts.append({"timestamp": stamp, "position": {"x": x1, "y": y1}, "text": text, **colors})
    return encoded({"circles": [], "points": points, "texts": texts})


def _labeled(found: Detections) -> Iterator[tuple[str, list[float]]]:
    ids: list[Any] = [None] * len(found) if found.ids is None else found.ids.tolist()
    rows = zip(found.classes.tolist(), found.scores.tolist(), found.boxes.tolist(), ids, strict=True)
    for number, score, box, track in rows:
        yield f"{label_of(found.labels, number)}{'' if track is None else f' {track}'} {score:.2f}", box


# Digests, which are equal if and only if two records have the same bits.

_DIGEST_BYTES = 8
_DEPTH = 32


def digest(record: object) -> str:
    """Return a hash of all values of a record, as 16 hexadecimal digits.

    Raises:
        StageError: an object of the user's code has no plain form.
    """
    found = blake2b(digest_size=_DIGEST_BYTES)
    for part in _parts(record, 0):
        found.update(part)
    return found.hexdigest()


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the bytes of a value, each part with its type and length, so that different values give different bytes."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield f"a{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, float):
        yield b"f" + struct.pack("<d", value)
    elif value is None or isinstance(value, (bool, int, str)):
        text = repr(value).encode("utf-8", "backslashreplace")
        yield f"p{len(text)}:".encode() + text
    elif depth > _DEPTH:
        yield encoded(plain(value))  # raises for a value that is nested too deeply
    elif isinstance(value, np.generic):
        yield from _parts(np.asarray(value), depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        yield f"d{type(value).__qualname__}{len(fields)}".encode()
        for field in fields:
            yield from _parts(getattr(value, field.name), depth + 1)
    elif isinstance(value, Mapping):
        yield f"m{len(value)}".encode()
        for key in sorted(value, key=repr):
            yield from _parts(key, depth + 1)
            yield from _parts(value[key], depth + 1)
    elif isinstance(value, (list, tuple)):
        yield f"l{len(value)}".encode()
        for one in value:
            yield from _parts(one, depth + 1)
    else:
        yield encoded(plain(value))
