"""Video files. The only door to PyAV (FFmpeg) for output."""

import logging
import os
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edgert.errors import DeviceError, StageError
from edgert.runtime.frame import U8, Color, yuv_planes
from edgert.runtime.records import Result
from edgert.stages.draw import Images
from edgert.stages.sink.image_files import cannot_write, check_pattern, fill, has_field, make_parent

_BOX_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


class DurableFile:
    """What FFmpeg writes into, through Python so that a failed write is not followed by others.

    A muxer that cannot write still goes back to finish its headers, and they would then point at what is not there.
    After the first error nothing reaches the disk any more; :attr:`error` holds what it was.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Writes all of ``data`` at the current place, or remembers why not; never raises."""
        left = memoryview(data)
        try:
            while left and self.error is None:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._file, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._file, 0, os.SEEK_CUR)

    def cut_to_whole_fragments(self) -> None:
        """Takes away the piece of an MP4 fragment that was being written when the disk was full.

        ISO/IEC 14496-12, 4.2: a box is its length, its type, its content.
        """
        size_bytes, at, end = os.fstat(self._file).st_size, 0, 0
        while at + _BOX_HEADER_BYTES <= size_bytes:
            header = os.pread(self._file, _LARGE_HEADER_BYTES, at)
            length, kind = int.from_bytes(header[:4], "big"), header[4:8]
            if length == 1:
                length = int.from_bytes(header[8:16], "big")
            if length < _BOX_HEADER_BYTES or at + length > size_bytes:
                break
            at += length
            if kind != b"moof":  # a fragment's index is of no use without the data behind it
                end = at
        os.ftruncate(self._file, end)

    def close(self) -> None:
        os.close(self._file)


class I420Writer:
    """Writes one result after another as packed I420, each into a buffer nobody else uses any more."""

    def __init__(self) -> None:
        self._packed, self._bgr = Images(), Images()

    def write(self, result: Result) -> tuple[U8, Color]:
        """The drawn image, or the frame where nothing was drawn.

        An i420 or nv12 frame goes over plane by plane, never through BGR. An odd last row or column is left out:
        4:2:0 has no half chroma pixels. The copy is counted.

        Returns:
            (h * 3 / 2, w) uint8, h and w even: the plane Y, then U, then V; and how its colors are to be read.
        """
        width, height = size_of(result)
        counter = result.frame.lease.counter
        packed = self._packed.take((height * 3 // 2, width), counter)
        if result.image is None and result.frame.format in ("i420", "nv12"):
            chroma = packed[height:].reshape(2, height // 2, width // 2)
            luma, *others = yuv_planes(result.frame)
            np.copyto(packed[:height], luma[:height, :width])
            for out, plane in zip(chroma, others, strict=True):
                np.copyto(out, plane[: height // 2, : width // 2])
            color = result.frame.color
        else:
            cv2.cvtColor(self._bgr.shown(result)[:height, :width], cv2.COLOR_BGR2YUV_I420, dst=packed)
            color = Color()  # what OpenCV makes: BT.601, limited range
        counter.copied(packed.nbytes)
        return packed, color


def size_of(result: Result) -> tuple[int, int]:
    """(width, height) of the video this result belongs to: its image's, rounded down to even."""
    if result.image is None:
        return result.frame.width & ~1, result.frame.height & ~1
    height, width = result.image.shape[:2]
    return width & ~1, height & ~1


_LOG = logging.getLogger(__name__)
_ENCODERS = ("libx264", "mpeg4")  # the second is part of every FFmpeg, and played nearly everywhere
_TICKS_HZ = 60_000  # divides 24, 25, 30 and 60 fps and their NTSC forms; MPEG-4 allows no more than 65535
_KEYFRAME_EVERY = 60  # frames: how finely players can seek
_MAX_THREADS = 4
_FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}

# A plain mp4 that loses its end (power, SIGKILL) is lost whole. Written in fragments, everything up to the last one,
# at most a second and the few frames inside the encoder, plays. `hybrid_fragmented` (FFmpeg 7.1, PyAV 14) turns the
# file into a plain, seekable mp4 when it is closed, which takes milliseconds as it only writes an index.
# Matroska is safe as it is, with clusters as short.
_KILL_SAFE_MP4 = {"movflags": "hybrid_fragmented", "frag_duration": "1000000", "flush_packets": "1"}
_KILL_SAFE_MKV = {"cluster_time_limit": "1000", "flush_packets": "1"}

# ITU-T H.273 code points, which FFmpeg's enumerations follow: primaries, transfer, matrix.
_CODE_POINTS = {"bt601": (6, 6, 6), "bt709": (1, 1, 1)}
_LIMITED, _FULL = 1, 2  # AVColorRange


class VideoSink:
    """Writes H.264, replacing what is there; folders are made. The file appears with the first frame.

    Frames are shown at their ``media_ns``, so a variable rate or dropped frames play at the right speed. Video has
    even sizes: an odd last row or column is left out. A process that is killed leaves a playable file.

    Args:
        path: ``.mp4``, ``.mov`` or ``.mkv``; with ``{stream}`` in it, one file per stream.
        fps: shows frame n at n / fps instead.
        quality: H.264 CRF, 0 (lossless) to 51.
    """

    def __init__(self, name: str, path: Path, fps: float | None = None, quality: int = 23) -> None:
        self.pattern, self._fps, self._quality = path, fps, quality
        self._where = f"stages.{name}"
        self._files: dict[str, _VideoFile] = {}
        self._encoder = ""
        check_pattern(path, ("stream",), self._where)
        if path.suffix.lower() not in _FORMATS:
            raise StageError(f"cannot write {path.name}", where=self._where, fix=f"end it in {' or '.join(_FORMATS)}")

    def open(self) -> None:
        """Finds an encoder. Raises DeviceError when there is none, StageError when the folder cannot be made."""
        self._encoder = _find_encoder(self._where)
        if not has_field(self.pattern.parent, "stream"):
            make_parent(self.pattern, self._where)

    def process(self, result: Result) -> None:
        """Encodes one frame. Raises StageError: disk full, the size changed, or streams that share one file."""
        stream = result.frame.stream
        if self._files and stream not in self._files and not has_field(self.pattern, "stream"):
            raise StageError(
                f"{self.pattern} would hold two streams",
                why=f"{next(iter(self._files))} and {stream} arrive at one sink",
                where=self._where,
                fix="put {stream} into path, or give each stream a sink of its own",
            )
        if stream not in self._files:
            path = fill(self.pattern, stream)
            make_parent(path, self._where)
            rate = Fraction(self._fps).limit_denominator(1001) if self._fps else None
            self._files[stream] = _VideoFile(path, self._encoder, size_of(result), rate, self._quality, self._where)
        self._files[stream].add(result)

    def close(self) -> None:
        """Writes what the encoder still holds and finishes every file, also when one of them fails."""
        failures = [failure for file in self._files.values() if (failure := file.close()) is not None]
        self._files.clear()
        if failures:
            raise failures[0]


class _VideoFile:
    """One open file: encoder and muxer. Once it has failed it takes nothing more."""

    def __init__(
        self, path: Path, encoder: str, size: tuple[int, int], rate: Fraction | None, quality: int, where: str
    ) -> None:
        import av

        self._av: Any = av
        self._path, self._size, self._rate, self._where = path, size, rate, where
        self._i420 = I420Writer()
        self._first_ns, self._last_tick, self._count = 0, -1, 0
        self._interval = int(_TICKS_HZ / (rate or 30))
        self._failed = self._started = False
        self._format = _FORMATS[path.suffix.lower()]
        try:
            self._file = DurableFile(path)
        except OSError as error:
            raise cannot_write(path, error, where) from error
        options = dict(_KILL_SAFE_MKV if self._format == "matroska" else _KILL_SAFE_MP4)
        self._container = self._av.open(self._file, "w", format=self._format, options=options)
        if encoder == "libx264":
            settings = {"preset": "veryfast", "crf": str(quality)}
        else:
            settings = dict.fromkeys(("qmin", "qmax"), str(2 + quality * 29 // 51))  # CRF onto MPEG-4's quantizer 2-31
        self._stream = self._container.add_stream(encoder, rate=30, options=settings)
        codec = self._stream.codec_context
        codec.width, codec.height = size
        codec.pix_fmt = "yuv420p"
        codec.time_base = Fraction(1, _TICKS_HZ)
        codec.gop_size = _KEYFRAME_EVERY
        codec.max_b_frames = 0  # they would delay what is written, and shift all times by two frames
        codec.thread_count = min(_MAX_THREADS, os.cpu_count() or 1)
        if rate is not None:
            codec.framerate = rate

    def add(self, result: Result) -> None:
        if (size := size_of(result)) != self._size:
            raise StageError(
                f"the image changed from {self._size[0]}x{self._size[1]} to {size[0]}x{size[1]}",
                why=f"{self._path} has one size from its first frame on",
                where=self._where,
                fix="put a draw stage with a fixed width in front, or write images",
            )
        packed, color = self._i420.write(result)
        if not self._started:
            self._first_ns = result.frame.media_ns
            # Written into the file, as players otherwise guess the meaning of colors from the size.
            codec = self._stream.codec_context
            codec.color_primaries, codec.color_trc, codec.colorspace = _CODE_POINTS[color.matrix]
            codec.color_range = _FULL if color.full_range else _LIMITED
        frame = self._av.VideoFrame.from_numpy_buffer(packed, "yuv420p")  # no copy: FFmpeg holds the array itself
        frame.pts, frame.time_base = self._tick(result.frame.media_ns), Fraction(1, _TICKS_HZ)
        self._encode(frame)
        self._started = True

    def close(self) -> StageError | None:
        """Finishes the file; returns what went wrong, except for a file that was reported as failed already."""
        reported = self._failed
        steps: list[Callable[[], None]] = [self._container.close, self._check]
        if self._started and not reported:
            steps.insert(0, partial(self._encode, None))
        failures = [failure for step in steps if (failure := self._attempt(step)) is not None]
        if self._file.error is not None and self._format != "matroska":
            self._file.cut_to_whole_fragments()
        self._file.close()
        return failures[0] if failures and not reported else None

    def _attempt(self, step: Callable[[], None]) -> StageError | None:
        try:
            step()
        except StageError as error:
            return error
        except self._av.FFmpegError as error:
            return self._failure(error)
        return None

    def _tick(self, media_ns: int) -> int:
        if self._rate is None:
            wanted = (media_ns - self._first_ns) * _TICKS_HZ // 1_000_000_000
        else:
            wanted = int(self._count * _TICKS_HZ / self._rate)
        self._count += 1
        tick = max(wanted, self._last_tick + 1)  # a muxer refuses two frames at one time
        if self._count > 1:
            self._interval = tick - self._last_tick
        self._last_tick = tick
        return tick

    def _encode(self, frame: Any) -> None:
        try:
            for packet in self._stream.encode(frame):
                packet.duration = self._interval  # the muxer needs it for the last frame only
                self._container.mux(packet)
        except (ValueError, self._av.FFmpegError) as error:
            self._failed = True
            raise self._failure(error) from error
        self._check()

    def _check(self) -> None:
        """Raises for a write that failed, once."""
        error = self._file.error
        if error is not None and not self._failed:
            self._failed = True
            raise cannot_write(self._path, error, self._where, kept="what was written so far plays") from error

    def _failure(self, error: Exception) -> StageError:
        width, height = self._size
        return StageError(f"cannot encode {self._path} at {width}x{height}", why=str(error), where=self._where)


def _find_encoder(where: str) -> str:
    import av

    for encoder in _ENCODERS:
        try:
            av.codec.Codec(encoder, "w")
        except av.codec.codec.UnknownCodecError:
            continue
        if encoder != _ENCODERS[0]:
            _LOG.warning("%s: this PyAV has no %s encoder; writing %s, larger and softer", where, _ENCODERS[0], encoder)
        return encoder
    raise DeviceError(
        "no video encoder",
        why=f"this PyAV was built without {' and '.join(_ENCODERS)}",
        where=where,
        fix="pip install --force-reinstall --only-binary av av, or use sink: images",
    )
