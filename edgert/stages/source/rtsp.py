"""Network cameras and streams: RTSP, HTTP, HLS, RTMP, through FFmpeg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.source.decoders import Choice
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.live import LiveSource, LoginError, redact
from edgert.stages.source.packets import Tap
from edgert.stages.source.rtsp_login import why_refused
from edgert.stages.source.timeline import Image, MediaClock, Timeline

if TYPE_CHECKING:
    import av

SCHEMES = ("rtsp", "rtsps", "http", "https", "rtmp", "udp")
_ROUNDING_NS = 500_000_000
"""Tolerance of a stream's length against the announced one, beside two frames."""
_NO_TIMESTAMPS = 0x80  # FFmpeg's AVFMT_NOTIMESTAMPS
_RECORDINGS = frozenset({".mp4", ".mkv", ".mov", ".avi", ".webm", ".m4v"})


def network_source(name: str, config: SourceStage, counter: Counter, clock: Clock) -> LiveSource:
    """Return a source for the URL in ``config``, opened again when nothing came for ``timeout``.

    It reads over TCP unless set otherwise and begins at a key frame. It is live, so that a slow pipeline sees the
    newest frame. ``realtime: false``, or the URL of a recording such as ``https://…/clip.mp4``, keeps every frame and
    is never begun anew.

    Raises:
        ConfigError: not a URL.
    """
    try:
        address = urlsplit(config.source)
        port = address.port
        has_host = port is not None or (bool(address.hostname) and address.scheme != "udp")
    except ValueError:
        has_host = False
    if not has_host:  # raised here, since the first error would quote the address with its password
        raise ConfigError(
            f"{redact(config.source)!r} is no network address",
            why="host or port is malformed",
            where=f"stages.{name}.source",
            fix="write rtsp://host:port/path; special characters of a password as %40 for @, %2F for /",
        )
    recorded = is_recording(config.source)
    live = not recorded if config.realtime is None else config.realtime
    reconnect = config.reconnect and not recorded  # it would begin anew, and give frames twice
    timeline = Timeline(name, config, clock, MediaClock(live=True), fps=config.fps, paced=False)

    choice, tap = Choice(f"stages.{name}", config.decode), Tap(clock, timeline.media, live=True, waits=not live)

    def connect(device: CudaDevice | None) -> Stream:
        stream = Stream(name, config, counter, clock)
        stream.tap = tap
        choice.apply(stream, device)
        return stream

    def why_not(device: CudaDevice) -> str:
        from edgert.stages.source.gst_decoder import missing

        return missing()  # whether the stream suits is known when it is there

    title = redact(config.source)
    wait_s = config.timeout if address.scheme in ("rtsp", "rtsps") else None
    return LiveSource(
        name,
        title,
        connect,
        timeline,
        clock,
        live=live,
        reconnect=reconnect,
        start=config.start,
        why_not=why_not,
        wait_s=wait_s,
        tap=tap,
    )


class Stream(Video):
    """One connection. Raises DeviceError when it cannot be made."""

    def __init__(self, name: str, config: SourceStage, counter: Counter, clock: Clock) -> None:
        scheme, colon, rest = config.source.partition(":")
        url, where, timeout_us = scheme.lower() + colon + rest, f"stages.{name}", str(round(config.timeout * 1e6))
        options = {"rw_timeout": timeout_us}  # ffmpeg-protocols(1) and ffmpeg-formats(1) have them all
        is_rtsp = scheme.lower() in ("rtsp", "rtsps")
        if is_rtsp:
            options = {
                "rtsp_transport": config.transport,
                "allowed_media_types": "video",  # sound would only hide that the image stands still
                "timeout": timeout_us,
                "max_delay": "0" if config.transport == "tcp" else "100000",  # µs to wait for late packets
                "fpsprobesize": "0",  # do not hold frames back to guess their rate
                "analyzeduration": "2000000",  # µs; needed only when the server's SDP leaves the image size out
            }
        wait_s = config.timeout
        try:
            super().__init__(
                url, counter, clock, where=where, options=options, timeout_s=wait_s, live=True, watched=is_rtsp
            )
        except LoginError as error:
            why = why_refused(url, wait_s, clock) if is_rtsp else ""
            if why:
                error.why, error.fix = why, "let the camera offer Digest with MD5 alone, or Basic alone"
            raise

        # FFmpeg guesses the length of a file that is nothing but images. Sound may last longer than images do.
        is_guessed = self._container.format.flags & _NO_TIMESTAMPS
        self._length_ns = None if is_guessed else self._stated_ns()
        self._first, self._last, self._count = 0, 0, 0

    @property
    def ending(self) -> str:
        if self._length_ns is None or not self._count or self._stream.time_base is None:
            return ""
        tick_ns = 1e9 * self._stream.time_base
        allowed_ns = _ROUNDING_NS + 2 * (self._last - self._first) * tick_ns / self._count
        # Who joins in the middle may get positions of the whole, or positions from there on.
        for end_ns in (self._last * tick_ns, (self._last - self._first) * tick_ns):
            if abs(self._length_ns - end_ns) <= allowed_ns:
                return f"its stream ended after {end_ns / 1e9:.1f} s of {self._length_ns / 1e9:.1f} s"
        return ""

    def images(self) -> Iterator[Image]:
        """Yield images. Only a stream that announced its length can end; every other end is a loss."""
        yield from super().images()
        is_checked = self._length_ns is not None
        if self.ending or (self.outline.duration_ns and not is_checked):
            return
        why = "the other side closed the connection"
        if self._length_ns:
            why += f" before the end of its {self._length_ns / 1e9:.1f} s"
        raise DeviceError(f"lost {self.target}", why=why, where=self.where, fix="check the camera and the network")

    def _packets(self) -> Iterator[av.Packet[Any]]:
        try:
            for packet in super()._packets():
                if (at := packet.pts) is not None:
                    self._first, self._last = (min(self._first, at), max(self._last, at)) if self._count else (at, at)
                    self._count += 1
                yield packet
        except DeviceError:
            if not self.ending:  # else a server hung up, or fell silent, that had sent everything
                raise

    def _stated_ns(self) -> int | None:
        stream = self._stream
        if stream.duration and stream.time_base is not None:
            return int(1e9 * stream.duration * stream.time_base)
        return self.outline.duration_ns if self.outline.is_silent else None


def is_recording(url: str) -> bool:
    """Return whether a URL names a file that has an end, not a live camera."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no address, as :func:`network_source` says
        return False
    return parts.scheme in ("http", "https") and PurePosixPath(parts.path).suffix.lower() in _RECORDINGS
