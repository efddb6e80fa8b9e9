"""Frames of a recording: packets decoded again, or pixels as they were; and recordings as a source of any pipeline."""

from __future__ import annotations

import binascii
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import StageError, nearest
from edgert.memory import Counter, lend
from edgert.recording.mcap_messages import read_image, read_video
from edgert.recording.recording import Piece, Restart, open_recording
from edgert.runtime.decisions import Entry
from edgert.runtime.frame import Color, Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.planes import plane_shapes, to_image
from edgert.stages.source.timeline import Image, Pacer, Thinner

_AHEAD_BYTES = 64 << 20
"""Packets of a stream that wait while it gives no frame, as one that was paused; older ones are decoded for nothing."""
_REORDERED = 64
"""More images than a decoder holds back to bring them into the order of display."""
_MOST_SIDE = 1 << 15


class RecordedStream:
    """The camera data of one stream, decoded as far as frames are asked for.

    Attributes:
        damaged: packets and images that could not be decoded.
    """

    def __init__(self, stream: str, counter: Counter) -> None:
        self.damaged = 0
        self._stream, self._counter = stream, counter
        self._pieces, self._nbytes = deque[Piece](), 0
        self._restarts: dict[int, Mapping[str, Any]] = {}
        self._decoder: Any = None
        self._about: Mapping[str, Any] = {}
        self._images = deque[tuple[int, Image]]()

    def add(self, piece: Piece) -> None:
        """Take the next packet or image."""
        self._pieces.append(piece)
        self._nbytes += len(piece.data)

    def restart(self, restart: Restart) -> None:
        """Take what a decoder must know from a packet on."""
        self._restarts[restart.number] = restart.about
        while self._nbytes > _AHEAD_BYTES and self._pieces[0].number < restart.number:
            self._decode()
            self._drop(len(self._images) - _REORDERED)

    def image(self, number: int) -> Image | None:
        """Return the image of a packet, with its lease; None where it was not recorded or is damaged.

        They are asked for in the order of display.
        """
        is_flushed = number < 0
        while True:
            for at, (found, image) in enumerate(self._images):
                if found == number:
                    self._drop(at)
                    self._images.popleft()
                    return image
            if self._pieces and self._pieces[0].number <= number + _REORDERED:
                self._decode()
            elif self._pieces or is_flushed:
                return None
            else:  # the last images of a file come out at its end
                is_flushed = True
                self._flush()
                self._decoder = None

    def close(self) -> None:
        """Release what was decoded."""
        self._drop(len(self._images))

    def _drop(self, count: int) -> None:
        """Release the first images."""
        for _ in range(count):
            self._images.popleft()[1].lease.release()

    def _decode(self) -> None:
        piece = self._pieces.popleft()
        self._nbytes -= len(piece.data)
        if piece.number in self._restarts:
            self._flush()
            self._about = self._restarts.pop(piece.number)
            self._decoder = None
        try:
            if piece.is_packet:
                self._decode_packet(piece)
            else:
                self._images.append((piece.number, self._pixels(piece)))
        except (struct.error, ValueError, KeyError, TypeError):
            self.damaged += 1

    def _decode_packet(self, piece: Piece) -> None:
        import av

        unit = read_video(piece.data)
        packet = av.Packet(bytes(unit.data))
        packet.pts = packet.dts = piece.number
        if self._decoder is None:
            self._decoder = _decoder(unit.format, self._about)
        self._give(packet)

    def _flush(self) -> None:
        if self._decoder is not None:
            self._give(None)

    def _give(self, packet: Any) -> None:
        """Decode a packet; None: what the decoder still holds."""
        import av

        try:
            self._take(self._decoder.decode(packet))
        except av.FFmpegError:
            self.damaged += 1

    def _take(self, decoded: list[Any]) -> None:
        for frame in decoded:
            number, frame.pts = frame.pts, None
            if frame.is_corrupt or number is None:
                self.damaged += 1
            else:
                self._images.append((number, to_image(frame, self._counter, 0)))

    def _pixels(self, piece: Piece) -> Image:
        """Return an image that was recorded as pixels. Raises ValueError for too few of them."""
        unit = read_image(piece.data)
        width, height = unit.size
        if not (0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE):
            raise ValueError("no image is that large")
        data, at, planes = np.frombuffer(unit.data, np.uint8), 0, []
        for shape in plane_shapes(unit.format, width, height):
            size = int(np.prod(shape))
            planes.append(data[at : at + size].reshape(shape))
            at += size
        matrix, full_range = self._about.get("color") or ("bt601", False)
        color = Color("bt709" if matrix == "bt709" else "bt601", bool(full_range))
        file = str(self._about.get("file") or "")
        return Image(unit.format, tuple(planes), lend(data, self._counter), 0, color=color, file=file)  # type: ignore[arg-type]


def _decoder(codec: str, about: Mapping[str, Any]) -> Any:
    """Return a decoder. Raises ValueError where FFmpeg has none, or for a damaged head."""
    import av

    try:
        made: Any = av.CodecContext.create(codec, "r")
    except (ValueError, TypeError) as error:
        raise ValueError(f"no decoder for {codec}") from error
    head = about.get("head")
    if isinstance(head, str):
        try:
            made.extradata = binascii.a2b_base64(head)
        except binascii.Error as error:
            raise ValueError("its head is damaged") from error
    tags = about.get("tags")
    if isinstance(tags, list) and len(tags) == 2 and all(type(one) is int and 0 <= one < 256 for one in tags):
        made.colorspace, made.color_range = tags
    made.thread_count = 1
    return made


def frame_of(entry: Entry, image: Image) -> Frame:
    """Return the frame of a recorded decision, with the image's lease.

    Raises:
        StageError: the image is not of the recorded size, as of video that was filmed upright.
    """
    timestamp_ns, media_ns, sender_ns, width, height, *_ = entry.more
    found = image.planes[0].shape[1], image.planes[0].shape[0]
    if found != (width, height):
        image.lease.release()
        why = f"it is {found[0]}x{found[1]} here, and was {width}x{height}: the container turned it"
        what = f"frame {entry.frame} of {entry.stream!r} cannot be made again"
        raise StageError(what, why=why, fix="record with pixels: true")
    return Frame(
        entry.stream, entry.frame, timestamp_ns, media_ns, width, height, image.format, image.planes, image.lease,
        image.color, image.file, sender_ns,
    )  # fmt: skip


class RecordedSource:
    """The frames of one stream of a recording, each when it is taken, with its recorded number and times.

    Args:
        name: of the stage.
        path: of the recording.
        config: ``options: {stream: NAME}`` says which, where there are several; ``fps``, ``limit`` and ``realtime``
            mean what they mean for a video file.

    Raises:
        ArtifactError: no recording, or a damaged one.
        StageError: it has no such stream, or several and none is named.
    """

    live = False

    def __init__(self, name: str, path: Path, config: SourceStage, counter: Counter, clock: Clock) -> None:
        self._name, self._config, self._counter = name, config, counter
        self._recording = open_recording([path])
        known = sorted({*self._recording.frames, *self._recording.head["streams"]})  # a camera may have given no frame
        self._stream = _stream_of(known, config.options.get("stream"), f"stages.{name}", path)
        self._pacer = Pacer(clock) if config.realtime else None
        self._data: RecordedStream | None = None

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until the recording ends, the limit is reached, or ``stop`` is set."""
        data = self._data = RecordedStream(self._stream, self._counter)
        thinner, count = Thinner(self._config.fps), 0
        for event in self._recording.events():
            if stop.is_set() or count == self._config.limit:
                return
            if isinstance(event, Piece) and event.stream == self._stream:
                data.add(event)
            elif isinstance(event, Restart) and event.stream == self._stream:
                data.restart(event)
            elif isinstance(event, Entry) and event.kind == "give" and event.stream == self._stream:
                if not thinner.keeps(event.more[1]) or (image := data.image(event.more[-1])) is None:
                    continue
                frame = frame_of(event._replace(stream=self._name), image)
                if self._pacer is not None and not self._pacer.wait(frame.media_ns, stop):
                    frame.lease.release()
                    return
                count += 1
                yield frame

    def stats(self) -> SourceStats:
        """Return how many packets or images were damaged."""
        return SourceStats(self._data.damaged if self._data is not None else 0)

    def close(self) -> None:
        """Release what was decoded."""
        if self._data is not None:
            self._data.close()


def _stream_of(known: list[str], wanted: object, where: str, path: Path) -> str:
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted not in known:
        what = (
            f"{path} has no stream {wanted!r}{nearest(str(wanted), known)}" if wanted else f"{path} has several streams"
        )
        raise StageError(what, where=where, fix=f"options: {{stream: {known[0]}}}; there: {', '.join(known)}")
    return str(wanted)
