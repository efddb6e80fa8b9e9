"""How old an image is when a player shows it, read from a clock in the image itself: RTSP and WebRTC.

    nice -n -15 python tests/bench/bench_stream.py [--frames 300] [--size 1280x720] [--fps 30] [--json FILE]

A clock (milliseconds, in squares) is drawn into each frame before it goes into the sink. Chromium, headless, reads it
back from the canvas that it draws a shown frame on (``requestVideoFrameCallback``); PyAV's decoder plays RTSP. Both
clocks are this machine's. Bar: WebRTC's median. Beside it, what one more viewer costs the process, and what a sink
that nobody watches takes of its stage's thread for a frame.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.errors import DeviceError
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.http_request import Access
from edgert.stages.sink.stream.broadcast import Wanted
from tests.bench.report import main
from tests.helpers import clock_in_frames as clock
from tests.helpers.browser import browser

WEBRTC_MS = 250
_SETTLED_S = 3.0


def figure(name: str, late_ms: list[int], bar: float | None) -> Figure:
    ordered = sorted(late_ms)
    detail = {"p95_ms": ordered[int(len(ordered) * 0.95)], "least_ms": ordered[0], "most_ms": ordered[-1]}
    return Figure(name, statistics.median(ordered), "ms", bar, n=len(ordered), detail=detail)


def wanted(arguments: argparse.Namespace) -> tuple[Choice, Wanted]:
    return Choice("stages.out", "h264", "cpu", live=True), Wanted(1920, None, 4_000_000, arguments.fps)


def webrtc(arguments: argparse.Namespace, size: tuple[int, int]) -> Iterator[Figure]:
    from edgert.stages.sink.stream.whep import WebrtcSink

    sink = WebrtcSink("out", ("127.0.0.1", 0), Access(), *wanted(arguments))
    sink.open()
    camera = clock.Camera(sink.process, arguments.fps, size)
    camera.start()
    time.sleep(_SETTLED_S)
    yield Figure("a frame that nobody watches", 1e6 * camera.spent_s / camera.shown, "us of thread", n=camera.shown)
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as page:
        page.call("Emulation.setDeviceMetricsOverride", width=1400, height=1000, deviceScaleFactor=1, mobile=False)
        page.call("Page.navigate", url=sink.url)
        while not page.evaluate("!!document.querySelector('video')?.videoWidth"):
            time.sleep(0.1)
        time.sleep(_SETTLED_S)
        late_ms = list[int]()
        while len(late_ms) < arguments.frames:
            late_ms += page.evaluate(f"({clock.READ_IN_A_PAGE})('cam', 20)")
        yield figure("WebRTC in Chromium, glass to glass", late_ms, WEBRTC_MS)
        one = spent()
        page.evaluate("keep('cam'); 0")
        time.sleep(_SETTLED_S)
        yield Figure("one more viewer", 100 * (spent() - one), "% of a core", detail={"one viewer": 100 * one})
    camera.end()
    sink.close()


def spent(seconds: float = 4.0) -> float:
    """Cores that this process takes."""
    begun, begun_s = time.process_time(), time.monotonic()
    threading.Event().wait(seconds)
    return (time.process_time() - begun) / (time.monotonic() - begun_s)


def rtsp(arguments: argparse.Namespace, size: tuple[int, int]) -> Iterator[Figure]:
    import av

    from edgert.stages.sink.stream.rtsp_server import RtspSink

    sink = RtspSink("out", ("127.0.0.1", 0), "/{stream}", ("", ""), *wanted(arguments))
    try:
        sink.open()
    except DeviceError as error:
        print(f"  RTSP is left out: {error.why}")
        return
    camera = clock.Camera(sink.process, arguments.fps, size)
    camera.start()
    time.sleep(1)
    options = {"rtsp_transport": "tcp", "fflags": "nobuffer", "flags": "low_delay", "probesize": "32"}
    with av.open(sink.url("cam"), options=options) as file:
        file.streams.video[0].thread_type = "NONE"
        late_ms = list[int]()
        for number, image in enumerate(file.decode(video=0)):
            if number >= 30:
                late_ms.append(clock.read(image.to_ndarray(format="gray")))
            if len(late_ms) == arguments.frames:
                break
    yield figure("RTSP in FFmpeg, to the decoded image", late_ms, None)
    camera.end()
    sink.close()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--fps", type=float, default=30.0)


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    width, height = map(int, arguments.size.split("x"))
    yield from webrtc(arguments, (width, height))
    yield from rtsp(arguments, (width, height))


if __name__ == "__main__":
    main("How old an image is when it is seen", measure, options)
