"""Video decoded on a GPU: with stand-ins for PyNvVideoCodec and the GPU everywhere, with both where they are."""

import builtins
import json
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest

from edgert import installation
from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, StreamLease
from edgert.runtime.frame import Color, Frame
from edgert.stages.context import Context
from edgert.stages.source import nvdec as door
from edgert.stages.source.files import VideoFile
from edgert.stages.source.kinds import source_for
from tests.helpers.clips import h264_units, trimmed, write_clip
from tests.helpers.counter import read_counter
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.nvdec_double import NvdecDouble
from tests.helpers.rtsp_server import RtspServer

API = json.loads((Path(__file__).parents[1] / "data/nvdec/api.json").read_text(encoding="utf-8"))


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = CudaDouble()
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.package = NvdecDouble(self.device)
        monkeypatch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", self.package))
        self.reader = self.device.stream()

    def source(self, path: Path, **options: object) -> VideoFile:
        config = SourceStage.model_validate({"source": path.name, **options})
        return cast("VideoFile", source_for("cam", config, Context(path.parent)))

    def frames(self, path: Path, **options: object) -> Iterator[Frame]:
        source = self.source(path, **options)
        assert source.on_gpu(self.device) == ""
        yield from source.frames(threading.Event())
        source.close()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"preset": "ultrafast", "g": "10", "crf": "18", "bf": "2"}
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", 40, options=options, colorspace=1)


def number(frame: Frame) -> int:
    return read_counter(frame.to_host().planes[0])


def test_every_frame_comes_once_in_order_with_its_time_and_color(rig: Rig, clip: Path) -> None:
    seen = []
    for frame in rig.frames(clip):
        seen.append((number(frame), frame.index, frame.media_ns))
        assert frame.is_on_gpu and (frame.format, frame.width, frame.height) == ("nv12", 320, 240)
        assert [plane.shape for plane in frame.planes] == [(240, 320), (120, 160, 2)]
        assert frame.color == Color("bt709")
        frame.lease.release()
    assert [(at, index) for at, index, _ in seen] == [(at, at) for at in range(40)]
    assert [media for *_, media in seen] == pytest.approx([at * 1e9 / 30 for at in range(40)], abs=2e6)


@pytest.mark.parametrize("name", ["a.avi", "trimmed.mp4", "a.h264", "joined.ts"])
def test_times_are_those_of_the_processor(rig: Rig, tmp_path: Path, name: str) -> None:
    """Of packets with times of decoding only, of frames that an edit list leaves out, without any time, over a seam."""
    options = {"preset": "ultrafast", "g": "10", "crf": "18", "bf": "2"}
    clip = write_clip(tmp_path / name, 40, options=options, fps=20)
    if name == "trimmed.mp4":
        trimmed(clip, 0.77, 1.0)
    if name == "joined.ts":
        clip.write_bytes(2 * clip.read_bytes())
    on_cpu = [(number(frame), frame.media_ns) for frame in rig.source(clip).frames(threading.Event())]
    on_gpu = []
    for frame in rig.frames(clip):
        on_gpu.append((number(frame), frame.media_ns))
        frame.lease.release()
    assert [at for at, _ in on_gpu] == [at for at, _ in on_cpu]
    assert [at_ns for _, at_ns in on_gpu] == pytest.approx([at_ns for _, at_ns in on_cpu], abs=2)
    assert [at_ns for _, at_ns in on_gpu] == pytest.approx([index * 5e7 for index in range(len(on_gpu))], abs=2)


def test_pixels_are_those_of_the_processor_and_the_host_copies_none(rig: Rig, clip: Path) -> None:
    on_cpu = list(rig.source(clip, limit=5).frames(threading.Event()))
    counts = rig.device.counter.read()
    on_gpu = list(rig.frames(clip, limit=5))
    assert rig.device.counter.read().copies == counts.copies
    for cpu, gpu in zip(on_cpu, on_gpu, strict=True):
        _same(cpu, gpu)
    assert rig.device.counter.read().copies - counts.copies == 2 * 5


def test_a_surface_goes_back_when_its_lease_has_ended_and_the_gpu_has_read_it(rig: Rig, clip: Path) -> None:
    frames = rig.frames(clip)
    first = next(frames)
    pixels = number(first)
    rig.gpu.paused = True
    cast("StreamLease", first.lease).after(rig.reader)
    first.lease.release()
    decoder = rig.package.decoders[0]
    for _ in range(6):
        next(frames).lease.release()
    surface = cast("Any", first.planes[0]).pointer
    assert pixels == 0 and surface in decoder.locked
    rig.gpu.paused = False
    rig.gpu.run_all()
    for frame in frames:
        frame.lease.release()
    assert not decoder.locked
    assert decoder.made < 12  # surfaces are used again: 40 frames


def test_frames_outlive_the_file(rig: Rig, clip: Path) -> None:
    frames = list(rig.frames(clip, limit=5))
    assert [number(frame) for frame in frames] == [0, 1, 2, 3, 4]
    decoder = rig.package.decoders[0]
    held = len(decoder.locked)
    for frame in frames:
        frame.lease.release()
    assert held - len(decoder.locked) == 5


def test_a_loop_goes_on_with_a_new_decoder(rig: Rig, clip: Path) -> None:
    seen = []
    for frame in rig.frames(clip, loop=True, limit=60):
        seen.append(number(frame))
        frame.lease.release()
    assert seen == [*range(40), *range(20)] and len(rig.package.decoders) == 2


def test_the_gpu_is_asked_once_what_it_decodes(rig: Rig, clip: Path) -> None:
    for _ in range(3):
        for frame in rig.frames(clip, limit=2):
            frame.lease.release()
    assert rig.package.caps_asked == 1  # each time, a context is made for it, and every decoder waits


def test_the_decoder_works_in_our_context_and_on_our_stream(rig: Rig, clip: Path) -> None:
    frame = next(rig.frames(clip))
    options = rig.package.decoders[0].options
    assert options["cudacontext"] == rig.device.context_handle and options["usedevicememory"] is True
    assert options["cudastream"] == cast("Any", frame.planes[0]).stream.handle
    assert options["latency"] == 0


def test_a_camera_on_the_network_is_decoded_with_low_latency(rig: Rig) -> None:
    with RtspServer(h264_units(30)) as server:
        config = SourceStage(source=server.url, realtime=False, limit=5, reconnect=False)
        source = cast("Any", source_for("cam", config))
        assert source.on_gpu(rig.device) == ""
        frames = list(source.frames(threading.Event()))
        source.close()
    assert [number(frame) for frame in frames] == list(range(5)) and all(frame.is_on_gpu for frame in frames)
    assert rig.package.decoders[0].options["latency"] == 1
    for frame in frames:
        frame.lease.release()


def behind(device: CudaDevice, folder: Path, codec: str, low_latency: bool) -> list[tuple[int, int]]:
    """Of each image: its number, and how many packets were read beyond its own."""
    path = write_clip(folder / "clip.mp4", 20, codec=codec, options={"preset": "ultrafast", "bf": "0"})
    found = []
    with av.open(str(path)) as clip:
        stream, read = clip.streams.video[0], list[Any]()
        packets = (read.append(packet) or packet for packet in clip.demux(stream) if packet.size)
        decoder = door.Nvdec(stream, device, Counter(), REAL, low_latency=low_latency, where="cam")
        for index, image in enumerate(decoder.images(packets)):
            found.append((read_counter(cast("Any", image.planes[0]).to_host()), len(read) - index - 1))
            image.lease.release()
        decoder.close()
    return found


@pytest.mark.parametrize(
    ("codec", "low_latency", "late"), [("libx264", True, 0), ("libx264", False, 1), ("libx265", True, 1)]
)
def test_an_image_comes_without_the_next_one(
    rig: Rig, tmp_path: Path, codec: str, low_latency: bool, late: int
) -> None:
    found = behind(rig.device, tmp_path, codec, low_latency)
    assert found[:19] == [(number, late) for number in range(19)] and len(found) == 20


@pytest.mark.gpu
def test_from_a_real_decoder_an_image_comes_without_the_next_one(tmp_path: Path) -> None:
    device = gpu_or_skip()
    if reason := door.missing():
        pytest.skip(reason)
    assert behind(device, tmp_path, "libx264", True) == [(number, 0) for number in range(20)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"codec": "mpeg4"}, "NVDEC is given h264 and hevc here, not mpeg4"),
        ({"pix_fmt": "yuv422p"}, "pixels are yuv422p; on the GPU they are read as 4:2:0 of 8 bits"),
        ({"rotation": 90}, "asks for a rotation"),
    ],
)
def test_what_it_cannot_decode_stays_on_the_processor(
    rig: Rig, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    source = rig.source(write_clip(tmp_path / "clip.mp4", 5, **options))
    assert reason in source.on_gpu(rig.device)
    frames = list(source.frames(threading.Event()))
    assert len(frames) == 5 and not frames[0].is_on_gpu


@pytest.mark.parametrize(
    ("caps", "reason"),
    [
        ({"num_decoder_engines": 0}, "double has no NVDEC"),
        ({"width_max": 256}, "NVDEC decodes h264 from 0x0 to 256x4096 here, not 320x240"),
        ({"supported": 0}, "NVDEC of double does not decode h264"),
        ({"height_min": 256}, "from 0x256 to 4096x4096"),
    ],
)
def test_what_the_gpu_lacks_is_said(rig: Rig, clip: Path, caps: dict[str, int], reason: str) -> None:
    rig.package.caps |= caps
    assert reason in rig.source(clip).on_gpu(rig.device)


def test_without_the_package_it_is_said_how_to_install_it(
    rig: Rig, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", None)
    reason = rig.source(clip).on_gpu(rig.device)
    assert "PyNvVideoCodec is not installed" in reason and installation.command("nvdec") in reason


def test_a_driver_without_video_is_said_with_its_first_line(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "PyNvVideoCodec":
            raise RuntimeError("libnvidia-encode.so.1: cannot open shared object file\n\n=== STEPS ===")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(DeviceError) as caught:
        door.nvdec()
    assert caught.value.why == "libnvidia-encode.so.1: cannot open shared object file"
    assert "NVIDIA_DRIVER_CAPABILITIES" in (caught.value.fix or "")


def test_a_decoder_that_gives_up_says_why_and_what_to_do(rig: Rig, clip: Path) -> None:
    frames = rig.frames(clip)
    next(frames).lease.release()
    rig.package.broken["decode"] = rig.package.PyNvVCExceptionUnsupported("Codec not supported on this GPU")
    with pytest.raises(DeviceError) as caught:
        list(frames)
    error = caught.value
    assert (error.what, error.why) == ("the GPU cannot decode this H264 video", "Codec not supported on this GPU")
    assert (error.where, error.fix) == ("stages.cam", "decode: cpu")


def test_a_file_that_is_cut_off_is_told_as_on_the_processor(rig: Rig, clip: Path, tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "clip.ts", 60)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(clip.read_bytes()[: clip.stat().st_size // 2])
    with pytest.raises(StageError, match="cut"):
        rig.source(cut)
    assert len(list(rig.frames(whole))) == 60


def test_times_follow_the_order_of_display() -> None:
    times = door.DisplayTimes()
    for pts in (40, 120, 80, 0, 60, 100):  # an image from before the first key frame is never shown
        times.put(pts)
    assert [times.take() for _ in range(6)] == [40, 60, 80, 100, 120, None]
    for pts in range(200, 500, 10):  # the decoder leaves some out
        times.put(pts)
    assert times.take() == 260


def test_the_stand_in_and_the_door_use_what_the_real_package_has(rig: Rig) -> None:
    """Names and signatures are those that were read out of the real package."""
    text = Path(door.__file__).read_text(encoding="utf-8")
    for option in ("gpuid", "codec", "cudacontext", "cudastream", "usedevicememory", "latency"):
        assert f"{option}=" in text and f"{option}: " in API["functions"]["CreateDecoder"][0]
    assert "gpuid: int" in API["functions"]["GetDecoderCaps"][0]
    made = {"PyNvDecoder": rig.package.CreateDecoder(codec="h264"), "PacketData": rig.package.PacketData()}
    for name, members in API["classes"].items():
        for member in members:
            owner = made.get(name) or getattr(rig.package, name, None)
            assert owner is None or hasattr(owner, member), f"{name}.{member}"
    assert all(hasattr(rig.package, name) for name in API["exceptions"])


def _same(cpu: Frame, gpu: Frame) -> None:
    planes = gpu.to_host().planes
    assert np.array_equal(planes[0], cpu.planes[0])
    assert np.array_equal(planes[1][..., 0], cpu.planes[1]) and np.array_equal(planes[1][..., 1], cpu.planes[2])
    gpu.lease.release()


@pytest.mark.gpu
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_real_decoder_gives_the_pixels_of_the_processor(tmp_path: Path, codec: str) -> None:
    device = gpu_or_skip()
    if reason := door.missing():
        pytest.skip(reason)
    path = write_clip(tmp_path / "clip.mp4", 60, codec=codec)
    config = SourceStage(source=path.name)
    on_cpu = list(source_for("cam", config, Context(tmp_path)).frames(threading.Event()))
    source = cast("VideoFile", source_for("cam", config, Context(tmp_path)))
    assert source.on_gpu(device) == ""
    held: deque[tuple[Frame, Frame]] = deque()
    for cpu, gpu in zip(on_cpu, source.frames(threading.Event()), strict=True):
        assert (gpu.index, gpu.media_ns, gpu.color) == (cpu.index, cpu.media_ns, cpu.color)
        held.append((cpu, gpu))
        if len(held) > 5:
            _same(*held.popleft())
    source.close()
    while held:
        _same(*held.popleft())  # what is lent keeps its image, also when the file is closed
