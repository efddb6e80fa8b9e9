"""Network cameras and streams: RTSP, HTTP, HLS, RTMP, through FFmpeg."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.context import Context
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.frame_times import NO_TIMESTAMPS
from edgert.stages.source.live import LiveSource, LoginError, redact
from edgert.stages.source.packets import Tap
from edgert.stages.source.timeline import Image, MediaClock, Timeline

if TYPE_CHECKING:
    import av


# Login methods of an RTSP camera, asked for after FFmpeg failed to log in, because FFmpeg does not name them.

_PORTS = {"rtsp": 554, "rtsps": 322}
_MOST_BYTES = 1 << 14
"""Limit of an answer's headers."""
_KNOWN = ("MD5", "MD5-sess")
"""Digest algorithms that FFmpeg has (libavformat/httpauth.c)."""
_ALGORITHM = re.compile(r'\balgorithm\s*=\s*"?([\w-]+)', re.IGNORECASE)


def why_refused(url: str, timeout_s: float, clock: Clock) -> str:
    """Return why FFmpeg cannot log in with any password; empty where it can, or where the camera does not say.

    Sends one request without user and password.
    """
    try:
        offered = _challenges(_describe_answer(url, timeout_s, clock))
    except (OSError, ValueError):  # FFmpeg's own error says more
        return ""
    digests = [name for name in offered if name != "Basic"]
    if not digests or digests[-1] in _KNOWN:  # of several, FFmpeg takes the last
        return ""
    if set(offered) == {digests[-1]}:
        return f"it accepts Digest with {digests[-1]} only, and FFmpeg has Digest with MD5, and Basic"
    names = ", ".join(name if name == "Basic" else f"Digest with {name}" for name in offered)
    return f"it offers {names}; FFmpeg tries the last Digest, and has that with MD5 only"


def _describe_answer(url: str, timeout_s: float, clock: Clock) -> str:
    """Return the headers of a camera's answer to DESCRIBE. Raises OSError, or ValueError for a malformed address."""
    address = urlsplit(url)
    requested = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    request = f"DESCRIBE {requested} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n"
    until_ns = clock.now_ns() + round(timeout_s * 1e9)
    place = address.hostname or "", address.port or _PORTS[address.scheme]
    plain = socket.create_connection(place, timeout_s)
    with _start_tls(plain) if address.scheme == "rtsps" else plain as way:
        way.sendall(request.encode("utf-8", "surrogateescape"))
        data = b""
        while b"\r\n\r\n" not in data and len(data) < _MOST_BYTES:
            way.settimeout(max((until_ns - clock.now_ns()) / 1e9, 0.001))
            part = way.recv(_MOST_BYTES)
            if not part:
                break
            data += part
    return data.partition(b"\r\n\r\n")[0].decode("latin-1")


def _start_tls(plain: socket.socket) -> ssl.SSLSocket:
    """Return the socket over TLS. As with FFmpeg, the certificate is not checked; nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def _challenges(headers: str) -> list[str]:
    """Return the login methods: ``Basic``, or the algorithm of a Digest, which is MD5 by default."""
    found = []
    for line in headers.split("\r\n"):
        name, _, value = line.partition(":")
        scheme = value.strip().partition(" ")[0].lower()
        if name.strip().lower() == "www-authenticate" and scheme in ("basic", "digest"):
            algorithm = _ALGORITHM.search(value)
            found.append("Basic" if scheme == "basic" else algorithm[1] if algorithm else _KNOWN[0])
    return found


SCHEMES = ("rtsp", "rtsps", "http", "https", "rtmp", "udp")
_ROUNDING_NS = 500_000_000
"""Tolerance between a stream's length and the announced one, in addition to two frames."""
_RECORDINGS = frozenset({".mp4", ".mkv", ".mov", ".avi", ".webm", ".m4v"})


def network_source(name: str, config: SourceStage, context: Context) -> LiveSource:
    """Return a source for the URL in ``config``, which reconnects when nothing came for ``timeout``.

    It reads over TCP unless set otherwise and begins at a key frame. It is live, so that a slow pipeline sees the
    newest frame. ``realtime: false`` keeps every frame. So does the URL of a recording, such as
    ``https://…/clip.mp4``, which is never opened twice.

    Raises ConfigError: ``source`` is not a URL.
    """
    try:
        address = urlsplit(config.source)
        port = address.port
        has_host = port is not None or (bool(address.hostname) and address.scheme != "udp")
    except ValueError:
        has_host = False
    if not has_host:  # raised outside of ``except``, because the first error quotes the address with its password
        raise ConfigError(
            f"{redact(config.source)!r} is no network address",
            why="host or port is malformed",
            where=f"stages.{name}.source",
            fix="write rtsp://host:port/path; special characters of a password as %40 for @, %2F for /",
        )
    recorded, clock = is_recording(config.source), context.clock
    live = not recorded if config.realtime is None else config.realtime
    reconnect = config.reconnect and not recorded  # a recording would start over and give frames twice
    timeline = Timeline(name, config, clock, MediaClock(live=True), fps=config.fps, paced=False)
    choice, tap = DecoderChoice(f"stages.{name}", config.decode), Tap(clock, timeline.media, live=True, waits=not live)

    def connect(device: CudaDevice | None) -> Stream:
        stream = Stream(name, config, context.counter, clock)
        stream.tap = tap
        stream.choose_decoder(choice, device)
        return stream

    def why_not(device: CudaDevice) -> str:
        from edgert.stages.source.gst_decoder import missing

        return missing()  # only a connection shows whether the decoder takes this stream

    title = redact(config.source)
    silence_s = config.timeout if address.scheme in _PORTS else None
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
        silence_s=silence_s,
        tap=tap,
    )


class Stream(Video):
    """One connection to a network stream. Raises DeviceError when it cannot be made."""

    def __init__(self, name: str, config: SourceStage, counter: Counter, clock: Clock) -> None:
        scheme, colon, rest = config.source.partition(":")
        url, where, timeout_us = scheme.lower() + colon + rest, f"stages.{name}", str(round(config.timeout * 1e6))
        options = {"rw_timeout": timeout_us}  # ffmpeg-protocols(1) and ffmpeg-formats(1) have them all
        is_rtsp = scheme.lower() in _PORTS
        if is_rtsp:
            options = {
                "rtsp_transport": config.transport,
                "allowed_media_types": "video",  # sound packets would hide that no image comes
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
                error.why, error.fix = why, "set the camera to offer only Digest with MD5, or only Basic"
            raise

        # FFmpeg guesses the length of a stream without timestamps. Sound may last longer than the images.
        is_guessed = self._container.format.flags & NO_TIMESTAMPS
        self._length_ns = None if is_guessed else self._stated_ns()
        self._first, self._last, self._count = 0, 0, 0

    @property
    def ending(self) -> str:  # type: ignore[override]  # read only
        """Message that the announced length has come; see :class:`~edgert.stages.source.live.Device`."""
        if self._length_ns is None or not self._count or self._stream.time_base is None:
            return ""
        tick_ns = 1e9 * self._stream.time_base
        allowed_ns = _ROUNDING_NS + 2 * (self._last - self._first) * tick_ns / self._count
        # A connection in mid-stream may count times from the start of the stream, or from the connection.
        for end_ns in (self._last * tick_ns, (self._last - self._first) * tick_ns):
            if abs(self._length_ns - end_ns) <= allowed_ns:
                return f"its stream ended after {end_ns / 1e9:.1f} s of {self._length_ns / 1e9:.1f} s"
        return ""

    def images(self) -> Iterator[Image]:
        """Yield images. Only a stream that announced its length can end; every other end is a loss."""
        yield from super().images()
        if self.ending or (self.outline.duration_ns and self._length_ns is None):
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
            if not self.ending:  # a server may hang up or fall silent after it has sent everything
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
    except ValueError:  # :func:`network_source` reports the malformed address
        return False
    return parts.scheme in ("http", "https") and PurePosixPath(parts.path).suffix.lower() in _RECORDINGS
