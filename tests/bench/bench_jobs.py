"""Five jobs by edgert and by two peers: lines, seconds to start, frames a second, processor time, in turns.

    python -m venv ul && ul/bin/pip install ultralytics onnx onnxruntime lap shapely
    python -m venv sv && sv/bin/pip install supervision trackers onnxruntime opencv-python-headless
    python tests/bench/bench_jobs.py --ultralytics ul/bin/python --supervision sv/bin/python [--rounds 3] [--json FILE]

The jobs, as each project's pages write them, are in tests/bench/peers: objects that cross a line counted; each object
found by one model classified by a second; four cameras; a robot's loop of 20 Hz with the newest result; a folder of
videos. All read the same clips and run the same two ONNX models on ONNX Runtime: the demo's, with outputs as
Ultralytics exports them. Every job runs with short and with long clips. The difference gives frames a second and
processor time a frame; what is left of the short run is the start. ``--set-up`` also times a new environment of each.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import compose, helper

import edgert
from edgert.benchmark.measure import Figure
from tests.bench.report import main
from tests.helpers.command import ROOT, environment
from tests.helpers.models import make_proto, node

PEERS = ROOT / "tests/bench/peers"
ASSETS = ROOT / "pipelines/assets"
JOBS = ("count", "cascade", "cameras", "robot", "batch")
CAMERAS = ("north", "east", "south", "west")
PACKAGES = {
    "edgert": (str(ROOT),),
    "ultralytics": ("ultralytics", "onnx", "onnxruntime", "lap", "shapely"),
    "supervision": ("supervision", "trackers", "onnxruntime", "opencv-python-headless"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one process took for a job; ``ages_ms`` are of the robot's results when they were used."""

    wall_s: float
    cpu_s: float
    frames: int
    objects: int
    ages_ms: Sequence[float] = ()


def detector(path: Path) -> None:
    """Write the demo's detector with boxes and scores as Ultralytics exports them: [1, 4 + classes, cells]."""
    model = onnx.load(ASSETS / "parts.onnx")
    height, width = (one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim[2:])
    cells = [
        (x, y, stride)
        for stride in (8, 16, 32)
        for y in range(height // stride)
        for x in range(width // stride)
    ]  # fmt: skip
    grid = np.array(cells, np.float32)[None]
    stored = {"cell": grid[..., :2], "stride": grid[..., 2:], "cut": np.array([2, 2, 1, 5], np.int64)}
    nodes = [
        node("Split", ["rows_in", "cut"], ["xy", "wh", "objectness", "classes"], axis=2),
        node("Add", ["xy", "cell"], ["moved"]),
        node("Mul", ["moved", "stride"], ["center"]),
        node("Exp", ["wh"], ["grown"]),
        node("Mul", ["grown", "stride"], ["size"]),
        node("Mul", ["objectness", "classes"], ["scores"]),
        node("Concat", ["center", "size", "scores"], ["joined"], axis=2),
        node("Transpose", ["joined"], ["output0"], perm=[0, 2, 1]),
    ]
    ends = {"rows_in": [1, len(cells), 10]}, {"output0": [1, 9, len(cells)]}
    names = dict(enumerate((ASSETS / "parts.txt").read_text().split()))
    facts = {"task": "detect", "stride": "32", "batch": "1", "imgsz": f"[{height}, {width}]", "names": str(names)}
    _write(path, model, nodes, stored, *ends, facts)


def classifier(path: Path) -> None:
    """Write the demo's embedder with its gallery as a last layer: probabilities of five kinds, [1, 5]."""
    model = onnx.load(ASSETS / "look.onnx")
    gallery = json.loads((ASSETS / "look.json").read_text())
    middles = np.stack([np.mean(vectors, axis=0) for vectors in gallery.values()], axis=1).astype(np.float32)
    stored = {"middles": 50 * middles / np.linalg.norm(middles, axis=0)}
    nodes = [
        node("LpNormalization", ["vector_in"], ["unit"], axis=1),
        node("MatMul", ["unit", "middles"], ["likeness"]),
        node("Softmax", ["likeness"], ["probabilities"], axis=1),
    ]
    ends = {"vector_in": [1, len(middles)]}, {"probabilities": [1, len(gallery)]}
    names = dict(enumerate(gallery))
    facts = {"task": "classify", "stride": "1", "batch": "1", "imgsz": "[48, 48]", "names": str(names)}
    _write(path, model, nodes, stored, *ends, facts)


def _write(
    path: Path,
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    stored: dict[str, np.ndarray],
    given: dict[str, list[int]],
    results: dict[str, list[int]],
    facts: dict[str, str],
) -> None:
    """Write a model with more nodes at its end, and what Ultralytics reads of its own exports."""
    tail = make_proto(nodes, given, results, stored)
    joined = compose.merge_models(model, tail, io_map=[(model.graph.output[0].name, next(iter(given)))])
    del joined.metadata_props[:]
    helper.set_model_props(joined, facts)
    onnx.checker.check_model(joined)
    onnx.save(joined, path)


def clips(folder: Path, frames: int) -> None:
    folder.mkdir()
    belt = {"source": f"python:{ROOT}/pipelines/conveyor:Conveyor", "size": "640x480", "fps": 30, "limit": frames}
    for seed, name in enumerate(CAMERAS, 7):
        video = {"sink": "video", "from": "belt", "path": str(folder / f"{name}.mp4")}
        with edgert.Pipeline({"schema": 1, "stages": {"belt": {**belt, "seed": seed}, "video": video}}) as pipeline:
            pipeline.run()
    shutil.copy(folder / "north.mp4", folder / "clip.mp4")
    (folder / "videos").mkdir()
    for name in CAMERAS:
        os.link(folder / f"{name}.mp4", folder / "videos" / f"{name}.mp4")
    detector(folder / "detector.onnx")
    classifier(folder / "kinds.onnx")
    shutil.copytree(PEERS / "edgert", folder, dirs_exist_ok=True)


def command(peer: str, job: str, pythons: dict[str, str]) -> list[str]:
    if peer == "edgert":
        return (
            [sys.executable, "robot.py"]
            if job == "robot"
            else [sys.executable, *f"-m edgert run {job}.yaml --quiet".split()]
        )
    return [pythons[peer], str(PEERS / peer / f"{job}.py")]


def run(peer: str, job: str, folder: Path, pythons: dict[str, str]) -> Run:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    variables = environment() if peer == "edgert" else {**os.environ, "PYTHONPATH": str(PEERS), "YOLO_OFFLINE": "true"}
    began_s = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command(peer, job, pythons), cwd=folder, env=variables, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - began_s
    if process.returncode:
        raise RuntimeError(f"{peer} {job}: {(folder / 'log').read_text()[-2000:]}")
    lines = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    objects, ages_ms = 0, list[float]()
    if job == "robot":
        ages_ms = [1e3 * one["age"] for one in lines]
    elif job == "count":
        last = lines[-1]["outputs"]["gate"]["lines"][0] if "outputs" in lines[-1] else lines[-1]
        objects = last["in"] + last["out"]
    else:
        objects = sum(map(_objects, lines))
    return Run(wall_s, used.ru_utime + used.ru_stime, len(lines), objects, ages_ms)


def _objects(line: dict[str, Any] | list[Any]) -> int:
    """Return how many objects a line of results has: a list of them, or a record of edgert."""
    if isinstance(line, list):
        return len(line)
    return len(next(record["objects"] for record in line["outputs"].values() if "objects" in record))


def lines_of(peer: str, job: str) -> int:
    """Return the lines that somebody writes: without empty ones and comments, with what the job imports of its own."""
    files = list((PEERS / peer).glob(f"{job}.*"))
    if peer == "supervision":
        files.append(PEERS / peer / "detector.py")
    texts = (line.strip() for path in files for line in path.read_text().splitlines())
    return sum(bool(line) and not line.startswith("#") for line in texts)


def set_up(peer: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/pip", "install", "--quiet", "--no-cache-dir", *PACKAGES[peer]]
        subprocess.run(pip, check=True)
        took_s = time.monotonic() - began_s
        size = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True).stdout
    return took_s, float(size.split()[0])


def measure(asked: argparse.Namespace) -> Iterator[Figure]:
    pythons = {name: getattr(asked, name) for name in ("ultralytics", "supervision") if getattr(asked, name)}
    peers = ("edgert", *pythons)
    with tempfile.TemporaryDirectory() as scratch:
        folders = {frames: Path(scratch) / str(frames) for frames in asked.frames}
        for frames, folder in folders.items():
            clips(folder, frames)
        for job in asked.jobs:
            done: dict[str, list[tuple[Run, Run]]] = {peer: [] for peer in peers}
            for turn in range(asked.rounds):
                for place in range(len(peers)):
                    peer = peers[(turn + place) % len(peers)]
                    done[peer].append(tuple(run(peer, job, folders[frames], pythons) for frames in asked.frames))
            for peer, pairs in done.items():
                yield figure(peer, job, pairs, asked.frames)
    taken = [{peer: set_up(peer) for peer in peers} for _ in range(asked.rounds if asked.set_up else 0)]
    for peer in peers if taken else ():
        took = [one[peer] for one in taken]
        detail = {"megabytes": median(size for _, size in took), "load": os.getloadavg()[0]}
        yield Figure(f"set-up, {peer}", median(one for one, _ in took), "s", n=len(took), detail=detail)


def figure(peer: str, job: str, pairs: Sequence[tuple[Run, Run]], frames: Sequence[int]) -> Figure:
    detail = {"lines": lines_of(peer, job), "load": round(os.getloadavg()[0], 1)}
    if job == "robot":
        ages_ms = sorted(age for _, long in pairs for age in long.ages_ms)
        detail |= {"age p50 ms": median(ages_ms), "age p99 ms": ages_ms[int(0.99 * len(ages_ms))]}
        cpu = [(long.cpu_s - short.cpu_s) / (frames[1] - frames[0]) for short, long in pairs]
        start = [short.cpu_s - one * frames[0] for (short, _), one in zip(pairs, cpu, strict=True)]
    else:
        more = [long.frames - short.frames for short, long in pairs]
        cpu = [(long.cpu_s - short.cpu_s) / count for (short, long), count in zip(pairs, more, strict=True)]
        walls = [(long.wall_s - short.wall_s) / count for (short, long), count in zip(pairs, more, strict=True)]
        start = [short.cpu_s - one * short.frames for (short, _), one in zip(pairs, cpu, strict=True)]
        detail |= {"frames/s": 1 / median(walls), "objects": pairs[-1][1].objects, "frames": pairs[-1][1].frames}
    detail["start cpu s"] = median(start)
    return Figure(f"{job}, {peer}", 1e3 * median(cpu), "ms of CPU a frame", n=len(pairs), detail=detail)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ultralytics", metavar="PYTHON", help="of an environment that has it")
    parser.add_argument("--supervision", metavar="PYTHON", help="of an environment that has it")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--frames", type=int, nargs=2, default=(100, 300), help="of a short and of a long clip")
    parser.add_argument("--jobs", nargs="*", default=JOBS, choices=JOBS)
    parser.add_argument("--set-up", action="store_true", help="also time new environments")


if __name__ == "__main__":
    main(__doc__ or "", measure, options)
