"""What the stages around the models take of one processor core: per frame, per megapixel and per object.

Each stage is run behind a source of prepared frames and a stage that puts boxes on them, in two sizes with few objects
and many, and once more without it: the difference of the process's own time is what it takes, threads of encoders and
OpenCV among it. Processor time, so that a busy machine hardly matters; medians of several rounds. Three numbers a
stage are fitted to the four differences by least squares, none below zero. ``--write`` puts them into
``configs/costs/cpu.yaml``, together with what 7-Zip says of the same core (``7z b -mmt1``), which published results of
other processors are compared with.

python tests/bench/bench_cpu_stages.py [--write] [--json FILE]
EDGERT_BENCH_ROUNDS=1 python tests/bench/bench_cpu_stages.py      # quickly
"""

import argparse
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from report import main
from scipy.optimize import nnls
from zoo import rounds

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "pipelines")]

from edgert.benchmark.measure import Figure  # noqa: E402
from edgert.pipeline import Pipeline  # noqa: E402

SIZES, OBJECTS, FRAMES, ROUNDS = ((640, 480), (1920, 1080)), (2, 20), 40, 3
FILE = ROOT / "configs" / "costs" / "cpu.yaml"
MODEL = (
    f"models: {{parts: {{onnx: {ROOT / 'pipelines/assets/parts.onnx'}, task: {{detect: yolox, score: 0.4}}, "
    "input: {resize: letterbox, color: rgb, mean: 0, std: 255}, backend: 'null', precision: fp32}}\n"
)
BOX_SIDE = 0.12
"""Of an object, in parts of the frame's."""
CODE = '''
from functools import cache
import numpy as np
from conveyor import Conveyor
from edgert.runtime import Detections, Result

@cache
def images(width, height):
    scene, made = Conveyor(width, height, 30.0, 7), []
    for index in range(0, 48, 3):
        made.append(np.empty((height, width, 3), np.uint8))
        scene.render(index, made[-1])
    return made

def still(width, height):
    while True:
        yield from images(width, height)

class Boxes:
    """So many boxes that move, a little each frame."""

    def __init__(self, count):
        random = np.random.default_rng(1)
        self._places, self._index, self._count = random.uniform(0.05, 0.8, (count, 2)), 0, count

    def process(self, result: Result) -> Result:
        size = np.array([result.frame.width, result.frame.height])
        self._index += 1
        corner = (self._places + 0.002 * (self._index % 40)) * size
        places = np.concatenate([corner, corner + BOX_SIDE * size], axis=1).astype(np.float32)
        n = self._count
        return result.with_output("boxes", Detections(places, np.full(n, 0.9, np.float32), np.zeros(n, np.int32)))
'''.replace("BOX_SIDE", str(BOX_SIDE))
TRACK = "  track: {track: bytetrack, from: boxes}\n"
STAGES: dict[str, tuple[str, str, str]] = {
    # name: what stands before it, itself, what it is called
    "infer": ("", "  it: {infer: parts, from: boxes}\n", "bring a frame into a model's input, read the answer"),
    "track": ("", "  it: {track: bytetrack, from: boxes}\n", "follow objects"),
    "draw": (TRACK, "  it: {draw: [boxes, labels], from: track}\n", "boxes and labels"),
    "trails": (TRACK, "  it: {draw: [boxes, labels, trails, stats], from: track}\n", "trails and numbers, too"),
    "video": (TRACK, "  it: {sink: video, from: track, path: out.mp4, encode: cpu}\n", "H.264 by the processor"),
    "images": (TRACK, "  it: {sink: images, from: track, path: out}\n", "one JPEG a frame"),
    "jsonl": (TRACK, "  it: {sink: jsonl, from: track, path: out.jsonl}\n", "one line a frame"),
}
SOURCES = {"decode": "film.mp4", "image_files": "images:out"}


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """A figure per coefficient; with ``--write`` also the file."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        os.chdir(folder)  # where sinks write
        (folder / "scene.py").write_text(CODE, encoding="utf-8")
        for width, height in SIZES:  # draws the images, which no run is to pay for
            text = f"{{source: 'python:scene:still', size: {width}x{height}, limit: 2}}"
            _run(folder, f"stages:\n  camera: {text}\n  end: {{sink: 'null', from: camera}}\n")
        for stage in (*STAGES, *SOURCES):
            found[stage] = _fitted(stage, folder)
            for key, value in found[stage].items():
                yield Figure(f"{stage}: {key}", value, "ms", n=rounds(ROUNDS))
    mips = _mips()
    if mips is not None:
        yield Figure("7-Zip of this core", mips, "MIPS", better="higher")
    if arguments.write and mips is not None:
        text = FILE.read_text(encoding="utf-8")
        data = {"mips": round(mips), "cpu": _cpu(), "stages": found}
        measured = yaml.safe_dump({"measured": data}, sort_keys=False, default_flow_style=None)
        FILE.write_text(re.sub(r"(?s)^measured:.*?(?=^cores:)", measured, text, flags=re.M), encoding="utf-8")


def _fitted(stage: str, folder: Path) -> dict[str, float]:
    rows, taken = [], []
    for width, height in SIZES:
        for objects in OBJECTS:
            samples = [_difference(stage, folder, width, height, objects) for _ in range(rounds(ROUNDS))]
            rows.append([1.0, width * height / 1e6, float(objects)])
            taken.append(max(statistics.median(samples), 0.0))
    solved, _ = nnls(np.array(rows), np.array(taken))
    return dict(zip(("frame_ms", "megapixel_ms", "object_ms"), (float(f"{one:.3g}") for one in solved), strict=True))


def _difference(stage: str, folder: Path, width: int, height: int, objects: int) -> float:
    """Milliseconds of processor time a frame."""
    size = f"{width}x{height}"
    still = f"{{source: 'python:scene:still', size: {size}, limit: {FRAMES}}}"
    boxes = f"  boxes: {{python: 'scene:Boxes', from: camera, args: {{count: {objects}}}}}\n"
    if stage in SOURCES:
        before = "" if stage == "decode" else "  draw: {draw: [boxes], from: boxes}\n"
        sink = "{sink: video, from: boxes, path: film.mp4, encode: cpu}"
        sink = sink if stage == "decode" else "{sink: images, from: draw, path: out}"
        shutil.rmtree(folder / "out", ignore_errors=True)
        _run(folder, f"{MODEL}stages:\n  camera: {still}\n{boxes}{before}  make: {sink}\n")
        made = (
            f"{{source: '{SOURCES[stage]}', decode: cpu}}" if stage == "decode" else f"{{source: '{SOURCES[stage]}'}}"
        )
        with_it = _run(folder, f"stages:\n  camera: {made}\n  end: {{sink: 'null', from: camera}}\n")
        return with_it - _run(folder, f"stages:\n  camera: {still}\n  end: {{sink: 'null', from: camera}}\n")
    before, it, _ = STAGES[stage]
    last = "track" if before else "boxes"
    text = f"{MODEL}stages:\n  camera: {still}\n{boxes}{before}"
    end = "" if "sink:" in it else "  end: {sink: 'null', from: it}\n"
    other = f"  end: {{sink: 'null', from: {last}}}\n"
    with_it = _run(folder, text + it + (end or other))
    return with_it - _run(folder, text + other)


def _run(folder: Path, text: str) -> float:
    path = folder / "p.yaml"
    path.write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    with Pipeline(path) as pipeline:
        began = time.process_time()
        summary = pipeline.run()
        return 1e3 * (time.process_time() - began) / max(summary.frames_in, 1)


def _mips() -> float | None:
    """What 7-Zip makes of one core, at full usage of it; None where it is not installed."""
    program = shutil.which("7z") or shutil.which("7zz")
    if program is None:
        print("7z is not installed: the file is not written (Debian: p7zip-full)")
        return None
    found = []
    for _ in range(rounds(ROUNDS)):  # the best: a neighbor on the same core only slows it down
        done = subprocess.run([program, "b", "-mmt1", "-md22"], capture_output=True, text=True, check=True, timeout=300)
        line = next(line for line in done.stdout.splitlines() if line.startswith("Tot:"))
        found.append(float(line.split()[2]))
    return max(found)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main(
        __doc__.splitlines()[0] if __doc__ else "",
        measure,
        lambda parser: parser.add_argument("--write", action="store_true", help="into configs/costs/cpu.yaml"),
    )
