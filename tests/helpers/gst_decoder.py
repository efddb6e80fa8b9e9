"""Real GStreamer with FFmpeg's decoder where a Jetson has nvv4l2decoder."""

import pytest

from edgert.stages.source import camera, decoders, gst, gst_decoder

WHY = "GStreamer with avdec_h264 and h264parse is not installed: sudo apt install python3-gi gstreamer1.0-libav \
gstreamer1.0-plugins-bad"


def instead_of_a_jetsons(
    monkeypatch: pytest.MonkeyPatch, decoder: str = "avdec_h264", *, is_jetson: bool = False
) -> None:
    """Decodes videos by GStreamer from now on, as on a board, by an element of this machine. Skips without it."""
    pytest.importorskip("gi", reason=WHY)
    found, _ = gst.gstreamer()
    if any(found.ElementFactory.find(name) is None for name in ("avdec_h264", "h264parse")):
        pytest.skip(WHY)
    for module in (gst_decoder, camera):
        monkeypatch.setattr(module, "jetson_missing", lambda: "")
    monkeypatch.setattr(decoders, "is_jetson", lambda: is_jetson)  # which logs its choice
    monkeypatch.setattr(gst_decoder, "DECODERS", {"h264": f"h264parse ! {decoder}"})
    monkeypatch.setattr(gst_decoder, "END", "identity")
