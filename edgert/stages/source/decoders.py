"""The decoder of one source, chosen once: a Jetson's own, the GPU's, or the processor."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from edgert.board.detect import is_jetson
from edgert.stages.source.live import FinalError

if TYPE_CHECKING:
    from edgert.memory.cuda import CudaDevice
    from edgert.stages.source.ffmpeg import Video

log = logging.getLogger("edgert.source")

MOST_FAILURES, FAILURES_WITHIN_NS = 3, 60_000_000_000
"""Failures of a decoder after its first image, and their time span, after which the processor takes over."""


class Choice:
    """One source's decoder. What is chosen is logged when it is chosen first, and when it changes.

    Args:
        where: the source's stage.
        decode: as in the pipeline file.

    Attributes:
        refused: why the decoder did not take the video; empty where it was not tried, or does.
    """

    def __init__(self, where: str, decode: str) -> None:
        self._where = where
        self._failed_ns: deque[int] = deque(maxlen=MOST_FAILURES)
        self.decode, self.refused, self._said = decode, "", ""
        self._is_jetson = is_jetson()

    def apply(self, video: Video, device: CudaDevice | None) -> None:
        """Choose the decoder of a video that was just opened. ``device`` is where frames are wanted; None for the host.

        Raises:
            FinalError: ``decode: gpu``, and the GPU cannot decode it.
        """
        reason = "decode: cpu" if self.decode == "cpu" else self.refused or video.why_not_on(device)
        if not reason:
            video.decode_on(device, None if self.decode == "gpu" else self.refuse, self.failed)
        elif self.decode == "gpu":
            video.close()
            what = f"{video.target} cannot be decoded on the GPU"
            raise FinalError(what, why=reason, where=self._where, fix="decode: cpu")
        if device is not None or self._is_jetson:
            self.say(reason, video.decoder)

    def refuse(self, reason: str) -> None:
        """Decode on the processor from now on, because the decoder did not take the video."""
        self.refused = reason
        log.warning("%s: decoded on the CPU from now on: %s", self._where, reason)
        self._said = f"decoded on the CPU: {reason}"

    def failed(self, reason: str, now_ns: int) -> None:
        """Record a failure after the first image. The processor takes over where failures repeat."""
        self._failed_ns.append(now_ns)
        is_often = len(self._failed_ns) == MOST_FAILURES and now_ns - self._failed_ns[0] <= FAILURES_WITHIN_NS
        if is_often and not self.refused and self.decode != "gpu":
            self.refuse(f"the board's decoder failed {MOST_FAILURES} times within a minute, at last: {reason}")

    def say(self, reason: str, decoder: str) -> None:
        """Log which decoder runs, and why the processor where it does."""
        what = f"decoded on the CPU: {reason}" if reason else f"decoded by {decoder}"
        if what != self._said:
            self._said = what
            log.info("%s: %s", self._where, what)
