"""Conversion of results into messages: which results, how often, and their JSON form."""

import base64
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Literal, cast

import cv2

from edgert.clock import Clock
from edgert.runtime import Frame, json_form
from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Result, without_outputs
from edgert.runtime.trace_ids import trace_of
from edgert.stages.draw import ImagePainter
from edgert.stages.zones.rules import Events

Attach = Literal["frame", "crop"]
Box = tuple[float, float, float, float]

LONGEST_PX = 640
MOST_CROPS = 32
"""Maximum number of a frame's objects that are sent."""
_CROPS_BYTES = 700_000
"""Maximum size of a message's images in base64; a NATS server accepts 1 MiB."""
_MARGIN = 0.2
"""Margin around a crop, as a fraction of the box's longer side."""
_QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 80]


class Snapshots:
    """Encoder of a message's JPEG images: the frame, the object of an event, or every object of a frame."""

    def __init__(self, attach: Attach | None = None) -> None:
        self._attach, self._images = attach, ImagePainter()

    def snapshot(self, result: Result, box: Box | None = None) -> dict[str, Any]:
        """Return an image of a result as plain data: ``type``, ``width``, ``height``, ``data``.

        Args:
            result: result with a frame.
            box: x1, y1, x2, y2 of a crop in source pixels; None, or a box outside of the frame: the complete frame.
        """
        if self._attach == "crop" and box is not None:
            image = _cut(self._images.host_image(Result(result.frame, {})), box)
        else:
            image = self._images.host_image(result)
        return _jpeg(image, LONGEST_PX)

    def crops(self, result: Result, found: Detections) -> list[dict[str, Any]]:
        """Return the :data:`MOST_CROPS` best objects of a frame as plain data, each with its row and its image.

        Images are made smaller where they would be too large for a message.
        """
        image = self._images.host_image(Result(result.frame, {}))
        found = replace(found, masks=None, points=None, corners=None)[:MOST_CROPS]
        for longest in (LONGEST_PX, LONGEST_PX // 2, LONGEST_PX // 4, LONGEST_PX // 8):
            images = [_jpeg(_cut(image, box, 0.0), longest) for box in found.boxes.tolist()]
            if sum(len(one["data"]) for one in images) <= _CROPS_BYTES:
                break
        objects = json_form.plain(found)["objects"]
        return [{"row": row, **one, "image": images[row]} for row, one in enumerate(objects)]

    def close(self) -> None:
        """Free the buffers."""
        self._images.close()


def _jpeg(image: U8, longest: int) -> dict[str, Any]:
    height, width = image.shape[:2]
    scale = min(1.0, longest / max(width, height))
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = cast("U8", cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    _, data = cv2.imencode(".jpg", image, _QUALITY)
    height, width = image.shape[:2]
    return {"type": "image/jpeg", "width": width, "height": height, "data": base64.b64encode(data.data).decode()}


def _cut(image: U8, box: Box, part: float = _MARGIN) -> U8:
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box
    margin = part * max(x2 - x1, y2 - y1)
    left, top = max(0, int(x1 - margin)), max(0, int(y1 - margin))
    right, bottom = min(width, round(x2 + margin)), min(height, round(y2 + margin))
    return image[top:bottom, left:right] if right > left and bottom > top else image


VERSION = 1
Send = Literal["results", "events", "changes", "crops"]


class Writer:
    """Converter of results into messages.

    Args:
        pipeline: name of the pipeline, for every message.
        name: name of the stage, for ids.
        send: every result, every event, only results with other objects than before, or images of all objects.
        only: stages whose records are sent; all where empty.
        every_s: least time between two results of a stream.
        attach: image in each message: the frame, or the object of an event; None: no image.
    """

    def __init__(
        self,
        pipeline: str,
        clock: Clock,
        name: str = "",
        *,
        send: Send = "results",
        only: Collection[str] = (),
        every_s: float = 0.0,
        attach: Attach | None = None,
    ) -> None:
        self._clock, self._send, self._only, self._every_ns = clock, send, only, round(1e9 * every_s)
        self._own = hashlib.blake2b(f"{pipeline}/{name}".encode(), digest_size=4).hexdigest().encode()
        self._result, self._event, self._crops = (  # the beginnings of messages
            json_form.encoded({"schema": VERSION, "kind": kind, "pipeline": pipeline})[:-1] + b","
            for kind in ("result", "event", "crops")
        )
        self._snapshots: Snapshots | None = None
        if attach is not None or send == "crops":
            self._snapshots = Snapshots(attach)
        self._sent_ns: dict[str, int] = {}
        self._objects: dict[str, frozenset[tuple[int, int]]] = {}

    def messages(self, result: Result) -> Iterator[tuple[str, str, str, bytes]]:
        """Yield kind, stream, rule and JSON object of every message."""
        stream = result.frame.stream
        if self._send == "events":
            found = result.latest(Events)
            for event in found.events if found is not None else ():
                about = json_form.plain_result(without_outputs(result, result.outputs.keys()), self._clock)
                del about["outputs"]
                about["event"] = event.to_json()
                if self._snapshots is not None and event.phase != "end":
                    about["image"] = self._snapshots.snapshot(result, event.box)
                yield "event", stream, event.rule, self._event + _traced(result.frame, about)
        elif self._send == "crops":
            objects = self._with_chosen_records(result).detections
            if len(objects) and self._is_wanted(result, stream):
                assert self._snapshots is not None
                about = json_form.plain_result(without_outputs(result, result.outputs.keys()), self._clock)
                del about["outputs"]
                about["crops"] = self._snapshots.crops(result, objects)
                yield "crops", stream, "", self._with_id(result.frame, self._crops + _traced(result.frame, about))
        elif self._is_wanted(result, stream):
            about = json_form.plain_result(self._with_chosen_records(result), self._clock)
            if self._snapshots is not None:
                about["image"] = self._snapshots.snapshot(result)
            yield "result", stream, "", self._with_id(result.frame, self._result + _traced(result.frame, about))

    @property
    def needs_frames(self) -> bool:
        """Whether messages need the pixels of frames."""
        return self._snapshots is not None

    def close(self) -> None:
        """Free the buffers of images."""
        if self._snapshots is not None:
            self._snapshots.close()

    def _with_id(self, frame: Frame, body: bytes) -> bytes:
        """Return a message with an id, if its frame comes from another machine. All machines make the same id."""
        if (delivery := frame.extra.delivery) is None:
            return body
        return b'{"id":"%s-%d-%s",' % (delivery.trace.encode(), frame.index, self._own) + body[1:]

    def _with_chosen_records(self, result: Result) -> Result:
        return without_outputs(result, result.outputs.keys() - set(self._only)) if self._only else result

    def _is_wanted(self, result: Result, stream: str) -> bool:
        now_ns = result.frame.timestamp_ns
        if stream in self._sent_ns and now_ns - self._sent_ns[stream] < self._every_ns:
            return False
        if self._send == "changes":
            objects = _objects(result.detections)
            if objects == self._objects.get(stream):
                return False
            self._objects[stream] = objects
        self._sent_ns[stream] = now_ns
        return True


def _traced(frame: Frame, about: dict[str, Any]) -> bytes:
    """Return the rest of a message about a frame, beginning with its trace."""
    about.pop("trace", None)
    return b'"trace":"%s",' % trace_of(frame).encode() + json_form.encoded(about)[1:]


def _objects(found: Detections) -> frozenset[tuple[int, int]]:
    """Return the present objects: track and class; without a tracker, count and class."""
    classes = found.classes.tolist()
    if found.ids is not None:
        return frozenset(zip(found.ids.tolist(), classes, strict=True))
    return frozenset((classes.count(one), one) for one in set(classes))


_OPTIONAL = ("sender_time", "sender_time_ns", "file", "image", "object")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a message."""
    number, text, whole = {"type": "number"}, {"type": "string"}, {"type": "integer"}
    time = {"type": "string", "format": "date-time"}
    common: dict[str, Any] = {
        "id": {**text, "description": "the same however often the message is sent; of no other message"},
        "schema": {"const": VERSION},
        "kind": {"enum": ["result", "event", "crops"]},
        "pipeline": text,
        "trace": {**text, "description": "W3C trace id of the frame, the same on all machines"},
        "object": {"type": "object", "description": "what the frame was cut out around, of a frame by source: nats"},
        "stream": {**text, "description": "the source"},
        "frame": {**whole, "description": "number of the frame in its stream"},
        "time": {**time, "description": "of the capture"},
        "time_ns": {**whole, "description": "the same, nanoseconds of the epoch"},
        "timestamp_ns": {**whole, "description": "the same, by the machine's monotonic clock"},
        "media_s": {**number, "description": "position in the stream"},
        "sender_time": {**time, "description": "of the capture, by the clock of a network camera that reports it"},
        "sender_time_ns": {**whole, "description": "the same, nanoseconds of the epoch"},
        "file": {**text, "description": "name of the image file, where the source is one of those"},
        "image": {
            "type": "object",
            "description": "with attach: the frame, or the event's object",
            "properties": {
                "type": {"const": "image/jpeg"},
                "width": whole,
                "height": whole,
                "data": {**text, "contentEncoding": "base64", "contentMediaType": "image/jpeg"},
            },
            "required": ["type", "width", "height", "data"],
        },
    }
    event = {
        "id": {**text, "description": "of the event, in all its phases"},
        "rule": text,
        "phase": {"enum": ["begin", "update", "end"]},
        "stream": text,
        "time": {**time, "description": "since when the condition has held"},
        "seconds": {**number, "description": "for how long it has"},
        "place": {**text, "description": "zone or line"},
        "way": {"enum": ["in", "out"]},
        "count": whole,
        "track": whole,
        "label": text,
        "score": {**number, "minimum": 0, "maximum": 1},
        "box": {"type": "array", "items": number, "minItems": 4, "maxItems": 4},
        "best": {"type": "object", "properties": {"frame": whole, "score": number}, "required": ["frame", "score"]},
    }
    always = ["id", "rule", "phase", "stream", "time", "seconds"]
    crop = {
        "type": "object",
        "properties": {"row": whole, "label": text, "class": whole, "score": number, "id": whole,
                       "box": event["box"], "image": common["image"]},
        "required": ["row", "box", "score", "image"],
    }  # fmt: skip
    outputs = {"type": "object", "description": "stage → record, as docs/results.md has them"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edgert message",
        "type": "object",
        "properties": common,
        "required": [key for key in common if key not in _OPTIONAL],
        "oneOf": [
            {"properties": {"kind": {"const": "result"}, "outputs": outputs}, "required": ["outputs"]},
            {
                "properties": {
                    "kind": {"const": "event"},
                    "event": {"type": "object", "properties": event, "required": always, "additionalProperties": False},
                },
                "required": ["event"],
            },
            {
                "properties": {"kind": {"const": "crops"}, "crops": {"type": "array", "items": crop}},
                "required": ["crops"],
            },
        ],
    }
