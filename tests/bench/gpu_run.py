"""1080p NV12 frames in memory that a GPU reads, as the sources of the benches have them."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgert.memory import Counter, lend
from edgert.memory.cuda import CudaDevice, SharedPool
from edgert.runtime import Frame

WIDTH, HEIGHT = 1920, 1080
BUFFERS, CAMERA_BUFFERS = 48, 6
"""Of a file: batches of eight under way, and queues. A camera has fewer."""


def frame_of(pixels: Any, stream: str = "cam", index: int = 0, at_ns: int = 0) -> Frame:
    planes = pixels[:HEIGHT], pixels[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)
    return Frame(stream, index, at_ns, 0, WIDTH, HEIGHT, "nv12", planes, lend(pixels, Counter()))


class Pinned:
    """Frames in pinned memory that have been written into it before, as cameras and decoders do; a new one each time
    for whoever takes them."""

    def __init__(self, device: CudaDevice, pixels: Sequence[Any], count: int = BUFFERS) -> None:
        self._pool = SharedPool(device, pixels[0].nbytes, count)
        held = [self.take() for _ in range(count)]
        for index, frame in enumerate(held):
            luma, chroma = frame_of(pixels[index % len(pixels)]).planes
            np.copyto(frame.planes[0], luma)
            np.copyto(frame.planes[1], chroma)
            frame.lease.release()

    def take(self, stream: str = "cam", index: int = 0, at_ns: int | None = None) -> Frame:
        """Waits until a buffer is free; of that moment, unless it is of another."""
        leased = self._pool.acquire()
        assert leased is not None
        pixels = leased[0].reshape(-1, WIDTH)
        planes = pixels[:HEIGHT], pixels[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)
        now_ns = time.monotonic_ns() if at_ns is None else at_ns
        return Frame(stream, index, now_ns, 0, WIDTH, HEIGHT, "nv12", planes, leased[1])
