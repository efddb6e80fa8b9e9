"""Sink that shows the newest image of every stream in a window on this machine's screen."""

import logging
import os
import select
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace

import cv2
import numpy as np

from edgert import installation
from edgert.errors import DeviceError
from edgert.runtime.frame import U8
from edgert.runtime.records import Result, without_delivery
from edgert.stages.context import Context
from edgert.stages.draw import ImagePainter, Overlay
from edgert.stages.kinds import Display
from edgert.stages.sink import viewers

_LOG = logging.getLogger(__name__)
_ELEMENTS = ("boxes", "labels", "masks", "keypoints")  # drawn here where no draw stage did, as on the live page
_DEFAULT_LIMIT = (1280, 720)  # pixels of a window without a configured size
_TICK_S = 0.1
_STALLED_S = 5.0
_RETRY_S = 10.0
_SETTLED_S = 2.0
_STDERR_BYTES = 4096


class DisplaySink:
    """Sink that shows the drawn image, or else the frame with its boxes, labels, masks and keypoints.

    Each stream's window has its own thread and viewer process (:mod:`edgert.stages.sink.viewers`). It takes the newest
    image whenever it is ready for one, so that no display delays the pipeline. A viewer that ends is started again when
    the display is back, unless the user closed the window.
    """

    def __init__(self, name: str, config: Display, context: Context) -> None:
        self.name, self.size, self.fullscreen = name, (config.width, config.height), config.fullscreen
        self._leave = context.leave
        self.viewer = ""
        self._windows: dict[str, Window] = {}

    def open(self) -> None:
        """Find a viewer that works. Raises DeviceError when none does, with the reason of each."""
        here = viewers.display_environment()
        self.viewer, refused = viewers.find_viewer(here, fullscreen=self.fullscreen, where=f"stages.{self.name}")
        why_not = "".join(f"; not {name}: {why}" for name, why in refused.items())
        _LOG.info("%s: windows on %s by %s%s", self.name, here.place, self.viewer, why_not)
        if self.fullscreen and self.viewer not in viewers.FULLSCREEN:
            _LOG.warning("%s: %s cannot fill the screen and shows a window. fix: %s",
                         self.name, self.viewer, installation.command("display"))  # fmt: skip

    def process(self, result: Result) -> None:
        """Give the result to its stream's window without waiting. Raises an earlier error of that window's thread."""
        stream = result.frame.stream
        if stream not in self._windows:
            self._windows[stream] = Window(self, stream)
        self._windows[stream].show(result)

    def close(self) -> None:
        """Close all windows, within a second."""
        for window in self._windows.values():
            window.end()
        for window in self._windows.values():
            window.join(1.0)  # a window that waits for its display ends later
        self._windows.clear()

    def on_closed(self) -> None:
        """Stop the pipeline when the user has closed the last window."""
        if all(window.is_closed for window in list(self._windows.values())):
            _LOG.info("%s: every window was closed", self.name)
            self._leave()


class Window(threading.Thread):
    """The window of one stream.

    Attributes:
        is_closed: whether the user has closed it.
        skipped: number of images that newer ones replaced before they were shown.
    """

    def __init__(self, sink: DisplaySink, stream: str) -> None:
        super().__init__(name=f"edgert:{sink.name}:{stream}", daemon=True)
        self._sink, self._stage, self._stream, self._program = sink, sink.name, stream, sink.viewer
        self._changed, self._ending = threading.Condition(), threading.Event()
        self._newest: Result | None = None
        self._shown = WindowImage()
        self._viewer: Viewer | None = None
        self._started_s, self._retry_at_s, self._failures = 0.0, 0.0, dict[str, str]()
        self._reported = ""
        self._error: Exception | None = None
        self.is_closed, self.shown, self.skipped = False, 0, 0
        self.start()

    def show(self, result: Result) -> None:
        """Replace the newest result. Raises the error that ended this thread."""
        if self._error is not None:
            raise self._error
        with self._changed:
            if self.is_closed:
                return
            result = without_delivery(result)
            result.frame.lease.retain()
            before, self._newest = self._newest, result
            self._changed.notify()
        if before is not None:
            self.skipped += 1
            before.frame.lease.release()

    def end(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._ending.set()
        with self._changed:
            self._changed.notify()

    def run(self) -> None:
        """Show images until the end; the thread's body."""
        try:
            while not self._ending.is_set() and not self.is_closed:
                self._step()
        except Exception as error:  # noqa: BLE001 - raised by show(), in the thread of the stage
            self._error = error
        finally:
            if self._viewer is not None:
                self._viewer.close()
            self._shown.close()
            with self._changed:
                newest, self._newest, self.is_closed = self._newest, None, True
            if newest is not None:
                newest.frame.lease.release()
            _LOG.debug("%s: %s: %d images shown, %d skipped", self._stage, self._stream, self.shown, self.skipped)

    def _step(self) -> None:
        """Show the next image, if there is one within 0.1 s; handle the end of the viewer."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._ending.is_set(), _TICK_S)
            result, self._newest = self._newest, None
        if result is not None:
            try:
                if time.monotonic() < self._retry_at_s:
                    return
                image = self._shown.convert(result, self._sink.size)
            finally:
                result.frame.lease.release()
            if self._viewer is None and not self._start():
                return
            assert self._viewer is not None
            self.shown += self._viewer.put(image, self._ending)
            if self._reported and self._has_settled():
                _LOG.warning("%s: the window of %s is back, by %s", self._stage, self._stream, self._program)
                self._reported = ""
        if self._viewer is not None and (reason := self._viewer.end_reason()):
            self._viewer.close()
            self._viewer = None
            self._handle_end(reason)

    def _start(self) -> bool:
        """Start a viewer; return whether that worked."""
        here = viewers.display_environment()
        try:
            if not self._program:
                self._program, _ = viewers.find_viewer(here, fullscreen=self._sink.fullscreen)
            command = viewers.command(self._program, self._shown.size, self._stream, fullscreen=self._sink.fullscreen)
            self._viewer = Viewer(command, viewers.environment(self._program, here))
        except (DeviceError, OSError):  # the display is still gone, which was reported
            self._retry_at_s = time.monotonic() + _RETRY_S
            return False
        self._started_s = time.monotonic()
        return True

    def _handle_end(self, reason: str) -> None:
        """Handle the end of the viewer: the user closed it, it does not work here, or the display is gone."""
        if viewers.CLOSED in reason:
            self.is_closed = True
            self._sink.on_closed()
            return
        self._failures[self._program] = reason
        ranked = viewers.rank_viewers(viewers.display_environment(), fullscreen=self._sink.fullscreen)
        others = [name for name in ranked if name not in self._failures]
        if others and not self._has_settled():
            _LOG.warning("%s: %s failed (%s); trying %s", self._stage, self._program, reason, others[0])
            self._program = others[0]
            return
        if reason != self._reported:  # once for each reason
            now = f"The pipeline goes on; the display is tried again every {_RETRY_S:g} s"
            _LOG.warning("%s: the window of %s is gone: %s. %s", self._stage, self._stream, reason, now)
        self._program, self._failures, self._reported = "", {}, reason
        self._retry_at_s = time.monotonic() + _RETRY_S

    def _has_settled(self) -> bool:
        """Return whether the viewer has run long enough to show that it works here."""
        return time.monotonic() - self._started_s > _SETTLED_S


class WindowImage:
    """Converter of images of any size to the size of a window.

    Attributes:
        size: (width, height) in pixels, both even; (0, 0) before the first image.
    """

    def __init__(self) -> None:
        self.size = (0, 0)
        self._images, self._overlay = ImagePainter(), Overlay(_ELEMENTS)
        self._packed = np.zeros((0, 0, 4), np.uint8)
        self._place = (0, 0, 0, 0)

    def convert(self, result: Result, requested: tuple[int, int]) -> U8:
        """Return a result's image as (h, w, 4) uint8 BGRx, valid until the next call.

        An image of another aspect ratio gets black bars. An image on the GPU is painted and scaled there, and then
        copied to the host. Copies are counted.
        """
        frame, drawn = result.frame, result.image
        width, height = (frame.width, frame.height) if drawn is None else drawn.shape[1::-1]
        if self.size == (0, 0):
            self.size = window_size((width, height), requested)
            self._packed = np.zeros((*self.size[::-1], 4), np.uint8)
        place = fit_image((width, height), self.size)
        if place != self._place:
            self._packed[...] = 0
            self._place = place
        x, y, across, down = place
        if drawn is None:
            drawn = self._images.paint(result, across, lambda size: self._overlay.shapes(size, result))
        elif across != width:
            drawn = self._images.paint(result, across, lambda size: ())
        image = self._images.host_image(replace(result, image=drawn))[:down]
        cv2.cvtColor(image, cv2.COLOR_BGR2BGRA, dst=self._packed[y : y + len(image), x : x + across])
        frame.lease.counter.copied(self._packed.nbytes)
        return self._packed

    def close(self) -> None:
        """Free the buffers."""
        self._images.close()


def window_size(image: tuple[int, int], requested: tuple[int, int]) -> tuple[int, int]:
    """Return (width, height) of a window, both even.

    Args:
        image: (width, height) of the image.
        requested: (width, height) as configured. One side of 0 follows from the other; both 0: the image's size, at
            most 1280x720.
    """
    width, height = requested
    scale = min(1.0, _DEFAULT_LIMIT[0] / image[0], _DEFAULT_LIMIT[1] / image[1])
    if width or height:
        scale = width / image[0] if width else height / image[1]
    wide, high = width or round(image[0] * scale), height or round(image[1] * scale)
    return max(2, wide & ~1), max(2, high & ~1)  # viewers convert to 4:2:0, which needs even sizes


def fit_image(image: tuple[int, int], window: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return (x, y, width, height) of an image in the middle of a window, as large as its aspect ratio allows."""
    wide = max(1, round(image[0] * min(window[0] / image[0], window[1] / image[1])))
    high = min(window[1], max(1, round(image[1] * wide / image[0])))
    return (window[0] - wide) // 2, (window[1] - high) // 2, wide, high


class Viewer:
    """A running viewer process. Raises OSError when it cannot be started."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        # In a session of its own, so that Ctrl-C only reaches the pipeline, which then closes its windows.
        self._process = subprocess.Popen(  # noqa: S603 - no shell, and every word comes from viewers.command
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stderr is not None
        self._in, self._err, self._output, self._reason = self._process.stdin, self._process.stderr, b"", ""
        for file in (self._in, self._err):
            os.set_blocking(file.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._in, select.POLLOUT)

    def put(self, image: U8, ending: threading.Event) -> bool:
        """Write one image; return whether it was written completely before the viewer or the sink ended."""
        left, moved_s = memoryview(image.data).cast("B"), time.monotonic()
        while left and not ending.is_set() and not self.end_reason():
            if self._poll.poll(_TICK_S * 1000):
                with suppress(BlockingIOError, BrokenPipeError):
                    left, moved_s = left[os.write(self._in.fileno(), left) :], time.monotonic()
            elif time.monotonic() - moved_s > _STALLED_S:
                self._process.kill()
                self._reason = f"it took no image for {_STALLED_S:g} s"
        return not left

    def end_reason(self) -> str:
        """Return why the viewer has ended; empty while it runs."""
        if self._reason:
            return self._reason
        with suppress(BlockingIOError):
            while more := os.read(self._err.fileno(), _STDERR_BYTES):
                self._output = (self._output + more)[-_STDERR_BYTES:]
        code = self._process.poll()
        if code is not None:
            self._reason = viewers.exit_reason(self._output.decode(errors="replace"), code)
        return self._reason

    def close(self) -> None:
        """End the viewer, within half a second."""
        self._in.close()  # the viewer ends at the end of its input
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        self._process.kill()
        self._process.wait()
        self._err.close()
