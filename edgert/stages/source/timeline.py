"""Time within a stream: positions that never run backwards, pacing, even reduction of the frame rate, and frames."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.frozen import with_fast_init
from edgert.memory import Lease
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import NO_EXTRA, U8, Color, DepthImage, Frame, FrameExtra, PixelFormat
from edgert.runtime.stage import SourceStats
from edgert.stages.context import Context
from edgert.stages.gpu.upload import Staging

YUV = Color()


@with_fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """Image from a decoder or camera, which becomes a Frame when it gets a number and a position.

    Attributes:
        format, planes, lease, color: as in :class:`edgert.runtime.frame.Frame`, which has the size of its first plane.
        timestamp_ns: time of capture or decoding by the monotonic clock.
        media_ns: position by the stream's own clock, which may jump; None without one.
        lost: number of images known to be missing just before this one.
        file: name of the image file; empty for other sources.
        sender_ns: capture time in ns since 1970, by the clock of a network camera; None without one.
        depth: distances that a depth camera measured with it.
    """

    format: PixelFormat
    planes: tuple[U8, ...]
    lease: Lease
    timestamp_ns: int
    media_ns: int | None = None
    color: Color = YUV
    lost: int = 0
    file: str = ""
    sender_ns: int | None = None
    depth: DepthImage | None = None


DEFAULT_PERIOD_NS = 40_000_000
"""Frame period of streams without a rate, as FFmpeg assumes it."""
JUMP_NS = 10_000_000_000
"""Step between two frames that shows a set clock; no camera pauses that long."""
LEAST_NS = 1_000
"""Distance given to two frames to which a stream gives the same time."""
SETTLED_NS = 1_000_000_000
"""First part of a live stretch, in which its position is corrected."""
LATE_NS = 1_000_000_000
"""Delay after which a paced stream does not catch up: the machine slept, or the pipeline is too slow."""


class MediaClock:
    """Converter of a stream's timestamps into positions that start at 0 and always increase.

    A new connection, a loop, or a changed clock starts a new stretch. Live streams continue after the time that really
    passed. Files continue one frame period behind the last frame.

    A server sends its stored images to a new client at once, which would put each live stretch ahead for good. So,
    except for the first, a live stretch is placed by that frame of its first second which has the least delay.

    Args:
        live: whether gaps last as long as they really did.
        period_ns: assumed frame period where nothing better is known. 0 for times that a program gives its images:
            equal times stay equal, and a time before the last one becomes the last one.
    """

    def __init__(self, live: bool, period_ns: int = 0) -> None:
        self._live, self._period_ns, self._is_checked = live, period_ns, live or period_ns > 0
        self._last: tuple[int, int | None, int] | None = None
        self._step_ns, self._stood = 0, 0  # last step of a file's times, and number of frames without a step
        self._shift_ns = 0
        self._is_new = True
        self._began_ns, self._began_at_ns = 0, 0  # start of the stretch by the clock, and its position
        self._is_settled = True
        self._shifts = deque[tuple[int, int]]([(0, 0)], maxlen=256)  # (first position, shift)

    def restart(self, period_ns: int | None = None) -> None:
        """Begin a new stretch with the next frame: another connection, or the file from its start."""
        self._is_new = True
        self._period_ns = self._period_ns if period_ns is None else period_ns

    def at(self, media_ns: int | None, now_ns: int) -> int:
        """Return the position of a frame with stream time ``media_ns`` (None: unknown), seen at ``now_ns``."""
        position = self._position(media_ns, now_ns)
        if self._is_new:
            self._began_ns, self._began_at_ns = now_ns, position
            # The first stretch cannot be ahead. FFmpeg gives the first frame of a connection no time.
            self._is_settled = self._last is None or (self._is_settled and self._last[1] is None)
        self._is_new = False
        if media_ns is None and self._last is not None and not self._live:
            media_ns = self._last[1]
        self._last = (position, media_ns, now_ns)
        if self._shift_ns != self._shifts[-1][1]:
            self._shifts.append((position, self._shift_ns))
        return position

    def stream_ns(self, position_ns: int) -> int:
        """Return the stream's own time at the position of one of the last frames. From any thread."""
        shifts = list(self._shifts)
        return position_ns - next((by for begin, by in reversed(shifts) if begin <= position_ns), shifts[0][1])

    def _position(self, media_ns: int | None, now_ns: int) -> int:
        if self._last is None:
            self._shift_ns = -(media_ns or 0)
            return 0
        last_ns, last_media_ns, last_now_ns = self._last
        passed_ns = max(now_ns - last_now_ns, 0) if self._live else self._step_ns or self._period_ns
        next_ns, least_ns = last_ns + passed_ns, LEAST_NS * self._is_checked
        if media_ns is None:
            return next_ns if passed_ns else last_ns + least_ns
        step_ns = None if last_media_ns is None else media_ns - last_media_ns
        self._stood = self._stood + 1 if step_ns == 0 else 0
        is_set = step_ns is None or (step_ns < 0 and self._is_checked) or (self._live and step_ns >= JUMP_NS)
        if self._is_new or is_set:
            self._is_new, self._shift_ns = True, next_ns - media_ns
        elif self._stood > 1 and self._is_checked:  # two frames may have one time; with more, the clock stands still
            self._shift_ns = next_ns - media_ns
        elif self._live and not self._is_settled and now_ns - self._began_ns < SETTLED_NS:
            due_ns = self._began_at_ns + now_ns - self._began_ns
            self._shift_ns = min(self._shift_ns, due_ns - media_ns)
        position_ns = media_ns + self._shift_ns
        if position_ns <= last_ns:
            return last_ns + least_ns
        if self._is_checked and not self._is_new:
            self._step_ns = position_ns - last_ns
        return position_ns


class Pacer:
    """Delay of frames until their position in the stream is due by the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ns: int | None = None

    def wait(self, media_ns: int, stop: threading.Event) -> bool:
        """Block until ``media_ns`` is due or ``stop`` is set; return whether to continue."""
        now_ns = self._clock.now_ns()
        if self._start_ns is None or now_ns - self._start_ns - media_ns > LATE_NS:
            self._start_ns = now_ns - media_ns
        left_ns = self._start_ns + media_ns - now_ns
        if left_ns <= 0:
            return not stop.is_set()
        return not self._clock.wait(stop, left_ns / 1e9)


@dataclass(slots=True)
class Thinner:
    """Reduction of the frame rate to ``fps`` by dropping frames evenly; None keeps every frame."""

    fps: float | None
    _slot: int = -1

    def keeps(self, media_ns: int) -> bool:
        """Return whether to keep the frame at this position."""
        if self.fps is None:
            return True
        # Positions are rounded to ticks, so a frame may lie slightly before its slot.
        slot = int(media_ns * self.fps / 1e9 + 1e-3)
        if slot <= self._slot:
            return False
        self._slot = slot
        return True


class Timeline:
    """Converter of images into frames, with ``fps``, ``limit`` and pacing.

    ``fps`` of None keeps all frames; ``paced`` holds them back until they are due. It ``is_over`` when the
    limit is reached.
    """

    def __init__(
        self,
        stream: str,
        config: SourceStage,
        clock: Clock,
        media: MediaClock,
        *,
        fps: float | None,
        paced: bool,
        file: str = "",
    ) -> None:
        self.media = media
        self._stream, self._limit, self._clock = stream, config.limit, clock
        self._extra = FrameExtra(file) if file else NO_EXTRA
        self._opened_fps = config.fps if fps is None else None
        self._thinner = Thinner(fps)
        self._pacer = Pacer(clock) if paced else None
        self._staging: Staging | None = None
        self._index = self._count = 0
        self.is_over = False

    def thin(self, fps: float | None) -> None:
        """Keep this many frames per second of the stream from now on; None keeps all. Callable from any thread.

        Raises StageError: the camera or the user's code was opened with a lower rate.
        """
        if self._opened_fps is not None and (fps is None or fps > self._opened_fps):
            why = f"it was opened with {self._opened_fps:g} frames per second"
            raise StageError(f"{self._stream!r} cannot give more frames", why=why, fix="restart it with this fps:")
        self._thinner = Thinner(fps)

    def share(self, device: CudaDevice) -> None:
        """Give frames in memory that this GPU reads from now on. Images in other memory are copied, and counted."""
        self._staging = Staging(device)

    def frames(self, images: Iterable[Image], stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until the images end, the limit is reached or ``stop`` is set.

        Leases pass on to the frames; those of dropped images end here.
        """
        self._index = self._count = 0
        self.is_over = False
        try:
            for image in images:
                try:
                    frame = self.frame(image, stop)
                except BaseException:
                    image.lease.release()
                    raise
                del image  # a camera's buffer must not stay in use while the next frame is awaited
                if frame is not None:
                    yield frame
                    del frame
                if self.is_over or stop.is_set():
                    return
        finally:
            self.close()

    @property
    def is_paced(self) -> bool:
        """Whether frames are held back until they are due."""
        return self._pacer is not None

    def frame(self, image: Image, stop: threading.Event) -> Frame | None:
        """Return an image's frame with its lease; return None and end the lease if it is dropped or ``stop`` is set.

        After an error, such as DeviceError for too little memory, the lease still belongs to the caller.
        """
        media_ns = self.media.at(image.media_ns, image.timestamp_ns)
        self._index += image.lost
        is_kept = self._thinner.keeps(media_ns)
        if stop.is_set() or not is_kept or (self._pacer and not self._pacer.wait(media_ns, stop)):
            image.lease.release()
            return None
        frame = self._frame(image, self._index, media_ns)
        self._index, self._count = self._index + 1, self._count + 1
        self.is_over = self._count == self._limit
        return frame

    def close(self) -> None:
        """Free shared memory when the last frame in it is released."""
        if self._staging is not None:
            self._staging.close()

    def _frame(self, image: Image, index: int, media_ns: int) -> Frame:
        height, width = image.planes[0].shape[:2]
        place = self._stream, index, self._clock.now_ns() if self._pacer else image.timestamp_ns, media_ns
        own = image.format, image.planes, image.lease, image.color
        frame = Frame(*place, width, height, *own, self._extra_of(image))
        return frame if self._staging is None else self._staging.shared_frame(frame)

    def _extra_of(self, image: Image) -> FrameExtra:
        if not image.file and image.sender_ns is None and image.depth is None:
            return self._extra
        return FrameExtra(image.file or self._extra.file, image.sender_ns, depth=image.depth)


class ImageSource(ABC):
    """Base of sources whose images wait until they are taken; override :meth:`_images`, and others where needed."""

    live = False

    def __init__(
        self, name: str, config: SourceStage, context: Context, media: MediaClock, fps: float | None, file: str = ""
    ) -> None:
        self._where, self._counter, self._clock = f"stages.{name}", context.counter, context.clock
        paced = bool(config.realtime)
        self._timeline = Timeline(name, config, context.clock, media, fps=fps, paced=paced, file=file)
        self._skipped = 0

    @abstractmethod
    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        """Yield images, with their leases, until they end or ``stop`` is set."""

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield the images' frames until they end, the limit is reached, or ``stop`` is set."""
        with closing(self._images(stop)) as images:
            yield from self._timeline.frames(images, stop)

    def stats(self) -> SourceStats:
        return SourceStats(self._skipped)

    def close(self) -> None:  # noqa: B027 - most need nothing else
        """Do nothing: :meth:`frames` closes what it has opened."""
