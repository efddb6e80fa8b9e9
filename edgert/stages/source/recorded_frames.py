"""Frames of a recording, from its packets or pixels, for replays and as a source of any pipeline."""

import binascii
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgert.clock import time_of_day_ns
from edgert.config.stages import SourceStage
from edgert.errors import StageError, nearest
from edgert.memory import Counter, lend
from edgert.recording.cdr import DamagedMessage
from edgert.recording.mcap_messages import read_image, read_video
from edgert.recording.recording import Piece, Restart, open_recording
from edgert.runtime.decisions import Entry
from edgert.runtime.frame import Color, DepthImage, Frame, FrameExtra
from edgert.runtime.stage import SourceStats
from edgert.stages.context import Context
from edgert.stages.source.files import absolute
from edgert.stages.source.planes import plane_shapes, to_image
from edgert.stages.source.timeline import Image, Pacer, Thinner

_AHEAD_BYTES = 64 << 20
"""Limit of a stream's waiting packets while it gives no frame, as when it is paused; older ones are decoded and
dropped."""
_REORDERED = 64
"""Bound above the images that a decoder holds back to reorder them for display."""
_MOST_SIDE = 1 << 15
_SAME_NS = 10**9  # by which a clock is corrected while it runs; another boot or machine differs by more


class RecordedStream:
    """Camera data of one stream, decoded as frames are requested."""

    def __init__(self, stream: str, counter: Counter) -> None:
        self.damaged = 0
        self._stream, self._counter = stream, counter
        self._pieces, self._nbytes = deque[Piece](), 0
        self._restarts: dict[int, Mapping[str, Any]] = {}
        self._decoder: Any = None
        self._depth: tuple[int, DepthImage | None] = (-1, None)  # the newest, and the number of its image
        self._about: Mapping[str, Any] = {}
        self._images = deque[tuple[int, Image]]()

    def add(self, piece: Piece) -> None:
        """Add the next packet or image."""
        self._pieces.append(piece)
        self._nbytes += len(piece.data)

    def restart(self, restart: Restart) -> None:
        """Add the data with which a new decoder begins at a packet."""
        self._restarts[restart.number] = restart.about
        while self._nbytes > _AHEAD_BYTES and self._pieces[0].number < restart.number:
            self._decode()
            self._drop(len(self._images) - _REORDERED)

    def image(self, number: int) -> Image | None:
        """Return the image of a packet, with its lease; None where it was not recorded or is damaged.

        Request images in display order.
        """
        while True:
            for at, (found, image) in enumerate(self._images):
                if found == number:
                    self._drop(at)
                    self._images.popleft()
                    return image
            if self._pieces and self._pieces[0].number <= number + _REORDERED:
                self._decode()
            elif self._pieces or self._decoder is None or number < 0:
                return None
            else:  # a decoder gives its last images when it is flushed
                self._flush()

    def close(self) -> None:
        self._drop(len(self._images))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._images.popleft()[1].lease.release()

    def _decode(self) -> None:
        piece = self._pieces.popleft()
        self._nbytes -= len(piece.data)
        if piece.number in self._restarts:
            self._flush()
            self._about = self._restarts.pop(piece.number)
        try:
            if piece.kind == "video":
                self._decode_packet(piece)
            elif piece.kind == "depth":
                self._depth = (piece.number, _depth_image(piece, self._about.get("camera")))
            else:
                self._images.append((piece.number, self._pixels(piece)))
        except (DamagedMessage, ValueError, KeyError, TypeError):
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
            self._decoder = None

    def _give(self, packet: Any) -> None:
        """Decode a packet; None flushes the decoder."""
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
        """Return an image that was recorded as pixels. Raises ValueError for a wrong size or missing pixels."""
        unit = read_image(piece.data)
        width, height = unit.size
        if not (0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE):
            raise ValueError(f"an image of {width}x{height} is beyond the limit of {_MOST_SIDE}")
        data, at, planes = np.frombuffer(unit.data, np.uint8), 0, []
        for shape in plane_shapes(unit.format, width, height):
            size = int(np.prod(shape))
            planes.append(data[at : at + size].reshape(shape))
            at += size
        matrix, full_range = self._about.get("color") or ("bt601", False)
        color = Color("bt709" if matrix == "bt709" else "bt601", bool(full_range))
        file, (number, depth) = str(self._about.get("file") or ""), self._depth
        depth = depth if number == piece.number else None  # a damaged one is missing
        lease = lend(data, self._counter)
        return Image(unit.format, tuple(planes), lease, 0, color=color, file=file, depth=depth)  # type: ignore[arg-type]


def _depth_image(piece: Piece, camera: Any) -> DepthImage:
    """Return a recorded depth image. Raises ValueError, KeyError or TypeError for damaged data."""
    unit = read_image(piece.data)
    values = np.frombuffer(unit.data, {"16UC1": np.uint16, "32FC1": np.float32}[unit.format])
    x, y, center_x, center_y = map(float, camera or (0,) * 4)
    return DepthImage(values.reshape(unit.size[::-1]), (x, y, center_x, center_y) if camera else None)


def _decoder(codec: str, about: Mapping[str, Any]) -> Any:
    """Return a decoder, set up by a :class:`Restart`. Raises ValueError where FFmpeg has none, or for damaged data."""
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
            raise ValueError("the decoder's extradata is damaged") from error
    tags = about.get("tags")
    if isinstance(tags, list) and len(tags) == 2 and all(type(one) is int and 0 <= one < 256 for one in tags):
        made.colorspace, made.color_range = tags
    made.thread_count = 1
    return made


def frame_of(entry: Entry, image: Image) -> Frame:
    """Return the frame of a recorded ``give`` decision, with the image's lease.

    Raises StageError: the image has another size than the recorded frame, as with rotated video.
    """
    timestamp_ns, media_ns, sender_ns, width, height, *_ = entry.more
    found = image.planes[0].shape[1], image.planes[0].shape[0]
    if found != (width, height):
        image.lease.release()
        why = f"it decodes to {found[0]}x{found[1]}, and was {width}x{height}: the container's metadata rotated it"
        what = f"frame {entry.frame} of {entry.stream!r} cannot be reproduced"
        raise StageError(what, why=why, fix="record with pixels: true")
    return Frame(
        entry.stream, entry.frame, timestamp_ns, media_ns, width, height, image.format, image.planes, image.lease,
        image.color, FrameExtra(image.file, sender_ns, depth=image.depth),
    )  # fmt: skip


class RecordedSource:
    """Source of one recorded stream's frames, as fast as they are taken, with their recorded numbers and times.

    ``options: {stream: NAME}`` chooses one of several streams; ``fps``, ``limit`` and ``realtime`` work as for a video
    file.

    Raises:
        ArtifactError: the file is not a recording, or is damaged.
        StageError: it has no such stream, or several, and none is named.
    """

    live = False

    def __init__(self, name: str, config: SourceStage, context: Context) -> None:
        self._name, self._config, self._counter = name, config, context.counter
        path = absolute(config.source.removeprefix("recording:").removeprefix("file://"), context.directory)
        self._recording = open_recording([path])
        known = sorted({*self._recording.frames, *self._recording.head["streams"]})  # a stream may have no frame
        self._stream = _stream_of(known, config.options.get("stream"), f"stages.{name}", path)
        self._pacer = Pacer(context.clock) if config.realtime else None
        shift_ns = self._recording.head["offset_ns"] - time_of_day_ns(0, context.clock)
        self._shift_ns = shift_ns if abs(shift_ns) > _SAME_NS else 0  # zero in the boot that recorded them
        self._data: RecordedStream | None = None

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
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
                more = (event.more[0] + self._shift_ns, *event.more[1:])  # so that times of day are those recorded
                frame = frame_of(event._replace(stream=self._name, more=more), image)
                if self._pacer is not None and not self._pacer.wait(frame.media_ns, stop):
                    frame.lease.release()
                    return
                count += 1
                yield frame

    def stats(self) -> SourceStats:
        return SourceStats(self._data.damaged if self._data is not None else 0)

    def close(self) -> None:
        if self._data is not None:
            self._data.close()


def _stream_of(known: list[str], wanted: object, where: str, path: Path) -> str:
    """Return the stream to play: the wanted one, or the only one. Raises StageError."""
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted not in known:
        none = f"no stream {wanted!r}{nearest(str(wanted), known)}"
        what = f"{path} has {none if wanted else 'several streams'}"
        raise StageError(what, where=where, fix=f"options: {{stream: {known[0]}}}; there: {', '.join(known)}")
    return str(wanted)
