"""Motion filter: ends frames in which nothing moves, so that models and sinks rest meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgert.config import stages as section
from edgert.config.fields import Seconds
from edgert.runtime import Frame, Result
from edgert.runtime.frame import U8
from edgert.stages.context import SimpleStage

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

_WIDTH_PX = 160
"""Width of the compared image: it averages noise away, and a distant person still has some pixels."""
_MEMORY_S = 2.0
"""Time in which the background adopts most of a lasting change, such as of light."""


class MotionSection(section.PackageStage):
    """Filter that passes frames with motion against the background, and one frame every heartbeat.

    Models, trackers and sinks behind it rest otherwise.
    """

    takes_images: ClassVar[bool] = True
    detects: ClassVar[bool] = False
    threshold: float = Field(default=12.0, gt=0, le=255, description="gray levels by which a pixel must differ")
    part: float = Field(default=0.002, ge=0, le=1, description="part of the image that must differ")
    hold: Seconds = Field(default=2.0, description="time that frames pass after the last motion")
    heartbeat: Seconds = Field(default=10.0, gt=0, description="at least one frame passes in this time")

    def make(self, name: str, context: Context) -> Stage:
        return MotionGate(self)


@dataclass(slots=True)
class _Scene:
    """State of one stream.

    Attributes:
        background: (h, w) float32 gray levels.
        at_ns, moved_ns, passed_ns: media time of the last frame, of the last with motion, and of the last that passed.
    """

    background: npt.NDArray[np.float32]
    at_ns: int
    moved_ns: int
    passed_ns: int


class MotionGate(SimpleStage):
    """Stage that ends results of frames without motion; the first frame of a stream passes."""

    def __init__(self, section: MotionSection) -> None:
        self._threshold, self._part = section.threshold, section.part
        self._hold_ns, self._heartbeat_ns = round(section.hold * 1e9), round(section.heartbeat * 1e9)
        self._scenes: dict[str, _Scene] = {}

    def process(self, result: Result) -> Result | None:
        frame = result.frame
        image, now_ns = small_gray_image(frame, _WIDTH_PX), frame.media_ns
        scene = self._scenes.get(frame.stream)
        if scene is None or scene.background.shape != image.shape:
            self._scenes[frame.stream] = _Scene(image.astype(np.float32), now_ns, now_ns - self._hold_ns - 1, now_ns)
            return result
        if self._moves(scene, image):
            scene.moved_ns = now_ns
        # The weight follows time, not frames. It is limited, so that a change shows in at least two frames.
        weight = min(0.5, max(0.0, (now_ns - scene.at_ns) / 1e9 / _MEMORY_S))
        cv2.accumulateWeighted(image, scene.background, weight)
        scene.at_ns = now_ns
        if now_ns - scene.moved_ns > self._hold_ns and now_ns - scene.passed_ns < self._heartbeat_ns:
            return None
        scene.passed_ns = now_ns
        return result

    def close(self) -> None:
        self._scenes.clear()

    def _moves(self, scene: _Scene, image: U8) -> bool:
        differs = cv2.absdiff(image, cast("U8", cv2.convertScaleAbs(scene.background)))
        count = cv2.countNonZero(cv2.threshold(differs, self._threshold, 255, cv2.THRESH_BINARY)[1])
        return count > self._part * image.size


def small_gray_image(frame: Frame, width: int) -> U8:
    """Return a gray image (h, w) of the frame on the host, ``width`` pixels wide or as wide as the frame."""
    plane = frame.to_host().planes[0]
    if plane.ndim == 3:
        plane = cast("U8", cv2.extractChannel(plane, 0 if frame.format == "yuyv" else 1))  # luma, or green
    width = min(width, frame.width)
    size = width, max(1, round(frame.height * width / frame.width))
    return cast("U8", cv2.resize(plane, size, interpolation=cv2.INTER_AREA)).reshape(size[1], size[0])
