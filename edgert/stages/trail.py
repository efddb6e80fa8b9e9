"""Where tracked objects have been."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from edgert.runtime.record import Detections

_LENGTH = 30  # centres: a second of video


class Trails:
    """The last centres of every track of one stream."""

    def __init__(self) -> None:
        self._centres: dict[int, deque[list[float]]] = {}
        self._seen: dict[int, int] = {}
        self._frames = 0

    def add(self, record: Detections) -> None:
        """Notes where the objects are now, and forgets tracks that were not seen for as long as a trail is."""
        if record.ids is None:
            return
        self._frames += 1
        centres = ((record.boxes[:, :2] + record.boxes[:, 2:]) / 2).tolist()
        for number, centre in zip(record.ids.tolist(), centres, strict=True):
            self._centres.setdefault(number, deque(maxlen=_LENGTH)).append(centre)
            self._seen[number] = self._frames
        for number in [number for number, seen in self._seen.items() if self._frames - seen > _LENGTH]:
            del self._seen[number], self._centres[number]

    def of(self, record: Detections) -> list[tuple[int, npt.NDArray[np.float64]]]:
        """(track number, (N, 2) source pixels, oldest first) of every object that is in the picture now."""
        numbers = [] if record.ids is None else record.ids.tolist()
        return [(number, np.array(self._centres[number])) for number in numbers if number in self._centres]
