"""A model swapped while its pipeline runs: no frame lost, no long pause, and right verdicts on a real detector.

Swaps: a camera of 30 frames a second, which is waited for, a detector and a callback; the model is swapped for another
copy and back. Counted are lost frames and the longest time between two results beyond that of a frame. Shadow: the part
of a frame's time that the shadow takes, and what it adds to a frame's latency.

Verdicts: YOLOX-Nano of the evaluation data. Twenty models lose five points of mean average precision or more on photos
that no frame is made of: noise on weights, coarse weights, zeroed weights, wrong colors. Twenty more have each weight
off by what half precision rounds it by. The frames are made of 128 other photos.

python tests/bench/bench_swap.py [--swaps 200] [--verdicts 20] [--json FILE]
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import report

sys.path.insert(0, str(Path(__file__).parents[2]))

import edgert
from edgert import Pipeline, Result
from edgert.benchmark.measure import Figure
from edgert.swap import candidate
from edgert.swap.verdict import SHADOW_SHARE
from tests.helpers.bad_models import GOOD
from tests.helpers.evaluation_data import FOLDER
from tests.helpers.swap_verdicts import Detector

FPS = 30
_FRAME_S = 1 / FPS


class Came:
    """A callback that notes the number of each frame, when its result came, and its latency in seconds."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float]] = []

    def __call__(self, result: Result) -> None:
        now_ns = time.monotonic_ns()
        self.rows.append((result.frame.index, now_ns / 1e9, (now_ns - result.timestamp_ns) / 1e9))


def pipeline_of(came: Came) -> Pipeline:
    task = {"detect": "yolox", "labels": GOOD.with_suffix(".txt"), "score": 0.4}
    belt = {"source": "python:conveyor:Conveyor", "size": "320x240", "fps": FPS, "realtime": True, "seed": 7}
    stages = {
        "belt": {**belt, "queue": 8, "drop": "never"},
        "find": {"infer": "parts", "from": "belt"},
        "out": {"sink": "callback", "from": "find"},
    }
    models = {"parts": {"onnx": GOOD, "task": task, "input": {"std": 255}}}
    return edgert.Pipeline({"models": models, "stages": stages}, callbacks={"out": came})


def swaps(count: int) -> Iterator[Figure]:
    setattr(candidate, "measure_memory", lambda *_: 0)  # noqa: B010 - a second of a process, which is no part of the switch
    came = Came()
    with tempfile.TemporaryDirectory() as folder, pipeline_of(came) as pipeline:
        copy = Path(shutil.copy(GOOD, folder))
        pipeline.start()
        while len(came.rows) < 2 * FPS:
            time.sleep(0.1)
        own_s = _busy_s(pipeline)
        began, before = len(came.rows), [second[1] - first[1] for first, second in pairwise(came.rows[FPS:])]
        for number in range(count):
            pipeline.control.swap("parts", (GOOD, copy)[number % 2 == 0], shadow=0, keep=0.05)
            swap = pipeline._running.swaps["parts"]
            assert swap.wait(60) and swap.state.phase == "done", swap.state
        after = [second[1] - first[1] for first, second in pairwise(came.rows[began:])]
        numbers = [row[0] for row in came.rows]
    lost = len(set(range(numbers[-1] + 1)) - set(numbers))
    yield Figure("frames lost", lost, "", 0, "lower", n=count, detail={"frames": len(numbers)})
    worst_ms = (max(after) - _FRAME_S) * 1e3
    detail = {"without swaps": (max(before) - _FRAME_S) * 1e3, "99th percentile": _percentile(after, 99)}
    yield Figure(
        "longest pause beyond a frame's time", worst_ms, "ms", (_FRAME_S + own_s) * 1e3, "lower", n=count, detail=detail
    )


def shadow(frames: int) -> Iterator[Figure]:
    came = Came()
    with tempfile.TemporaryDirectory() as folder, pipeline_of(came) as pipeline:
        copy = Path(shutil.copy(GOOD, folder))
        pipeline.start()
        time.sleep(5)
        alone = len(came.rows)
        pipeline.control.swap("parts", copy, shadow=frames, keep=0)
        swap = pipeline._running.swaps["parts"]
        while swap.state.phase == "loading":
            time.sleep(0.05)
        began, began_s = len(came.rows), time.monotonic()
        while swap.state.phase == "shadow" and (looks := swap.state).frames < frames - 1:
            time.sleep(0.05)
        looks, ended, took_s = swap.state, len(came.rows), time.monotonic() - began_s
        assert swap.wait(60) and looks.run_ms is not None and swap._shadow is not None
    share = swap._shadow._spent_s / took_s
    detail = {"every": float(looks.every), "run, ms": looks.run_ms}
    yield Figure("shadow's share of a frame's time", share, "", SHADOW_SHARE, "lower", n=looks.frames, detail=detail)
    before, during = ([row[2] for row in some] for some in (came.rows[FPS:alone], came.rows[began:ended]))
    more_ms = (statistics.median(during) - statistics.median(before)) * 1e3
    yield Figure("median latency added by the shadow", more_ms, "ms", n=len(during))


def verdicts(count: int) -> Iterator[Figure]:
    detector = Detector()
    for title, found, bar in (
        ("worse by five points, refused", list(detector.worse(count)), count),
        ("equal, refused", list(detector.equal(count)), 0),
    ):
        refused = sum(one.is_refused for one in found)
        detail = {f"{one.name}: loss, points": 100 * one.loss for one in found}
        detail |= {f"{one.name}: agreement": one.agreement for one in found}
        detail |= {"frames at most": float(max(one.frames for one in found))}
        yield Figure(title, refused, "", bar, "higher" if bar else "lower", n=count, detail=detail)


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    os.chdir(Path(__file__).parents[2] / "pipelines")  # of the demo's source
    yield from shadow(100)
    yield from swaps(arguments.swaps)
    if (FOLDER / "models").exists():
        yield from verdicts(arguments.verdicts)


def _busy_s(pipeline: Pipeline) -> float:
    meter = pipeline._assembly.task("find").meter
    return meter.busy_ns / 1e9 / max(meter.results_in, 1)


def _percentile(values: list[float], percent: int) -> float:
    return (statistics.quantiles(values, n=100)[percent - 1] - _FRAME_S) * 1e3


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--swaps", type=int, default=200, help="swaps under load")
    parser.add_argument("--verdicts", type=int, default=20, help="models that are worse, and as many that are equal")


if __name__ == "__main__":
    report.main("Swapping a model while it runs", measure, options)
