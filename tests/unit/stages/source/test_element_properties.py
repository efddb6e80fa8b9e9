"""Every property that edgert writes of one of NVIDIA's GStreamer elements is one that the element has. No board."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.config.stages import SourceStage
from edgert.stages.sink import gst_encoder, viewers
from edgert.stages.source import gst, gst_decoder, gst_pipelines

RECORDED = json.loads((Path(__file__).parents[3] / "data/gst/nvidia_elements.json").read_text(encoding="utf-8"))
BOARDS = ("orin", "thor")


def written(text: str) -> Iterator[tuple[str, str]]:
    """Element and property of each ``name=value`` of a pipeline."""
    for step in text.split(" ! "):
        element, *words = shlex.split(step)
        if "/" not in element:  # else they are caps
            yield from ((element, word.partition("=")[0]) for word in words)


def decoding() -> Iterator[str]:
    for codec in gst_pipelines.PARSERS:
        for low_latency in (True, False):
            elements = gst_decoder.decoding(codec, low_latency)
            yield gst_pipelines.packets(codec, "packets", elements, gst_decoder.END)


def camera(**options: object) -> SourceStage:
    return SourceStage.model_validate({"source": "usb:0", "size": "1280x720", "fps": 30, **options})


def pipelines(board: str) -> Iterator[str]:
    """What edgert may write for a board."""
    yield from decoding()
    yield gst_pipelines.usb("/dev/video0", camera(format="h264"))
    yield from viewers._CHAINS.values()
    if board == "thor":  # which has no hardware for MJPEG and no Argus, and another encoder
        return
    yield gst_pipelines.usb("/dev/video0", camera(format="mjpeg"))
    yield gst_pipelines.csi(0, camera(source="csi://0", sensor_mode=2, flip="90"))
    for codec, encoder in gst_pipelines.ENCODERS.items():
        for nvmm in (True, False):
            for bps in (0, 2_000_000):
                yield gst_pipelines.encoding(codec, encoder, ("in", "out"), (64, 48), 30, 23, 60, nvmm, bps)


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    elements = RECORDED[request.param]
    monkeypatch.setattr(gst, "properties_of", lambda name: frozenset(elements.get(name, ())))
    return str(request.param)


def test_every_property_that_is_written_is_there(board: str) -> None:
    found = [one for text in pipelines(board) for one in written(text) if one[0].startswith("nv")]
    assert found
    unknown = {(element, name) for element, name in found if name not in RECORDED[board].get(element, ())}
    assert unknown - {(element, "name") for element in gst_pipelines.ENCODERS.values()} == set()


@pytest.mark.parametrize(
    ("of", "options"), [("orin", "disable-dpb=1 enable-max-performance=1"), ("thor", "low-latency-mode=1")]
)
def test_low_latency_by_what_the_decoder_of_a_board_has(of: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gst, "properties_of", lambda name: frozenset(RECORDED[of][name]))
    assert gst_decoder.decoding("h264", True) == f"h264parse ! nvv4l2decoder {options}"


def test_an_encoder_with_other_properties_is_not_taken(board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factory: Any = SimpleNamespace(find=lambda name: name)
    monkeypatch.setattr(gst, "gstreamer", lambda where="": (SimpleNamespace(ElementFactory=factory), None))
    gst_encoder.missing.cache_clear()
    why = gst_encoder.missing("h264")
    gst_encoder.missing.cache_clear()
    assert ("nvv4l2h264enc has no" in why and "PyNvVideoCodec" in why) == (board == "thor")
    assert bool(why) == (board == "thor")
