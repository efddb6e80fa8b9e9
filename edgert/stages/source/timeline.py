"""Gives pictures their place in a stream: number, position, pace, and an end."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from edgert.clock import Clock
from edgert.config.stage import SourceStage
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import Frame
from edgert.stages.gpu.staging import Staging
from edgert.stages.source.pace import MediaClock, Pacer, Thinner
from edgert.stages.source.picture import Picture


class Timeline:
    """Turns pictures into frames, obeying ``fps``, ``limit`` and pacing.

    Args:
        stream: name of the source stage.
        config: gives ``limit``.
        media: positions in the stream; the source calls its ``restart`` between connections and loops.
        fps: frames to keep per second of the stream; None keeps all.
        paced: whether frames are held back until they are due.
    """

    def __init__(
        self, stream: str, config: SourceStage, clock: Clock, media: MediaClock, *, fps: float | None, paced: bool
    ) -> None:
        self.media = media
        self._stream, self._limit, self._clock = stream, config.limit, clock
        self._thinner = Thinner(fps)
        self._pacer = Pacer(clock) if paced else None
        self._staging: Staging | None = None

    def share(self, device: CudaDevice) -> None:
        """From now on, frames lie in memory that this GPU reads; those of others are copied there, and counted."""
        self._staging = Staging(device)

    def frames(self, pictures: Iterable[Picture], stop: threading.Event) -> Iterator[Frame]:
        """Frames until the pictures end, the limit is reached or ``stop`` is set. Leases pass on to the frames;
        those of pictures that are left out end here."""
        try:
            yield from self._placed(pictures, stop)
        finally:
            if self._staging is not None:
                self._staging.close()

    def _placed(self, pictures: Iterable[Picture], stop: threading.Event) -> Iterator[Frame]:
        index = count = 0
        for picture in pictures:
            media_ns = self.media.at(picture.media_ns, picture.timestamp_ns)
            index += picture.lost
            is_kept = self._thinner.keeps(media_ns)
            if stop.is_set() or (is_kept and self._pacer and not self._pacer.wait(media_ns, stop)):
                picture.lease.release()
                return
            if not is_kept:
                picture.lease.release()
                continue
            yield self._frame(picture, index, media_ns)
            del picture  # nothing here holds on to a camera's buffer while the next frame is awaited
            index, count = index + 1, count + 1
            if count == self._limit:
                return

    def _frame(self, picture: Picture, index: int, media_ns: int) -> Frame:
        frame = Frame(
            stream=self._stream,
            index=index,
            timestamp_ns=self._clock.now_ns() if self._pacer else picture.timestamp_ns,
            media_ns=media_ns,
            width=picture.width,
            height=picture.height,
            format=picture.format,
            planes=picture.planes,
            lease=picture.lease,
            color=picture.color,
        )
        return frame if self._staging is None else self._staging.taken(frame)
