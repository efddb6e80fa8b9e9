"""Which decoder a video goes to, by what is here. No board was used."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.board import detect
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.source import gst, gst_decoder, gst_pipelines, nvdec
from tests.helpers.cuda_double import CudaDouble

GPU = CudaDevice(CudaDouble(), 0, Counter())
NO_ELEMENT, NO_PACKAGE = "GStreamer has no nvv4l2decoder", "PyNvVideoCodec is not installed"


def video(pix_fmt: str = "yuv420p") -> Any:
    return SimpleNamespace(codec_context=SimpleNamespace(name="h264", pix_fmt=pix_fmt, width=1920, height=1080))


@pytest.mark.parametrize(
    ("machine", "l4t", "device", "board", "package", "chosen"),
    [
        ("jetson", "36.4.3", GPU, "", "", "nvv4l2decoder"),
        ("jetson", "36.4.3", None, "", "", "nvv4l2decoder"),
        ("jetson", "36.4.3", GPU, NO_ELEMENT, "", NO_ELEMENT),
        ("jetson", "38.5.0", GPU, "", "", "PyNvVideoCodec"),
        ("jetson", "38.5.0", GPU, "", NO_PACKAGE, "nvv4l2decoder"),
        ("jetson", "38.5.0", None, "", "", "nvv4l2decoder"),
        ("jetson", "38.5.0", GPU, NO_ELEMENT, NO_PACKAGE, NO_PACKAGE),
        ("agx-orin-64gb", "39.2.0", GPU, "", "", "nvv4l2decoder"),
        ("agx-orin-64gb", "39.2.0", GPU, NO_ELEMENT, "", NO_ELEMENT),
        ("thor-t5000", "39.2.0", GPU, "", "", "PyNvVideoCodec"),
        ("host", "", GPU, "this is no Jetson", "", "PyNvVideoCodec"),
        ("host", "", None, "this is no Jetson", "", "this is no Jetson"),
    ],
)
def test_the_best_that_is_here_is_taken(
    machine: str,
    l4t: str,
    device: CudaDevice | None,
    board: str,
    package: str,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soc = {"agx-orin-64gb": "tegra234", "thor-t5000": "tegra264"}.get(machine, "")
    monkeypatch.setattr(gst_decoder, "detect", lambda: replace(detect(), name=machine, soc=soc, l4t=l4t))
    monkeypatch.setattr(gst_decoder, "jetson_missing", lambda: board)
    monkeypatch.setattr(nvdec, "why_not", lambda stream, device: package)
    found = gst_decoder.why_not(video(), device)
    if not found:
        is_nvdec = device is not None and gst_decoder.is_nvdec(video(), device)
        found = "PyNvVideoCodec" if is_nvdec else "nvv4l2decoder"
    assert found == chosen


@pytest.mark.parametrize(("l4t", "why"), [("36.4.3", NO_ELEMENT), ("38.5.0", NO_PACKAGE)])
def test_what_is_missing_is_what_this_board_could_have(l4t: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gst_decoder, "detect", lambda: replace(detect(), name="jetson", l4t=l4t))
    monkeypatch.setattr(gst_decoder, "jetson_missing", lambda: NO_ELEMENT)
    monkeypatch.setattr(nvdec, "missing", lambda: NO_PACKAGE)
    assert gst_decoder.missing() == why
    monkeypatch.setattr(gst_decoder, "jetson_missing", lambda: "")
    assert gst_decoder.missing() == ""


def test_pixels_beyond_8_bit_420_are_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gst_decoder, "jetson_missing", lambda: "")
    assert "yuv420p10le" in gst_decoder.why_not(video("yuv420p10le"), None)


def test_why_the_boards_decoder_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        gst_decoder.jetson_missing.cache_clear()
        return gst_decoder.jetson_missing()

    def elements(*names: str) -> Any:
        factory = SimpleNamespace(find=lambda name: name if name in names else None)
        return lambda where="": (SimpleNamespace(ElementFactory=factory), None)

    def no_gstreamer(where: str = "") -> Any:
        raise DeviceError("no GStreamer", why="No module named 'gi'", fix="sudo apt install python3-gi")

    assert missing() == "this is no Jetson"
    monkeypatch.setattr(gst_decoder, "is_jetson", lambda: True)
    monkeypatch.setattr(gst, "gstreamer", no_gstreamer)
    assert missing() == "No module named 'gi': sudo apt install python3-gi"
    monkeypatch.setattr(gst, "gstreamer", elements("nvvidconv", "h264parse"))
    assert "nvidia-l4t-gstreamer" in missing() and "--runtime nvidia" in missing()
    monkeypatch.setattr(gst, "gstreamer", elements("nvvidconv", "nvv4l2decoder"))
    assert "gstreamer1.0-plugins-bad" in missing()
    monkeypatch.setattr(gst, "gstreamer", elements("nvvidconv", "nvv4l2decoder", "h264parse"))
    assert missing() == ""
    gst_decoder.jetson_missing.cache_clear()


@pytest.mark.parametrize(
    ("known", "low_latency", "options"),
    [
        ({"disable-dpb", "enable-max-performance", "mjpeg"}, True, " disable-dpb=1 enable-max-performance=1"),
        ({"enable-max-performance"}, True, " enable-max-performance=1"),
        (set(), True, ""),
        ({"disable-dpb", "enable-max-performance"}, False, ""),
    ],
)
@pytest.mark.parametrize(("codec", "parser"), [("h264", "h264parse"), ("hevc", "h265parse")])
def test_live_streams_are_decoded_without_waiting_where_the_decoder_can(
    codec: str, parser: str, known: set[str], low_latency: bool, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gst, "properties_of", lambda name: known if name == "nvv4l2decoder" else None)
    assert gst_decoder.decoding(codec, low_latency) == f"{parser} ! nvv4l2decoder{options}"


@pytest.mark.parametrize(("codec", "caps", "parser"), [("h264", "h264", "h264parse"), ("hevc", "h265", "h265parse")])
def test_the_boards_pipeline_ends_where_the_gpu_reads(codec: str, caps: str, parser: str) -> None:
    text = gst_pipelines.packets(codec, "packets", gst_decoder.DECODERS[codec], gst_decoder.END)
    assert text.startswith("appsrc name=packets ") and f'caps="video/x-{caps},stream-format=byte-stream' in text
    end = f"! {parser} ! nvv4l2decoder ! nvvidconv bl-output=false output-buffers=10 ! "
    assert text.endswith(f"{end}video/x-raw(memory:NVMM),format=NV12")
    assert gst.with_appsink(text, drop=False, sync=False, nvmm=True).count("nvvidconv") == 1
    assert gst.with_appsink(text, drop=False, sync=False).count("nvvidconv") == 2
