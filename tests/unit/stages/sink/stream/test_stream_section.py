"""What a pipeline file may ask of streams."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from edgert.config.pipeline_file import load_pipeline
from edgert.config.stages import SinkStage
from edgert.errors import ConfigError, DeviceError
from edgert.stages.context import Context, make_stage
from edgert.stages.sink import encoders
from edgert.stages.sink.encoder_choice import EncoderChoice
from edgert.stages.sink.stream.webrtc_sessions import _Viewer, harmless


def section(**keys: Any) -> Any:
    return SinkStage.model_validate({"sink": "rtsp", "from": "cam", **keys})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"path": "cam"}, "path: expected"),
        ({"path": "/a b"}, "path: expected"),
        ({"path": "/../{name}"}, "path: expected"),
        ({"host": "0.0.0.0"}, "can be reached from the network; add user: and password:"),
        ({"host": "camera.local", "port": 1}, "can be reached from the network"),
        ({"user": "me"}, "must be given together"),
        ({"password": "secret-of-mine"}, "must be given together"),
        ({"port": 70000}, "port"),
        ({"bitrate": 0}, "bitrate"),
        ({"fps": 0}, "fps"),
        ({"width": 8}, "width"),
        ({"sink": "webrtc", "host": "0.0.0.0"}, "can be reached from the network; add token:"),
        ({"sink": "webrtc", "token": "short"}, "token: expected 16"),
        ({"sink": "webrtc", "tls": {"cert": "a.pem", "key": "b.pem"}}, "a.pem does not exist"),
        ({"sink": "webrtc", "path": "/x"}, "path"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    out = json.dumps({"sink": "rtsp", "from": "cam", **keys})
    (tmp_path / "one.yaml").write_text(f"stages:\n  cam: {{source: a.mp4}}\n  out: {out}\n")
    with pytest.raises(ConfigError) as caught:
        load_pipeline(tmp_path / "one.yaml")
    assert words in str(caught.value) and "secret-of-mine" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_only_this_machine_needs_no_password(host: str) -> None:
    assert section(host=host, path="/yards/{stream}.live").host == host
    assert "hush" not in repr(section(host="0.0.0.0", user="me", password="hush"))


def test_two_streams_under_one_path_are_known_before_anything_runs(tmp_path: Path) -> None:
    sources = "stages:\n  a: {source: a.mp4}\n  b: {source: b.mp4}\n"
    (tmp_path / "two.yaml").write_text(f"{sources}  out: {{sink: rtsp, from: [a, b], path: /live}}\n")
    with pytest.raises(ConfigError, match="/live would show 2 streams: a, b") as caught:
        load_pipeline(tmp_path / "two.yaml")
    assert "{stream}" in caught.value.fix and "two.yaml:4" in caught.value.where


def test_the_sink_has_what_was_asked_for() -> None:
    sink = make_stage(section(fps=12.5, bitrate=1.5, width=640, encode="cpu", user="u", password="p"), "out", Context())
    assert sink._wanted.bitrate_bps == 1_500_000 and sink._wanted.rate == 12.5 and sink._wanted.width == 640
    assert sink._choice.live and sink._choice.encode == "cpu" and sink.url("cam") == "rtsp://127.0.0.1:8554/cam"


def test_a_player_is_not_given_mpeg4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "has_encoder", lambda name: name == "mpeg4")
    EncoderChoice("stages.out", "h264", "auto").check()
    with pytest.raises(DeviceError, match="no video encoder") as caught:
        EncoderChoice("stages.out", "h264", "auto", live=True).check()
    assert "libx264" in caught.value.why and "mpeg4" not in caught.value.why


def test_webrtc_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.stages.sink.stream.webrtc_sink.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package aiortc") as caught:
        make_stage(section(sink="webrtc"), "out", Context())
    assert "[webrtc]" in caught.value.fix and caught.value.where == "stages.out"


def test_names_that_browsers_hide_their_addresses_behind_are_left_out() -> None:
    shown = "a=candidate:1 1 udp 2113937151 192.0.2.7 35477 typ host\r\n"
    hidden = "a=candidate:2 1 udp 2113937151 bfa10c15-bff5.local 35477 typ host generation 0\r\n"
    offer = f"a=mid:0\r\n{hidden}{shown}a=end-of-candidates\r\na=rtcp-mux\r\n"
    assert harmless(offer, "192.0.2.7") == f"a=mid:0\r\n{shown}a=rtcp-mux\r\n"


def test_a_connection_that_takes_nothing_goes_on_with_an_image_that_stands_alone() -> None:
    asked = list[int]()

    async def watch() -> list[int]:
        viewer = _Viewer(lambda: asked.append(1), lambda: None)
        for number in range(80):
            viewer._put(encoders.Unit(b"", number, number in (0, 60)))
        taken = [(await viewer.next()) for _ in range(len(viewer._units))]
        viewer.stop()
        assert await viewer.next() is None
        return [one.tick for one in taken if one]

    assert asyncio.run(watch()) == list(range(60, 80)) and asked
