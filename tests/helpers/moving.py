"""Objects that move as a test says: results of a camera, a tenth of a second from one to the next."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.runtime import Detections, Result
from edgert.stages.context import Context
from edgert.stages.zones.areas import ZonesSection, ZonesStage
from edgert.stages.zones.rules import EventsSection, EventsStage
from edgert.testing import sample

LABELS = ("person", "car")
STEP_S = 0.1


class Scene:
    """A camera of 100 x 100 pixels."""

    def __init__(self, stream: str = "camera") -> None:
        self.size, self.seconds = (100, 100), 0.0
        self._stream, self._index = stream, -1

    def at(
        self,
        feet: Mapping[int, tuple[float, float]],
        classes: Sequence[int] | None = None,
        scores: Sequence[float] | None = None,
        seconds: float = STEP_S,
    ) -> Result:
        """The next frame; ``feet``: number of each object → where it stands, in a box 8 pixels wide and 16 high."""
        count = len(feet)
        places = np.array(list(feet.values()), np.float32).reshape(-1, 2)
        boxes = np.concatenate([places - np.array([4, 16]), places + np.array([4, 0])], axis=1).astype(np.float32)
        found = Detections(
            boxes,
            np.array(scores if scores is not None else [0.9] * count, np.float32),
            np.array(classes if classes is not None else [0] * count, np.int32),
            LABELS,
            np.array(list(feet), np.int64),
        )
        return self.of(found, seconds)

    def of(self, found: Detections | None, seconds: float = STEP_S) -> Result:
        self._index, self.seconds = self._index + 1, self.seconds + seconds
        frame = replace(
            sample(self._index).frame,
            stream=self._stream,
            index=self._index,
            timestamp_ns=time.monotonic_ns(),
            media_ns=round(self.seconds * 1e9),
            width=self.size[0],
            height=self.size[1],
        )
        return Result(frame, {} if found is None else {"track": found})


def zones_stage(
    zones: Mapping[str, Any] | None = None, lines: Mapping[str, Any] | None = None, **keys: Any
) -> ZonesStage:
    """The stage of a section with these keys."""
    written = {"stage": "zones", "from": "track", "zones": zones or {}, "lines": lines or {}, **keys}
    return ZonesStage("areas", ZonesSection.model_validate(written))


def events_stage(**rules: Mapping[str, Any]) -> EventsStage:
    """The stage of these rules."""
    written = {"stage": "events", "from": "areas", "rules": rules}
    return EventsStage("alarm", EventsSection.model_validate(written).rules, Context().clock)
