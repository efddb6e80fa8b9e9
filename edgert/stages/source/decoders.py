"""Choice of a source's video decoder: the board's own, the GPU's, or FFmpeg on the processor."""

import logging
from collections import deque

from edgert.board.detect import is_jetson

log = logging.getLogger("edgert.source")

MOST_FAILURES, FAILURES_WITHIN_NS = 3, 60_000_000_000
"""Failures of a decoder after its first image, within this time, that make the processor take over."""


class DecoderChoice:
    """Decoder of one source, across its connections. The first choice is logged, and every change.

    ``refused`` says why hardware does not decode the video.
    """

    def __init__(self, where: str, decode: str) -> None:
        self._where = where
        self._failed_ns: deque[int] = deque(maxlen=MOST_FAILURES)
        self.decode, self.refused, self._logged = decode, "", ""
        self.is_jetson = is_jetson()

    def fall_back(self, reason: str) -> None:
        """Decode on the processor from now on, because hardware refused the video or failed often."""
        self.refused = reason
        log.warning("%s: decoded on the CPU from now on: %s", self._where, reason)
        self._logged = f"decoded on the CPU: {reason}"

    def record_failure(self, reason: str, now_ns: int) -> None:
        """Record a failure after the first image, at ``now_ns``. The processor takes over where failures repeat."""
        self._failed_ns.append(now_ns)
        is_often = len(self._failed_ns) == MOST_FAILURES and now_ns - self._failed_ns[0] <= FAILURES_WITHIN_NS
        if is_often and not self.refused and self.decode != "gpu":
            self.fall_back(f"the board's decoder failed {MOST_FAILURES} times within a minute, last with: {reason}")

    def log_decoder(self, reason: str, decoder: str) -> None:
        """Log which decoder runs; ``reason`` says why it is the processor, empty for hardware."""
        what = f"decoded on the CPU: {reason}" if reason else f"decoded by {decoder}"
        if what != self._logged:
            self._logged = what
            log.info("%s: %s", self._where, what)
