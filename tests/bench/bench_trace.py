"""What it costs to record a time line: at 30 and at 500 frames a second, and while nobody does.

A program submits frames at a pace to a pipeline of six tasks: a small network, two stages of Python, two sinks. Turns
with and without a recorder follow each other in one run. The figure is what the processor time of the whole process
grows by, part of one core; the median of all pairs of turns. Bars: 1 % at 30 and 3 % at 500 frames a second.

What the hooks cost while nobody records is the processor time of a frame through the same pipeline, beside that of
another checkout, such as the commit before them: ``git worktree add /tmp/before COMMIT``. Each turn is a process of its
own. Without ``--before`` the other is this one, so that the figure is the noise.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from report import main

sys.path.insert(0, os.environ.get("EDGERT_BENCHED", str(Path(__file__).parents[2])))

from edgert import Pipeline, Result
from edgert.benchmark.measure import Figure
from edgert.graph import to_bytes
from tests.helpers import models

ROOT = Path(__file__).parents[2]
BARS_PERCENT = {30: 1.0, 500: 3.0}
BAR_OFF = 1.01
_FRAMES, _WARM = 3000, 300
_FRAME = np.zeros((48, 64, 3), np.uint8)


def noted(result: Result) -> Result:
    return result


@contextmanager
def opened(folder: Path) -> Iterator[Pipeline]:
    (folder / "net.onnx").write_bytes(to_bytes(models.means((1, 3, 8, 8))))
    net = {"onnx": folder / "net.onnx", "task": {"classify": "logits"}, "replicas": 1, "threads": 1}
    stages = {
        "cam": {"source": "api", "queue": 4},
        "find": {"infer": "net", "from": "cam"},
        "note": {"python": "bench_trace:noted", "from": "find"},
        "again": {"python": "bench_trace:noted", "from": "note"},
        "out": {"sink": "null", "from": "again"},
        "lines": {"sink": "jsonl", "from": "again", "path": str(folder / "out.jsonl")},
    }
    with Pipeline({"name": "bench", "models": {"net": net}, "stages": stages}) as pipeline:
        pipeline.start()
        yield pipeline


def submit(pipeline: Pipeline, frames: int, fps: float = 0.0) -> None:
    began_s = time.monotonic()
    for number in range(frames):
        if fps and (left_s := began_s + number / fps - time.monotonic()) > 0:
            time.sleep(left_s)
        pipeline.submit(_FRAME)


def cost(pipeline: Pipeline, fps: int, seconds: float, turns: int) -> tuple[float, float, float]:
    """Return the median growth of processor time, part of a core, and that without and with a recorder."""
    used: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns + 2):
        records = turn % 4 in (1, 2)  # off, on, on, off: what drifts counts for both
        tracing = pipeline._running.tracing
        recorder = tracing.begin() if records else None
        wall_s, cpu_s = time.monotonic(), time.process_time()
        submit(pipeline, round(fps * seconds), fps)
        share = (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
        if recorder is not None:
            tracing.end()
        if turn > 1:
            used[records].append(share)
    pairs = zip(used[True], used[False], strict=False)
    return median(on - off for on, off in pairs), median(used[False]), median(used[True])


def frame_s() -> float:
    """Return the processor time of a frame while nobody records."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as pipeline:
        submit(pipeline, _WARM)
        cpu_s = time.process_time()
        submit(pipeline, _FRAMES)
        return (time.process_time() - cpu_s) / _FRAMES


def measured_in(checkout: Path) -> float:
    """Return :func:`frame_s` of a process of its own that uses a checkout."""
    env = {**os.environ, "EDGERT_BENCHED": str(checkout), "PYTHONPATH": str(checkout)}
    command = [sys.executable, str(Path(__file__).resolve()), "--frame"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout.split()[-1])


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    for fps, bar in BARS_PERCENT.items():
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as pipeline:
            submit(pipeline, _WARM)
            more, off, on = cost(pipeline, fps, arguments.seconds, arguments.turns)
        detail = {"without_percent": 100 * off, "with_percent": 100 * on}
        name = f"trace at {fps} frames a second"
        yield Figure(name, 100 * more, "% of a core", bar, n=arguments.turns, detail=detail)
    here, before = list[float](), list[float]()
    for turn in range(arguments.turns):
        order = [(here, ROOT), (before, arguments.before or ROOT)]
        for times, checkout in order if turn % 2 else reversed(order):
            times.append(measured_in(checkout))
    ratio = median(one / other for one, other in zip(here, before, strict=True))
    detail = {"frame_us": 1e6 * median(here), "frame_before_us": 1e6 * median(before)}
    yield Figure("hooks while nobody records", ratio, "of before", BAR_OFF, n=arguments.turns, detail=detail)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--before", type=Path, help="another checkout, for what the hooks cost")


if __name__ == "__main__":
    if sys.argv[1:] == ["--frame"]:
        print(frame_s())
    else:
        main(__doc__.splitlines()[0] if __doc__ else "", measure, options)
