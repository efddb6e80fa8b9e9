"""GStreamer's RTSP server, as many cameras have it: codecs, changes in mid-stream, passwords, frozen and killed."""

import json
import time
from functools import partial
from pathlib import Path

import av
import cv2
import pytest

import edgert
from edgert.runtime.stage import SourceStats
from tests.helpers.clips import write_clip
from tests.helpers.gst_server import GstServer, gst_server, python
from tests.helpers.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not python(),
        reason="no RTSP server of GStreamer's: sudo apt-get install python3-gi gir1.2-gst-rtsp-server-1.0 "
        "gstreamer1.0-plugins-{base,good,bad,ugly} gstreamer1.0-libav",
    ),
]
SMALL, LARGE = (320, 240), (640, 480)
PATIENCE_S = 40.0


def pipeline(folder: Path, server: GstServer, more: str = "", end: str = "{sink: null, from: cam}") -> edgert.Pipeline:
    stages = f"stages:\n  cam: {{source: '{server.url}', timeout: 4s{more}}}\n  end: {end}\n"
    (folder / "p.yaml").write_text(stages)
    return edgert.Pipeline(folder / "p.yaml")


def state(running: edgert.Pipeline) -> SourceStats:
    found = running.summary().stages["cam"].source
    assert found is not None
    return found


wait = partial(wait_until, timeout_s=PATIENCE_S)


def more(running: edgert.Pipeline, count: int = 20) -> None:
    before = running.summary().stages["cam"].results_out
    wait(lambda: running.summary().stages["cam"].results_out >= before + count)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("codec", ["h264", "h265", "jpeg"])
def test_every_codec_comes_whole(codec: str, transport: str, tmp_path: Path) -> None:
    with gst_server() as server:
        server.show(codec)
        with pipeline(tmp_path, server, f", transport: {transport}") as running:
            running.start()
            more(running, 60)
            assert state(running).up and state(running).reconnects == 0 and state(running).skipped == 0
            assert state(running).lost == 0


def test_size_rate_and_codec_change_in_every_sink(tmp_path: Path) -> None:
    """In one connection, and from one to the next: each size is a video of its own, and nothing is lost of any."""
    out = tmp_path / "out"
    (tmp_path / "p.yaml").write_text(
        """
stages:
  cam: {source: 'URL', timeout: 4s}
  paint: {draw: [stats], from: cam}
  video: {sink: video, from: paint, path: OUT/film.mp4}
  events: {sink: jsonl, from: cam, path: OUT/events.jsonl}
  stills: {sink: images, from: paint, path: "OUT/{frame:06d}.jpg", every: 5}
  page: {sink: http, from: paint, port: 0}
"""
    )
    with gst_server() as server:
        server.show("h264", SMALL, 15)
        text = (tmp_path / "p.yaml").read_text().replace("URL", server.url).replace("OUT", str(out))
        (tmp_path / "p.yaml").write_text(text)
        with edgert.Pipeline(tmp_path / "p.yaml") as running:
            running.start()
            more(running)
            server.change(LARGE, 10)
            more(running)
            assert state(running).reconnects == 0
            server.show("h265", LARGE, 15)
            wait(lambda: state(running).reconnects == 1)
            more(running)
            server.change(SMALL, 15)
            more(running)
            server.kill()
            wait(lambda: not state(running).up)
            server.start()
            wait(lambda: state(running).reconnects == 2)
            more(running)
            server.show("h264", LARGE, 15)
            wait(lambda: state(running).reconnects == 3)
            more(running)
        summary = running.summary()
    sizes, count = [], 0
    for path in sorted(out.glob("film*.mp4"), key=lambda path: path.stat().st_mtime_ns):
        with av.open(str(path)) as film:
            found = [(frame.width, frame.height) for frame in film.decode(video=0)]
            assert len(set(found)) == 1, path
            sizes.append(found[0])
            count += len(found)
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert sizes == [SMALL, LARGE, SMALL, LARGE]
    assert count == summary.stages["video"].results_in
    assert len(lines) == summary.stages["events"].results_in
    assert [line["frame"] for line in lines] == sorted({line["frame"] for line in lines})
    stills = {cv2.imread(str(path)).shape[1::-1] for path in out.glob("*.jpg")}
    assert stills == {SMALL, LARGE}


def test_a_wrong_password_is_reported_and_tried_slowly(tmp_path: Path) -> None:
    with gst_server(login="bob:right") as server:
        server.show()
        url, server.url = server.url, server.url.replace("right", "wr0ng")
        with pipeline(tmp_path, server) as running:
            running.start()
            wait(lambda: state(running).reason)
            assert state(running).reason == "it refuses this user or password"
        server.url = url
        with pipeline(tmp_path, server) as running:
            running.start()
            more(running)


def test_a_frozen_server_is_reported_and_thaws(tmp_path: Path) -> None:
    with gst_server() as server:
        server.show("h265")
        with pipeline(tmp_path, server) as running:
            running.start()
            more(running)
            server.freeze()
            wait(lambda: state(running).up is False)
            assert state(running).reason == "nothing came for 4 s"
            time.sleep(6)
            assert state(running).up is False
            server.thaw()
            wait(lambda: state(running).up)
            more(running)


@pytest.mark.timing
def test_ten_kills_are_ten_reconnects(tmp_path: Path) -> None:
    with gst_server() as server:
        server.show()
        with pipeline(tmp_path, server) as running:
            running.start()
            for number in range(10):
                more(running, 5)
                server.kill()
                wait(lambda: state(running).up is False)
                server.start()
                assert wait(lambda number=number: state(running).reconnects == number + 1) < 10


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_recording_whose_server_is_killed_is_played_again_to_its_end(transport: str, tmp_path: Path) -> None:
    write_clip(tmp_path / "film.mp4", 150)
    with gst_server() as server:
        server.play(tmp_path / "film.mp4")
        with pipeline(tmp_path, server, f", transport: {transport}") as running:
            running.start()
            more(running, 40)
            server.kill()
            wait(lambda: state(running).up is False)
            assert not state(running).ended
            server.start()
            wait(lambda: state(running).ended)
            assert state(running).reconnects == 1 and state(running).reason == "its stream ended after 5.0 s of 5.0 s"


DECODE = {"h264": "rtph264depay ! avdec_h264", "h265": "rtph265depay ! avdec_h265"}


@pytest.mark.parametrize("codec", ["h264", "h265"])
def test_a_line_of_gstreamer_s_takes_what_changes(codec: str, tmp_path: Path) -> None:
    """A size in the middle, a frozen server, a killed one: as with FFmpeg, each size is a video of its own."""
    pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi")
    with gst_server() as server:
        server.show(codec, SMALL, 15)
        line = f"rtspsrc location={server.url} protocols=tcp latency=50 ! {DECODE[codec]} ! videoconvert"
        (tmp_path / "p.yaml").write_text(
            f"stages:\n  cam: {{source: 'gst:{line}', timeout: 3s}}\n"
            f"  paint: {{draw: [stats], from: cam}}\n  video: {{sink: video, from: paint, path: '{tmp_path}/a.mkv'}}\n"
        )
        with edgert.Pipeline(tmp_path / "p.yaml") as running:
            running.start()
            more(running)
            server.change(LARGE, 10)
            more(running)
            assert state(running).reconnects == 0
            server.freeze()
            wait(lambda: state(running).up is False)
            assert "no frame for 3 s" in state(running).reason
            server.thaw()
            wait(lambda: state(running).reconnects == 1)
            more(running)
            server.kill()
            wait(lambda: state(running).up is False)
            server.start()
            wait(lambda: state(running).reconnects == 2)
            more(running)
    sizes = [
        (film.streams.video[0].width, film.streams.video[0].height)
        for path in sorted(tmp_path.glob("a*.mkv"), key=lambda path: path.stat().st_mtime_ns)
        for film in [av.open(str(path))]
    ]
    assert sizes[:2] == [SMALL, LARGE] and sizes[-1] == SMALL, "a server that was restarted begins as it was shown"
