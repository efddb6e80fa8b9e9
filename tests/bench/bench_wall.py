"""What a wall of cameras in a browser costs the server.

    python tests/bench/bench_wall.py [--cameras 16] [--fps 5] [--rounds 3] [--seconds 6] [--json FILE]

A live page in a process of its own is given frames of so many cameras, each with objects to be drawn. Rounds alternate:
in one nobody looks, in the next headless Chromium shows the wall. Processor time of the server is what counts, which
other work on the machine hardly changes; that of the round before, in which it is given the same frames, is taken off.
Bars: a part of one core, and the tiles that the browser has drawn.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.memory import Counter
from edgert.stages.sink.http import HttpSink
from tests.bench.report import main
from tests.helpers.browser import Page, browser
from tests.helpers.command import ROOT, environment
from tests.helpers.frames import detections, frame_of, result_of

CORE, DRAWN = 0.15, 0.9
WIDTH, HEIGHT = 1280, 720
_COUNT = """(() => { const draws = window.draw; window.drawn = 0;
  window.draw = (about, jpeg) => { window.drawn += 1; return draws(about, jpeg); }; })()"""


def serve(cameras: int, fps: float) -> None:
    """A page that is given frames; answers every line with the processor time of this process, seconds."""
    names = [f"camera_{number}" for number in range(cameras)]
    stages = {name: {"busy_percent": 1.0, "source": {"up": True, "state_s": 9.0, "frame_age_s": 0.1}} for name in names}
    sink = HttpSink("page", "127.0.0.1", 0, lambda: {"name": "wall", "frames_out": 0, "dropped": 0, "stages": stages})
    sink.open()
    threading.Thread(target=feed, args=(sink, names, fps), daemon=True).start()
    print(sink.url, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)


def feed(sink: HttpSink, names: list[str], fps: float) -> None:
    """Frames of all cameras, for ever, spread over time as those of cameras are."""
    image = cv2.resize(cv2.imread(str(ROOT / "docs" / "hello.jpg")), (WIDTH, HEIGHT))
    planes = np.split(cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420).ravel(), [WIDTH * HEIGHT, WIDTH * HEIGHT * 5 // 4])
    counter = Counter()
    frames = [frame_of(WIDTH, HEIGHT, "i420", stream=name, counter=counter) for name in names]
    for frame in frames:
        for plane, part in zip(frame.planes, planes, strict=True):
            plane[:] = part.reshape(plane.shape)
    began, step = time.monotonic(), 0
    while True:
        frame, at_px = frames[step % len(frames)], 40 + step % 600
        boxes = [(at_px + 60 * one, 200, at_px + 60 * one + 50, 330) for one in range(4)]
        sink.process(result_of(frame, {"find": detections(*boxes)}))
        step += 1
        time.sleep(max(0.0, began + step / (fps * len(names)) - time.monotonic()))


@contextmanager
def server(cameras: int, fps: float) -> Iterator[subprocess.Popen[str]]:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--serve", str(cameras), str(fps)]
    process = subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def spent(process: subprocess.Popen[str], seconds: float) -> float:
    """Cores that the server takes in the next seconds."""
    assert process.stdin is not None and process.stdout is not None
    times = list[tuple[float, float]]()
    for wait_s in (seconds, 0.0):
        process.stdin.write("\n")
        times.append((float(process.stdout.readline()), time.monotonic()))
        time.sleep(wait_s)
    (first, began), (last, ended) = times
    return (last - first) / (ended - began)


def opened(page: Page, url: str) -> None:
    """Shows the page, at the size of a desktop, and counts what it draws."""
    page.call("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url=url)
    time.sleep(3)
    if url.startswith("http"):
        page.evaluate(_COUNT)


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """Both bars."""
    idle, seen, drawn = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(Path(folder)) as page:
        with server(arguments.cameras, arguments.fps) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            for _ in range(arguments.rounds):
                opened(page, "about:blank")
                idle.append(spent(process, arguments.seconds))
                opened(page, url)
                before, began = page.evaluate("window.drawn"), time.monotonic()
                seen.append(spent(process, arguments.seconds))
                drawn.append((page.evaluate("window.drawn") - before) / (time.monotonic() - began))
        assert page.errors == [], page.errors
    cost = statistics.median(after - before for before, after in zip(idle, seen, strict=True))
    name = f"a wall of {arguments.cameras} cameras at {arguments.fps:g} fps in a browser, processor time of the server"
    detail = {"nobody_looks": statistics.median(idle), "wall": statistics.median(seen)}
    yield Figure(name, cost, "cores", CORE, "lower", arguments.rounds, detail)
    asked = arguments.cameras * arguments.fps
    detail = {"tiles_per_s": statistics.median(drawn)}
    yield Figure(
        "tiles drawn, of those the cameras gave", detail["tiles_per_s"] / asked, "", DRAWN, "higher", len(drawn), detail
    )


def options(parser: argparse.ArgumentParser) -> None:
    """Arguments of this one."""
    parser.add_argument("--cameras", type=int, default=16)
    parser.add_argument("--fps", type=float, default=5.0, help="of each camera")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each round")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(int(sys.argv[2]), float(sys.argv[3]))
        sys.exit()
    main(__doc__ or "", measure, options)
