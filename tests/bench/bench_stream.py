"""How old an image is when a player shows it, read from a clock in the image itself: RTSP and WebRTC.

A clock (milliseconds, in squares) is drawn into each frame of a moving scene before it goes into the sink. Chromium,
headless, reads it back from the canvas that it draws a shown frame on (``requestVideoFrameCallback``); PyAV's decoder
plays RTSP. Both clocks are this machine's. Bar: WebRTC's median. Beside it, how many images a second the player showed
and how busy the machine was, what one more viewer costs the process, and what a sink that nobody watches takes of its
stage's thread for a frame.

Not to be run with a ``nice`` below 0: Chromium gives its processes priorities of its own, 0 and 5, and all that decodes
and paints there, on the processor, would starve beside cameras that do not.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config import SinkStage
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.context import Context
from edgert.stages.sink.stream.webrtc_sink import WebrtcSink
from tests.bench.report import main
from tests.helpers import clock_in_frames as clock
from tests.helpers.browser import browser

WEBRTC_MS = 250
_SETTLED_S = 3.0
_SKIPPED = 30
_STEP_PX = 4  # from frame to frame


def figure(name: str, late_ms: list[int], bar: float | None, seconds: float) -> Figure:
    ordered = sorted(late_ms)
    detail: dict[str, float] = {
        "p95_ms": ordered[int(len(ordered) * 0.95)],
        "least_ms": ordered[0],
        "most_ms": ordered[-1],
    }
    detail |= {"shown_hz": round(len(ordered) / seconds, 1), "load": round(os.getloadavg()[0], 1)}
    return Figure(name, statistics.median(ordered), "ms", bar, n=len(ordered), detail=detail)


def wanted(kind: str, arguments: argparse.Namespace) -> tuple[str, Any, Context]:
    """Return the arguments of a sink of some kind."""
    keys = {"sink": kind, "from": "cam", "port": 0, "width": 1920, "encode": "cpu"}
    return "out", SinkStage.model_validate(keys), Context(rate_hz=arguments.fps)


class Pan:
    """Fills frames below their clock with a scene that moves, and takes as many bits as leaves in wind."""

    def __init__(self, take: Callable[[Result], object], size: tuple[int, int]) -> None:
        width, height = size
        noise = np.random.default_rng(0).integers(0, 256, (height, 2 * width, 3), dtype=np.uint8)
        self._scene = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), noise, 0, 255, cv2.NORM_MINMAX)
        self._take, self.spent_s = take, 0.0

    def __call__(self, result: Result) -> None:
        frame = result.frame
        across = _STEP_PX * frame.index % frame.width
        cast("Any", frame.planes[0])[clock.SIDE :] = self._scene[clock.SIDE :, across : across + frame.width]
        begun_s = time.thread_time()
        self._take(result)
        self.spent_s += time.thread_time() - begun_s


def webrtc(arguments: argparse.Namespace, size: tuple[int, int], about: str) -> Iterator[Figure]:
    sink = WebrtcSink(*wanted("webrtc", arguments))
    sink.open()
    camera = clock.Camera(pan := Pan(sink.process, size), arguments.fps, size)
    camera.start()
    time.sleep(_SETTLED_S)
    idle = Figure(
        f"{about}a frame that nobody watches", 1e6 * pan.spent_s / camera.shown, "us of thread", n=camera.shown
    )
    yield idle
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as page:
        page.call("Emulation.setDeviceMetricsOverride", width=1400, height=1000, deviceScaleFactor=1, mobile=False)
        page.call("Page.navigate", url=sink.url)
        while not page.evaluate("!!document.querySelector('video')?.videoWidth"):
            time.sleep(0.1)
        time.sleep(_SETTLED_S)
        late_ms, begun_s = list[int](), time.monotonic()
        while len(late_ms) < arguments.frames:
            late_ms += page.evaluate(f"({clock.READ_IN_A_PAGE})('cam', 20)")
        yield figure(f"{about}WebRTC in Chromium, glass to glass", late_ms, WEBRTC_MS, time.monotonic() - begun_s)
        one = spent_ms(sink)
        page.evaluate("keep('cam'); 0")
        time.sleep(_SETTLED_S)
        more = spent_ms(sink) - one
        yield Figure(f"{about}one more viewer", more, "ms of a core per image", detail={"one_viewer_ms": one})
    camera.end()
    sink.close()


def spent_ms(sink: WebrtcSink, images: int = 60) -> float:
    """Of processor time that this process takes for an image, camera included."""
    stream = sink.whep._streams["cam"]
    until, begun_s, before = stream.encoded + images, time.process_time(), stream.encoded
    while stream.encoded < until:
        time.sleep(0.05)
    return 1e3 * (time.process_time() - begun_s) / (stream.encoded - before)


def rtsp(arguments: argparse.Namespace, size: tuple[int, int], about: str) -> Iterator[Figure]:
    import av

    from edgert.stages.sink.stream.rtsp_server import RtspSink

    sink = RtspSink(*wanted("rtsp", arguments))
    try:
        sink.open()
    except DeviceError as error:
        print(f"  RTSP is left out: {error.why}")
        return
    camera = clock.Camera(Pan(sink.process, size), arguments.fps, size)
    camera.start()
    time.sleep(1)
    options = {"rtsp_transport": "tcp", "fflags": "nobuffer", "flags": "low_delay", "probesize": "32"}
    with av.open(sink.url("cam"), options=options) as file:
        file.streams.video[0].thread_type = "NONE"
        late_ms, begun_s = list[int](), 0.0
        for number, image in enumerate(file.decode(video=0)):
            if number == _SKIPPED:
                begun_s = time.monotonic()
            if number > _SKIPPED:
                late_ms.append(clock.read(image.to_ndarray(format="gray")))
            if len(late_ms) == arguments.frames:
                break
    yield figure(f"{about}RTSP in FFmpeg, to the decoded image", late_ms, None, time.monotonic() - begun_s)
    camera.end()
    sink.close()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--sizes", nargs="+", default=["640x360", "1280x720"])
    parser.add_argument("--fps", type=float, default=15.0)


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    for size in arguments.sizes:
        width, height = map(int, size.split("x"))
        about = f"{size}, {arguments.fps:g} frames/s: "
        yield from webrtc(arguments, (width, height), about)
        yield from rtsp(arguments, (width, height), about)


if __name__ == "__main__":
    main("How old an image is when it is seen", measure, options)
