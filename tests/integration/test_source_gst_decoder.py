"""Video decoded through GStreamer as on a Jetson, with FFmpeg's decoder in place of the board's. No board was used."""

import logging
import threading
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.runtime.frame import Frame
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import gst, gst_decoder
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.gst_decoder import GstDecoder
from edgert.stages.source.kinds import source_for
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.counter import read_counter
from tests.helpers.gst_decoder import instead_of_a_jetsons
from tests.helpers.rtsp_server import RtspServer

REFUSING = "identity error-after=2 ! avdec_h264"


def source(path: Path | str, counter: Counter | None = None, **options: object) -> Source:
    config = SourceStage.model_validate({"source": str(path), **options})
    return source_for("cam", config, Context(counter=counter or Counter()))


def frames_of(path: Path, counter: Counter | None = None, **options: object) -> list[Frame]:
    made = source(path, counter, **options)
    frames = list(made.frames(threading.Event()))
    made.close()
    assert not [one for one in threading.enumerate() if one.name == "edgert-packets"]
    return frames


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"preset": "ultrafast", "g": "10", "crf": "18", "bf": "2"}
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", 40, options=options, colorspace=1)


def test_frames_times_and_colors_are_those_of_the_processor(
    clip: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, counter = frames_of(clip), Counter()
    instead_of_a_jetsons(monkeypatch)
    with caplog.at_level(logging.INFO, "edgert.source"):
        frames = frames_of(clip, counter, decode="gpu")
    assert [frame.media_ns for frame in frames] == pytest.approx([frame.media_ns for frame in expected], abs=2)
    for ours, theirs in zip(frames, expected, strict=True):
        assert (ours.format, ours.color, ours.index) == (theirs.format, theirs.color, theirs.index)
        assert all(np.array_equal(one, other) for one, other in zip(ours.planes, theirs.planes, strict=True))
    assert counter.read().copies == 0


def test_a_loop_goes_on_with_a_new_decoder(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch)
    numbers = [read_counter(frame.planes[0]) for frame in frames_of(clip, loop=True, limit=60)]
    assert numbers == [*range(40), *range(20)]


def test_who_stops_early_leaves_no_thread(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch)
    assert len(frames_of(clip, limit=3)) == 3


@pytest.mark.parametrize("decoder", [REFUSING, "jpegdec"])
def test_a_decoder_that_takes_no_image_gives_way_to_the_processor(
    clip: Path, decoder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instead_of_a_jetsons(monkeypatch, decoder)
    numbers = [read_counter(frame.planes[0]) for frame in frames_of(clip, loop=True, limit=60)]
    assert numbers == [*range(40), *range(20)]
    said = [record.getMessage() for record in caplog.records if "decoded on the CPU from now on" in record.getMessage()]
    assert len(said) == 1, "once, not at every turn of the loop"


@pytest.mark.parametrize("decoder", [REFUSING, "jpegdec"])
def test_decode_gpu_makes_that_an_error(clip: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch, decoder)
    with pytest.raises(DeviceError) as caught:
        frames_of(clip, decode="gpu")
    assert caught.value.why and caught.value.where == "stages.cam"


def test_a_stream_that_the_decoder_does_not_take_goes_on_by_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch, REFUSING)
    with RtspServer(h264_units(60)) as server:
        camera = source(server.url)
        frames = camera.frames(threading.Event())
        numbers = [read_counter(next(frames).planes[0]) for _ in range(15)]
        camera.close()
        assert camera.stats().reconnects == 0 and server.plays == 1
    assert numbers[0] % 10 == 0 and np.diff(numbers).tolist() == [1] * 14


def test_a_decoder_that_fails_again_and_again_leaves_a_stream_to_the_processor(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_a_jetsons(monkeypatch, "avdec_h264 ! identity error-after=5")
    choice = DecoderChoice("stages.cam", "auto")
    for _ in range(3):
        video = Video(str(clip), Counter(), REAL, where="stages.cam", live=True)
        video.choose_decoder(choice, None)
        with pytest.raises(gst_decoder.DecoderFailedError):
            list(video.images())
        video.close()
    assert "failed 3 times within a minute" in choice.refused


@pytest.mark.parametrize(("live", "b_frames", "is_low"), [(True, 0, True), (True, 2, False), (False, 0, False)])
def test_only_live_streams_without_b_frames_have_low_latency(
    live: bool, b_frames: int, is_low: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_a_jetsons(monkeypatch)
    monkeypatch.setattr(gst_decoder, "LOW_LATENCY", {"skip-frame": 0, "no-such-property": 1})
    texts, plain = list[str](), gst.Pipeline

    def made(text: str, *arguments: Any, **options: Any) -> gst.Pipeline:
        texts.append(text)
        return plain(text, *arguments, **options)

    monkeypatch.setattr(gst, "Pipeline", made)
    options = {"preset": "ultrafast", "g": "10", "bf": str(b_frames)}
    clip = write_clip(tmp_path / "clip.mp4", 12, options=options)
    video = Video(str(clip), Counter(), REAL, where="stages.cam", live=live)
    video.decode_on(None)
    assert len(list(video.images())) == 12
    video.close()
    assert ("avdec_h264 skip-frame=0 !" in texts[0]) is is_low and "no-such" not in texts[0]


def test_a_stream_without_a_packet_is_not_the_decoders_fault(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch)
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        decoder = GstDecoder(stream, None, Counter(), REAL, timeout_s=5, where="stages.cam")
        assert list(decoder.images(iter(()))) == []
        decoder.close()


@pytest.mark.parametrize(("pix_fmt", "word"), [("yuv422p", "yuv422p"), ("yuv420p10le", "8 bits")])
def test_profiles_beyond_8_bit_420_are_the_processors_with_the_reason(
    pix_fmt: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instead_of_a_jetsons(monkeypatch, is_jetson=True)
    clip = write_clip(tmp_path / "deep.mp4", 6, pix_fmt=pix_fmt)
    with caplog.at_level(logging.INFO, "edgert.source"):
        assert len(frames_of(clip, loop=True, limit=20)) == 20
    said = [record.getMessage() for record in caplog.records if "decoded" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("stages.cam: decoded on the CPU: pixels are") and word in said[0]
    with pytest.raises(DeviceError, match="cannot be decoded on the GPU") as caught:
        frames_of(clip, decode="gpu")
    assert word in caught.value.why


def test_decode_cpu_does_not_ask_for_the_decoder(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_a_jetsons(monkeypatch, "nosuchdecoder")
    assert len(frames_of(clip, decode="cpu")) == 40
