"""Comparison of replayed results with recorded ones, bit for bit by digests or within a tolerance by numbers."""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cv2

from edgert.clock import Clock
from edgert.recording.mcap_messages import digest
from edgert.runtime import json_form
from edgert.runtime.frame import U8, has_pixels
from edgert.runtime.records import Result
from edgert.stages.context import SimpleStage

_COMPLETE_RESULT = "(the complete result)"
_MOST_IMAGES = 64
"""Maximum number of images held for results that wait for their recorded ones; older ones are dropped."""
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """First replayed result that differs from the recorded one.

    Attributes:
        stream, frame: stream and index of the frame.
        time: recorded time of its capture.
        timestamp_ns: time of its capture by the recorded clock.
        stage: first stage whose record differs.
        where: first value that differs, with both values.
        recorded, replayed: both records as plain data; None for a missing one.
        digest: digest of the replayed record; empty without one.
        image: (height, width, 3) uint8 BGR; None if the frame's pixels are not available.
    """

    stream: str
    frame: int
    time: str
    timestamp_ns: int
    stage: str
    where: str
    recorded: Any
    replayed: Any
    digest: str = ""
    image: U8 | None = None

    def png(self) -> bytes | None:
        """Return the image as PNG; None without one."""
        return None if self.image is None else cv2.imencode(".png", self.image)[1].tobytes()


@dataclass(slots=True)
class _Replayed:
    """A replayed result that waits for its recorded one, with the frame's image if it may be the first difference."""

    data: dict[str, Any]
    digests: dict[str, str]
    image: U8 | None = None


class Expectation(SimpleStage):
    """Stage that replaces the recorder and compares each result with the recorded one.

    Args:
        window_ns: begin and end of the capture times whose results are compared, by the recorded clock.
        within: largest accepted difference of two numbers, relative to the recorded one, or absolute if that is below
            1; None: every bit counts.
        unknown: stages whose records are not compared because they depend on frames before the recording; None: the
            recording begins with the run.

    Attributes:
        same, different: numbers of compared results.
        unrecorded: number of results that the recording lacks, for example because it was cut off.
        first: first difference; None if there is none.
        partial: frames whose results are not compared, of a recording that begins in the middle of a run.
    """

    def __init__(self, clock: Clock, window_ns: tuple[float, float] = (-math.inf, math.inf),
                 within: float | None = None, unknown: frozenset[str] | None = None) -> None:  # fmt: skip
        self._clock, self._window_ns, self._within, self._unknown = clock, window_ns, within, unknown
        self._expected: dict[Key, deque[dict[str, Any]]] = {}
        self._results: dict[Key, deque[_Replayed]] = {}
        self._with_image = deque[_Replayed]()
        self.same = self.different = self.unrecorded = 0
        self.first: Difference | None = None
        self.partial: Collection[Key] = ()

    def expect(self, recorded: dict[str, Any]) -> None:
        """Take a recorded result."""
        stream, frame, timestamp_ns = recorded.get("stream"), recorded.get("frame"), recorded.get("timestamp_ns")
        if not (isinstance(stream, str) and isinstance(frame, int) and isinstance(timestamp_ns, int)):
            return
        if not self._window_ns[0] <= timestamp_ns < self._window_ns[1]:
            return
        key = stream, frame
        self._expected.setdefault(key, deque()).append(recorded)
        self._match(key)

    def process(self, result: Result) -> None:
        """Take a replayed result."""
        frame = result.frame
        if not self._window_ns[0] <= frame.timestamp_ns < self._window_ns[1]:
            return
        data = json_form.plain_result(result, self._clock)
        unknown = self._unknown or ()
        digests = {stage: digest(record) for stage, record in result.outputs.items() if stage not in unknown}
        key = frame.stream, frame.index
        recorded = self._expected.get(key)
        replayed = _Replayed(data, digests)
        may_differ = self.first is None and (not recorded or self._compared(recorded[0], "digests") != digests)
        if may_differ and has_pixels(frame):
            replayed.image = frame.to_bgr()
            self._with_image.append(replayed)
            if len(self._with_image) > _MOST_IMAGES:
                self._with_image.popleft().image = None
        self._results.setdefault(key, deque()).append(replayed)
        self._match(key)

    def forget(self) -> None:
        """Drop all results that wait for their counterparts."""
        self._expected.clear()
        self._results.clear()

    def finish(self, missing: set[Key], errors: Mapping[tuple[str, str, int], str]) -> int:
        """Count results without counterpart; return the number of recorded ones that lack only their frames.

        Args:
            missing: frames that are not in the recording.
            errors: errors of stages that failed only in the replay, by task, stream and frame.
        """
        left = [(key, recorded) for key, waiting in self._expected.items() for recorded in waiting]
        self.unrecorded, lost = sum(map(len, self._results.values())), 0
        for (stream, frame), recorded in left:
            failed = next((f"{task}: {why}" for (task, *key), why in errors.items() if key == [stream, frame]), "")
            if (stream, frame) in missing or (self._unknown is not None and not failed):
                lost += 1
                continue
            self.different += 1
            if self.first is None:
                where = failed or "the replay has no result of this frame"
                stage, outputs = failed.partition(":")[0] or _COMPLETE_RESULT, recorded.get("outputs")
                self.first = Difference(*_frame_fields(recorded), stage, where, outputs, None)
        return lost

    def _match(self, key: Key) -> None:
        expected, results = self._expected.get(key), self._results.get(key)
        if not expected or not results:
            return
        recorded, replayed = expected.popleft(), results.popleft()
        data, digests = replayed.data, replayed.digests
        if not expected:
            del self._expected[key]
        if not results:
            del self._results[key]
        if self._unknown is not None and (key in self.partial or not (digests or self._compared(recorded, "outputs"))):
            return
        found = next(self._differences(recorded, data, digests), None)
        if found is None:
            self.same += 1
            return
        self.different += 1
        if self.first is None:
            stage, where = found
            before, now = ((one.get("outputs") or {}).get(stage) for one in (recorded, data))
            about = _frame_fields(recorded)
            self.first = Difference(*about, stage, where, before, now, digests.get(stage, ""), replayed.image)

    def _compared(self, recorded: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return the part ``key`` of a recorded result, for the stages that are compared."""
        found, unknown = recorded.get(key), self._unknown or ()
        return {stage: one for stage, one in found.items() if stage not in unknown} if isinstance(found, dict) else {}

    def _differences(
        self, recorded: Mapping[str, Any], data: Mapping[str, Any], digests: Mapping[str, str]
    ) -> Iterator[tuple[str, str]]:
        """Yield each stage whose record differs, and the first value that differs."""
        before, outputs, now = self._compared(recorded, "digests"), self._compared(recorded, "outputs"), data["outputs"]
        now = {stage: now[stage] for stage in digests}
        for stage in dict.fromkeys([*now, *outputs]):
            if before.get(stage) == digests.get(stage):
                continue
            if stage not in outputs or stage not in now:
                yield stage, "only the replay has a record" if stage in now else "only the recording has a record"
                continue
            where = _first_difference(outputs[stage], now[stage], self._within, "")
            if where or self._within is None:
                yield stage, where or "the records differ in digits that are not written"


def _frame_fields(recorded: Mapping[str, Any]) -> tuple[str, int, str, int]:
    """Return stream, frame, time and timestamp of a recorded result."""
    return recorded["stream"], recorded["frame"], str(recorded.get("time", "")), recorded["timestamp_ns"]


def _first_difference(one: Any, other: Any, within: float | None, path: str) -> str:
    """Return the first place where two values differ, with both values; empty if they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            at = f"{path}.{key}" if path else str(key)
            if key not in one or key not in other:
                return f"{at}: only in the {'replay' if key in other else 'recording'}"
            if found := _first_difference(one[key], other[key], within, at):
                return found
        return ""
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{path}: {len(one)} recorded, {len(other)} replayed"
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for at, pair in pairs if (found := _first_difference(*pair, within, f"{path}[{at}]"))), "")
    if within is not None and isinstance(one, float) and isinstance(other, float | int):
        if abs(one - other) <= within * max(1.0, abs(one)):
            return ""
    elif one == other:
        return ""
    return f"{path}: {one} recorded, {other} replayed"
