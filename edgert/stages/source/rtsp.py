"""Network cameras and streams: RTSP, HTTP, HLS, RTMP, through FFmpeg."""

import logging
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.live import LiveSource, redact
from edgert.stages.source.nvdec import missing
from edgert.stages.source.timeline import Image, MediaClock, Timeline

log = logging.getLogger("edgert.source")

SCHEMES = ("rtsp", "rtsps", "http", "https", "rtmp", "udp")
_RECORDINGS = frozenset({".mp4", ".mkv", ".mov", ".avi", ".webm", ".m4v"})


def network_source(name: str, config: SourceStage, counter: Counter, clock: Clock) -> LiveSource:
    """A source for the URL in ``config``: over TCP unless set otherwise, at a key frame first, opened again when
    nothing came for ``timeout``.

    Live, so that a slow pipeline sees the newest frame; ``realtime: false``, or the URL of a recording such as
    ``https://…/clip.mp4``, keeps every frame and is never begun anew.

    Raises:
        ConfigError: not a URL.
    """
    _check_address(config.source, f"stages.{name}.source")
    recorded = is_recording(config.source)
    live = not recorded if config.realtime is None else config.realtime
    reconnect = config.reconnect and not recorded  # it would begin anew, and give frames twice
    timeline = Timeline(name, config, clock, MediaClock(live=True), fps=config.fps, paced=False)

    device: list[CudaDevice] = []

    def on_gpu(chosen: CudaDevice) -> str:
        device[:] = [chosen]  # whether the stream suits is known when it is there
        return missing()

    def connect() -> Stream:
        return Stream(name, config, counter, clock, *device)

    title = redact(config.source)
    return LiveSource(name, title, connect, timeline, clock, live=live, reconnect=reconnect, on_gpu=on_gpu)


def options_for(config: SourceStage) -> dict[str, str]:
    """FFmpeg's options for the URL of ``config``. Sources: ffmpeg-protocols(1) and ffmpeg-formats(1)."""
    timeout_us = str(round(config.timeout * 1e6))
    scheme = urlsplit(config.source).scheme
    if scheme not in ("rtsp", "rtsps"):
        return {"rw_timeout": timeout_us}
    return {
        "rtsp_transport": config.transport,
        "allowed_media_types": "video",  # sound would only hide that the image stands still
        "timeout": timeout_us,
        "max_delay": "0" if config.transport == "tcp" else "100000",  # µs to wait for late packets to sort them in
        "fpsprobesize": "0",  # do not hold frames back to guess their rate
        "analyzeduration": "2000000",  # µs; needed only when the server's SDP leaves the image size out
    }


class Stream:
    """One connection. Raises DeviceError when it cannot be made.

    Args:
        device: decodes on this GPU, where it can; else logs why not, once per connection.
    """

    def __init__(
        self, name: str, config: SourceStage, counter: Counter, clock: Clock, device: CudaDevice | None = None
    ) -> None:
        self._where = f"stages.{name}"
        scheme, colon, rest = config.source.partition(":")
        self._video = Video(
            scheme.lower() + colon + rest,
            counter,
            clock,
            where=self._where,
            options=options_for(config),
            timeout_s=config.timeout,
            live=True,
        )
        if device is not None:
            self._decode_on(device, strict=config.decode == "gpu")

    @property
    def skipped(self) -> int:
        """Damaged packets and frames so far."""
        return self._video.skipped

    def images(self) -> Iterator[Image]:
        """Ends only where the stream had announced its length; an end without that is a loss."""
        yield from self._video.images()
        if not self._video.outline.duration_ns:
            raise DeviceError(
                f"lost {self._video.target}",
                why="the other side closed the connection",
                where=self._where,
                fix="check the camera and the network",
            )

    def close(self) -> None:
        """Hangs up."""
        self._video.close()

    def _decode_on(self, device: CudaDevice, strict: bool) -> None:
        reason = self._video.why_not_on(device)
        if not reason:
            self._video.decode_on(device)
        elif not strict:
            log.info("%s: decoded on the CPU: %s", self._where, reason)
        else:
            self._video.close()
            raise DeviceError(
                f"{self._video.target} cannot be decoded on the GPU", why=reason, where=self._where, fix="decode: cpu"
            )


def _check_address(url: str, where: str) -> None:
    try:
        host, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        # The message would quote the address with its password.
        host = port = None
    if not host and port is None:
        fix = "write rtsp://host:port/path; special characters of a password as %40 for @, %2F for /"
        raise ConfigError(
            f"{redact(url)!r} is no network address", why="host or port is malformed", where=where, fix=fix
        )


def is_recording(url: str) -> bool:
    """Whether a URL names a file that has an end, and not what a camera sees now."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and PurePosixPath(parts.path).suffix.lower() in _RECORDINGS
