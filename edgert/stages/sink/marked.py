"""A sink whose results say that they are not what they seem: of a board that is only simulated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgert.runtime.records import Result
from edgert.runtime.stage import Stage
from edgert.stages.draw import Images, image_of
from edgert.stages.paint import INK, Pen

KEY = "simulated"
"""Among the outputs of a result: the label."""
_TEXT_SHARE, _LEAST_PX = 1 / 30, 12


class Marked:
    """Gives every result the label, and writes it across the foot of its image.

    Args:
        shows: whether the sink shows images; they are copied, since others may see them, too.
    """

    def __init__(self, sink: Stage, label: str, shows: bool) -> None:
        self._sink, self._label, self._shows = sink, label, shows
        self._images = Images()

    def open(self) -> None:
        """Opens the sink."""
        self._sink.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """What the sink makes of the labeled result."""
        result = result.with_output(KEY, self._label)
        return self._sink.process(self._painted(result) if self._shows else result)

    def close(self) -> None:
        """Closes the sink."""
        self._sink.close()

    def _painted(self, result: Result) -> Result:
        image = image_of(result, None, self._images)
        height = image.shape[0]
        Pen(max(_LEAST_PX, round(height * _TEXT_SHARE))).boxed(image, self._label, 0, height, INK)
        return replace(result, image=image)
