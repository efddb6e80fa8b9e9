"""Pure decisions about which frames are worth a label."""

from collections.abc import Collection

import numpy as np

from edgert.runtime.records import Detections, Result, label_of
from edgert.stages.bytetrack import iou
from edgert.stages.zones.rules import Events

SURE = 0.5
"""Score from which the other model must find an object, too."""
OVERLAP = 0.5
"""Least overlap (IoU) of two boxes that count as one object."""


class Chooser:
    """Chooser of frames by the records of models. Times are positions in the stream.

    Args:
        score: range of scores; a frame with a detection in it is kept.
        differ: names of two stages; a frame on which they disagree is kept.
        rules: names of rules; a frame in which an event of one begins is kept.
        gap_ns: least time between two frames of a stream that are kept for ``score`` or ``differ``.
    """

    def __init__(
        self,
        score: tuple[float, float] | None = None,
        differ: tuple[str, str] | None = None,
        rules: Collection[str] = (),
        gap_ns: int = 0,
    ) -> None:
        self._score, self._differ, self._rules, self._gap_ns = score, differ, frozenset(rules), gap_ns
        self._kept_ns, self._taken_ns = dict[str, int](), dict[str, int]()

    def reasons(self, result: Result, every_ns: int) -> list[str]:
        """Return the reasons to keep a frame; none for a frame that is not worth a label.

        Args:
            result: the frame with its records.
            every_ns: period in which one frame of each stream is kept in any case; 0: none is.
        """
        stream, now_ns = result.frame.stream, result.frame.media_ns
        found = []
        if every_ns and _has_passed(self._taken_ns.get(stream), now_ns, every_ns):
            found.append("every")
            self._taken_ns[stream] = now_ns
        events = result.latest(Events) if self._rules else None
        if events is not None:
            begun = {one.rule for one in events.events if one.phase == "begin"} & self._rules
            found += [f"rule {rule}" for rule in sorted(begun)]
        if _has_passed(self._kept_ns.get(stream), now_ns, self._gap_ns) and (doubtful := self._doubts(result)):
            found += doubtful
            self._kept_ns[stream] = now_ns
        return found

    def _doubts(self, result: Result) -> list[str]:
        found = []
        if self._score is not None:
            low, high = self._score
            scores = result.detections.scores
            if ((scores >= low) & (scores <= high)).any():
                found.append("score")
        if self._differ is not None:
            one, other = (result.outputs.get(stage) for stage in self._differ)
            if isinstance(one, Detections) and isinstance(other, Detections) and disagree(one, other):
                found.append("differ")
        return found


def _has_passed(since_ns: int | None, now_ns: int, length_ns: int) -> bool:
    """Return whether a time has passed, or the stream has started over."""
    return since_ns is None or not 0 <= now_ns - since_ns < length_ns


def disagree(one: Detections, other: Detections) -> bool:
    """Return whether either has an object with a score of at least :data:`SURE` that the other lacks at any score."""
    return _lacks_an_object(one, other) or _lacks_an_object(other, one)


def _lacks_an_object(sure: Detections, other: Detections) -> bool:
    wanted = sure[sure.scores >= SURE]
    if not len(wanted) or not len(other):
        return bool(len(wanted))
    same = np.array(_names(wanted))[:, None] == np.array(_names(other))
    overlaps = iou(wanted.boxes.T.astype(np.float64), other.boxes.T.astype(np.float64))
    return not (same & (overlaps >= OVERLAP)).any(axis=1).all()


def _names(found: Detections) -> list[str]:
    return [label_of(found.labels, one) for one in found.classes.tolist()]
