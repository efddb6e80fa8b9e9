"""Video encoded by NVENC: PyNvVideoCodec's double around real images, and what happens where there is none."""

import ctypes
import gc
import json
import logging
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
import pytest

from edgert.assemble import gpu_models
from edgert.board import detect as real_detect
from edgert.errors import BuildError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, DeviceView
from edgert.runtime.frame import Color, Frame
from edgert.runtime.records import Result
from edgert.stages.sink import encoder_choice, encoders, gpu_images, gst_encoder, nvenc
from edgert.stages.sink.encoder_choice import NO_GPU, NOT_ON_THIS_JETSON, hardware_encoders
from edgert.stages.sink.video import VideoSink
from tests.helpers import gpu_pipeline
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import frame_of
from tests.helpers.gpu import gpu_or_skip, to_gpu
from tests.helpers.nvdec_double import PyNvVCException
from tests.helpers.nvenc_double import BEHIND, Encoder, NvencDouble
from tests.helpers.written import opened
from tests.integration.test_sink_video import shown, write

STEP_NS = 33_366_667  # 29.97 Hz
API = json.loads((Path(__file__).parents[1] / "data/nvdec/api.json").read_text(encoding="utf-8"))


class Writer:
    """What the kernel does, on the processor."""

    def __init__(self, kernels: Any) -> None:
        self.gpu = kernels.device.driver

    def write(self, view: DeviceView, luma: int, luma_pitch: int, chroma: int, chroma_pitch: int, stream: Any) -> None:
        height, width = view.shape[0] & ~1, view.shape[1] & ~1
        pixels = at(view.address, view.strides[0] * view.shape[0]).reshape(view.shape[0], view.strides[0])
        image = pixels[:, : view.shape[1] * 3].reshape(view.shape)[:height, :width]
        yuv = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_BGR2YUV_I420)
        at(luma, luma_pitch * height).reshape(height, luma_pitch)[:, :width] = yuv[:height]
        blue, red = yuv[height:].reshape(2, height // 2, width // 2)
        out = at(chroma, chroma_pitch * height // 2).reshape(height // 2, chroma_pitch)
        out[:, :width] = np.dstack([blue, red]).reshape(height // 2, width)


def at(address: int, nbytes: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = CudaDouble(memory_bytes=2**32)
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.package = NvencDouble(self.device)
        nvenc._unsupported.cache_clear()
        monkeypatch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", self.package))
        monkeypatch.setattr(nvenc, "driver_missing", lambda: "")
        monkeypatch.setattr(gpu_images, "Nv12Writer", Writer)
        monkeypatch.setitem(encoders.NVENC, "h264", "libnowhere")  # this machine's FFmpeg has a real name there
        self.counter = Counter()

    def result(self, index: int, width: int = 160, height: int = 120, drawn: bool = False, **given: Any) -> Result:
        """A frame on the GPU, nv12, of one gray level; or the same drawn."""
        host = frame_of(width, height, "nv12", counter=self.counter, index=index, media_ns=index * STEP_NS, **given)
        for plane, level in zip(host.planes, (level_of(index), 128), strict=True):
            plane[...] = level
        result = Result(on_gpu(self.device, host))
        if drawn:
            image = frame_of(width, height, pixels=(np.full((height, width, 3), level_of(index), np.uint8),))
            result = replace(result, image=on_gpu(self.device, image).planes[0])
        return result

    def copies(self) -> int:
        return self.device.counter.read().copies + self.counter.read().copies


def on_gpu(device: CudaDevice, frame: Frame) -> Frame:
    """The frame as a decoder leaves it: with the stream that wrote it."""
    there, stream = to_gpu(device, frame), device.stream()
    planes = tuple(replace(cast("Any", plane), stream=stream) for plane in there.planes)
    return replace(there, planes=cast("Any", planes))


def level_of(index: int) -> int:
    return 40 + 4 * (index % 40)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


@pytest.mark.parametrize("codec", ["h264", "h265"])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_frames_on_the_gpu_are_encoded_there_and_no_pixel_comes_down(
    rig: Rig, tmp_path: Path, codec: Any, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / f"out.{suffix}"
    write(VideoSink("video", path, codec=codec, quality=10), (rig.result(n, color=Color("bt709")) for n in range(45)))
    assert rig.copies() == 0
    found = shown(path)
    assert [at for at, _ in found] == pytest.approx([n * STEP_NS / 1e9 for n in range(45)], abs=2e-3)
    assert [luma for _, luma in found] == pytest.approx([level_of(n) for n in range(45)], abs=3)
    with av.open(str(path)) as file:
        context = file.streams.video[0].codec_context
        assert (context.colorspace, context.color_range) == (1, 1)
        assert context.name == {"h264": "h264", "h265": "hevc"}[codec]
        assert suffix == "mkv" or context.codec_tag == {"h264": "avc1", "h265": "hvc1"}[codec]
    (encoder,) = rig.package.encoders
    assert encoder.ended and not encoder.on_host and len(encoder.addresses) > 1
    assert (encoder.options["rc"], encoder.options["constqp"], encoder.options["bf"]) == ("constqp", 10, 0)
    assert encoder.options["cudacontext"] == rig.device.context_handle
    assert caplog.text.count("encoded by NVENC (PyNvVideoCodec)") == 1


def test_video_that_is_watched_while_it_is_made_has_a_bit_rate(rig: Rig) -> None:
    format = encoders.VideoFormat("h264", 23, 160, 120, Fraction(25), Color(), bitrate_bps=2_000_000)
    encoder = nvenc.Nvenc(format, None)
    encoder.refresh()
    encoder.encode(Result(frame_of(160, 120)), 0)
    encoder.close()
    options = rig.package.encoders[0].options
    assert (options["rc"], options["bitrate"], options["gop"], options["bf"]) == ("cbr", 2_000_000, 25, 0)
    assert options["tuning_info"] == "ultra_low_latency" and "constqp" not in options


@pytest.mark.parametrize("size", [(160, 120), (161, 121)])
def test_drawn_images_on_the_gpu_stay_there_and_odd_edges_are_left_out(
    rig: Rig, tmp_path: Path, size: tuple[int, int]
) -> None:
    write(VideoSink("video", tmp_path / "out.mp4", quality=5), (rig.result(n, *size, drawn=True) for n in range(9)))
    assert rig.copies() == 0
    assert [luma for _, luma in shown(tmp_path / "out.mp4")] == pytest.approx(
        [16 + level_of(n) * 219 / 255 for n in range(9)], abs=3
    )
    with av.open(str(tmp_path / "out.mp4")) as file:
        assert (file.streams.video[0].width, file.streams.video[0].height) == (160, 120)


def test_memory_goes_back_when_the_file_is_closed(rig: Rig, tmp_path: Path) -> None:
    before = rig.device.live_bytes
    write(VideoSink("video", tmp_path / "out.mp4"), [])
    with opened(VideoSink("video", tmp_path / "out.mp4")) as sink:
        sink.process(rig.result(0))
        host = frame_of(160, 120, "i420", counter=rig.counter, index=1, media_ns=STEP_NS)
        host.planes[0][...], host.planes[1][...], host.planes[2][...] = level_of(1), 128, 128
        copies = rig.copies()
        sink.process(Result(host))  # its decoder fell back to the processor
        assert rig.copies() - copies == 2, "packed, and brought up"
    assert [luma for _, luma in shown(tmp_path / "out.mp4")] == pytest.approx([level_of(0), level_of(1)], abs=3)
    gc.collect()
    assert rig.device.live_bytes == before


def test_frames_on_the_host_are_encoded_from_there(rig: Rig, tmp_path: Path) -> None:
    frames = [frame_of(64, 48, "i420", index=n, media_ns=n * STEP_NS, counter=rig.counter) for n in range(8)]
    for number, frame in enumerate(frames):
        for plane, level in zip(frame.planes, (level_of(number), 128, 128), strict=True):
            plane[...] = level
    write(VideoSink("video", tmp_path / "out.mp4", encode="gpu"), [Result(frame) for frame in frames])
    assert [luma for _, luma in shown(tmp_path / "out.mp4")] == pytest.approx([level_of(n) for n in range(8)], abs=3)
    assert rig.package.encoders[0].on_host and rig.counter.read().copies == 8


def test_x264_brings_what_it_encodes_down_once(rig: Rig, tmp_path: Path) -> None:
    sink = VideoSink("video", tmp_path / "out.mp4", encode="cpu")
    write(sink, (rig.result(n, drawn=True) for n in range(5)))
    assert not rig.package.encoders
    assert rig.device.counter.read().bytes_copied == 5 * 160 * 120 * 3
    write(VideoSink("video", tmp_path / "nv12.mp4", encode="cpu"), (rig.result(n) for n in range(5)))
    assert rig.device.counter.read().bytes_copied == 5 * 160 * 120 * (3 + 1.5)
    assert len(shown(tmp_path / "nv12.mp4")) == len(shown(tmp_path / "out.mp4")) == 5


UNSUPPORTED = (
    "PyNvEncoderCaps : \nError code : 2\n"
    "Error Type : m_nvenc.nvEncOpenEncodeSessionEx(&encodeSessionExParams, &hEncoder) returned error 2\nat x.cpp:9\n"
)
"""What an H100 says, which has no NVENC."""


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"sessions": 0}, "OpenEncodeSessionEx: out of memory"),
        ({"encoder_caps": {"num_encoder_engines": 0}}, "GPU 0 has no NVENC"),
        (
            {"broken": {"encoder caps": PyNvVCException(UNSUPPORTED)}},
            "for h264: nvEncOpenEncodeSessionEx returned error 2",
        ),
        ({"broken": {"encoder": PyNvVCException("145x49 is the least")}}, "145x49 is the least"),
    ],
    ids=["no session left", "no engine", "no caps", "size"],
)
def test_without_nvenc_x264_encodes_and_the_log_says_why(
    rig: Rig, tmp_path: Path, trouble: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, value in trouble.items():
        setattr(rig.package, name, value)
    write(VideoSink("video", tmp_path / "{stream}.mp4"), [rig.result(0, stream=name) for name in "abc"])
    assert caplog.text.count("encoded by the CPU (libx264)") == 1 and reason in caplog.text
    assert [len(shown(tmp_path / f"{name}.mp4")) for name in "abc"] == [1, 1, 1]
    with pytest.raises(DeviceError, match="cannot be encoded by hardware here") as caught:
        write(VideoSink("video", tmp_path / "gpu.mp4", encode="gpu"), [rig.result(0)])
    assert reason in caught.value.why and caught.value.fix == "encode: auto, or encode: cpu"
    assert caught.value.where == "stages.video" and not (tmp_path / "gpu.mp4").exists()


def test_some_streams_get_a_session_and_the_others_x264(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.package.sessions = 2
    write(VideoSink("video", tmp_path / "{stream}.mp4"), [rig.result(n, stream=s) for n in range(6) for s in "abc"])
    assert len(rig.package.encoders) == 2 and "encoded by the CPU (libx264)" in caplog.text
    assert [len(shown(tmp_path / f"{name}.mp4")) for name in "abc"] == [6, 6, 6]


def test_an_encoder_that_fails_on_the_way_leaves_a_file_that_plays_and_the_next_stream_takes_another(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(VideoSink("video", tmp_path / "{stream}.mp4")) as sink:
        for index in range(12):
            sink.process(rig.result(index, stream="a"))
        rig.package.broken["encode"] = PyNvVCException("the device was lost")
        with pytest.raises(DeviceError, match="NVENC cannot encode") as caught:
            sink.process(rig.result(12, stream="a"))
        assert (caught.value.why, caught.value.where) == ("the device was lost", "stages.video")
        for index in range(4):
            sink.process(rig.result(index, stream="b"))
    assert len(shown(tmp_path / "a.mp4")) == 12 - BEHIND and len(shown(tmp_path / "b.mp4")) == 4
    assert "encoded by the CPU (libx264): NVENC cannot encode 160x120 h264: the device was lost" in caplog.text


def test_a_package_that_gives_no_times_is_named(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "Encode", lambda self, frame, parameters: [0, 0, 0, 1])
    sink = VideoSink("video", tmp_path / "out.mp4")
    with pytest.raises(DeviceError, match="too old to encode") as caught:
        write(sink, [rig.result(0)])
    assert caught.value.fix == "pip install 'PyNvVideoCodec>=2.2'"
    sink.close()


def test_without_a_kernel_images_are_brought_down(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def broken(kernels: object) -> None:
        raise BuildError("nv12.cu does not compile", why="no NVRTC")

    monkeypatch.setattr(gpu_images, "Nv12Writer", broken)
    write(VideoSink("video", tmp_path / "out.mp4"), (rig.result(n, drawn=True) for n in range(3)))
    assert "encoded by the CPU (libx264): nv12.cu does not compile: no NVRTC" in caplog.text
    assert len(shown(tmp_path / "out.mp4")) == 3


def test_a_gpu_that_is_lost_ends_the_file_and_names_it(rig: Rig, tmp_path: Path) -> None:
    with opened(VideoSink("video", tmp_path / "out.mp4")) as sink:
        for index in range(10):
            sink.process(rig.result(index))
        result = rig.result(10)
        rig.gpu.broken["event"] = "unspecified launch failure"
        with pytest.raises(DeviceError, match="unspecified launch failure"):
            sink.process(result)
        rig.gpu.broken.clear()
    assert len(shown(tmp_path / "out.mp4")) == 10 - BEHIND


def test_the_double_has_the_real_names() -> None:
    for option in ("gpuid", "codec"):
        assert f"{option}: " in API["functions"]["GetEncoderCaps"][0]
    assert "(width, height, fmt, usecpuinputbuffer, **kwargs)" in API["functions"]["CreateEncoder"][0]
    for name, kind in (("PyNvEncoder", Encoder), ("NV_ENC_PIC_PARAMS", NvencDouble.NV_ENC_PIC_PARAMS)):
        assert all(hasattr(kind, member) for member in API["classes"][name])
    assert "picParams: NV_ENC_PIC_PARAMS" in API["classes"]["PyNvEncoder"]["Encode"]["method"][2]
    assert set(API["units"]) == {"data", "timestamp", "picture_type"}


def test_what_is_here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[str]:
        return [f"{kind}: {why}" for kind, why in hardware_encoders("h264", on_gpu=True)]

    assert found() == ["nvenc: ", "ffmpeg: PyAV has no libnowhere"]
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", None)
    assert found()[0].startswith("nvenc: PyNvVideoCodec is not installed") and found()[1].endswith("no libnowhere")
    monkeypatch.setattr(encoders, "has_encoder", lambda name: True)
    assert found()[1] == "ffmpeg: "
    monkeypatch.setattr(nvenc, "driver_missing", lambda: NO_GPU)
    assert found() == [f"nvenc: {NO_GPU}", f"ffmpeg: {NO_GPU}"]


@pytest.mark.parametrize(
    ("board", "l4t", "nvenc_why", "ffmpeg_why", "board_why"),
    [
        ("orin-nano-8gb", "36.4.3", *("a Jetson Orin Nano 8GB has no video encoder",) * 3),
        ("orin-nx-16gb", "36.4.3", NOT_ON_THIS_JETSON, NOT_ON_THIS_JETSON, "GStreamer has no x"),
        ("thor-t5000", "38.2.0", "", "PyAV has no libnowhere", "GStreamer has no x"),
    ],
)
def test_what_is_on_a_jetson(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, board: str, l4t: str, nvenc_why: str, ffmpeg_why: str, board_why: str
) -> None:
    monkeypatch.setenv("EDGERT_BOARD", board)
    machine = replace(real_detect(), l4t=l4t)
    monkeypatch.setattr(encoder_choice, "detect", lambda: machine)
    monkeypatch.setattr(gst_encoder, "missing", lambda codec: "GStreamer has no x")
    found = [("nvenc", nvenc_why), ("ffmpeg", ffmpeg_why), ("board", board_why)]
    assert hardware_encoders("h264", on_gpu=False) == found
    found.insert(2, ("board, on the GPU", board_why))
    assert hardware_encoders("h264", on_gpu=True) == found


def test_a_pipeline_that_draws_and_records_brings_nothing_down_but_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    """Camera, model and boxes, and beside them two recordings: of what was drawn, and of the frames as they came."""

    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CudaDevice, "capture", capture)
    stages = (
        "  paint: {draw: boxes, from: find}\n"
        "  drawn: {sink: video, from: paint, path: drawn.mp4, encode: gpu}\n"
        "  plain: {sink: video, from: find, path: plain.mp4, encode: gpu}\n"
    )
    whole = gpu_pipeline.Rig(tmp_path, monkeypatch, stages)
    monkeypatch.setattr("edgert.stages.gpu.overlay.Kernels", cast("Any", gpu_models).Kernels)
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", NvencDouble(whole.device)))
    with whole.pipeline() as pipeline:
        warm = pipeline._assembly.counter.read()
        pipeline.run()
        counts = pipeline._assembly.counter.read()
    assert counts.bytes_copied - warm.bytes_copied == 43 * gpu_pipeline.RECORD_BYTES, "of 40 frames and 3 warm slots"
    assert len(shown(tmp_path / "drawn.mp4")) == len(found := shown(tmp_path / "plain.mp4")) == 40
    assert [luma for _, luma in found] == pytest.approx(range(40), abs=4)
    assert whole.camera.leased == 0


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1920, 1080), (161, 121)])
def test_a_real_gpu_writes_what_the_processor_writes(size: tuple[int, int]) -> None:
    """Drawn images within a level, NV12 frames byte for byte; into memory with gaps between the rows."""
    device = gpu_or_skip()
    width, height = size[0] & ~1, size[1] & ~1
    pitch = width + 64
    drawn = frame_of(*size, "bgr", index=3)
    for number, frame in enumerate((drawn, frame_of(*size, "nv12", index=4))):
        there = on_gpu(device, frame)
        result = Result(there) if number else replace(Result(there), image=cast("Any", there.planes[0]))
        images, block = (
            gpu_images.GpuImages(device, drawn=not number),
            device.block(pitch * height * 3 // 2, "staged"),
        )
        copies = device.counter.read().copies
        images.write(result, [(block.address, pitch), (block.address + pitch * height, pitch)])
        assert device.counter.read().copies == copies
        block.download(images.stream)
        images.stream.synchronize()
        found = block.host.reshape(-1, pitch)[:, :width].astype(int)
        packed = encoders.I420Writer().write(Result(frame)).astype(int)
        blue, red = packed[height:].reshape(2, height // 2, width // 2)
        assert np.abs(found[:height] - packed[:height]).max() <= 1 - number
        assert np.abs(found[height:] - np.dstack([blue, red]).reshape(height // 2, width)).max() <= 1 - number
        images.close()
        block.release()


@pytest.mark.gpu
def test_a_real_gpu_encodes_or_says_why_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    device = gpu_or_skip()
    frames = [frame_of(640, 480, "nv12", index=n, media_ns=n * STEP_NS) for n in range(30)]
    sink = VideoSink("video", tmp_path / "out.mp4")
    copies = device.counter.read().copies
    write(sink, [Result(on_gpu(device, frame)) for frame in frames])
    reason = dict(hardware_encoders("h264", on_gpu=True, ordinal=device.ordinal))["nvenc"]
    brought_down = device.counter.read().copies - copies
    print(f"NVENC here: {reason or 'yes'}; log: {caplog.text}")
    assert len(shown(tmp_path / "out.mp4")) == 30
    assert brought_down == (0 if not reason else 30)
    assert "encoded by" in caplog.text and (not reason or reason in caplog.text)
