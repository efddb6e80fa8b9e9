"""Video encoded as on a Jetson: real GStreamer, OpenH264 in the place of the board's encoder. No board was used."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.runtime.frame import Color
from edgert.runtime.records import Result
from edgert.stages.sink import encoders, gst_encoder
from edgert.stages.sink.video import VideoSink
from edgert.stages.source import gst_pipelines
from tests.helpers.command import with_doubles
from tests.helpers.errors import Exactly, raises
from tests.helpers.frames import frame_of
from tests.helpers.gst_encoder import STAND_IN, STEP_NS, instead_of_a_jetsons, level_of
from tests.helpers.written import opened
from tests.integration.test_sink_video import shown, write

pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi gir1.2-gstreamer-1.0")
DOUBLE = Path(__file__).parents[1] / "helpers/nvmm_double.c"


def results(count: int, width: int = 160, height: int = 120, stream: str = "camera") -> Iterator[Result]:
    for index in range(count):
        at = index * STEP_NS
        frame = frame_of(width, height, "i420", color=Color("bt709"), index=index, media_ns=at, stream=stream)
        for plane, level in zip(frame.planes, (level_of(index), 128, 128), strict=True):
            plane[...] = level
        yield Result(frame)


def sink_of(path: Path, stall_s: float = 5.0, **options: Any) -> VideoSink:
    sink = VideoSink("video", path, **options)
    sink._encoders.stall_s = stall_s
    return sink


def check(path: Path, count: int) -> None:
    found = shown(path)
    assert [at for at, _ in found] == pytest.approx([n * STEP_NS / 1e9 for n in range(count)], abs=2e-3)
    assert [luma for _, luma in found] == pytest.approx([level_of(n) for n in range(count)], abs=6)


OWN = (
    "nvv4l2h264enc ratecontrol-enable=0 preset-level=0 quant-i-frames=23 quant-p-frames=23 quant-b-frames=23 "
    "iframeinterval=60 idrinterval=60 profile=4 insert-sps-pps=1 maxperf-enable=1"
)


@pytest.mark.parametrize(
    ("nvmm", "fps", "begins"),
    [
        (
            False,
            None,
            'appsrc name=in format=time caps="video/x-raw,format=I420,width=640,height=480,framerate=30/1" '
            "! nvvidconv ! video/x-raw(memory:NVMM),format=NV12",
        ),
        (
            True,
            29.97,
            'appsrc name=in format=time caps="video/x-raw(memory:NVMM),format=NV12,width=640,height=480,'
            'framerate=30000/1001"',
        ),
    ],
)
def test_the_pipeline_of_a_board(nvmm: bool, fps: float | None, begins: str) -> None:
    encoder = gst_pipelines.ENCODERS["h264"]
    text = gst_pipelines.encoding("h264", encoder, ("in", "out"), (640, 480), fps, 23, 60, nvmm)
    ends = "video/x-h264,stream-format=byte-stream,alignment=au ! appsink name=out sync=false"
    assert text == f"{begins} ! {OWN} ! {ends}"


@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv"])
def test_as_many_images_come_out_as_went_in_each_at_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    instead_of_a_jetsons(monkeypatch)
    write(sink_of(tmp_path / f"out.{suffix}"), results(70))
    check(tmp_path / f"out.{suffix}", 70)
    assert caplog.text.count("encoded by the board's own encoder (nvv4l2h264enc)\n") == 1
    assert "left" not in caplog.text
    with av.open(str(tmp_path / f"out.{suffix}")) as file:
        assert file.streams.video[0].codec_context.colorspace == 1


def test_gaps_and_a_fixed_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead_of_a_jetsons(monkeypatch)
    write(sink_of(tmp_path / "fixed.mp4", fps=12.5), results(10))
    assert [at for at, _ in shown(tmp_path / "fixed.mp4")] == pytest.approx([n / 12.5 for n in range(10)], abs=1e-4)
    few = [result for number, result in enumerate(results(40)) if number in (0, 1, 20, 39)]
    write(sink_of(tmp_path / "gaps.mp4"), few)
    wanted = [n * STEP_NS / 1e9 for n in (0, 1, 20, 39)]
    assert [at for at, _ in shown(tmp_path / "gaps.mp4")] == pytest.approx(wanted, abs=2e-3)


def test_images_of_the_host_are_copied_once_and_buffers_come_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    instead_of_a_jetsons(monkeypatch)
    counter = Counter()
    with opened(sink_of(tmp_path / "out.mp4")) as sink:
        for index in range(150):
            if index == 50:
                before = counter.read().allocations
            sink.process(Result(frame_of(320, 240, "i420", counter=counter, index=index % 7, media_ns=index * STEP_NS)))
    assert counter.read().copies == 150 and counter.read().allocations - before <= gst_encoder.IN_FLIGHT
    assert not gst_encoder._waiting, "every buffer was let go"


@pytest.mark.parametrize(
    ("encoder", "why"),
    [
        ("nosuchelement", "no element"),
        (f"identity error-after=1 ! {STAND_IN}", "Failed after iterations"),
        (f"identity drop-probability=1.0 ! {STAND_IN}", "it gave no image"),
    ],
    ids=["no element", "fails at once", "gives nothing"],
)
def test_a_board_whose_encoder_does_not_work_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoder: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    instead_of_a_jetsons(monkeypatch, encoder)
    write(sink_of(tmp_path / "out.mp4", 1.0), results(5))
    check(tmp_path / "out.mp4", 5)
    assert "encoded by the CPU (libx264): " in caplog.text and why in caplog.text
    with raises(DeviceError, "cannot be encoded by hardware here", why=why, where=Exactly("stages.video")):
        write(sink_of(tmp_path / "gpu.mp4", 1.0, encode="gpu"), results(5))
    assert not (tmp_path / "gpu.mp4").exists() and not gst_encoder._waiting


def test_an_error_on_the_way_ends_the_file_which_plays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    instead_of_a_jetsons(monkeypatch, f"identity error-after=20 ! {STAND_IN}")
    with opened(sink_of(tmp_path / "{stream}.mp4")) as sink:
        with pytest.raises(DeviceError, match="GStreamer pipeline failed") as caught:
            for result in results(500, stream="a"):
                sink.process(result)
        assert "Failed after iterations" in caught.value.why and caught.value.where == "stages.video"
        for result in results(5, stream="b"):
            sink.process(result)
    assert 0 < len(shown(tmp_path / "a.mp4")) <= 20
    check(tmp_path / "b.mp4", 5)
    assert "encoded by the CPU (libx264): the GStreamer pipeline failed" in caplog.text


def test_an_encoder_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead_of_a_jetsons(monkeypatch, f"identity name=slow ! {STAND_IN}")
    encoder = gst_encoder.GstEncoder(_format(), None, "stages.video", 0.6, trial=False)
    encoder._pipeline.element("slow").set_property("sleep-time", 3_000_000)
    with raises(DeviceError, "own encoder", why=Exactly("it takes no image for 0.6 s")):
        for number, result in enumerate(results(50)):
            encoder.encode(result, number * 2000)
    with raises(DeviceError, "own encoder", why=Exactly("it gives no image for 0.6 s")):
        encoder.finish()
    encoder.close()


def test_an_encoder_that_takes_everything_and_gives_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch, f"identity drop-probability=1.0 ! {STAND_IN}")
    encoder = gst_encoder.GstEncoder(_format(), None, "stages.video", 5.0, trial=False)
    with raises(DeviceError, "own encoder", why=Exactly("it is 60 images behind")):
        for number, result in enumerate(results(100)):
            encoder.encode(result, number * 2000)
    encoder.close()


def test_images_that_an_encoder_leaves_out_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instead_of_a_jetsons(monkeypatch, f"identity drop-probability=0.5 ! {STAND_IN}")
    encoder = gst_encoder.GstEncoder(_format(), None, "stages.video", 5.0, trial=False)
    units = [unit for n, result in enumerate(results(40)) for unit in encoder.encode(result, n * 2000)]
    units += encoder.finish()
    encoder.close()
    assert 0 < len(units) < 40 and all(unit.tick % 2000 == 0 for unit in units)
    lost = sum(int(line.rsplit("lost ")[1].split()[0]) for line in caplog.messages if "encoder lost" in line)
    assert lost == 40 - len(units)


def test_video_that_is_watched_while_it_is_made_has_a_bit_rate() -> None:
    encoder = gst_pipelines.ENCODERS["h264"]
    text = gst_pipelines.encoding("h264", encoder, ("in", "out"), (640, 480), 30, 23, 60, nvmm=True, bps=2_000_000)
    own = "name=encoder control-rate=1 bitrate=2000000 preset-level=1 iframeinterval=60 idrinterval=60 profile=0"
    assert f"nvv4l2h264enc {own} insert-sps-pps=1 maxperf-enable=1" in text


def test_an_image_that_decoding_can_begin_with_comes_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch, STAND_IN.replace("gop-size=30", "gop-size=3000"))
    encoder = gst_encoder.GstEncoder(_format(), None, "stages.video", 5.0, trial=False)
    units = list[encoders.Unit]()
    for number, result in enumerate(results(40)):
        if number == 20:
            encoder.refresh()
        units += encoder.encode(result, number * 2000)
    units += encoder.finish()
    encoder.close()
    keys = [unit.tick // 2000 for unit in units if unit.is_key]
    assert keys[0] == 0 and len(keys) == 2 and 14 <= keys[1] <= 21  # GStreamer counts from the image that comes out


def _format() -> encoders.VideoFormat:
    return encoders.VideoFormat("h264", 23, 160, 120, Fraction(30), Color())


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("there is no C compiler (gcc)")
    folder = tmp_path_factory.mktemp("libraries")
    for name, options in (("libnvbufsurface.so.1.0.0", ["-DSURFACE"]), ("libcuda.so.1", list[str]())):
        subprocess.run(["gcc", "-shared", "-fPIC", *options, "-o", folder / name, DOUBLE], check=True)
    return folder


def on_the_gpu(libraries: Path, path: Path, environment: dict[str, str], **settings: object) -> tuple[Any, str]:
    """What came of a run with frames on the GPU, and what was logged."""
    return with_doubles(libraries, environment, "gst_encoder", path, json.dumps(settings))


def test_images_on_the_gpu_go_into_video_memory_and_none_comes_down(
    monkeypatch: pytest.MonkeyPatch, libraries: Path, tmp_path: Path
) -> None:
    instead_of_a_jetsons(monkeypatch)
    found, log = on_the_gpu(libraries, tmp_path / "out.mp4", {}, frames=300)
    assert (found["error"], found["copies"]) == ("", 0)
    check(tmp_path / "out.mp4", 300)
    assert "encoded by the board's own encoder (nvv4l2h264enc)\n" in log and "left" not in log
    calls = found["calls"]
    assert calls["NvBufSurfaceCreate"] == calls["NvBufSurfaceDestroy"] == gst_encoder.IN_FLIGHT
    assert calls["NvBufSurfaceMapEglImage"] == calls["NvBufSurfaceUnMapEglImage"] == gst_encoder.IN_FLIGHT


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"NVMM_MEMORY": "5"}, "its memory type is 5 (handle)"),
        ({"NVMM_FAILS": "NvBufSurfaceCreate:4"}, "NvBufSurfaceCreate returned -1"),
        ({"NVMM_FAILS": "NvBufSurfaceMapEglImage:2"}, "NvBufSurfaceMapEglImage returned -1"),
        ({"NVMM_FAILS": "cuGraphicsEGLRegisterImage:3"}, "cuGraphicsEGLRegisterImage returned 999"),
    ],
    ids=["unknown memory", "no memory", "no EGL", "no CUDA"],
)
def test_video_memory_that_cuda_cannot_write_is_named_and_the_board_still_encodes(
    monkeypatch: pytest.MonkeyPatch, libraries: Path, tmp_path: Path, environment: dict[str, str], why: str
) -> None:
    instead_of_a_jetsons(monkeypatch)
    found, log = on_the_gpu(libraries, tmp_path / "out.mp4", environment, frames=20)
    assert found["error"] == "" and found["copies"] == 20 * 2, "brought down, and packed"
    check(tmp_path / "out.mp4", 20)
    assert "encoded by the board's own encoder (nvv4l2h264enc): " in log and why in log
    calls = found["calls"]
    failed = int("NvBufSurfaceCreate" in str(environment))
    assert calls["NvBufSurfaceCreate"] - failed == calls["NvBufSurfaceDestroy"] < gst_encoder.IN_FLIGHT
