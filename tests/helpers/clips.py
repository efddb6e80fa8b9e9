"""Videos for tests, made on the spot; every image carries its number (see ``synthetic:counter``)."""

import struct
import threading
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from edgert.config.stages import SourceStage
from edgert.stages.source.kinds import source_for

U8 = npt.NDArray[np.uint8]
SIZE = (320, 240)


def numbered(count: int, size: tuple[int, int] = SIZE) -> Iterator[U8]:
    """``count`` BGR images that carry their index, over noise that differs from one to the next."""
    config = SourceStage(source="synthetic:counter", size=f"{size[0]}x{size[1]}", limit=count)
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    for frame in source_for("clip", config).frames(threading.Event()):
        image = frame.planes[0].copy()
        rows = image[16 : noise.shape[0]]
        rows[:, : noise.shape[1]] = np.roll(noise, 3 * frame.index, axis=1)[16:]
        frame.lease.release()
        yield image


def write_clip(
    path: Path,
    images: int | Iterable[U8] = 30,
    *,
    fps: float = 30,
    size: tuple[int, int] = SIZE,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    rotation: int = 0,
    colorspace: int = 2,
    color_range: int = 0,
) -> Path:
    """Writes BGR images (a number: so many from :func:`numbered`) as a video; the suffix chooses the container."""
    with av.open(str(path), "w", container_options=container or {}) as out:
        stream = out.add_stream(codec, rate=Fraction(fps).limit_denominator(1001), options=options or _options(codec))
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        context = stream.codec_context
        context.colorspace, context.color_range = colorspace, color_range
        if rotation:
            stream.set_display_rotation(rotation)
        for image in numbered(images, size) if isinstance(images, int) else images:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), "bgr24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def h264_units(
    images: int | Iterable[U8], *, size: tuple[int, int] = SIZE, gop: int = 10, bit_rate: int = 0
) -> list[bytes]:
    """Annex B access units, one per image, each key frame with its parameter sets; without B frames. ``bit_rate``: as
    a camera's encoder, bits per second; 0 is of one quality, encoded fast."""
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height = size
    context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 30)
    preset = "veryfast" if bit_rate else "ultrafast"
    context.options = {"preset": preset, "tune": "zerolatency", "g": str(gop), "x264-params": "scenecut=0"}
    if bit_rate:
        context.bit_rate = bit_rate
    units = []
    for index, image in enumerate(numbered(images, size) if isinstance(images, int) else images):
        frame = av.VideoFrame.from_ndarray(image, "bgr24").reformat(format="yuv420p")
        frame.pts = index
        units += [bytes(packet) for packet in context.encode(frame)]
    return units + [bytes(packet) for packet in context.encode(None)]


def flip_bytes(path: Path, count: int, seed: int = 0) -> Path:
    data = bytearray(path.read_bytes())
    for place in np.random.default_rng(seed).integers(len(data) // 4, len(data) * 3 // 4, count):
        data[place] ^= 0xFF
    path.write_bytes(data)
    return path


def trimmed(clip: Path, begin_s: float, length_s: float = 1.5) -> Path:
    """Let an MP4 begin later and end earlier by its edit list (ISO/IEC 14496-12, 8.6.6). All its frames stay in it."""
    data = bytearray(clip.read_bytes())
    place = data.index(b"elst") + 4
    with av.open(str(clip)) as opened:
        time_base = opened.streams.video[0].time_base
    assert time_base is not None
    (first,) = struct.unpack_from(">i", data, place + 12)
    struct.pack_into(">IIIi", data, place, 0, 1, round(length_s * 1000), first + round(begin_s / time_base))
    clip.write_bytes(data)
    return clip


def _options(codec: str) -> dict[str, str]:
    return {"preset": "ultrafast", "g": "10", "crf": "18"} if codec == "libx264" else {}
