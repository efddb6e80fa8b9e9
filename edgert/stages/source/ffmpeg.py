"""Video input through PyAV: opens anything that FFmpeg reads, and gives its decoded planes without a copy.

PyAV's wheels bundle an FFmpeg that was built with GPL parts (x264, x265). edgert only imports PyAV. A product that
ships that wheel can use a PyAV built against an LGPL FFmpeg instead.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgert.clock import Clock
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory import Counter
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.frame_times import BestTimes, SenderClock, TimestampJoiner, usual_rate
from edgert.stages.source.live import Device, FinalError, LoginError, redact
from edgert.stages.source.planes import media_ns, to_image
from edgert.stages.source.timeline import Image

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    from edgert.memory.cuda import CudaDevice
    from edgert.stages.source.gst_decoder import GstDecoder
    from edgert.stages.source.nvdec import Nvdec
    from edgert.stages.source.packets import Tap

log = logging.getLogger("edgert.source")

PIXELS_PER_THREAD = 1920 * 1088
"""Pixels per decoder thread: one is enough for full HD. Each further thread costs processor time and, with frame
threads, a frame of latency."""
MAX_THREADS = 4
DECODER_TIMEOUT_S = 5.0
_MOMENT = 0.1
"""Fraction of a camera's time-out that is left for its first packet, where opening has used all of it."""
_MAY_LEAP = 0x200
"""AVFMT_TS_DISCONT of libavformat/avformat.h."""
ERRORS_IN_A_ROW = 64
"""Consecutive errors without a packet between them after which reading stops."""


def load_library() -> None:
    """Load FFmpeg, which takes memory."""
    from av.format import ContainerFormat

    ContainerFormat("mov", "r")


@dataclass(frozen=True, slots=True)
class Outline:
    """Properties that a container declares in its header, which may be wrong.

    Attributes:
        period_ns: usual time between two frames; 0 when unknown.
        begin_ns: time of the first frame.
        duration_ns: length of the longest stream; None for streams without an end.
        states_length: whether the header declares that length. For others, such as MPEG-TS, FFmpeg measures it.
        frames: number of frames; 0 when unknown.
        end_bytes: file offset where the last frame ends, by the index; 0 without an index.
        is_silent: whether the container has no stream beside the video.
    """

    period_ns: int
    begin_ns: int
    duration_ns: int | None
    states_length: bool
    frames: int
    end_bytes: int
    is_silent: bool


class Video(Device):
    """The first video stream of an opened file, URL or device.

    Args:
        target: path or URL; messages never show a password in it.
        where: place of the source, for messages.
        format: FFmpeg's name of a device or container; None detects it.
        options: FFmpeg's options for opening.
        timeout_s: longest wait for opening, and then for each packet; None waits without a limit.
        live: whether it is a device or network stream. These use no frame threads, begin at a key frame, and raise
            DeviceError.
        watched: whether the caller watches ``waiting_since_ns``, so that reads need no time limit of PyAV's. That one
            takes Python's global lock for each read from a socket: a hundred times per image.

    Attributes:
        outline: properties that the container declares.
        skipped: damaged packets and frames so far.
        packets: packets read so far.
        waiting_since_ns: start of a live stream's wait for its next packet; None while it does not wait.
        tap: receiver of the packets of :meth:`images` before they are decoded; None without recorders.
    """

    tap: Tap | None = None

    def __init__(
        self,
        target: str,
        counter: Counter,
        clock: Clock,
        *,
        where: str,
        format: str | None = None,
        options: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        live: bool = False,
        watched: bool = False,
    ) -> None:
        self.target, self.where, self._watched = redact(target), where, watched
        self._counter, self._clock, self._live, self._timeout_s = counter, clock, live, timeout_s
        self._hardware: Nvdec | GstDecoder | None = None
        self._choice: DecoderChoice | None = None
        self._requested = target, format, dict(options or {})
        self._open_first_stream()
        entries: Sequence[Any] = getattr(self._stream, "index_entries", ())  # older versions of PyAV do not show it
        duration_us = self._container.duration
        self.outline = Outline(
            period_ns=self._period_ns(),
            begin_ns=1000 * (self._container.start_time or 0),
            duration_ns=None if duration_us is None else duration_us * 1000,
            states_length=not self._may_leap,
            frames=self._stream.frames,
            end_bytes=entries[-1].pos + entries[-1].size if len(entries) else 0,
            is_silent=len(self._container.streams) == 1,
        )

    def images(self) -> Iterator[Image]:
        """Yield decoded images in display order. Damaged ones are skipped and counted in :attr:`skipped`.

        Planes are the decoder's own memory, which the lease keeps. Raises StageError, or DeviceError when live.
        """
        if self._hardware is not None:
            from edgert.stages.source.gst_decoder import DecoderFailedError, DecoderRefusedError

            try:
                for image in self._hardware.images(self._tapped()):
                    if image.media_ns in self._hidden_ns:
                        self._hidden_ns.remove(image.media_ns)
                        image.lease.release()
                        continue
                    sender_ns = self._sender.time_at(image.media_ns)
                    yield image if sender_ns is None else replace(image, sender_ns=sender_ns)
                return
            except DecoderRefusedError as refused:
                if self._choice is None or self._choice.decode == "gpu" or self._is_waiting():
                    raise  # a silent camera is not the decoder's fault
                self._choice.fall_back(refused.why)
            except DecoderFailedError as error:
                if self._choice is not None:
                    self._choice.record_failure(error.why, self._clock.now_ns())
                raise
            self._hardware.close()
            self._hardware = None
            if not self._live:  # a live stream continues at its next key frame
                self._container.close()
                self._open_first_stream()
        for frame in self._frames(self._tapped()):
            image = to_image(frame, self._counter, self._clock.now_ns())
            sender_ns = self._sender.time_at(image.media_ns)
            yield image if sender_ns is None else replace(image, sender_ns=sender_ns)

    @property
    def is_joined(self) -> bool:
        """Whether the clock of the recording was set somewhere in the packets read so far."""
        return self._seams.found

    @property
    def decoder(self) -> str:
        return "FFmpeg on the CPU" if self._hardware is None else self._hardware.title

    def why_not_on(self, device: CudaDevice | None) -> str:
        """Return why hardware cannot decode this video; empty when it can. May decode a file's first image.

        Hardware is the board's decoder, or the GPU's for frames on ``device``.
        """
        from edgert.stages.source.gst_decoder import why_not

        reason = why_not(self._stream, device)
        if reason or self._live:
            return reason
        first = next(self._frames(self._packets()), None)
        self._container.close()
        self._open_first_stream()
        is_turned = first is not None and first.rotation != 0
        return "its metadata asks for a rotation, which only the host does" if is_turned else ""

    def choose_decoder(self, choice: DecoderChoice, device: CudaDevice | None) -> None:
        """Decode in hardware from now on, if that is chosen and possible. Call it before :meth:`images`.

        Raises FinalError: ``decode: gpu``, and the GPU cannot decode this video.
        """
        reason = "decode: cpu" if choice.decode == "cpu" else choice.refused or self.why_not_on(device)
        if not reason:
            self.decode_on(device, choice)
        elif choice.decode == "gpu":
            self.close()
            what = f"{self.target} cannot be decoded on the GPU"
            raise FinalError(what, why=reason, where=self.where, fix="decode: cpu")
        if device is not None or choice.is_jetson:
            choice.log_decoder(reason, self.decoder)

    def decode_on(self, device: CudaDevice | None, choice: DecoderChoice | None = None) -> None:
        """Decode in hardware from now on. Call :meth:`why_not_on` first.

        Where the decoder gives no image, ``choice`` falls back on the processor, unless it wants the GPU; without it,
        :meth:`images` raises. ``choice`` also records later failures.

        Raises DeviceError: the decoder cannot be created.
        """
        from edgert.stages.source.gst_decoder import GstDecoder, is_nvdec
        from edgert.stages.source.nvdec import FILE_BATCH, Nvdec

        self._choice = choice
        stream, counter, clock, where = self._stream, self._counter, self._clock, self.where
        low_latency = self._live and not stream.codec_context.has_b_frames
        if device is not None and is_nvdec(stream, device):
            batch = 1 if self._live else FILE_BATCH
            self._hardware = Nvdec(stream, device, counter, clock, low_latency=low_latency, where=where, batch=batch)
            return
        late_s = 3 * (self._timeout_s or DECODER_TIMEOUT_S)  # FFmpeg reports a silent network after twice the time-out
        try:
            self._hardware = GstDecoder(
                stream, device, counter, clock, timeout_s=late_s, where=where, low_latency=low_latency
            )
        except DeviceError as error:
            if choice is None or choice.decode == "gpu":
                raise
            choice.fall_back(error.why)

    def count(self) -> int:
        """Count the images by reading every packet without decoding; the video is then at its end."""
        return sum(packet.size > 0 and not packet.is_discard for packet in self._packets())

    def close(self) -> None:
        """Close the file or connection. Images already handed out stay valid. May be called twice."""
        if self._hardware is not None:
            self._hardware.close()
        self._container.close()

    def _tapped(self) -> Iterator[av.Packet[Any]]:
        return self._packets() if self.tap is None else self.tap.passing(self._packets(), self._stream)

    def _frames(self, packets: Iterator[av.Packet[Any]]) -> Iterator[VideoFrame]:
        """Yield the complete frames that FFmpeg decodes; count the damaged ones."""
        from av.error import FFmpegError, InvalidDataError, PatchWelcomeError, UnknownError

        input_errors = (InvalidDataError, PatchWelcomeError, UnknownError)
        for packet in packets:
            failure = None
            try:
                decoded = self._stream.codec_context.decode(packet)
            except FFmpegError as error:
                failure, decoded = error, []
            if failure is not None:
                # EINVAL by number, because PyAV's versions name its class differently.
                if not isinstance(failure, input_errors) and failure.errno != errno.EINVAL:
                    self._fail("cannot continue decoding", failure)
                self.skipped += 1
            for frame in decoded:
                frame.pts = self._times.choose(frame.pts, frame.dts)
                if frame.is_corrupt:
                    self.skipped += 1
                else:
                    yield frame

    def _packets(self) -> Iterator[av.Packet[Any]]:
        from av.error import FFmpegError, InvalidDataError

        errors, wants_key, waited_ns = 0, self._live, self._opening_wait_ns
        while errors < ERRORS_IN_A_ROW:
            failure = None
            self.waiting_since_ns, waited_ns = self._clock.now_ns() - waited_ns, 0
            try:
                for packet in self._container.demux(self._stream):
                    errors = 0
                    wants_key = wants_key and not packet.is_keyframe
                    if not wants_key:
                        self.waiting_since_ns = None
                        self.packets += packet.size > 0
                        if self._live:
                            self._sender.read(packet)
                        else:
                            self._seams.join(packet)
                        if packet.is_discard and self._hardware is not None:  # FFmpeg's decoder drops it itself
                            self._hidden_ns.add(media_ns(packet.pts, packet.time_base))
                        yield packet
                    self.waiting_since_ns = self._clock.now_ns()
                return
            except InvalidDataError:
                errors += 1
                self.skipped += 1
            except FFmpegError as error:
                failure = error
            if failure is not None:
                self._fail("cannot continue reading", failure)
        raise self._error("cannot continue reading", "the data from here on is damaged", "copy the file again")

    def _is_waiting(self) -> bool:
        """Return whether the network has been silent for longer than its time-out."""
        late_ns = (self._timeout_s or 0) * 1e9
        return (
            self._live and self.waiting_since_ns is not None and self._clock.now_ns() - self.waiting_since_ns > late_ns
        )

    def _open_first_stream(self) -> None:
        began_ns, limit_ns = self._clock.now_ns(), 1e9 * (self._timeout_s or math.inf)
        self._container, self.packets, self.skipped = self._open(*self._requested), 0, 0
        self._stream, self._sender, self._times = self._video_stream(), SenderClock(self.where), BestTimes()
        self._seams = TimestampJoiner(self._stream.time_base, self._period_ns(), self._may_leap)
        self._hidden_ns = set[int | None]()
        is_silent = self._clock.now_ns() - began_ns > (1 - _MOMENT) * limit_ns
        self._opening_wait_ns = round((1 - _MOMENT) * limit_ns) if is_silent else 0

    @property
    def _may_leap(self) -> bool:
        """Whether times may leap in this container format. Such a format states no length either."""
        return bool(self._container.format.flags & _MAY_LEAP)

    def _period_ns(self) -> int:
        """Return the usual time between two frames; 0 when unknown."""
        rate = usual_rate(self._container, self._stream)
        return round(1e9 / rate) if rate else 0

    def _open(self, target: str, format: str | None, options: dict[str, str]) -> InputContainer:
        import av

        failure: av.FFmpegError | None = None
        began_ns = self._clock.now_ns()
        options = {**options, "fflags": "-genpts"}  # PyAV's default would derive missing times from decoding times
        timeout = self._timeout_s and (self._timeout_s, None if self._watched else self._timeout_s)
        try:
            return av.open(target, "r", format=format, container_options=options, timeout=timeout)
        except av.FFmpegError as error:
            failure = error
        except UnicodeError:
            raise self._error("cannot open", "its name is not valid text", "rename it") from None
        except ValueError as error:  # an FFmpeg that was built without this format
            raise self._error("cannot open", str(error), "pip install --force-reinstall --only-binary av av") from None
        # After its time-out, FFmpeg calls the silence of a camera invalid data.
        is_silent = self._live and self._clock.now_ns() - began_ns > 0.9e9 * (self._timeout_s or math.inf)
        is_silent &= isinstance(failure, av.InvalidDataError)
        return self._fail("cannot open", av.TimeoutError(0, "") if is_silent else failure)

    def _video_stream(self) -> VideoStream:
        streams = self._container.streams.video
        if not streams or streams[0].codec_context is None:
            kinds = ", ".join(sorted({stream.type for stream in self._container.streams})) or "nothing"
            why = "FFmpeg has no decoder for its video stream" if streams else f"it holds no video, only {kinds}"
            self._container.close()
            raise self._error("cannot play", why, "name a file or stream that holds video", FinalError)
        stream = streams[0]
        context = stream.codec_context
        pixels = max(context.width * context.height, 1)
        wanted = -(-pixels // PIXELS_PER_THREAD)
        context.thread_count = max(1, min(wanted, MAX_THREADS, len(os.sched_getaffinity(0))))
        context.thread_type = "SLICE" if self._live else "AUTO"
        return stream

    def _error(self, what: str, why: str, fix: str, kind: type[DeviceError] = DeviceError) -> EdgertError:
        if not self._live:
            return StageError(f"{what} {self.target}", why=why, where=self.where, fix=fix)
        code = {"cannot open": "E803" if issubclass(kind, LoginError) else "E802"}.get(what, "")
        return kind(f"{what} {self.target}", why=why, where=self.where, fix=fix, code=code)

    def _fail(self, what: str, error: av.FFmpegError) -> InputContainer:
        """Raise edgert's error for one of FFmpeg's.

        FFmpeg's error holds the URL with its password, so a redacted copy is the cause. Call this after the ``except``
        block: inside it, the original would become the context.
        """
        why, fix, kind = _explain(error, self._timeout_s)
        if error.errno == errno.EIO and "://" in self.target:  # FFmpeg does not say more
            why, fix = "the other side closed the connection early", "check the server and the network"
            if what == "cannot open":
                why, fix = f"its host name is unknown, or {why}", "check name, address and network"
        cause = type(error)(error.errno or 0, redact(error.strerror or ""), self.target)
        raise self._error(what, why, fix, kind) from cause


def _explain(error: av.FFmpegError, timeout_s: float | None) -> tuple[str, str, type[DeviceError]]:
    """Return reason, fix and error class (for a live stream) of an FFmpeg error."""
    import av.error as known

    again = DeviceError
    late = f"nothing came for {timeout_s:g} s" if timeout_s else "nothing came in time"
    login = "write rtsp://${USER}:${PASSWORD}@host/…"
    table: tuple[tuple[type[Exception], str, str, type[DeviceError]], ...] = (
        (known.HTTPUnauthorizedError, "it refuses this user or password", login, LoginError),
        (known.HTTPForbiddenError, "this user may not see it", "check the account's rights on the camera", LoginError),
        (
            known.HTTPNotFoundError,
            "the server has no stream at that path",
            "check the path in the camera's manual",
            FinalError,
        ),
        (known.ConnectionRefusedError, "nothing listens on that port", "check address and port", again),
        (known.ExitError, late, "check the network, or raise timeout:", again),
        (known.TimeoutError, late, "check the network, or raise timeout:", again),
        (known.FileNotFoundError, "it does not exist", "check the path", again),
        (known.PermissionError, "this user may not read it", "check the permissions", FinalError),
        (
            known.InvalidDataError,
            "it is not a video, or it is damaged",
            "try to play it; copy or record it again",
            again,
        ),
    )
    for kind, why, fix, made in table:
        if isinstance(error, kind):
            return why, fix, made
    return redact(error.strerror or "FFmpeg gives no reason"), "check that it plays elsewhere", again
