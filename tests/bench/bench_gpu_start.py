"""From the start of a process to the first answer of a model on the GPU, once its engine's cache is warm.

    python tests/bench/bench_gpu_start.py [--engines ort rtx] [--networks resnet50 yolov8s] [--batches 1 8] [--runs 5]
        [--folder FOLDER] [--json FILE]

A program of ten lines imports edgert, opens a pipeline over one of the FP16 networks of bench_gpu_peers.py, submits a
1080p NV12 frame and waits for its result. The first run, into an empty cache, is ``cold_s``, beside the median of the
others; ``open_s`` is the pipeline's constructor, ``import_s`` everything before. Needs a GPU, PyCUDA, PyTorch, which
makes the networks, and the engine; says so and passes where one is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from tests.bench.gpu_entry import ENGINES, IMAGES, Entry, missing
from tests.bench.gpu_public import Subject
from tests.bench.gpu_task import TASKS, scenes
from tests.bench.report import main

BAR_S = 2.0
PROGRAM = """
import json, sys, time
import edgert
import numpy as np
luma, chroma = np.full((1080, 1920), 90, np.uint8), np.full((540, 960, 2), 128, np.uint8)
imported = time.time()
with edgert.Pipeline(sys.argv[1], strict=True) as pipeline:
    opened = time.time()
    results = pipeline.results("find", timeout=60.0)
    pipeline.submit([luma, chroma], format="nv12")
    next(results)
    print(json.dumps([imported, opened, time.time()]), flush=True)
"""


def once(file: Path, cache: Path) -> dict[str, float]:
    """Seconds of one process until its first answer. Raises RuntimeError with the end of what it wrote, if it fails."""
    environment = {**os.environ, "EDGERT_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # of a container's; every start would compile Python's modules
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    imported, opened, answered = json.loads(done.stdout.strip().splitlines()[-1])
    return {"import_s": imported - began, "open_s": opened - imported, "s": answered - began}


def started(subject: Subject, runs: int) -> Figure:
    """The median of ``runs`` processes after the one that fills the cache."""
    file = subject.written({"cam": "source: api"})
    with tempfile.TemporaryDirectory() as cache:
        cold = once(file, Path(cache))
        warm = [once(file, Path(cache)) for _ in range(runs)]
    detail = {name: statistics.median(each[name] for each in warm) for name in ("import_s", "open_s")}
    seconds = statistics.median(each["s"] for each in warm)
    return Figure(
        f"{subject.task.name} b{subject.rows} {subject.engine}: process start to first answer, cache warm",
        seconds,
        "s",
        BAR_S,
        "lower",
        runs,
        {**detail, "cold_s": cold["s"], "most_s": max(each["s"] for each in warm)},
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """What divides it."""
    parser.add_argument("--engines", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    parser.add_argument("--networks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where ONNX files are kept")


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Every network on every engine that is here."""
    if reason := missing():
        print(f"skipped: {reason}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.networks:
            entry = Entry(name, folder, scenes(IMAGES))
            for engine in options.engines:
                for rows in options.batches:
                    try:
                        subject = Subject(entry.task, entry.model, ENGINES[engine], rows, Path(temporary))
                        yield started(subject, options.runs)
                    except RuntimeError as error:
                        print(f"  {name} b{rows} {engine}: left out, {error}", flush=True)


if __name__ == "__main__":
    main(__doc__ or "", measure, arguments)
