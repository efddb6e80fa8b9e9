"""What is sent of a result: which, how often, and as which JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from edgert.clock import Clock
from edgert.runtime.json_form import plain_result
from edgert.runtime.records import Detections, Result
from edgert.stages.zones.rules import Events

VERSION = 1
Send = Literal["results", "events", "changes"]
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which results are sent.

    Attributes:
        send: every result, every event, or results whose objects are others than before.
        only: the stages whose records are sent; all where empty.
        every_ns: of each stream, at most one result in this time.
    """

    send: Send = "results"
    only: tuple[str, ...] = ()
    every_ns: int = 0


class Writer:
    """Turns results into messages.

    Args:
        choice: what of them.
        pipeline: its name, which is in every message.
    """

    def __init__(self, choice: Choice, pipeline: str, clock: Clock) -> None:
        self._choice, self._pipeline, self._clock = choice, pipeline, clock
        self._sent_ns: dict[str, int] = {}
        self._objects: dict[str, frozenset[tuple[int, int]]] = {}

    def messages(self, result: Result) -> Iterator[tuple[str, str, str, bytes]]:
        """Kind, stream, rule, and the JSON object, of every message."""
        stream = result.frame.stream
        if self._choice.send == "events":
            found = result.latest(Events)
            for event in found.events if found is not None else ():
                about = {**self._head("event"), **self._about(result.without(result.outputs.keys()))}
                yield "event", stream, event.rule, _encoded({**about, "event": event.to_json()})
        elif self._is_wanted(result, stream):
            if self._choice.only:
                result = result.without(result.outputs.keys() - set(self._choice.only))
            yield "result", stream, "", _encoded({**self._head("result"), **plain_result(result, self._clock)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"schema": VERSION, "kind": kind, "pipeline": self._pipeline}

    def _about(self, result: Result) -> dict[str, Any]:
        return {key: value for key, value in plain_result(result, self._clock).items() if key != "outputs"}

    def _is_wanted(self, result: Result, stream: str) -> bool:
        now_ns = result.frame.timestamp_ns
        if stream in self._sent_ns and now_ns - self._sent_ns[stream] < self._choice.every_ns:
            return False
        if self._choice.send == "changes":
            objects = _objects(result.detections)
            if objects == self._objects.get(stream):
                return False
            self._objects[stream] = objects
        self._sent_ns[stream] = now_ns
        return True


def _objects(found: Detections) -> frozenset[tuple[int, int]]:
    """Who is there: track and class; without a tracker, how many of which class."""
    classes = found.classes.tolist()
    if found.ids is not None:
        return frozenset(zip(found.ids.tolist(), classes, strict=True))
    return frozenset((classes.count(one), one) for one in set(classes))


def _encoded(data: object) -> bytes:
    # A lone surrogate, which UTF-8 lacks, becomes \udcXX: just how JSON would escape it.
    return _ENCODER.encode(data).encode("utf-8", "backslashreplace")


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a message."""
    number, text, whole = {"type": "number"}, {"type": "string"}, {"type": "integer"}
    time = {"type": "string", "format": "date-time"}
    common: dict[str, Any] = {
        "id": {**text, "description": "the same however often the message is sent; of no other message"},
        "schema": {"const": VERSION},
        "kind": {"enum": ["result", "event"]},
        "pipeline": text,
        "stream": {**text, "description": "the source"},
        "frame": {**whole, "description": "number of the frame in its stream"},
        "time": {**time, "description": "of the capture"},
        "time_ns": {**whole, "description": "the same, nanoseconds of the epoch"},
        "timestamp_ns": {**whole, "description": "the same, by the machine's monotonic clock"},
        "media_s": {**number, "description": "position in the stream"},
        "file": {**text, "description": "name of the image file, where the source is one of those"},
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
    outputs = {"type": "object", "description": "stage → record, as docs/results.md has them"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edgert message",
        "type": "object",
        "properties": common,
        "required": [key for key in common if key != "file"],
        "oneOf": [
            {"properties": {"kind": {"const": "result"}, "outputs": outputs}, "required": ["outputs"]},
            {
                "properties": {
                    "kind": {"const": "event"},
                    "event": {"type": "object", "properties": event, "required": always, "additionalProperties": False},
                },
                "required": ["event"],
            },
        ],
    }
