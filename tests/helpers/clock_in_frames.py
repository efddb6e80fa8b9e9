"""A clock drawn into frames, and read back from what a player shows: the latency from glass to glass."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.memory import Counter
from edgert.runtime.records import Result
from tests.helpers.frames import frame_of

BITS, SIDE = 16, 32
"""Milliseconds since 1970, of which so many bits are shown, each a square of so many pixels."""

READ_IN_A_PAGE = """
(stream, count) => new Promise((resolve, reject) => {
  const video = document.querySelector(`video[data-stream="${stream}"]`);
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const found = [];
  const timer = setTimeout(() => reject(new Error(`${found.length} frames came`)), 60000);
  const take = () => {
    const now = performance.timeOrigin + performance.now();
    canvas.width = BITS * SIDE; canvas.height = SIDE;
    context.drawImage(video, 0, 0, BITS * SIDE, SIDE, 0, 0, BITS * SIDE, SIDE);
    let shown = 0;
    for (let bit = 0; bit < BITS; bit++) {
      const pixel = context.getImageData(bit * SIDE + SIDE / 2, SIDE / 2, 1, 1).data;
      shown += (pixel[1] > 128) * 2 ** bit;
    }
    found.push((Math.round(now) % 2 ** BITS - shown + 2 ** BITS) % 2 ** BITS);
    if (found.length < count) { video.requestVideoFrameCallback(take); return; }
    clearTimeout(timer);
    resolve(found);
  };
  video.requestVideoFrameCallback(take);
})
""".replace("BITS", str(BITS)).replace("SIDE", str(SIDE))
"""JavaScript: a function of a stream's name and a count, which gives the latencies of that many frames in ms."""


def draw(image: np.ndarray[Any, Any]) -> None:
    now = round(time.time() * 1000)
    for bit in range(BITS):
        image[:SIDE, bit * SIDE : (bit + 1) * SIDE] = 255 * (now >> bit & 1)


def read(luma: np.ndarray[Any, Any]) -> int:
    """The latency of a decoded image's clock, in ms; (h, w) uint8."""
    now, shown = round(time.time() * 1000), 0
    for bit in range(BITS):
        shown += int(luma[SIDE // 2, bit * SIDE + SIDE // 2] > 128) << bit
    return (now - shown) % (1 << BITS)


class Camera(threading.Thread):
    """Frames with a clock, into whatever takes results."""

    def __init__(
        self, take: Callable[[Result], object], fps: float, size: tuple[int, int], streams: tuple[str, ...] = ("cam",)
    ) -> None:
        super().__init__(daemon=True)
        self._take, self._fps, self.size, self._streams = take, fps, size, streams
        self.over, self.counter, self.shown, self.spent_s, self.slowest_s = threading.Event(), Counter(), 0, 0.0, 0.0

    def run(self) -> None:
        noise, due_s = dict[tuple[int, int], Any](), time.monotonic()
        while not self.over.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + 1 / self._fps, time.monotonic())
            for stream in self._streams:
                if self.size not in noise:
                    noise[self.size] = np.linspace(0, 255, self.size[0], dtype=np.uint8)[None, :, None]
                pixels = np.empty((self.size[1], self.size[0], 3), np.uint8)
                pixels[...] = noise[self.size] + np.uint8(self.shown % 256)
                draw(pixels)
                frame = frame_of(*self.size, pixels=(pixels,), counter=self.counter, index=self.shown, stream=stream)
                begun_s = time.thread_time()
                self._take(Result(replace(frame, timestamp_ns=time.monotonic_ns())))
                took_s = time.thread_time() - begun_s
                self.spent_s, self.slowest_s = self.spent_s + took_s, max(self.slowest_s, took_s)
                frame.lease.release()
            self.shown += 1

    def end(self) -> None:
        self.over.set()
        self.join()
