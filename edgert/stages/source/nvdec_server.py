"""The process that decodes files by NVDEC for another: see :mod:`edgert.stages.source.nvdec_process`."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from edgert.clock import REAL
from edgert.errors import EdgertError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, open_device
from edgert.memory.cuda.ipc import export
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.nvdec import nvdec
from edgert.stages.source.nvdec_process import BURST, END, FAILED, HEAD, IMAGE, MESSAGE_BYTES, MORE, NEW, UNTIMED, fill
from edgert.stages.source.timeline import Image


class Served:
    """One file there.

    Args:
        opened: opens it, to be decoded on the device; raises EdgertError.
    """

    def __init__(self, device: CudaDevice, way: socket.socket, opened: Callable[[], Video]) -> None:
        self._device, self._way, self._opened = device, way, opened
        self._video: Video | None = None
        self._held: dict[int, Image] = {}
        self._known: set[int] = set()
        self._size = (0, 0)

    def serve(self) -> None:
        """Answers until nobody asks any more."""
        try:
            images = self._images()
            while True:
                for key in self._asked():
                    self._held.pop(key).lease.release()
                self._way.sendall(self._answer(images))
        except OSError:  # whoever asked has closed it, or has ended
            pass
        finally:
            self._held.clear()  # with the decoder, in the thread that it worked in
            if self._video is not None:
                self._video.close()
            self._way.close()

    def _images(self) -> Iterator[Image]:
        self._video = self._opened()
        yield from self._video.images()

    def _asked(self) -> Iterable[int]:
        """Surfaces that come back. Raises OSError."""
        head = memoryview(bytearray(4))
        fill(self._way, head)
        keys = memoryview(bytearray(8 * int.from_bytes(head, sys.byteorder)))
        fill(self._way, keys)
        return keys.cast("Q")

    def _answer(self, images: Iterator[Image]) -> bytes:
        try:
            body = self._some(self._burst(images))
        except EdgertError as error:
            body = self._head(FAILED) + json.dumps(error.to_json()).encode()
        return len(body).to_bytes(4, sys.byteorder) + body

    def _burst(self, images: Iterator[Image]) -> list[Image]:
        """What comes next without a wait."""
        found = list[Image]()
        for image in images:
            found.append(image)
            if len(found) == BURST or not (self._video is not None and self._video.at_hand):
                break
        return found

    def _some(self, burst: list[Image]) -> bytes:
        if not burst:
            return self._head(END)
        first: Any = burst[0].planes[0]
        first.stream.synchronize()  # the other process cannot wait for it
        height, width = first.shape
        if (width, height) != self._size:  # its surfaces are others now
            self._size = width, height
            self._known.clear()
        keys = [int(image.planes[0].pointer) for image in burst]  # type: ignore[attr-defined]
        self._held |= zip(keys, burst, strict=True)
        new = [key for key in keys if key not in self._known]
        self._known.update(new)
        times = [UNTIMED if image.media_ns is None else image.media_ns for image in burst]
        parts = [IMAGE.pack(*pair) for pair in zip(keys, times, strict=True)]
        for key in new:
            handle, offset = export(self._device, key)
            parts.append(NEW.pack(key, offset, handle))
        return self._head(MORE, len(burst), len(new)) + b"".join(parts)

    def _head(self, state: int, count: int = 0, new: int = 0) -> bytes:
        video = self._video
        counts = (0, 0) if video is None else (video.packets, video.skipped)
        return HEAD.pack(state, count, *self._size, new, *counts)


def main(control: socket.socket, ordinal: int) -> None:
    """Decodes whatever files are asked for, each in a thread of its own, until nobody can ask any more."""
    try:
        device = open_device(ordinal)
        nvdec()
        block = device.device_block(1 << 21)
        hello = {"handle": export(device, block.address).handle.hex()}
    except EdgertError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    control.send(json.dumps(hello).encode())
    while True:
        message, ways, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not ways:
            os._exit(0)  # whoever asked is gone, and so is what is decoded for
        path, where = json.loads(message)

        def opened(path: str = path, where: str = where) -> Video:
            video = Video(path, Counter(), REAL, where=where)
            video.decode_on(device)
            return video

        served = Served(device, socket.socket(fileno=ways[0]), opened)
        threading.Thread(target=served.serve, daemon=True).start()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
