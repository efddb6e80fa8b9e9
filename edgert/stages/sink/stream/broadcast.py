"""The live video of one stream, encoded once for all its viewers, and not at all without viewers.

The stage only replaces the newest result, which the stream's own thread encodes. So neither a slow encoder nor a slow
viewer delays the pipeline.
"""

import logging
import re
import threading
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Protocol

from pydantic import Field

from edgert.errors import DeviceError, EdgertError
from edgert.runtime.records import Result, without_delivery
from edgert.stages.context import Context
from edgert.stages.draw import ImagePainter, Overlay
from edgert.stages.kinds import ShowsImages
from edgert.stages.sink import encoder_choice, encoders
from edgert.stages.sink.web.live_images import ELEMENTS

log = logging.getLogger("edgert.sink")

_REFRESH_TICKS = encoders.TICKS_HZ // 2
"""Least time between requested key frames, because each takes as many bits as many other images."""
_NAL = re.compile(rb"\x00\x00\x01(.)", re.DOTALL)
_SPS, _SLICES = 7, range(1, 6)  # ITU-T H.264, table 7-1


class Viewer(Protocol):
    """A viewer, whose video begins with a key frame. No method may wait."""

    def give(self, unit: encoders.Unit) -> None:
        """Take the next image."""

    def end(self) -> None:
        """End the stream: there will be no more images."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested properties of a video.

    Attributes:
        width: maximum width in pixels; smaller images are not enlarged.
        rate: maximum images per second; None: all.
        bitrate_bps: bits per second.
        usual_rate: expected images per second of the stream.
    """

    width: int
    rate: float | None
    bitrate_bps: int
    usual_rate: float


class Streams(ShowsImages):
    """Options common to sinks that stream; see [streaming](streaming.md)."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; set a password before you open it to the network",
    )
    width: int = Field(default=1280, ge=16, le=8192, description="maximum width; larger images are scaled down")
    fps: float | None = Field(default=None, gt=0, le=240, description="maximum images per second; default: all")
    bitrate: float = Field(default=4.0, ge=0.05, le=200, description="megabits per second")
    encode: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="as of `sink: video`")

    def choice(self, name: str) -> encoder_choice.EncoderChoice:
        """Return the chooser of encoders."""
        return encoder_choice.EncoderChoice(f"stages.{name}", "h264", self.encode, live=True)

    def wanted(self, context: Context) -> Wanted:
        """Return the requested properties of the video."""
        return Wanted(self.width, self.fps, round(self.bitrate * 1e6), context.rate_hz)


class Pace:
    """Rate limiter that drops images evenly, so that at most ``rate`` per second remain."""

    def __init__(self, rate: float | None) -> None:
        self._interval_ns = round(1e9 / rate) if rate else 0
        self._due_ns: int | None = None

    def takes(self, at_ns: int) -> bool:
        """Return whether to keep the image of a time. Times must rise."""
        if self._due_ns is not None and at_ns < self._due_ns - self._interval_ns // 4:  # tolerates a camera's jitter
            return False
        due_ns = at_ns if self._due_ns is None else self._due_ns
        self._due_ns = max(due_ns + self._interval_ns, at_ns) if self._interval_ns else None
        return True


def parameter_sets(data: bytes) -> bytes:
    """Return the part of an H.264 access unit before its first slice; no bytes without a sequence parameter set."""
    kinds = [(found.start(), found[1][0] & 31) for found in _NAL.finditer(data[:512])]
    if not any(kind == _SPS for _, kind in kinds):
        return b""
    end = next((at for at, kind in kinds if kind in _SLICES), len(data))
    return data[: end - 1 if end and data[end - 1 : end] == b"\x00" else end]


class Broadcast:
    """The video of one stream. Its thread begins with the first viewer; its encoder is open while there are viewers.

    Args:
        choice: chooser of the encoder, shared with the sink's other streams.
    """

    def __init__(self, stage: str, stream: str, choice: encoder_choice.EncoderChoice, wanted: Wanted) -> None:
        self.stream, self._choice, self._wanted = stream, choice, wanted
        self._name = f"{stage}:{stream}"
        self._changed = threading.Condition()
        self._newest: Result | None = None
        self._viewers = dict[Viewer, bool]()  # with whether they have had a key frame
        self._key_requested = self._closed = False
        self._pace = Pace(wanted.rate)
        self._images, self._overlay = ImagePainter(), Overlay(ELEMENTS)
        self._encoder: encoders.Encoder | None = None
        self._format: encoders.VideoFormat | None = None
        self._head, self._begin_ns, self._tick, self._key_tick = b"", 0, -1, -_REFRESH_TICKS
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.encoded = 0

    def show(self, result: Result) -> None:
        """Replace the newest result, if there are viewers.

        Raises an unexpected error of the thread, once. Images that cannot be encoded are logged, and end the viewers.
        """
        with self._changed:
            error, self._error = self._error, None
            if error is not None:
                raise error
            if not self._viewers or not self._pace.takes(result.frame.timestamp_ns):
                return
            result = without_delivery(result)
            result.frame.lease.retain()
            before, self._newest = self._newest, result
            self._changed.notify_all()
        if before is not None:
            before.frame.lease.release()

    def join(self, viewer: Viewer) -> None:
        """Add a viewer; end it at once if the stream has ended."""
        with self._changed:
            if not self._closed:
                self._viewers[viewer] = False
                self._key_requested = True
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"edgert:{self._name}", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return
        viewer.end()

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        with self._changed:
            self._viewers.pop(viewer, None)
            self._changed.notify_all()

    def refresh(self) -> None:
        """Request a key frame, for a viewer that lost images."""
        self._key_requested = True

    @property
    def viewers(self) -> int:
        """Number of viewers."""
        return len(self._viewers)

    def close(self) -> None:
        """End the thread and every viewer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._end_viewers()

    def _end_viewers(self) -> None:
        with self._changed:
            viewers, self._viewers = self._viewers, {}
        for viewer in viewers:
            viewer.end()

    def _run(self) -> None:
        try:
            try:
                while not self._closed:
                    self._step()
            finally:  # before the next viewer may begin another thread
                self._close_encoder()
                self._images.close()
        except Exception as error:  # noqa: BLE001 - raised by show(), in the thread of the stage
            with self._changed:
                self._error, self._thread = error, None
            self._end_viewers()
        finally:
            self._forget()  # once there are no viewers, so that show() keeps no other

    def _step(self) -> None:
        """Encode the next image, or close the encoder."""
        if (result := self._next()) is None:
            self._close_encoder()
            return
        try:
            self._encode(result)
        except EdgertError as error:
            log.warning("%s: %s", self._name, error)
            self._close_encoder()
            self._end_viewers()
        finally:
            result.frame.lease.release()

    def _next(self) -> Result | None:
        """Wait for the next result and return it; None when the last viewer has left, or at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._newest or self._closed or (self._encoder is not None and not self._viewers)
            )
            if not self._closed and self._viewers:
                result, self._newest = self._newest, None
                return result
        self._forget()
        return None

    def _forget(self) -> None:
        with self._changed:
            unused, self._newest = self._newest, None
        if unused is not None:
            unused.frame.lease.release()

    def _encode(self, result: Result) -> None:
        shown = self._scale(result)
        encoder = self._encoder_for(shown)
        tick = max((result.frame.timestamp_ns - self._begin_ns) * encoders.TICKS_HZ // 1_000_000_000, self._tick + 1)
        if self._key_requested and tick - self._key_tick >= _REFRESH_TICKS:
            self._key_requested, self._key_tick = False, tick
            encoder.refresh()
        self._tick = tick
        try:
            units = encoder.encode(shown, tick)
        except encoders.encoder_errors() as error:
            why = f"{error.what}: {error.why}" if isinstance(error, EdgertError) else str(error)
            if encoder.kind == "cpu":  # there is no other
                raise DeviceError("video cannot be encoded", why=why, where=self._choice.where) from error
            log.warning("%s: %s failed: %s", self._name, encoder.title, why)
            self._choice.refuse(encoder.kind, why)
            self._close_encoder()
            return
        self.encoded += 1
        for unit in units:
            self._give(unit)

    def _give(self, unit: encoders.Unit) -> None:
        if unit.is_key:
            self._key_tick = unit.tick
            self._head = (own := parameter_sets(unit.data)) or self._head
            if not own:
                unit = unit._replace(data=self._head + unit.data)
        with self._changed:
            if unit.is_key:
                self._viewers = dict.fromkeys(self._viewers, True)
            viewers = [viewer for viewer, has_begun in self._viewers.items() if has_begun]
        for viewer in viewers:
            viewer.give(unit)

    def _scale(self, result: Result) -> Result:
        """Return the result with the image to encode: the drawn one, or the frame with detections drawn, scaled."""
        drawn = result.image
        across = result.frame.width if drawn is None else drawn.shape[1]
        width = min(across, self._wanted.width)
        if drawn is not None and width == across:
            return result
        is_drawn = drawn is not None
        image = self._images.paint(result, width, lambda size: [] if is_drawn else self._overlay.shapes(size, result))
        return replace(result, image=image)

    def _encoder_for(self, shown: Result) -> encoders.Encoder:
        """Return an encoder for the image of a result: the open one, or another where size or colors have changed."""
        wanted, rate = self._wanted, self._wanted.rate or self._wanted.usual_rate
        format = encoders.video_format(shown, "h264", 23, Fraction(rate).limit_denominator(1001), wanted.bitrate_bps)
        if self._encoder is not None and format == self._format:
            return self._encoder
        self._close_encoder()
        self._encoder, self._format = self._choice.open(shown, format), format
        if self._tick < 0:
            self._begin_ns = shown.frame.timestamp_ns
        return self._encoder

    def _close_encoder(self) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.close()
            self._head, self._key_tick = b"", self._tick - _REFRESH_TICKS
