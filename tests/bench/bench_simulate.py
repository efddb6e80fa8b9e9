"""Simulated against real: five pipelines on this machine, from profiles of their models and what runs measured.

A run tells what its threads took, how that scattered, how late they woke up, and when they were slow for a while. Each
pipeline is run easily, at a part of its rate, and right after that for real, and simulated twice: from what the real
run measured, which tells whether queues, joins, batches and drops are played as they are, on the machine as it was; and
from the easy run, before anything is known of the real one, which also has to foretell the machine. On a shared machine
neighbors slow a core for up to seconds, by half and more, so this is done many times in turn, every run counts, and
medians over all rounds are compared. How far one real run is from the next is told beside it: nothing that foretells
single runs is closer.

python tests/bench/bench_simulate.py [--json FILE]
EDGERT_BENCH_ROUNDS=1 python tests/bench/bench_simulate.py      # quickly
EDGERT_BENCH_PIPELINES=cascade,overload python tests/bench/bench_simulate.py
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
from report import main
from zoo import rounds

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.core_profile import profile
from edgert.benchmark.measure import Figure
from edgert.config import load_pipeline
from edgert.graph import load
from edgert.pipeline import Pipeline
from edgert.planner.simulation import Scenario, simulate
from edgert.runtime import Summary
from edgert.simulator import Simulated

ASSETS = Path(__file__).parents[2] / "pipelines" / "assets"
NEAR, FAR, MINUTE_S = 0.15, 0.25, 2.0
"""Bars: of frames per second and the median, of p99 and drops; and seconds for a simulated minute."""
SECONDS, ROUNDS = 6.0, 8
SECTION = "task: {detect: yolox}\n    input: {resize: letterbox, color: rgb, mean: 0, std: 255}\n    backend: ort"
CAMERA = "{{source: 'synthetic:noise', size: 640x480, realtime: true, fps: {fps}, limit: {limit}}}"
FILE = "{{source: 'synthetic:noise', size: 640x480, limit: {limit}}}"
CODE = '''
import numpy as np
from edgert.runtime import Detections, Result

def boxes(result: Result) -> Result:
    """Four of them on every frame, wherever the model sees any."""
    places = np.array([[20, 20, 180, 150], [300, 40, 460, 170], [60, 250, 220, 380], [400, 300, 560, 430]], np.float32)
    return result.with_output("boxes", Detections(places, np.full(4, 0.9, np.float32), np.zeros(4, np.int32)))
'''


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        stages: with ``{source}`` where its source is written; sources of several are called camera, and so on.
        model: which file, and how it is placed.
        fps: of its cameras; 0 for a file.
        easy_fps: at which its stages are timed: about five sixths of what it can or is asked for. A machine that idles
            more in between is slower at each frame.
    """

    name: str
    model: str
    stages: str
    fps: float
    easy_fps: float
    cameras: int = 1

    def text(self, onnx_file: Path, fps: float, seconds: float) -> str:
        """The pipeline file, at that rate; 0 is a file as fast as it goes."""
        shape = CAMERA if fps else FILE
        source = shape.format(fps=fps, limit=round(seconds * (fps or 200.0)))
        names = ["camera", "yard"][: self.cameras]
        sources = "\n".join(f"  {name}: {source}" for name in names)
        models = f"  parts:\n    onnx: {onnx_file}\n    {SECTION}\n    {self.model}"
        if "infer: again" in self.stages:
            models += f"\n  again:\n    onnx: {onnx_file}\n    {SECTION}\n    placement: cpu1"
        return f"schema: 1\nname: {self.name}\nmodels:\n{models}\nstages:\n{sources}\n{self.stages}\n"


CASES = (
    Case(
        "branching",
        "placement: cpu0",
        "  find: {infer: parts, from: camera}\n  look: {infer: again, from: camera}\n"
        "  end: {sink: null, from: [find, look]}",
        70.0,
        60.0,
    ),
    Case(
        "cascade",
        "placement: cpu0",
        "  find: {infer: parts, from: camera}\n  boxes: {python: 'four:boxes', from: find}\n"
        "  read: {infer: again, from: boxes, crop: {limit: 4}}\n  end: {sink: null, from: read}",
        25.0,
        20.0,
    ),
    Case(
        "overload",
        "placement: cpu0",
        "  find: {infer: parts, from: camera}\n  end: {sink: null, from: find}",
        400.0,
        160.0,
    ),
    Case(
        "batching",
        "threads: 1",
        "  find: {infer: parts, from: [camera, yard], batch: {max: 2, wait: 20ms}}\n  end: {sink: null, from: find}",
        60.0,
        50.0,
        cameras=2,
    ),
    Case(
        "replicated",
        "placement: {replicate: {cpu0: 1, cpu1: 1}}",
        "  find: {infer: parts, from: camera}\n  end: {sink: null, from: find}",
        0.0,
        280.0,
    ),
)


Told = Summary | Simulated
VALUES: tuple[tuple[str, Callable[[Told], float], float], ...] = (
    ("fps", lambda run: run.fps, NEAR),
    ("p50", lambda run: run.latency_ms.p50, NEAR),
    ("p99", lambda run: run.latency_ms.p99, FAR),
    ("drops", lambda run: float(run.dropped), FAR),
)


def measure() -> Iterator[Figure]:
    """All pipelines, then how long a simulated minute takes."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        (folder / "four.py").write_text(CODE, encoding="utf-8")
        file = _dynamic(folder)
        told = {**profile(load(ASSETS / "parts.onnx")).to_json(), "digest": load(file).digest}
        (folder / "profile.json").write_text(json.dumps(told), encoding="utf-8")
        wanted = os.environ.get("EDGERT_BENCH_PIPELINES", "").split(",")
        for case in CASES:
            if wanted == [""] or case.name in wanted:
                yield from _compared(case, folder, file)
        yield _minute(folder, file)


def _compared(case: Case, folder: Path, file: Path) -> Iterator[Figure]:
    played = [_round(case, folder, file, number) for number in range(rounds(ROUNDS))]
    for name, value, bar in VALUES:
        real, same, before = ([value(run) for run in runs] for runs in zip(*played, strict=True))
        yield _figure(f"{case.name}: {name}, simulated from the run itself", real, same, bar)
        yield _figure(f"{case.name}: {name}, simulated from an easy run before", real, before, bar)


def _round(case: Case, folder: Path, file: Path, number: int) -> tuple[Told, Told, Told]:
    """The real run, and how it is simulated from itself and from an easy one."""
    easy = _run(folder, case.text(file, case.easy_fps, SECONDS))
    text = case.text(file, case.fps, SECONDS)
    real = _run(folder, text)
    return real, _simulated(folder, text, real, seed=number), _simulated(folder, text, easy, seed=number)


def _figure(name: str, real: Sequence[float], simulated: Sequence[float], bar: float) -> Figure:
    middle = statistics.median(real)
    least = max(middle, 1.0)  # of a drop or less nobody can tell a part
    off = abs(statistics.median(simulated) - middle) / least
    detail: dict[str, Any] = {"simulated": statistics.median(simulated), "real": middle}
    detail["rounds"] = {"simulated": list(simulated), "real": list(real)}
    if len(real) > 1:
        detail["one real run from the next, of it"] = statistics.median(abs(a - b) for a, b in pairwise(real)) / least
    return Figure(name, off, "of it", bar, n=len(real), detail=detail)


def _run(folder: Path, text: str) -> Summary:
    path = folder / "p.yaml"
    path.write_text(text, encoding="utf-8")
    with Pipeline(path) as pipeline:
        return pipeline.run()


def _simulated(folder: Path, text: str, told: Summary, *, seed: int = 0, seconds: float = SECONDS) -> Simulated:
    (folder / "run.json").write_text(json.dumps(told.to_json(), default=str), encoding="utf-8")
    (folder / "p.yaml").write_text(text, encoding="utf-8")
    scenario = Scenario(seconds=seconds, seed=seed, stages=folder / "run.json")
    file = load_pipeline(folder / "p.yaml")
    return simulate(file, board="host", profiles=[folder / "profile.json"], scenario=scenario).played


def _minute(folder: Path, file: Path) -> Figure:
    """The largest of the pipelines, without an end."""
    easy = _run(folder, CASES[0].text(file, CASES[0].easy_fps, 1.0))
    text = CASES[0].text(file, CASES[0].fps, 60.0)
    taken = []
    for _ in range(3):
        began = time.process_time()
        _simulated(folder, text, easy, seconds=60.0)
        taken.append(time.process_time() - began)
    return Figure("a simulated minute, CPU time", statistics.median(taken), "s", MINUTE_S, n=len(taken))


def _dynamic(folder: Path) -> Path:
    """The demo's detector with its batch size left open."""
    proto = onnx.load(ASSETS / "parts.onnx")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    del proto.graph.value_info[:]
    onnx.save(proto, folder / "parts.onnx")
    return folder / "parts.onnx"


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
